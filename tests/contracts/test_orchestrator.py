"""The orchestrator contract: its shape."""

from __future__ import annotations

import inspect
from typing import Any

from amplifier.contracts import ContextManager, Hooks, Orchestrator, Provider, Tool


class Parrot:
    async def execute(
        self,
        prompt: str,
        context: ContextManager,
        providers: dict[str, Provider],
        tools: dict[str, Tool],
        hooks: Hooks,
        **kwargs: Any,
    ) -> str:
        return prompt


def test_a_class_with_execute_is_an_orchestrator() -> None:
    orchestrator: Orchestrator = Parrot()
    assert isinstance(orchestrator, Orchestrator)


def test_what_cannot_execute_is_no_orchestrator() -> None:
    assert not isinstance(type("Idle", (), {"run": Parrot.execute})(), Orchestrator)


def test_execute_is_async_and_takes_what_the_session_passes() -> None:
    parameters = inspect.signature(Orchestrator.execute).parameters
    assert inspect.iscoroutinefunction(Orchestrator.execute)
    assert list(parameters) == ["self", "prompt", "context", "providers", "tools", "hooks", "kwargs"]
    assert parameters["kwargs"].kind is inspect.Parameter.VAR_KEYWORD
