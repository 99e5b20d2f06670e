"""The orchestrator of all loops: runs the shared turn with the options of the loop."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from amplifier.answers import AnswerFormat
from amplifier.contracts import ContextManager, Coordinator, Hooks, Provider, Tool

from ._options import TurnOptions
from ._request_messages import RequestPrefix
from ._transcript import Steering
from ._turn import Turn


class TurnOrchestrator:
    """An orchestrator whose turns are `Turn`s; the loops differ in their options only.

    Attributes:
        reports_pieces: It reports the pieces of answers by itself, so those who watch a turn need not ask providers for them.
    """

    reports_pieces: bool = True

    def __init__(self, options: TurnOptions) -> None:
        self._options = options
        # The conversation of the latest turn, if that ended with an answer: the next one need not read it to find out.
        self._answered: ContextManager | None = None
        self._prefix = RequestPrefix()
        self._steering = Steering()

    def steer(self, message: str) -> None:
        """Give the running turn a message of the user, which the model reads with its next request.

        Raises:
            SessionStateError: No turn is running that would read it.
            ValueError: It is no text, or empty.
        """
        self._steering.add(message)

    async def execute(
        self,
        prompt: str,
        context: ContextManager,
        providers: dict[str, Provider],
        tools: dict[str, Tool],
        hooks: Hooks,
        coordinator: Coordinator,
        answer_format: AnswerFormat[Any] | None = None,
        prompt_blocks: list[dict[str, Any]] | None = None,
        **_: Any,
    ) -> str:
        """Run one turn and return the text of the model's last answer; with a format, the answer as JSON text that fits it."""
        turn = self._turn(context, providers, tools, hooks, coordinator, answer_format)
        turn.is_answered, self._answered = self._answered is context, None
        return await self._run(turn, context, turn.run(prompt, prompt_blocks or []))

    async def resume(
        self,
        context: ContextManager,
        providers: dict[str, Provider],
        tools: dict[str, Tool],
        hooks: Hooks,
        coordinator: Coordinator,
        answer_format: AnswerFormat[Any] | None = None,
        **_: Any,
    ) -> str:
        """Go on with the turn that was cut off, and return what `execute` would."""
        turn, self._answered = self._turn(context, providers, tools, hooks, coordinator, answer_format), None
        return await self._run(turn, context, turn.resume())

    def _turn(self, context: ContextManager, *rest: Any) -> Turn:
        return Turn(self._options, self._prefix, self._steering, context, *rest)

    async def _run(self, turn: Turn, context: ContextManager, work: Coroutine[Any, Any, str]) -> str:
        try:
            return await work
        finally:
            if turn.is_answered:
                self._answered = context


async def mount_loop(coordinator: Coordinator, loop: TurnOrchestrator) -> None:
    """Mount a loop, and offer its `steer` under the published name."""
    await coordinator.mount("orchestrator", loop)  # type: ignore[call-overload]  # it needs the coordinator, which sessions pass
    coordinator.register_capability("session.steer", loop.steer)
