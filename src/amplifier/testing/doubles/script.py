"""The steps a scripted double plays: handed out in order, with an AssertionError for one too many and for those left over.

A step that is not in the script is an AssertionError at once;
because the code under test may swallow that one, `assert_exhausted` raises it again.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Generic, Self, TypeVar, final

Step = TypeVar("Step")

_SHOWN = 80


@final
class Script(Generic[Step]):
    """Steps in order, each handed out once.

    Args:
        owner: Who plays it, for messages: ``MockProvider 'mock'``.
        steps: What it plays.
        unit: What one step is called, for messages: ``turn``, ``response``.
    """

    __slots__ = ("_owner", "_position", "_steps", "_surprises", "_unit")

    def __init__(self, owner: str, steps: Iterable[Step], unit: str) -> None:
        self._owner = owner
        self._steps = list(steps)
        self._unit = unit
        self._position = 0
        self._surprises: list[str] = []

    def __repr__(self) -> str:
        return f"<script of {self._owner}: {self._position} of {self._scripted()} played>"

    @property
    def remaining(self) -> list[Step]:
        """The steps not played yet."""
        return self._steps[self._position :]

    def take(self, call: str) -> Step:
        """The next step.

        Args:
            call: What was called, for the message.

        Raises:
            AssertionError: There is none.
        """
        if self._position == len(self._steps):
            number = self._position + len(self._surprises) + 1
            surprise = (
                f"{self._owner}: unexpected call {number}, {call}; expected {self._scripted()}, all of which were "
                f"played; add a {self._unit} to the script or find out who calls"
            )
            self._surprises.append(surprise)
            raise AssertionError(surprise)
        step = self._steps[self._position]
        self._position += 1
        return step

    def assert_exhausted(self) -> None:
        """Check that every step was played and that no more were requested.

        Raises:
            AssertionError: Otherwise.
        """
        if self._surprises:
            raise AssertionError("; ".join(self._surprises))
        left = self.remaining
        if left:
            shown = ", ".join(_shorten(repr(step)) for step in left[:3]) + (", …" if len(left) > 3 else "")
            raise AssertionError(
                f"{self._owner}: {len(left)} of {self._scripted()} never played: {shown}; "
                "the code under test called less often than the script expects"
            )

    def _scripted(self) -> str:
        count = len(self._steps)
        return f"{count} {self._unit}{'' if count == 1 else 's'}"


class Scripted:
    """A double with a script: as a context manager it checks on leaving that the script was played to its end.

    An exception that is already on its way is not covered up by that check.
    """

    _script: Script[object] | Script[str] | None

    def assert_exhausted(self) -> None:
        """Check that every scripted step was used, and that there was no call beyond them.

        Raises:
            AssertionError: Otherwise; also when the code under test swallowed the error of an unexpected call.
        """
        if self._script is not None:
            self._script.assert_exhausted()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if exc_type is None:
            self.assert_exhausted()


def _shorten(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
