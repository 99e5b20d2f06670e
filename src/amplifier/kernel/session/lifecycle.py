"""The states of a session, and the turn that it runs."""

from __future__ import annotations

import enum
from contextvars import ContextVar
from typing import TYPE_CHECKING

import anyio

from amplifier.errors import SessionBusyError, SessionStateError
from amplifier.events import SESSION_RESUME, SESSION_START

from .turn import Turn

if TYPE_CHECKING:  # only sessions with a budget need this package
    from amplifier.budget import SessionMeter


class State(enum.Enum):
    """The state of a session."""

    NEW = "new"
    OPENING = "opening"
    OPEN = "open"
    CLOSING = "closing"
    CLOSED = "closed"


_ADVICE = {
    State.NEW: "open it first: `async with session:` or `await session.initialize()`",
    State.OPENING: "wait until `initialize()` or `async with` has finished opening it",
    State.OPEN: "it is already open",
    State.CLOSING: "it is being closed",
    State.CLOSED: "open it again, or make a new session",
}


class Lifecycle:
    """The state of one session, its running turn, and its latest turn.

    new → opening → open → closing → closed. A failed opening goes straight to closing. A session
    that was opened by hand may be opened again after it was closed.

    Attributes:
        state: The state.
        turn: The running turn, or None.
        last_turn: The latest turn that has ended, or None.
        meter: The meter that counts the calls of the session. None without a budget.
        start_event: The event to emit before the first turn. None once it has been emitted.
    """

    __slots__ = (
        "_settled",
        "last_turn",
        "meter",
        "session_id",
        "start_event",
        "state",
        "turn",
    )

    def __init__(self, session_id: str, is_resumed: bool = False) -> None:
        self._settled: anyio.Event | None = None
        self.session_id: str = session_id
        self.state: State = State.NEW
        self.turn: Turn | None = None
        self.last_turn: Turn | None = None
        self.meter: SessionMeter | None = None
        self.start_event: str | None = SESSION_RESUME if is_resumed else SESSION_START

    @property
    def activity(self) -> str | None:
        """Current activity, for reports: "opening", "closing", "a turn", or None while idle."""
        if self.state in (State.OPENING, State.CLOSING):
            return str(self.state.value)
        return None if self.turn is None else "a turn"

    def require_opening(self) -> None:
        """Check that the session can be opened.

        Raises:
            SessionStateError: The session is neither new nor closed.
        """
        if self.state not in (State.NEW, State.CLOSED):
            change = f"from {self.state.value} to opening"
            raise SessionStateError(
                f"session {self.session_id!r} cannot go {change}; {_ADVICE[self.state]}"
            )

    def require_turn(self) -> None:
        """Check that a turn can start (L8).

        Raises:
            SessionStateError: The session isn't open.
            SessionBusyError: Another turn is running.
        """
        if self.state is not State.OPEN:
            raise SessionStateError(
                f"cannot execute: session {self.session_id!r} not initialized "
                f"(it is {self.state.value}); {_ADVICE[self.state]}"
            )
        if self.turn is not None:
            raise SessionBusyError(
                f"session {self.session_id!r} is busy with another turn; wait for it, cancel it, "
                "or fork() a separate session for parallel work",
                session_id=self.session_id,
            )

    async def wait_settled(self) -> None:
        """Wait until an opening or closing started by another call has ended."""
        settled = self._settled = self._settled or anyio.Event()
        await settled.wait()

    def settle(self, state: State) -> None:
        """Record the state after an opening or closing, and wake its waiters."""
        self.state = state
        settled, self._settled = self._settled, None
        if settled is not None:
            settled.set()

    def end_turn(self, turn: Turn) -> None:
        """Free the session from a turn that has ended or never started."""
        self.turn = None
        if turn.ended:
            self.last_turn = turn
        if turn.has_announced_start:
            self.start_event = None
        turn.finish()


# These hold marks and lifecycles, not turns and sessions, because a task left behind by a turn
# keeps its context alive.
inside_turns: ContextVar[tuple[object, ...]] = ContextVar("amplifier_inside_turns", default=())
"""The marks of the turns inside which the current task runs."""

inside_closing_of: ContextVar[tuple[Lifecycle, ...]] = ContextVar(
    "amplifier_inside_closing_of", default=()
)
"""Sessions for which the current task runs the closing, or the announcement of a stop."""
