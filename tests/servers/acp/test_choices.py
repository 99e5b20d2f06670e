"""What a client can choose: the mode and the model."""

from __future__ import annotations

import json

import pytest

from amplifier import ModelInfo, ProviderInfo
from tests.cli._scripted_agent import ScriptedProvider
from tests.servers.acp._editor import edit, editing
from tests.servers.acp._in_process import Client, Host, connected


async def said(client: Client, session_id: str) -> str:
    """The answer to a prompt."""
    number, text = client.ask(session_id, "say"), ""
    while (message := await client.next()).get("id") != number:
        update = message["params"]["update"]
        text += (
            update["content"]["text"] if update["sessionUpdate"] == "agent_message_chunk" else ""
        )
    return text


@pytest.mark.parametrize(
    ("mode", "outcome"), [("ask", "asked"), ("edits", "ran"), ("full", "ran"), ("plan", "denied")]
)
async def test_modes_decide_about_questions(mode, outcome, tmp_path):
    (tmp_path / "a.txt").write_text("old")
    plan = {"tools": ["tool-filesystem"], "hooks": ["hooks-approval"]}
    edit = {"tool": "edit_file", "file_path": "a.txt", "old_string": "old", "new_string": "new"}
    async with connected(Host(plan=plan)) as client:
        await client.answer_to(client.tell("initialize", protocolVersion=1))
        opened = await client.answer_to(
            client.tell("session/new", cwd=str(tmp_path), mcpServers=[])
        )
        session_id, modes = opened["result"]["sessionId"], opened["result"]["modes"]
        assert [each["id"] for each in modes["availableModes"]] == ["ask", "edits", "plan", "full"]
        assert modes["currentModeId"] == "ask"
        refused = await client.answer_to(
            client.tell("session/set_mode", sessionId=session_id, modeId="yolo")
        )
        assert (
            "modeId: expected one of ask, edits, plan, full, got 'yolo'"
            in refused["error"]["message"]
        )
        switched = await client.answer_to(
            client.tell("session/set_mode", sessionId=session_id, modeId=mode)
        )
        assert switched["result"] == {}
        number = client.ask(session_id, "both " + json.dumps(edit, separators=(",", ":")))
        if outcome == "asked":
            question = await client.question()
            client.reply(
                question["id"], result={"outcome": {"outcome": "selected", "optionId": "0"}}
            )
        while "method" in (message := await client.next()):
            assert message["method"] == "session/update"
        assert message["id"] == number
        assert (tmp_path / "a.txt").read_text() == ("old" if outcome == "denied" else "new")


async def test_modes_need_hooks_approval():
    async with connected() as client:
        session_id = await client.open()
        answer = await client.answer_to(
            client.tell("session/set_mode", sessionId=session_id, modeId="plan")
        )
        assert "modes need hooks-approval in the plan" in answer["error"]["message"]


class TwoModels(ScriptedProvider):
    def get_info(self):
        return ProviderInfo(
            id=self.name, display_name="Two", defaults={"model": "large", "context_window": 200}
        )

    async def list_models(self):
        return [
            ModelInfo(id=name, display_name=name, context_window=window, max_output_tokens=9)
            for name, window in (("large", 200), ("larger", 300), ("tiny", 100))
        ]

    def _decide(self, request):
        return f"by {request.model}", []


@pytest.mark.parametrize(
    ("in_plan", "first"), [({}, "large"), ({"config": {"model": "special"}}, "special")]
)
async def test_model_can_be_chosen(in_plan, first):
    async def mount(coordinator, config):
        await coordinator.mount("providers", TwoModels(), name="two")

    loop = {"module": "loop-streaming", **in_plan}
    plan = {
        "session": {"orchestrator": loop, "context": "context-simple"},
        "providers": ["provider-two"],
        "tools": [],
    }
    async with connected(Host(plan=plan, more={"provider-two": mount})) as client:
        await client.answer_to(client.tell("initialize", protocolVersion=1))
        opened = await client.answer_to(client.tell("session/new", cwd="/", mcpServers=[]))
        (option,) = opened["result"]["configOptions"]
        offered = [each["value"] for each in option["options"]]
        assert (option["id"], option["currentValue"]) == ("model", first)
        assert offered == list(
            dict.fromkeys([first, "large", "larger"])
        )  # of a smaller one the context knows nothing
        choice = {"sessionId": opened["result"]["sessionId"], "configId": "model"}
        refused = await client.answer_to(
            client.tell("session/set_config_option", **choice, value="tiny")
        )
        assert (
            f"value: expected one of {', '.join(offered)}, got 'tiny'"
            in refused["error"]["message"]
        )
        planned = "special" if in_plan else None  # the provider's own choice
        assert await said(client, choice["sessionId"]) == f"by {planned} "
        changed = await client.answer_to(
            client.tell("session/set_config_option", **choice, value="larger")
        )
        assert changed["result"]["configOptions"][0]["currentValue"] == "larger"
        assert await said(client, choice["sessionId"]) == "by larger "


def test_official_client_sees_and_changes_choices(backend, home, workdir):
    session = {"orchestrator": "loop-streaming", "context": "context-simple"}
    file = workdir / "plan.json"
    file.write_text(
        json.dumps(
            {"session": session, "providers": ["provider-mock"], "hooks": ["hooks-approval"]}
        )
    )

    async def scenario():
        async with editing(backend, file, home, workdir) as editor:
            await editor.open(workdir)
            opened = await editor.agent.new_session(cwd=str(workdir), mcp_servers=[])
            assert [(each.id, each.category) for each in opened.config_options] == [
                ("mode", "mode"),
                ("model", "model"),
            ]
            changed = await editor.agent.set_config_option("mode", opened.session_id, "plan")
            assert changed.config_options[0].current_value == "plan"
            same = changed.config_options[1].current_value
            changed = await editor.agent.set_config_option("model", opened.session_id, same)
            assert changed.config_options[1].current_value == same
            assert (await editor.ask(opened.session_id, "hello")).stop_reason == "end_turn"

    edit(scenario)
