"""`amplifier serve` as a process on both backends, with the clients that people use: the OpenAI SDK and AG-UI's."""

from __future__ import annotations

import json
import secrets
import subprocess
from pathlib import Path
from typing import Any

import openai
import pytest

from tests._support.node_parts import node, program
from tests.servers.http._server import PATIENCE, Server, running


def call(tool: str, **given: object) -> str:
    return f"call {tool} {json.dumps(given)}"


def openai_client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.address}/v1", api_key=server.token, max_retries=0, timeout=PATIENCE)


def test_openai_sdk_streams_answers_of_turns_with_tools(server, workdir):
    (workdir / "gate").touch()
    kept = sorted(server.home.glob("sessions/*"))
    with openai_client(server) as client:
        (model,) = client.models.list().data
        ask: list[Any] = [{"role": "user", "content": call("wait_for", path=str(workdir / "gate"))}]
        with client.chat.completions.create(
            model=model.id, messages=ask, stream=True, stream_options={"include_usage": True}
        ) as stream:
            chunks = list(stream)
        texts = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices]
        assert "".join(text or "" for text in texts) == "done: it is there "
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.total_tokens == 30
        conversation: list[Any] = [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "say one"},
            {"role": "assistant", "content": "one"},
            {"role": "user", "content": "history"},
        ]
        whole = client.chat.completions.create(model=model.id, messages=conversation)
        assert whole.choices[0].message.content == "2 prompts so far "
        assert whole.choices[0].finish_reason == "stop"
    assert sorted(server.home.glob("sessions/*")) == kept  # a conversation that comes with its request is not kept


def test_openai_sdk_gets_errors_of_its_own_classes(server):
    ask: list[Any] = [{"role": "user", "content": "say hello"}]
    fail: list[Any] = [{"role": "user", "content": "fail"}]
    tools: list[Any] = [{"type": "function", "function": {"name": "risky", "parameters": {}}}]
    with openai_client(server) as client:
        with pytest.raises(openai.AuthenticationError):
            client.with_options(api_key="wrong").models.list()
        with pytest.raises(openai.NotFoundError, match="is not served here"):
            client.chat.completions.create(model="gpt-9", messages=ask)
        with pytest.raises(openai.BadRequestError, match="has a tool 'risky' of its own"):
            client.chat.completions.create(model="amplifier", messages=ask, tools=tools)
        with pytest.raises(openai.RateLimitError, match="the quota is used up"):
            client.chat.completions.create(model="amplifier", messages=fail, stream=True)


@pytest.mark.slow
def test_openai_sdk_that_leaves_stops_its_turn(backend, home, workdir, plan):
    ask: list[Any] = [{"role": "user", "content": "hang"}]
    with running(backend, plan, home, workdir, "--max-turns", "1") as server, openai_client(server) as client:
        for _ in range(3):
            # With one place for turns, the next one runs only if the last one has ended.
            stream = _when_there_is_room(client, ask)
            assert next(iter(stream)).choices[0].delta.content == "hanging "
            stream.close()


def _when_there_is_room(client: openai.OpenAI, messages: list[Any]) -> Any:
    for _ in range(1000):
        try:
            return client.chat.completions.create(model="amplifier", messages=messages, stream=True)
        except openai.RateLimitError:
            continue
    raise AssertionError("the turn of a client that left still runs")


def ag_ui(server: Server, *steps: Any, thread: str | None = None, messages: Any = ()) -> Any:
    """Run an agent with each prompt or answer in turn; what the client has seen."""
    library = program("@ag-ui/client", "dist/index.mjs")
    script = Path(__file__).with_name("_ag_ui_client.mjs")
    given = {"url": f"{server.address}/ag-ui", "token": server.token, "steps": steps, "messages": messages}
    finished = subprocess.run(
        [node(), str(script), library, json.dumps({**given, "thread": thread or secrets.token_hex(4)})],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    return json.loads(finished.stdout.splitlines()[-1])


def test_ag_ui_client_accepts_every_event_and_keeps_the_conversation(server, workdir):
    (workdir / "gate").touch()
    found = ag_ui(server, call("wait_for", path=str(workdir / "gate")), call("nowhere"), "history", "fail")
    assert found["failures"] == [None, None, None, "the quota is used up"]
    calls = ["TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_END", "TOOL_CALL_RESULT"]
    assert found["kinds"][:5] == ["RUN_STARTED", *calls]
    assert found["kinds"].count("RUN_FINISHED") == 3
    assert found["kinds"][-1] == "RUN_ERROR"
    roles = [message["role"] for message in found["messages"]]
    assert roles == [*["user", "assistant", "tool", "assistant"] * 2, "user", "assistant", "user"]
    assert found["messages"][-2]["content"] == "3 prompts so far "


@pytest.mark.slow
def test_ag_ui_client_answers_questions(server, workdir):
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
def test_ag_ui_client_can_be_restarted_before_it_answers(server, workdir):
    asked = ag_ui(server, call("risky", path=str(workdir / "trace")))
    (question,) = asked["interrupts"]
    wrong = {"resume": [{"interruptId": "q-never", "status": "resolved", "payload": {"approved": True}}]}
    right = {"resume": [{"interruptId": question["id"], "status": "resolved", "payload": {"approved": True}}]}
    found = ag_ui(server, wrong, right, right, thread=asked["thread"], messages=asked["messages"])
    assert ["every question" in str(failure) for failure in found["failures"]] == [True, False, False]
    assert found["failures"][1] is None
    assert "does not wait for an answer" in found["failures"][2]
    assert found["outcomes"] == ["success"]
    assert (workdir / "trace").exists()
