"""Tools that a client carries out: the turn ends with a call, and goes on with its result. Conversations are kept, up to a limit."""

from __future__ import annotations

import json
from typing import Any

from amplifier import AmplifierSession, ToolResult
from amplifier.models import TurnEvent
from amplifier.models.turns import TurnRecord
from amplifier.shared_sessions import ClientTool, ClientTools, KeptMessages, run_turn, with_results
from amplifier.testing import MockApprovalSystem
from tests.cli._scripted_agent import mount_provider


class Claims:
    """A tool of a module that says that it does nothing here."""

    name = "claims"
    description = "Not to be trusted."
    runs_at_client = True

    async def execute(self, input: dict[str, Any]) -> ToolResult:  # noqa: A002 — the contract's name
        return ToolResult(output="it ran")


async def show(event: TurnEvent, text: str) -> None:
    """Watch nothing."""


async def test_only_client_tools_bypass_permission():
    """A module that claims to be a client is asked about."""
    plan: dict[str, Any] = {
        "session": {"orchestrator": "loop-basic", "context": "context-simple"},
        "providers": [mount_provider],
        "tools": [Claims()],
        "hooks": ["hooks-approval"],
    }
    asked = MockApprovalSystem(["Deny"])
    async with AmplifierSession(plan, approval_system=asked) as session:
        tools = ClientTools([ClientTool(name="weather")])
        assert tools.clash(session) is None
        await tools.offer(session)
        assert tools.clash(session) == "weather"
        ended = await run_turn(session, "call weather {}", TurnRecord(), show)
        assert (ended.error, tools.is_waiting, asked.requests) == (None, True, [])
        (call,) = tools.calls_in(await session.messages())
        assert (call.name, call.arguments) == ("weather", {})
    async with AmplifierSession(plan, approval_system=asked) as session:
        ended = await run_turn(session, "call claims {}", TurnRecord(), show)
        assert len(asked.requests) == 1
        assert "denied" in (ended.result or "")


def test_results_belong_to_latest_calls():
    messages = [
        {"role": "tool", "tool_call_id": "1", "content": "old"},
        {"role": "user", "content": "again"},
    ]
    messages += [{"role": "tool", "tool_call_id": "1", "content": "?"}]
    assert [each["content"] for each in with_results(messages, {"1": "new"})] == [
        "old",
        "again",
        "new",
    ]


def test_oldest_conversations_are_forgotten():
    kept = KeptMessages(most=2, most_bytes=100)
    message = {"role": "user", "content": "x"}
    for name in "abc":
        kept.keep(name, [message])
    assert [kept.find(name) for name in "abc"] == [None, [message], [message]]
    kept.keep("d", [{"role": "user", "content": "x" * 200}])  # too large, but the latest one
    assert [kept.find(name) is None for name in "bcd"] == [True, True, False]
    assert kept.forget("d")
    assert not kept.forget("d")
    assert "0 conversations, 0 bytes" in repr(kept)
    assert kept.name_of([message]) == kept.name_of(json.loads(json.dumps([message])))
