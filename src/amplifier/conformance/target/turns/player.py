"""State of a scripted turn that the doubles share: the model's remaining answers, the log, the suspension counter.

Every suspension of a double is counted, and the turn can be cancelled at one of them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel

from amplifier.conformance.target.mounted import MountedModule
from amplifier.conformance.target.turns.record import LogEntry, RecordedTurn
from amplifier.conformance.target.turns.script import Answer, Call, ScriptedTurn, read_turns

MAX_MODEL_CALLS = 300
"""Model calls after which a turn of a few answers counts as one without a limit."""
MAX_ENDLESS_MODEL_CALLS = 1_500
"""The same for a turn whose model never stops, in which the loop's own limit has to apply first."""
_offers_tools: set[Path] = set()
"""Loops that have sent a request with tools before."""
_NOTHING_MORE = Answer(number=0, blocks=[{"say": "There is nothing more to say."}], calls=[])


class ScriptPlayer:
    """Hands out the answers of a case and logs what the doubles report.

    Args:
        mounted: The mounted loop and its session.
        case: The turns; see `script`.
        endless: Let the model call a tool in every answer, whatever the script holds.

    Attributes:
        scripts: The turns of the case.
        turn: The turn that is running, or ran last.
        turns: All turns so far.
        running: The tool calls in progress.
        suspensions: How often a double has suspended.
        model_calls: How often the model was called in this turn.
        last_answer: The model's last answer.
        cancel_at: The suspension at which to call `cancel`; 0 for never.
        cancel: Cancels the turn.
        cancelled_where: The double that was suspended then.
        was_delivered: The cancellation was raised at that suspension, so nothing shielded it.
        gave_up: The clause that an endless loop breaks, if the turn was cut off for that.
    """

    def __init__(self, mounted: MountedModule, case: dict[str, Any], *, endless: bool = False) -> None:
        self.mounted = mounted
        self.case = case
        self.is_endless = endless
        self.scripts: list[ScriptedTurn] = read_turns(case)
        self._left: list[Answer] = []
        self._calls = {call.key: call for script in self.scripts for call in reversed(script.calls)}
        self._calls |= {call.new_key: call for call in self._calls.values()}
        self.turn: RecordedTurn = RecordedTurn(script=self.scripts[0])
        self.turns: list[RecordedTurn] = []
        self.running: set[int] = set()
        self.suspensions: int = 0
        self.model_calls: int = 0
        self.last_answer: Answer | None = None
        self.cancel_at: int = 0
        self.cancel: Callable[[], Any] = lambda: None
        self.cancelled_where: str = ""
        self.was_delivered: bool = False
        self.gave_up: str | None = None

    def cancel_from_now(self, suspension: int | None) -> None:
        """Cancel the turn at the n-th suspension from now; None for never."""
        if suspension is None:
            self.cancel_at = 0
        else:
            self.cancel_at, self.was_delivered = self.suspensions + suspension, False

    def cancel_by(self, cancel: Callable[[], Any]) -> None:
        """Set what cancels the running turn."""
        self.cancel = cancel

    def begin(self, turn: RecordedTurn) -> None:
        """Make a turn the running one."""
        self._left = list(turn.script.answers)
        self.model_calls, self.last_answer = 0, None
        self.cancelled_where = ""
        self.turn = turn
        self.turns.append(turn)

    def note(self, kind: str, name: str, data: Any = None) -> None:
        """Add an entry to the log of the turn."""
        self.turn.log.append(LogEntry(kind, name, data))

    async def suspend(self, where: str) -> None:
        """Suspend once; cancel the turn first if this is the chosen suspension."""
        self.suspensions += 1
        if self.suspensions == self.cancel_at:
            self.cancelled_where = where
            self.cancel()
            try:
                await anyio.lowlevel.checkpoint()
            except anyio.get_cancelled_exc_class():
                self.was_delivered = True
                raise
            return
        await anyio.lowlevel.checkpoint()

    def stop(self) -> None:
        """Request a graceful stop, as a user does."""
        self.note("stop", "graceful")
        self.mounted.session.coordinator.cancellation.request_graceful()

    def give_up(self, clause: str) -> None:
        """Cut off a loop that goes on without end, against a clause."""
        self.gave_up = clause
        self.turn.is_cancelled = True
        self.cancel()

    def peek_answer(self) -> Answer | None:
        """The model's next answer."""
        return self._left[0] if self._left else None

    def next_answer(self, has_tools: bool = False) -> Answer:
        """Take the model's next answer.

        A loop that offers tools as a rule may leave them out once, for a plan or a summary; then the model calls none.
        """
        loop = self.mounted.loaded.target.file
        if has_tools:
            _offers_tools.add(loop)
        elif loop in _offers_tools:
            return _NOTHING_MORE
        self.model_calls += 1
        number = self.model_calls
        if number > (MAX_ENDLESS_MODEL_CALLS if self.is_endless else MAX_MODEL_CALLS):
            self.give_up("O23")
        if self.is_endless:
            call = Call(number=number, tool="alpha", id=f"again{number}", key=f"again{number}")
            self._calls[call.key] = call
            return Answer(number=number, blocks=[{"call": "alpha", "number": number}], calls=[call])
        if not self._left:
            return _NOTHING_MORE
        # A provider that fails goes on failing, so a retry gets the same error.
        return self._left.pop(0) if self._left[0].error is None else self._left[0]

    def call_with(self, key: Any, tool: Any) -> Call | None:
        """The call of this case with a key in its arguments; without a key, the last call of that tool."""
        if isinstance(key, str) and key in self._calls:
            return self._calls[key]
        if key is None and isinstance(tool, str):
            calls = [] if self.last_answer is None else self.last_answer.calls
            return next((call for call in calls if call.tool == tool), None)
        return None
