"""hooks-redaction: takes secrets and personal data out of events before other hooks see them.

    _options   what the plan may say, which events are left alone and which fields
    _personal  addresses and telephone numbers in text
    _redactor  a payload without them, as JSON
    _mount     the gate

What the agent works with is left alone unless the plan says otherwise; see the reference page.
"""

from ._mount import RedactionHook, mount
from ._redactor import Redactor

__all__ = ["RedactionHook", "Redactor", "mount"]

__amplifier_module_type__ = "hook"
