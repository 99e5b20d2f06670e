"""hooks-approval: asks a person before a tool does something that cannot be taken back.

    _commands   what a shell command says for certain, and where it leaves doubt
    _matching   paths, hosts and words against patterns, certainly or possibly
    _rules      one rule of the plan against one call
    _options    what the plan may say
    _prompt     the question, rendered from the call's data
    _asking     asking a registered approval provider, as published applications do
    _hook       the gate: rules, then defaults, then a question

What cannot be judged for certain is never allowed by a rule: it is asked about.
"""

from ._hook import ApprovalHook
from ._mount import mount

__all__ = ["ApprovalHook", "mount"]

__amplifier_module_type__ = "hook"
