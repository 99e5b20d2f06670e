"""`amplifier serve` as a process on both backends, with the clients that people use: the OpenAI SDK and AG-UI's."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import openai
import pytest

from tests._support.node_parts import node, program
from tests.serve._server import PATIENCE, Server, running


def call(tool: str, **given: object) -> str:
    return f"call {tool} {json.dumps(given)}"


def openai_client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.address}/v1", api_key=server.token, max_retries=0, timeout=PATIENCE)


def test_openai_sdk_streams_answers_of_turns_with_tools(backend, home, workdir, plan):
    (workdir / "gate").touch()
    with running(backend, plan, home, workdir) as server, openai_client(server) as client:
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
    assert not list((home / "sessions").glob("*"))  # a conversation that comes with its request is not kept


@pytest.mark.slow
def test_openai_sdk_gets_errors_of_its_own_classes(backend, home, workdir, plan):
    ask: list[Any] = [{"role": "user", "content": "say hello"}]
    fail: list[Any] = [{"role": "user", "content": "fail"}]
    tools: list[Any] = [{"type": "function", "function": {"name": "x", "parameters": {}}}]
    with running(backend, plan, home, workdir) as server, openai_client(server) as client:
        with pytest.raises(openai.AuthenticationError):
            client.with_options(api_key="wrong").models.list()
        with pytest.raises(openai.NotFoundError, match="is not served here"):
            client.chat.completions.create(model="gpt-9", messages=ask)
        with pytest.raises(openai.BadRequestError, match="tools of its own"):
            client.chat.completions.create(model="amplifier", messages=ask, tools=tools)
        with pytest.raises(openai.InternalServerError, match="the quota is used up"):
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


def ag_ui(server: Server, prompt: str) -> Any:
    library = program("@ag-ui/client", "dist/index.mjs")
    script = Path(__file__).with_name("_ag_ui_client.mjs")
    finished = subprocess.run(
        [node(), str(script), library, f"{server.address}/ag-ui", server.token, prompt],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    return json.loads(finished.stdout.splitlines()[-1])


def test_ag_ui_client_accepts_every_event_and_keeps_the_conversation(backend, home, workdir, plan):
    (workdir / "gate").touch()
    with running(backend, plan, home, workdir) as server:
        found = ag_ui(server, f"{call('wait_for', path=str(workdir / 'gate'))}|history")
        assert found["failure"] is None
        calls = ["TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_END", "TOOL_CALL_RESULT"]
        assert found["kinds"][:5] == ["RUN_STARTED", *calls]
        assert found["kinds"].count("RUN_FINISHED") == 2
        roles = [message["role"] for message in found["messages"]]
        assert roles == ["user", "assistant", "tool", "assistant", "user", "assistant"]
        assert found["messages"][-1]["content"] == "2 prompts so far "
        failed = ag_ui(server, "fail")
        assert failed["kinds"][-1] == "RUN_ERROR"
