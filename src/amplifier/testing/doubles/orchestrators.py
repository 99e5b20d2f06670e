"""An orchestrator for tests: gives scripted answers inside the frame that the contract demands of a turn.

It keeps the orchestrator contract without asking any provider.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias, final

import anyio

from amplifier.events import EXECUTION_END, EXECUTION_START, ORCHESTRATOR_COMPLETE

from .script import Script, Scripted

Response: TypeAlias = str | BaseException | Callable[[str], str | Awaitable[str]]
"""One answer: text, an exception to raise, or a function of the prompt."""

_OUTCOME = {"completed": "success", "cancelled": "cancelled", "error": "incomplete"}


@final
class ScriptedOrchestrator(Scripted):
    """Answers each prompt with the next response.

    A turn stores the prompt and the answer in the context and emits ``execution:start``, ``execution:end`` and
    ``orchestrator:complete``, as far as it is given a context and hooks.

    Args:
        responses: What to answer, in order: text, an exception to raise, or a function of the prompt, sync or async.
        delay: Seconds to wait before each answer.

    Attributes:
        calls: The arguments of every turn, by name.
    """

    def __init__(self, responses: Sequence[Response], *, delay: float = 0.0) -> None:
        if isinstance(responses, str):
            raise TypeError(f"ScriptedOrchestrator takes a list of responses, got {responses!r}; write [{responses!r}]")
        self.calls: list[dict[str, Any]] = []
        self._delay = delay
        self._script: Script[object] = Script("ScriptedOrchestrator", responses, "response")

    def __repr__(self) -> str:
        return f"<ScriptedOrchestrator called {self.call_count} times>"

    @property
    def call_count(self) -> int:
        """How many turns were asked for."""
        return len(self.calls)

    @property
    def prompts(self) -> list[str]:
        """The prompts, in order."""
        return [call["prompt"] for call in self.calls]

    async def execute(
        self,
        prompt: str,
        context: Any = None,
        providers: Any = None,
        tools: Any = None,
        hooks: Any = None,
        **kwargs: Any,
    ) -> str:
        """Play one turn.

        Raises:
            AssertionError: The script has no response left.
            BaseException: The response is an exception.
        """
        self.calls.append(
            {"prompt": prompt, "context": context, "providers": providers, "tools": tools, "hooks": hooks, **kwargs}
        )
        response = self._script.take(f"execute({prompt!r})")
        text, status = "", "error"
        await _emit(hooks, EXECUTION_START, {"prompt": prompt})
        try:
            if context is not None:
                await context.add_message({"role": "user", "content": prompt})
            text = await self._answer(response, prompt)
            if context is not None:
                await context.add_message({"role": "assistant", "content": text})
            status = "completed"
        except anyio.get_cancelled_exc_class():
            status = "cancelled"
            raise
        finally:
            await _emit(hooks, EXECUTION_END, {"response": text, "status": status})
            complete = {"orchestrator": type(self).__name__, "turn_count": 1, "status": _OUTCOME[status]}
            await _emit(hooks, ORCHESTRATOR_COMPLETE, complete)
        return text

    async def _answer(self, response: Any, prompt: str) -> str:
        if self._delay > 0:
            await anyio.sleep(self._delay)
        if isinstance(response, BaseException):
            raise response
        if callable(response):
            response = response(prompt)
            if inspect.isawaitable(response):
                response = await response
        if not isinstance(response, str):
            raise TypeError(f"ScriptedOrchestrator cannot answer with {response!r}; expected text")
        return response


async def _emit(hooks: Any, event: str, data: dict[str, Any]) -> None:
    if hooks is not None:
        await hooks.emit(event, data)
