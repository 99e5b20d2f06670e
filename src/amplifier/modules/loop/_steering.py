"""Messages of the user that come while a turn runs; the model reads them with its next request."""

from __future__ import annotations

from collections import deque

from amplifier.errors import SessionStateError

STEERING = "steering"
"""The ``source``, in the metadata, of such a message: it is part of a turn, and begins none."""

_MOST = 100


class Steering:
    """The messages that wait. They are taken while a turn runs and until it has its answer: none is lost without an error."""

    def __init__(self) -> None:
        self._waiting: deque[str] = deque()
        self._is_open = False

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def open(self) -> None:
        """A turn begins."""
        self._waiting.clear()
        self._is_open = True

    def close(self) -> None:
        """The turn has its answer, or ends without one."""
        self._waiting.clear()
        self._is_open = False

    def add(self, message: object) -> None:
        """Take a message.

        Raises:
            SessionStateError: No turn would read it, or too many wait already.
            ValueError: It is no text, or empty.
        """
        if not isinstance(message, str) or not message.strip():
            raise ValueError(f"expected a message that is text, got {message!r:.80}")
        if not self._is_open:
            raise SessionStateError("no turn is running that would read the message; begin one with execute(prompt)")
        if len(self._waiting) >= _MOST:
            raise SessionStateError(f"{_MOST} messages wait for the next step already; wait, or stop the turn")
        self._waiting.append(message)

    def take(self) -> str:
        """The oldest message that waits."""
        return self._waiting.popleft()

    def __len__(self) -> int:
        return len(self._waiting)
