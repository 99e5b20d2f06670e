"""What servers ask of their client: roots, sampling and elicitation."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest

from amplifier.testing import MockApprovalSystem, wait_for
from tests.modules.tools.mcp.desk import Desk, opened, small


class Person:
    """Someone who fills in forms."""

    def __init__(self, values: dict[str, Any] | None) -> None:
        self.values = values
        self.asked: list[tuple[str, dict[str, Any]]] = []

    async def request_approval(
        self, prompt: str, options: list[str], timeout: float, default: str
    ) -> str:
        raise AssertionError(f"asked for permission: {prompt}")

    async def request_input(
        self, prompt: str, schema: dict[str, Any], timeout: float
    ) -> dict[str, Any] | None:
        self.asked.append((prompt, schema))
        return self.values


async def asked(desk: Desk, tool: str, **given: Any) -> Any:
    """What the server got for an answer."""
    return json.loads((await desk.call(tool, **given)).output)


FORM = {
    "message": "Which city?",
    "requestedSchema": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}
CONFIRM = {
    "message": "Go on?\nThe MCP server 'bank' asks:",
    "requestedSchema": {"type": "object", "properties": {}},
}


async def test_roots_lie_below_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    async with opened({"small": small("--all", roots=[".", "/"])}) as desk:
        here, top = (await asked(desk, "small_roots"))["roots"]
        assert (here["uri"], top["uri"]) == (tmp_path.as_uri(), "file:///")
        desk.session.coordinator.register_capability("session.working_dir", str(tmp_path.parent))
        assert (await asked(desk, "small_roots"))["roots"][0]["uri"] == tmp_path.parent.as_uri()


async def test_server_without_planned_roots_gets_none():
    # server-filesystem would let them replace the directories that its arguments allow
    async with opened({"small": small("--all")}) as desk:
        assert "not supported" in (await asked(desk, "small_roots"))["error"]["message"]


async def test_sampling_asks_user_then_model():
    person = MockApprovalSystem(["Allow once"])
    async with opened({"small": small("--all")}, model=["Forty-two."], approval=person) as desk:
        result = await asked(desk, "small_sample")
        assert result["content"] == {"type": "text", "text": "Forty-two."}
        (question,) = person.requests
        assert "Let the MCP server 'small' ask the model" in question["prompt"]
        assert "What is six times seven?" in question["prompt"]
        assert question["default"] == "deny"
        assert len(desk.events("mcp:sampling")) == 1


@pytest.mark.parametrize("person", [MockApprovalSystem(["Deny"]), None])
async def test_sampling_without_permission_is_refused(person):
    approval = None if person is None else MockApprovalSystem(["Deny"])
    async with opened({"small": small("--all")}, model=[], approval=approval) as desk:
        assert (await asked(desk, "small_sample"))["error"][
            "message"
        ] == "the user does not allow it"


async def test_sampling_follows_plan():
    servers = {"yes": small("--all", sampling="allow"), "no": small("--all", sampling="deny")}
    async with opened(servers, model=["Sure."]) as desk:
        assert (await asked(desk, "yes_sample"))["content"]["text"] == "Sure."
        assert "not supported" in (await asked(desk, "no_sample"))["error"]["message"]


async def test_stopped_call_ends_sampling():
    begun, ended = anyio.Event(), anyio.Event()

    async def never(request: Any) -> str:
        begun.set()
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()
        return ""

    async with opened({"small": small("--all", sampling="allow")}, model=[never]) as desk:
        async with anyio.create_task_group() as group:
            group.start_soon(desk.call, "small_sample")
            await begun.wait()
            group.cancel_scope.cancel()
        with anyio.fail_after(60):
            await ended.wait()
        assert (await desk.call("small_echo", text="still there")).success


async def test_form_is_filled_in_by_user():
    person = Person({"city": "Paris"})
    async with opened({"small": small("--all")}, approval=person) as desk:
        assert await asked(desk, "small_elicit", **FORM) == {
            "action": "accept",
            "content": {"city": "Paris"},
        }
        ((prompt, schema),) = person.asked
        assert prompt == "The MCP server 'small' asks:\n  Which city?"
        assert schema["required"] == ["city"]
        (event,) = desk.events("mcp:elicitation")
        assert event["action"] == "accept"
        assert "Paris" not in str(event)


async def test_user_may_decline_form():
    async with opened({"small": small("--all")}, approval=Person(None)) as desk:
        assert await asked(desk, "small_elicit", **FORM) == {"action": "decline"}


async def test_confirmation_cannot_imitate_other_server():
    person = MockApprovalSystem(["Allow", "Deny"])
    async with opened({"small": small("--all")}, approval=person) as desk:
        assert await asked(desk, "small_elicit", **CONFIRM) == {"action": "accept", "content": {}}
        assert await asked(desk, "small_elicit", **CONFIRM) == {"action": "decline"}
        assert person.requests[0]["prompt"].splitlines() == [
            "The MCP server 'small' asks:",
            "  Go on?",
            "  The MCP server 'bank' asks:",
        ]


async def test_page_to_open_is_shown_with_address():
    person = MockApprovalSystem(["Allow"])
    page = {
        "mode": "url",
        "message": "Log in",
        "url": "https://example.org/login",
        "elicitationId": "1",
    }
    async with opened({"small": small("--all")}, approval=person) as desk:
        assert await asked(desk, "small_elicit", **page) == {"action": "accept"}
        assert "https://example.org/login" in person.requests[0]["prompt"]


@pytest.mark.parametrize(
    "address",
    [
        *(
            "file:///etc/passwd",
            "javascript:alert(1)",
            "JavaScript:alert(1)",
            "data:text/html,x",
            "vscode://x/y",
        ),
        *("https:", "http:///x", "//example.org/x", "example.org", "\x01https://example.org"),
    ],
)
async def test_non_web_page_is_declined(address):
    person = MockApprovalSystem([])
    page = {"mode": "url", "message": "Log in", "url": address, "elicitationId": "1"}
    async with opened({"small": small("--all")}, approval=person) as desk:
        assert await asked(desk, "small_elicit", **page) == {"action": "decline"}
        assert person.requests == []


@pytest.mark.parametrize("approval", [None, MockApprovalSystem([])])
async def test_form_without_answerer_is_declined(approval):
    async with opened({"small": small("--all")}, approval=approval) as desk:
        assert await asked(desk, "small_elicit", **FORM) == {"action": "decline"}


async def test_elicitation_can_be_forbidden_by_plan():
    async with opened(
        {"small": small("--all", elicitation=False)}, approval=Person({"city": "x"})
    ) as desk:
        assert "not supported" in (await asked(desk, "small_elicit", **FORM))["error"]["message"]


async def test_failing_approval_system_declines(caplog):
    async with opened(
        {"small": small("--all")}, approval=MockApprovalSystem([RuntimeError("broken")])
    ) as desk:
        assert await asked(desk, "small_elicit", **CONFIRM) == {"action": "decline"}
    assert "failed: declined" in caplog.text


async def test_requests_outside_calls_are_refused(caplog):
    caplog.set_level("INFO")
    async with opened({"small": small("--all", sampling="allow")}) as desk:
        await desk.call("small_sample_later")
        assert await wait_for(
            lambda: "asked for sampling outside of a call: refused" in caplog.text, timeout=60
        )
