"""The behavioural suite of orchestrators: inherit from it in a module's tests."""

from __future__ import annotations

from typing import Any

import pytest

__all__ = ["OrchestratorBehaviorTests"]


class OrchestratorBehaviorTests:
    """What every orchestrator does in a turn without tools."""

    @pytest.mark.asyncio
    async def test_mount_succeeds(self, orchestrator_module: Any) -> None:
        """Mounting gives an orchestrator."""
        assert orchestrator_module is not None

    @pytest.mark.asyncio
    async def test_orchestrator_has_execute_method(self, orchestrator_module: Any) -> None:
        """It can be executed."""
        assert callable(getattr(orchestrator_module, "execute", None)), (
            "an orchestrator needs an execute method"
        )

    @pytest.mark.asyncio
    async def test_execute_returns_string(self, orchestrator_module: Any, mock_deps: Any) -> None:
        """It answers with text."""
        answer = await _execute(orchestrator_module, "Test prompt", mock_deps)
        assert isinstance(answer, str), f"execute() must return a str, got {answer!r}"
        assert answer, "the answer must not be empty"

    @pytest.mark.asyncio
    async def test_execute_with_empty_prompt(
        self, orchestrator_module: Any, mock_deps: Any
    ) -> None:
        """An empty prompt is answered or refused."""
        try:
            answer = await _execute(orchestrator_module, "", mock_deps)
        except Exception as exc:  # noqa: BLE001 — a complaint about the prompt is fine
            if isinstance(exc, AttributeError | TypeError | KeyError):
                pytest.fail(f"the orchestrator broke over an empty prompt: {exc!r}")
        else:
            assert isinstance(answer, str)

    @pytest.mark.asyncio
    async def test_orchestrator_uses_provider(
        self, orchestrator_module: Any, mock_deps: Any
    ) -> None:
        """A turn with one provider comes to an end."""
        await _execute(orchestrator_module, "Test", mock_deps)
        assert callable(mock_deps[1]["default"].complete)

    @pytest.mark.asyncio
    async def test_orchestrator_updates_context(
        self, orchestrator_module: Any, mock_deps: Any
    ) -> None:
        """The messages of the turn are in the context afterwards."""
        await _execute(orchestrator_module, "Test message", mock_deps)
        assert mock_deps[0].add_message.called, "the orchestrator added nothing to the context"


async def _execute(orchestrator: Any, prompt: str, mock_deps: Any) -> Any:
    context, providers, tools, recorder = mock_deps
    return await orchestrator.execute(
        prompt=prompt, context=context, providers=providers, tools=tools, hooks=recorder
    )
