"""Calls cancelled at every suspension, in every way: the connection is closed, nothing is left, and the next call works."""

from __future__ import annotations

from typing import Any

import pytest

from amplifier.testing import MockTool, cancel_everywhere
from tests.modules.providers.services import SERVICES, arguments
from tests.modules.providers.test_turns_in_sessions import SCHEMA, session_with

"""Seconds between two pieces of an answer, so that they arrive one by one and there is a suspension for each."""

SHORT = ["anthropic", "openai-responses", "openai-compatible"]


@pytest.mark.parametrize("name", SHORT)
def test_turn_cancelled_twice_keeps_valid_transcript(server, name):
    service = SERVICES[name]
    first = service.answer(["I look."], [("c1", "look", arguments(path="a"))])

    def make() -> Any:
        tool = MockTool("look", respond=lambda given: "saw", schema=SCHEMA)
        stored: list[dict[str, Any]] = []
        server.answers(first, service.answer(["done"]))

        async def scenario() -> None:
            async with session_with(service, server, "loop-streaming", tool) as session:
                try:
                    await session.execute("go")
                finally:
                    stored[:] = session.coordinator.get("context")._conversation.copy()

        def check() -> list[str]:
            calls = [call["id"] for m in stored for call in m.get("tool_calls") or ()]
            results = [m["tool_call_id"] for m in stored if m["role"] == "tool"]
            return (
                [] if calls == results else [f"calls {calls} and results {results} do not pair up"]
            )

        return scenario, check

    cancel_everywhere(
        make, modes=["asyncio-native-twice"], clock="real", second_after=(1, 3)
    ).raise_if_broken()
