"""A hook that changes the pieces of an answer: those who listen after it, and the readers of a stream, get nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from amplifier import AmplifierSession
from amplifier.models import AnswerReset, ChatResponse, TextDelta
from amplifier.testing import MockProvider

from .test_retried_streams import divided, session_of

pytestmark = pytest.mark.virtual_time

HIDDEN = "my ***"


def hide(event: str, data: dict[str, Any]) -> dict[str, Any]:
    changed = dict(data)
    for field in ("delta", "text"):
        if field in data:
            changed[field] = data[field].replace("secret", "***")
    if isinstance(data.get("block"), dict) and "text" in data["block"]:
        changed["block"] = {**data["block"], "text": data["block"]["text"].replace("secret", "***")}
    return {"action": "modify", "data": changed}


@pytest.mark.parametrize("whole", [False, True])
async def test_retracted_answer_matches_redacted_text(whole):
    answer = divided("my secret", [], 9, whole=whole)
    shown: list[str] = []
    async with session_of([answer[:-1], answer]) as session:
        hooks = session.coordinator.hooks
        for event in ("content_block:delta", "content_block:end"):
            hooks.register(event, hide)
        hooks.register("content_block:reset", lambda event, data: shown.append(data["discarded"]))
        async with session.stream("hi") as events:
            seen = [event async for event in events if event.name.startswith("content_block")]
    assert [event.text for event in seen if isinstance(event, AnswerReset)] == shown == [HIDDEN]
    assert [event.text for event in seen if isinstance(event, TextDelta)] == [HIDDEN, HIDDEN]
    assert "secret" not in repr(seen)


async def test_denied_pieces_are_not_retracted():
    answer = divided("one two", [], 4)
    async with session_of([answer[:-2], answer]) as session:
        hooks = session.coordinator.hooks
        hooks.register(
            "content_block:delta",
            lambda event, data: {"action": "deny"} if data["delta"] == "one " else None,
        )
        async with session.stream("hi") as events:
            seen = [event async for event in events]
    assert [event.text for event in seen if isinstance(event, AnswerReset)] == ["two"]


@pytest.mark.parametrize("failing", [False, True])
async def test_an_answer_is_taken_back_although_a_hook_denies_that(failing):
    """A gate that fails denies as well; the reader gets what the hooks have left of the pieces."""

    def deny(event: str, data: dict[str, Any]) -> dict[str, Any]:
        if failing:
            raise RuntimeError("broken")
        return {"action": "deny"}

    answer = divided("my secret", [], 9)
    async with session_of([answer[:-1], answer]) as session:
        hooks = session.coordinator.hooks
        for event in ("content_block:delta", "content_block:end"):
            hooks.register(event, hide)
        hooks.register("content_block:reset", deny, on_failure="deny")
        async with session.stream("hi") as events:
            seen = [event async for event in events]
    assert [event.text for event in seen if isinstance(event, AnswerReset)] == [HIDDEN]
    reset = next(event for event in seen if isinstance(event, AnswerReset))
    assert reset.data["session_id"] == session.session_id


class Published:
    """A provider without ``stream``, which emits the pieces of its answer."""

    name = "published"

    def __init__(self) -> None:
        self.hooks: Any = None
        self._inner = MockProvider(["my secret"])
        self.get_info, self.list_models = self._inner.get_info, self._inner.list_models
        self.parse_tool_calls = self._inner.parse_tool_calls

    async def complete(self, request: Any, **_: Any) -> ChatResponse:
        block = {"request_id": "1", "block_index": 0, "block_type": "text"}
        await self.hooks.emit("llm:stream_block_start", block)
        for text in ("my ", "secret"):
            await self.hooks.emit("llm:stream_block_delta", {**block, "text": text})
        return await self._inner.complete(request)


@pytest.mark.parametrize("priority", [0, 10, 1_000])
async def test_published_pieces_are_retracted_as_redacted(priority):
    provider = Published()
    plan = {
        "session": {"orchestrator": "loop-streaming", "context": "context-simple"},
        "providers": [provider],
    }
    async with AmplifierSession(plan) as session:
        provider.hooks = session.coordinator.hooks
        provider.hooks.register("llm:stream_block_delta", hide, priority)
        assert "".join([piece async for piece in session.stream_text("hi")]) == HIDDEN
