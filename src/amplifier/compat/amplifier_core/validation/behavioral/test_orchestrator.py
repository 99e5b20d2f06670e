"""The behavioural suite of orchestrators, for a module's tests to inherit from."""

from __future__ import annotations

from typing import Any

import pytest

__all__ = ["OrchestratorBehaviorTests"]


class OrchestratorBehaviorTests:
    """Checks turns of any orchestrator, without tools."""

    @pytest.mark.asyncio
    async def test_mount_succeeds(self, orchestrator_module: Any) -> None:
        """Check that mounting gives an orchestrator."""
        assert orchestrator_module is not None

    @pytest.mark.asyncio
    async def test_orchestrator_has_execute_method(self, orchestrator_module: Any) -> None:
        """Check that it has a method ``execute``."""
        assert callable(getattr(orchestrator_module, "execute", None)), (
            "an orchestrator needs an execute method"
        )

    @pytest.mark.asyncio
    async def test_execute_returns_string(self, orchestrator_module: Any, mock_deps: Any) -> None:
        """Check that a turn returns text."""
        answer = await _execute(orchestrator_module, "Test prompt", mock_deps)
        assert isinstance(answer, str), f"execute() must return a str, got {answer!r}"
        assert answer, "the answer must not be empty"

    @pytest.mark.asyncio
    async def test_execute_with_empty_prompt(
        self, orchestrator_module: Any, mock_deps: Any
    ) -> None:
        """Check that an empty prompt is answered or refused."""
        try:
            answer = await _execute(orchestrator_module, "", mock_deps)
        # The orchestrator may refuse the prompt.
        except Exception as exc:  # noqa: BLE001
            if isinstance(exc, AttributeError | TypeError | KeyError):
                pytest.fail(f"the orchestrator crashed on an empty prompt: {exc!r}")
        else:
            assert isinstance(answer, str)

    @pytest.mark.asyncio
    async def test_orchestrator_uses_provider(
        self, orchestrator_module: Any, mock_deps: Any
    ) -> None:
        """Check that a turn with one provider ends."""
        await _execute(orchestrator_module, "Test", mock_deps)
        assert callable(mock_deps[1]["default"].complete)

    @pytest.mark.asyncio
    async def test_orchestrator_updates_context(
        self, orchestrator_module: Any, mock_deps: Any
    ) -> None:
        """Check that the context has the messages of the turn."""
        await _execute(orchestrator_module, "Test message", mock_deps)
        assert mock_deps[0].add_message.called, "the orchestrator added nothing to the context"


async def _execute(orchestrator: Any, prompt: str, mock_deps: Any) -> object:
    context, providers, tools, recorder = mock_deps
    return await orchestrator.execute(
        prompt=prompt, context=context, providers=providers, tools=tools, hooks=recorder
    )
