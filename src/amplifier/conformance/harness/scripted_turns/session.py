"""The session around a loop under examination: scripted model, tools, hooks, memory and user, in a real session.

Every suspension of a double is a numbered *moment*; the session can cancel the turn at one of them. Above stand the checks
of orchestrators; below stand the doubles and the mounted.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel

from amplifier.conformance.harness.mounted_module import MountedModule

from .doubles import ScriptedApprovals, ScriptedContext, ScriptedProvider, ScriptedTool, StreamingProvider
from .hooks import ScriptedHooks
from .record import LogEntry, RecordedTurn
from .script import TOOLS, Answer, Call, ScriptedTurn, read_turns

PROVIDERS = ("one", "two", "three")
MOST_CALLS = 300
"""Model calls after which a turn of a few answers counts as one without a limit."""
SECONDS = 4.0
"""For one turn; doubles never wait, so this is time enough for any loop."""
_offering: set[Path] = set()
"""Loops that have been seen to tell the model which tools there are."""
_NOTHING_MORE = [{"say": "There is nothing more to say."}]


class ScriptedSession:
    """One case, played in one mounted.

    Args:
        mounted: The loop and its session.
        case: What happens; see `_script`.

    Attributes:
        is_endless: The model asks for a tool again and again, whatever the script says.
        turn: The turn that is being played, or was last.
        turns: All of them.
        running: The tools under way.
        moments: How many suspensions of doubles there were.
        asked: How often the model was asked in this turn.
        last_answer: What it said last.
        cancel_at: The moment at which to call `cancel`; 0 for never.
        cancel: Cancels the turn.
        cancelled_where: At what it was.
        was_delivered: The cancellation was raised right there, so nothing shielded it.
        gave_up: The clause against which the loop went on for ever, if it did.
    """

    is_endless = False

    def __init__(self, mounted: MountedModule, case: dict[str, Any]) -> None:
        self._mounted = mounted
        self.case = case
        self._scripts = read_turns(case)
        self._left: list[Answer] = []
        self._calls = {call.key: call for script in self._scripts for call in reversed(script.calls)}
        self._calls |= {call.new_key: call for call in self._calls.values()}
        self.turn = RecordedTurn(script=self._scripts[0])
        self.turns: list[RecordedTurn] = []
        self.running: set[int] = set()
        self.suspensions = 0
        self.asked = 0
        self.last_answer: Answer | None = None
        self.cancel_at = 0
        self.cancel: Callable[[], Any] = _nothing
        self.cancelled_where = ""
        self.was_delivered = False
        self.gave_up: str | None = None
        self.start_soon: Callable[..., None] = mounted.session.coordinator.start_soon
        self.register_cleanup: Callable[..., None] = mounted.session.coordinator.register_cleanup
        self.context = ScriptedContext(
            self,
            history=case.get("history", 0),
            compacts=bool(case.get("compacts")),
            keeps=6 if self.is_endless else None,
            fails=case.get("fails"),
        )
        self._mount_doubles(case)

    def _mount_doubles(self, case: dict[str, Any]) -> None:
        """Put the doubles where a session has them."""
        core: Any = self._mounted.session.coordinator
        core.mount("context", self.context)
        core.approval_system = ScriptedApprovals(self)
        kind = StreamingProvider if case.get("streams") else ScriptedProvider
        for name in PROVIDERS[: case.get("providers", 1)]:
            core.mount("providers", kind(self, name), name=name)
        for name in TOOLS:
            core.mount("tools", ScriptedTool(self, name), name=name)
        self._hooks = ScriptedHooks(self)
        self._hooks.register(core.hooks)

    def reset(self) -> None:
        """Begin anew with an empty memory, for another go at the same case."""
        self.turns.clear()
        self.context.messages.clear()

    def detach(self) -> None:
        """Listen no more, so that another session can take this one's position in the mounted."""
        self._hooks.unregister()

    # ── playing ──

    async def run_turns(self, *, seconds: float = SECONDS) -> list[RecordedTurn]:
        """Play all turns of the case, one after another."""
        for script in self._scripts:
            await self.run_turn(script, seconds=seconds)
        return self.turns

    async def run_turn(
        self, script: ScriptedTurn | None = None, *, seconds: float = SECONDS, alone: bool = False
    ) -> RecordedTurn:
        """Play one turn, the first one of the case unless told otherwise; its errors are part of its outcome.

        Args:
            script: The turn.
            seconds: After which it is cut off.
            alone: Leave the coordinator out, which is an extra.
        """
        self._begin(script)
        execute, arguments = self._mounted.instance.execute, self.arguments(alone)
        with anyio.CancelScope() as scope:
            self.cancel = scope.cancel
            self.turn.outcome = await self._mounted.call(execute, **arguments, seconds=seconds)
        return self.turn

    async def run_and_cancel(self, moment: int) -> RecordedTurn:
        """Play the first turn and cancel it at a moment of this turn."""
        self.cancel_at, self.was_delivered = self.suspensions + moment, False
        turn = await self.run_turn()
        self.cancel_at = 0
        turn.is_cancelled = bool(self.cancelled_where)
        return turn

    async def execute_unguarded(self, is_cancelled: bool = True) -> Any:
        """Call execute for the first turn without a net, for whoever counts suspensions."""
        self._begin(None)
        self.turn.is_cancelled = is_cancelled
        return await self._mounted.instance.execute(**self.arguments())

    def _begin(self, script: ScriptedTurn | None) -> None:
        script = self._scripts[0] if script is None else script
        self._left = list(script.answers)
        self._hooks.reset()
        self.asked, self.last_answer = 0, None
        self.cancelled_where = ""
        self.turn = RecordedTurn(script=script)
        self.turns.append(self.turn)

    def arguments(self, alone: bool = False) -> dict[str, Any]:
        """What execute is called with: as the kernel does, only what it accepts."""
        core = self._mounted.session.coordinator
        offered = {
            "prompt": self.turn.script.prompt,
            "context": self.context,
            "providers": core.get("providers"),
            "tools": core.get("tools"),
            "hooks": core.hooks,
            "coordinator": core,
        }
        accepted = accepted_keywords(self._mounted.instance.execute)
        if alone and not needs_coordinator(self._mounted.instance.execute):
            del offered["coordinator"]
        return offered if accepted is None else {key: offered[key] for key in offered if key in accepted}

    # ── what the doubles use ──

    def note(self, kind: str, name: str, data: Any = None) -> None:
        """Write down that something log."""
        self.turn.log.append(LogEntry(kind, name, data))

    async def suspend(self, where: str) -> None:
        """Suspend; cancel the turn first, if this is the time."""
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
        """Ask for a graceful stop, as a user does."""
        self.note("stop", "graceful")
        self._mounted.session.coordinator.cancellation.request_graceful()

    def give_up(self, clause: str) -> None:
        """The loop goes on for ever, against a clause: cut it off."""
        self.gave_up = clause
        self.turn.is_cancelled = True
        self.cancel()

    def peek_answer(self) -> Answer | None:
        """What the model will say next."""
        return self._left[0] if self._left else None

    def next_answer(self, is_offered_tools: bool = False) -> Answer:
        """What the model says now; one that is offered no tools for once, as for a plan or a summary, calls none."""
        subject = self._mounted.loaded.subject.file
        if is_offered_tools:
            _offering.add(subject)
        elif subject in _offering:
            return Answer(number=0, blocks=list(_NOTHING_MORE), calls=[])
        self.asked += 1
        number = self.asked
        if self.is_endless:
            call = Call(number=number, tool="alpha", id=f"again{number}", key=f"again{number}")
            self._calls[call.key] = call
            return Answer(number=number, blocks=[{"call": "alpha", "number": number}], calls=[call])
        if number > MOST_CALLS:
            self.give_up("O23")
        if self._left and self._left[0].error is None:
            return self._left.pop(0)
        if self._left:  # whoever asks a failing provider again is told the same again
            return self._left[0]
        return Answer(number=0, blocks=list(_NOTHING_MORE), calls=[])

    def call_with(self, key: Any, tool: Any) -> Call | None:
        """The call of this case with a key in its arguments; without one, the last call of that tool."""
        if isinstance(key, str) and key in self._calls:
            return self._calls[key]
        if key is None and isinstance(tool, str):
            calls = [] if self.last_answer is None else self.last_answer.calls
            return next((call for call in calls if call.tool == tool), None)
        return None


def accepted_keywords(function: Callable[..., Any]) -> set[str] | None:
    """The keywords that a function takes; None when it takes any, or does not say."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return None
    kinds = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return {parameter.name for parameter in parameters if parameter.kind in kinds}


def needs_coordinator(function: Callable[..., Any]) -> bool:
    """Whether a function cannot be called without a coordinator, and says so."""
    try:
        parameter = inspect.signature(function).parameters.get("coordinator")
    except (TypeError, ValueError):
        return False
    return parameter is not None and parameter.default is inspect.Parameter.empty


def _nothing() -> None:
    """What cancels nothing."""
