"""context-persistent: as context-simple, and every message is on disk before `add_message` returns.

`_context` is the module, `_message_log` the files it keeps, `_log_records` the lines of these files, `_step_journal` what makes turns
durable, `_options` the config.
"""

from ._context import PersistentContext
from ._errors import JournalError, LogDamagedError, LogLockedError, UnsafeFolderError
from ._mount import mount
from ._options import PersistentOptions

__all__ = [
    "JournalError",
    "LogDamagedError",
    "LogLockedError",
    "PersistentContext",
    "PersistentOptions",
    "UnsafeFolderError",
    "mount",
]

__amplifier_module_type__ = "context"
