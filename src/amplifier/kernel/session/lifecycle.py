"""A session's states and the legal moves between them, pure.

new → opening → open → closing → closed; a failed opening goes straight to closing; a session opened by hand may be
opened again after it was closed (`initialize` after `cleanup`).
"""

from __future__ import annotations

import enum

from amplifier.errors import SessionBusyError, SessionStateError


class State(enum.Enum):
    """Where a session is in its life."""

    NEW = "new"
    OPENING = "opening"
    OPEN = "open"
    CLOSING = "closing"
    CLOSED = "closed"


_MOVES = {
    State.NEW: (State.OPENING,),
    State.OPENING: (State.OPEN, State.CLOSING),
    State.OPEN: (State.CLOSING,),
    State.CLOSING: (State.CLOSED,),
    State.CLOSED: (State.OPENING,),
}

_ADVICE = {
    State.NEW: "open it first: `async with session:` or `await session.initialize()`",
    State.OPENING: "wait until `initialize()` or `async with` has finished opening it",
    State.OPEN: "it is already open",
    State.CLOSING: "it is being closed",
    State.CLOSED: "open it again, or make a new session",
}


class Lifecycle:
    """One session's state and whether a turn is running in it."""

    __slots__ = ("session_id", "state", "turn_running")

    def __init__(self, session_id: str) -> None:
        self.session_id: str = session_id
        self.state: State = State.NEW
        self.turn_running: bool = False

    @property
    def activity(self) -> str | None:
        """What the session is doing, in words; None when it does nothing."""
        if self.state is State.OPENING:
            return "opening"
        if self.state is State.CLOSING:
            return "closing"
        return "a turn" if self.turn_running else None

    def move(self, to: State) -> None:
        """Go to another state.

        Raises:
            SessionStateError: There is no such move from here.
        """
        if to not in _MOVES[self.state]:
            raise SessionStateError(
                f"session {self.session_id!r} cannot go from {self.state.value} to {to.value}; {_ADVICE[self.state]}"
            )
        self.state = to

    def begin_turn(self) -> None:
        """Claim the session for one turn (L8).

        Raises:
            SessionStateError: The session is not open.
            SessionBusyError: Another turn holds it.
        """
        if self.state is not State.OPEN:
            raise SessionStateError(
                f"cannot execute: session {self.session_id!r} not initialized (it is {self.state.value}); "
                f"{_ADVICE[self.state]}"
            )
        if self.turn_running:
            raise SessionBusyError(
                f"session {self.session_id!r} is busy with another turn; wait for it, cancel it, "
                "or fork() a session of its own for parallel work",
                session_id=self.session_id,
            )
        self.turn_running = True

    def end_turn(self) -> None:
        """Let the next turn in."""
        self.turn_running = False
