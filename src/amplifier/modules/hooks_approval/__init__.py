"""hooks-approval: asks the user before a tool does something that cannot be undone.

    _command_parser       the words of a simple shell command, or why it is ambiguous
    _pattern_matching     paths, hosts and commands against patterns, certain or possible matches
    _rules                applies one rule of the plan to one call
    _options              the configuration
    _prompt               renders the question from the call's data
    _registered_provider  asks an approval provider that the application registered
    _hook                 the hook: rules, then defaults, then a question

A rule never allows an ambiguous call: the user decides.
"""

from ._hook import ApprovalHook
from ._mount import mount

__all__ = ["ApprovalHook", "mount"]

__amplifier_module_type__ = "hook"
