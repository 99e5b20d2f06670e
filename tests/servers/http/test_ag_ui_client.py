"""`amplifier serve` as a process on both backends, with the official client of AG-UI."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cli._scripted_agent import call


@pytest.mark.slow
def test_ag_ui_client_accepts_every_event(ag_ui, server, workdir):
    (workdir / "gate").touch()
    found = ag_ui(
        server, call("wait_for", path=str(workdir / "gate")), call("nowhere"), "history", "fail"
    )
    assert found["failures"] == [None, None, None, "the quota is used up"]
    calls = ["TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_END", "TOOL_CALL_RESULT"]
    assert found["kinds"][:5] == ["RUN_STARTED", *calls]
    assert found["kinds"].count("RUN_FINISHED") == 3
    assert found["kinds"][-1] == "RUN_ERROR"
    roles = [message["role"] for message in found["messages"]]
    assert roles == [*["user", "assistant", "tool", "assistant"] * 2, "user", "assistant", "user"]
    assert found["messages"][-2]["content"] == "3 prompts so far "
    ids = [message["id"] for message in found["messages"]]
    assert len(set(ids)) == len(ids)


@pytest.mark.slow
def test_ag_ui_client_groups_calls_of_answer(ag_ui, server):
    town = {"type": "object", "properties": {"town": {"type": "string"}}}
    weather = {"name": "weather", "description": "The weather of a town.", "parameters": town}
    inputs = [{"tool": "weather", "town": town} for town in ("Oslo", "Rome")]
    prompt = "both " + " ".join(json.dumps(each, separators=(",", ":")) for each in inputs)
    found = ag_ui(server, prompt, tools=[weather])
    assert [message["role"] for message in found["messages"]] == ["user", "assistant"]
    assert len(found["messages"][1]["toolCalls"]) == 2


@pytest.mark.slow
def test_ag_ui_client_answers_questions(ag_ui, server, workdir):
    answers: list[Any] = [
        {"status": "resolved", "payload": {"approved": True}},
        {"status": "resolved", "payload": {"approved": False}},
        {"status": "cancelled"},
    ]
    steps: list[Any] = []
    for name, answer in zip(("approved", "denied", "cancelled"), answers, strict=True):
        steps += [call("risky", path=str(workdir / name)), {"answer": answer}]
    found = ag_ui(server, *steps, "history")
    assert found["failures"] == [None] * 7
    assert found["outcomes"] == [*["interrupt", "success"] * 3, "success"]
    roles = [message["role"] for message in found["messages"]]
    assert roles == [*["user", "assistant", "tool", "assistant"] * 3, "user", "assistant"]
    assert found["messages"][-1]["content"] == "4 prompts so far "
    assert [path.name for path in workdir.iterdir()] == ["approved"]


@pytest.mark.slow
def test_ag_ui_client_restarts_before_answering(ag_ui, server, workdir):
    asked = ag_ui(server, call("risky", path=str(workdir / "trace")))
    (question,) = asked["interrupts"]
    wrong = {
        "resume": [{"interruptId": "q-never", "status": "resolved", "payload": {"approved": True}}]
    }
    right = {
        "resume": [
            {"interruptId": question["id"], "status": "resolved", "payload": {"approved": True}}
        ]
    }
    found = ag_ui(server, wrong, right, right, thread=asked["thread"], messages=asked["messages"])
    assert ["every question" in str(failure) for failure in found["failures"]] == [
        True,
        False,
        False,
    ]
    assert found["failures"][1] is None
    assert "does not wait for an answer" in found["failures"][2]
    assert found["outcomes"] == ["success"]
    assert (workdir / "trace").exists()


@pytest.mark.slow
def test_ag_ui_client_runs_own_tool(ag_ui, server):
    town = {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]}
    weather = {"name": "weather", "description": "The weather of a town.", "parameters": town}
    found = ag_ui(server, call("weather", town="Oslo"), {"result": "rain"}, tools=[weather])
    assert (found["failures"], found["outcomes"]) == ([None, None], ["success", "success"])
    assert "TOOL_CALL_RESULT" not in found["kinds"]
    assert [message["role"] for message in found["messages"]] == [
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert found["messages"][-1]["content"] == "done: rain "


@pytest.mark.slow
def test_ag_ui_client_shows_page_to_model(ag_ui, server):
    """What CopilotKit sends for `useCopilotReadable`."""
    context = [{"description": "The page", "value": "a map of Oslo"}]
    found = ag_ui(server, "notes", "history", context=context)
    assert found["failures"] == [None, None]
    assert "The page: a map of Oslo" in found["messages"][1]["content"]
    assert (
        found["messages"][-1]["content"] == "2 prompts so far "
    )  # it is not part of the conversation
