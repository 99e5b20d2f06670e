"""Answers that a model or its service refuses, and the model that gave an answer."""

from __future__ import annotations

from typing import Any

import pytest

from amplifier import AmplifierSession, on
from amplifier.errors import ContentFilterError
from amplifier.models import ChatResponse, Message, TextBlock, from_dict, to_dict
from amplifier.models.turns import assistant_message
from tests.modules.loop.test_steering import plan_of

REFUSED = {"text": "I would rather not.", "finish_reason": "refusal"}
FILTERED = {"error": {"type": "ContentFilterError", "message": "filtered", "retryable": False}}


@pytest.mark.parametrize(
    ("response", "reason", "message"),
    [(REFUSED, "refusal", "I would rather not."), (FILTERED, "ContentFilterError", "filtered")],
)
async def test_refusal_is_event_and_turn_status(
    loop: str, response: Any, reason: str, message: str
):
    heard: dict[str, dict[str, Any]] = {}

    @on("provider:refusal", "orchestrator:complete")
    async def listen(event: str, data: dict[str, Any]) -> None:
        heard[event] = data

    async with AmplifierSession(plan_of(loop, response, "Fine.", hooks=[listen])) as session:
        try:
            assert await session.execute("do it") == message
        except ContentFilterError:
            assert response is FILTERED
        assert session.last_turn is not None
        assert session.last_turn.stop_reason == "refused"
        refusal = heard.pop("provider:refusal")
        assert (refusal["provider"], refusal["reason"], refusal["message"]) == (
            "mock",
            reason,
            message,
        )
        assert heard["orchestrator:complete"]["status"] == "refused"
        assert await session.execute("then this") == "Fine."
        assert session.last_turn.stop_reason != "refused"
    assert ("provider:refusal" in heard, heard["orchestrator:complete"]["status"]) == (
        False,
        "success",
    )


def test_message_keeps_its_model():
    response = ChatResponse(content=[TextBlock(text="Hi.")], metadata={"model": "m-1"})
    message = assistant_message(response, [])
    assert message == {"role": "assistant", "content": "Hi.", "producer_model": "m-1"}
    kept = to_dict(from_dict(Message, message))
    assert {key: value for key, value in kept.items() if value is not None} == message
    assert "producer_model" not in assistant_message(ChatResponse(content=[]), [])
