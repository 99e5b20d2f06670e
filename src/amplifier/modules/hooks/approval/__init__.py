"""hooks-approval: asks the user before a tool does something that cannot be undone.

`_options` is the configuration, `_rules` applies a rule to a call, `_hook` decides and asks. A rule never allows an ambiguous
call: the user decides.
"""

from ._hook import ApprovalHook, mount
from ._options import read_approval_options
from ._rules import MODES, rule_for_call

__all__ = ["MODES", "ApprovalHook", "mount", "read_approval_options", "rule_for_call"]

__amplifier_module_type__ = "hook"
