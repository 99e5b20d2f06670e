"""hooks-redaction: removes secrets and personal data from events before other hooks receive them.

    _options        the configuration, and the events and fields that are never changed
    _personal_data  e-mail addresses and telephone numbers in text
    _redactor       redacts a payload
    _mount          the hook

By default the data the agent works with are not redacted; see the reference page.
"""

from ._mount import RedactionHook, mount
from ._redactor import Redactor

__all__ = ["RedactionHook", "Redactor", "mount"]

__amplifier_module_type__ = "hook"
