"""context-persistent: as context-simple, and every message is on disk before `add_message` returns.

`_context` is the module and its config, `_step_journal` what makes turns durable; `amplifier.store` keeps it all.
"""

from ._context import PersistentContext, PersistentOptions, mount
from ._step_journal import JournalError

__all__ = [
    "JournalError",
    "PersistentContext",
    "PersistentOptions",
    "mount",
]

__amplifier_module_type__ = "context"
