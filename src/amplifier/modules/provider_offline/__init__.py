"""provider-offline: the default provider of the command line. No language model: fixed rules over English, and real tools.

_request         what a chat request holds: the prompt of this turn, results of earlier calls, tools on offer
_prompt_rules    the sentences it understands, each with an example
_answers         for each kind of instruction the tool calls it needs and the answer made of their results
_reply           from a chat request to a reply: the calls to make next, or the whole answer
_mount           the provider and its config
"""

from ._mount import OfflineProvider, mount

__all__ = ["OfflineProvider", "mount"]

__amplifier_module_type__ = "provider"
