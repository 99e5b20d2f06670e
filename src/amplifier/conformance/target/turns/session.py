"""A loop in a real session with scripted model, tools, hooks, context and user, and the turns it runs there."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import anyio

from amplifier.conformance.target.mounted import MountedModule
from amplifier.conformance.target.turns.doubles import (
    ScriptedContext,
    ScriptedHooks,
    ScriptedProvider,
    ScriptedTool,
    StreamingProvider,
    scripted_approvals,
)
from amplifier.conformance.target.turns.player import ScriptPlayer
from amplifier.conformance.target.turns.record import RecordedTurn
from amplifier.conformance.target.turns.script import TOOLS, ScriptedTurn

PROVIDERS = ("one", "two", "three")
SECONDS = 4.0
"""The time limit of one turn; doubles never wait, so any loop can keep it."""


class ScriptedSession(ScriptPlayer):
    """One case, run in the session of one mounted loop."""

    def __init__(self, mounted: MountedModule, case: dict[str, Any], *, endless: bool = False) -> None:
        super().__init__(mounted, case, endless=endless)
        core: Any = mounted.session.coordinator
        self.context: ScriptedContext = ScriptedContext(
            self,
            history=case.get("history", 0),
            compacts=bool(case.get("compacts")),
            keeps=6 if endless else None,
            fails=case.get("fails"),
        )
        core.mount("context", self.context)
        core.approval_system = scripted_approvals(self)
        provider = StreamingProvider if case.get("streams") else ScriptedProvider
        for name in PROVIDERS[: case.get("providers", 1)]:
            core.mount("providers", provider(self, name), name=name)
        for name in TOOLS:
            core.mount("tools", ScriptedTool(self, name), name=name)
        self._hooks = ScriptedHooks(self)
        self._hooks.register(core.hooks)

    def reset(self) -> None:
        """Forget all turns and messages, to run the same case again."""
        self.turns.clear()
        self.context.messages.clear()

    def detach(self) -> None:
        """Unregister the hooks, so that another scripted session can use the same mounted loop."""
        self._hooks.unregister()

    async def run_turns(self) -> list[RecordedTurn]:
        """Run all turns of the case, one after another."""
        for script in self.scripts:
            await self.run_turn(script)
        return self.turns

    async def run_turn(
        self, script: ScriptedTurn | None = None, *, seconds: float = SECONDS, with_coordinator: bool = True
    ) -> RecordedTurn:
        """Run one turn; its error is part of its outcome.

        Args:
            script: The turn; the first one of the case by default.
            seconds: The time limit.
            with_coordinator: Pass the coordinator, which loops may do without.
        """
        self._begin(script)
        execute, arguments = self.mounted.instance.execute, self.arguments(with_coordinator=with_coordinator)
        with anyio.CancelScope() as scope:
            self.cancel_by(scope.cancel)
            self.turn.outcome = await self.mounted.call(execute, **arguments, seconds=seconds)
        return self.turn

    async def run_and_cancel(self, suspension: int) -> RecordedTurn:
        """Run the first turn and cancel it at a suspension of a double."""
        self.cancel_from_now(suspension)
        turn = await self.run_turn()
        self.cancel_from_now(None)
        turn.is_cancelled = bool(self.cancelled_where)
        return turn

    async def execute_unguarded(self, is_cancelled: bool = True) -> Any:
        """Call execute for the first turn without deadline and alarm, for a caller that counts suspensions."""
        self._begin(None)
        self.turn.is_cancelled = is_cancelled
        return await self.mounted.instance.execute(**self.arguments())

    def _begin(self, script: ScriptedTurn | None) -> None:
        self._hooks.reset()
        self.begin(RecordedTurn(script=self.scripts[0] if script is None else script))

    def arguments(self, *, with_coordinator: bool = True) -> dict[str, Any]:
        """The arguments of execute: those of the kernel that it accepts."""
        core = self.mounted.session.coordinator
        offered = {
            "prompt": self.turn.script.prompt,
            "context": self.context,
            "providers": core.get("providers"),
            "tools": core.get("tools"),
            "hooks": core.hooks,
            "coordinator": core,
        }
        execute = self.mounted.instance.execute
        if not with_coordinator and not needs_coordinator(execute):
            del offered["coordinator"]
        accepted = accepted_keywords(execute)
        return offered if accepted is None else {key: offered[key] for key in offered if key in accepted}


def accepted_keywords(function: Callable[..., Any]) -> set[str] | None:
    """The keywords that a function takes; None when it takes any, or has no readable signature."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return None
    kinds = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return {parameter.name for parameter in parameters if parameter.kind in kinds}


def needs_coordinator(function: Callable[..., Any]) -> bool:
    """Whether a function has a required parameter ``coordinator``."""
    try:
        parameter = inspect.signature(function).parameters.get("coordinator")
    except (TypeError, ValueError):
        return False
    return parameter is not None and parameter.default is inspect.Parameter.empty
