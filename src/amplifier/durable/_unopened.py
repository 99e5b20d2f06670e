"""The conversation of a turn whose session cannot be made or opened: what is recorded of the turn, played back by a loop of our own."""

from __future__ import annotations

from typing import Any

import anyio

from amplifier.kernel import AmplifierSession
from amplifier.loading import ModuleLoader
from amplifier.models import ChatRequest, ChatResponse, ModelInfo, ProviderInfo, ToolCall, ToolCallBlock

from ._turn_rows import ClaimedTurn

_MOST_ITERATIONS = 1_000_000  # the loop of the turn had a limit of its own
_CONTEXT = {"module": "context-simple", "config": {"summary_seconds": None}}


class _NoModel:
    """A provider that is never asked: the turn is stopped at its first model call without a recorded answer."""

    name = "recorded"

    def get_info(self) -> ProviderInfo:
        return ProviderInfo(id=self.name, display_name="recorded answers")

    async def list_models(self) -> list[ModelInfo]:
        return []

    async def complete(self, request: ChatRequest, **kwargs: Any) -> ChatResponse:
        await anyio.sleep_forever()
        raise AssertionError

    def parse_tool_calls(self, response: ChatResponse) -> list[ToolCall]:
        if response.tool_calls is not None:
            return list(response.tool_calls)
        blocks = [block for block in response.content if isinstance(block, ToolCallBlock)]
        return [ToolCall(id=block.id, name=block.name, arguments=block.input) for block in blocks]


def playback_session(turn: ClaimedTurn, session: AmplifierSession | None) -> AmplifierSession:
    """A session that can always be opened, for a turn that was stopped: it puts what is recorded into the conversation.

    Args:
        turn: The attempt whose session could not be opened.
        session: That session, if it could be made; its loop may begin conversations with a system prompt.
    """

    async def mount_provider(coordinator: Any, config: dict[str, Any]) -> _NoModel:
        return _NoModel()

    loop = {"max_iterations": _MOST_ITERATIONS, "system_prompt": _system_prompt(session)}
    plan: dict[str, Any] = {
        "session": {"orchestrator": {"module": "loop-basic", "config": loop}, "context": _CONTEXT},
        "providers": ["provider-recorded"],
    }
    loader = ModuleLoader(modules={"provider-recorded": mount_provider})
    return AmplifierSession(plan, loader, session_id=turn.session_id)


def _system_prompt(session: AmplifierSession | None) -> str | None:
    if session is None:
        return None
    loop: Any = session.config["session"]["orchestrator"]
    found = (loop.get("config") or {}).get("system_prompt") if isinstance(loop, dict) else None
    return found if isinstance(found, str) else None
