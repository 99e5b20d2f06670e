"""provider-offline: the embedded default, which is no model: fixed rules over plain English, and the real tools.

_conversation    what of a request matters: the prompt of this turn, what was called since, what may be called
_clauses         a prompt in clauses, each with one verb
_understanding   a clause as an intent; `_intents` names them, `_subjects` finds what they are about,
                 `_looking_rules` and `_sought` know the questions, `_leftovers` what of them was not understood
_desk            calls that intents need: taken from the transcript, or asked for
_gathering       which files there are, by one rule for all of them
_looking, _counting, _summarising, _doing    intents to words
_thinking        the whole of it: a pure function of the request
"""

from ._mount import OfflineProvider, mount

__all__ = ["OfflineProvider", "mount"]

__amplifier_module_type__ = "provider"
