"""Reads what a stored session did: its event log and those of its child sessions, and its step journal."""

from __future__ import annotations

from amplifier.events import SESSION_FORK, SESSION_RESUME, SESSION_START
from amplifier.store import SessionIndex, StoreDamagedError
from amplifier.store._sessions import EVENTS_FILE

from ._event_logs import LogEvent, LogFollower, log_parts
from ._trace import Trace

NO_LOG = (
    'this session has no event log; a plan has one written with {"module": "hooks-logging"} in its hooks, as the default plan '
    "does. `amplifier session show` has the conversation"
)
_BEGINNINGS = frozenset({SESSION_START, SESSION_RESUME, SESSION_FORK})


class SessionFollower:
    """Reads the logs of a session and of its child sessions, also while they are written.

    Args:
        store: The stored sessions.
        session_id: The session.

    Attributes:
        trace: What was read so far.
    """

    def __init__(self, store: SessionIndex, session_id: str) -> None:
        self._store = store
        self._session_id = session_id
        self._logs: dict[str, LogFollower] = {}
        self._failures: dict[str, str] = {}
        self.trace: Trace = Trace(session_id)

    def update(self, *, to_end: bool = False) -> None:
        """Add what was written since the last call.

        Args:
            to_end: Also an incomplete last line; for the last call.
        """
        for name in [self._session_id, *self._store.descendants(self._session_id)]:
            if name not in self._logs:
                self._logs[name] = LogFollower(self._store.folder(name) / EVENTS_FILE)
            try:
                self.trace.add_lines(self._logs[name].read(to_end=to_end))
            except OSError as error:
                reason = f"{error.filename or self._logs[name].path}: {error.strerror or error}"
                self._failures[name] = f"the event log of session {name} cannot be read: {reason}"
            else:
                self._failures.pop(name, None)
        self.trace.notes = [*self._failures.values(), *self._notes()]

    def _notes(self) -> list[str]:
        rows = self.trace.rows
        unread = sum(len(row.events) for row in rows if row.kind == "unread")
        lines = "1 line" if unread == 1 else f"{unread} lines"
        notes = [f"{lines} of the log cannot be read; search for: not read"] if unread else []
        begun = (line for row in rows[:3] for line in row.events[:1])
        first = min(begun, key=lambda line: line.number, default=None)
        is_cut = isinstance(first, LogEvent) and first.name not in _BEGINNINGS
        if is_cut and len(log_parts(self._store.folder(self._session_id) / EVENTS_FILE)) > 1:
            notes.append("the beginning of the log was removed when the log was rotated (`keep` of hooks-logging)")
        return notes


def read_trace(store: SessionIndex, session_id: str) -> Trace:
    """What a session did, as far as its files have it."""
    follower = SessionFollower(store, session_id)
    follower.update(to_end=True)
    trace = follower.trace
    if not trace.lines:
        trace.notes.append(NO_LOG)
    try:
        trace.add_steps(store.steps(session_id))
    except (StoreDamagedError, OSError) as error:
        trace.notes.append(f"the step journal cannot be read: {error}")
    return trace
