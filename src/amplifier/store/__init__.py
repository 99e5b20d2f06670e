"""Persistent conversations, step journals and the index of sessions, in one SQLite file per folder.

    <sessions>/              writable for its owner only
    ├── store.db      0600   sessions, messages, steps (-wal and -shm files while it is open)
    └── <id>/         0700   one per session
        ├── lock      0600   held (flock) by the process that has the conversation open
        ├── events.jsonl     the event log, if hooks-logging writes one
        └── checkpoints.*    changes of files, see `amplifier.shared_sessions.checkpoints`

All calls block, so call them in a worker thread.
"""

from ._conversations import Conversation, encode_message
from ._database import Database, StoreDamagedError
from ._tables import STORE_FILE
from .folders import SessionLockedError, UnsafeFolderError, check_session_id, lock_holder
from .sessions import INTERRUPTED, RUNNING, SessionIndex, SessionRecord, parent_of

__all__ = [
    "INTERRUPTED",
    "RUNNING",
    "STORE_FILE",
    "Conversation",
    "Database",
    "SessionIndex",
    "SessionLockedError",
    "SessionRecord",
    "StoreDamagedError",
    "UnsafeFolderError",
    "check_session_id",
    "encode_message",
    "lock_holder",
    "parent_of",
]
