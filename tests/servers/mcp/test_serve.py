"""An agent as an MCP server, asked by the SDK's own client: both backends on both sides, both transports, both forms of the protocol."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import attrs
import httpx2
import mcp_types
import pytest
from mcp import Client, MCPError
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from amplifier import AmplifierSession
from amplifier.cli import main
from amplifier.servers.mcp import serve
from amplifier.testing import wait_for
from tests._support.forked import Forked
from tests._support.tree import ROOT

pytestmark = pytest.mark.filterwarnings(
    "ignore:Async generator '(httpx2|httpcore2|mcp):ResourceWarning"
)

TOKEN = "a-token-for-the-tests"
PROGRAM = str(Path(__file__).with_name("agent_program.py"))


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """What the SDK's client leaves to the garbage collector goes while the warning about it is ignored."""
    yield
    gc.collect()


@attrs.define
class Agent:
    """A served agent, and how to connect to it."""

    target: Any
    mode: str
    notes: Path

    @asynccontextmanager
    async def client(self, answer: Any = None, **headers: str) -> AsyncIterator[Client]:
        async def elicit(context: Any, params: Any) -> Any:
            return answer(params)

        async with httpx2.AsyncClient(
            headers=headers or {"Authorization": f"Bearer {TOKEN}"}
        ) as http_client:
            target = self.target
            if isinstance(target, str):
                target = streamable_http_client(target, http_client=http_client)
            async with Client(
                target, mode=self.mode, elicitation_callback=elicit if answer else None
            ) as client:
                yield client


STDIO = [("asyncio", "stdio", "auto"), ("trio", "stdio", "legacy")]
HTTP = [("asyncio", "http", "legacy"), ("trio", "http", "auto")]
"""Backend of the server, transport, form of the protocol; each with a client on both backends. What the agent answers does not depend on
them. A server on standard streams takes seconds to start and serves one client, so it is asked where the transport has a part in it."""


@pytest.fixture(scope="module")
def http_servers() -> Iterator[dict[str, str]]:
    """URLs of servers by their backends; they serve all tests of this file."""
    environment = {**os.environ, "TOKEN": TOKEN}
    with ExitStack() as stack:
        started = {
            backend: stack.enter_context(
                Forked(
                    [sys.executable, PROGRAM, backend, "http"],
                    stdout=subprocess.PIPE,
                    text=True,
                    env=environment,
                )
            )
            for backend in ("asyncio", "trio")
        }
        try:
            urls = {}
            for backend, process in started.items():
                assert process.stdout is not None
                urls[backend] = process.stdout.readline().strip()
            yield urls
        finally:
            for process in started.values():
                process.send_signal(signal.SIGINT)


@pytest.fixture(params=HTTP, ids="-".join)
def agent(request: pytest.FixtureRequest, http_servers: dict[str, str], tmp_path: Path) -> Agent:
    """A served agent."""
    server_backend, transport, mode = request.param
    target: Any
    if transport == "http":
        target = http_servers[server_backend]
    else:
        arguments = [PROGRAM, server_backend, transport]
        target = StdioServerParameters(
            command=sys.executable, args=arguments, env={"PYTHONPATH": str(ROOT)}
        )
    return Agent(target, mode, tmp_path / "notes")


def decided(decision: str) -> Any:
    return lambda params: mcp_types.ElicitResult(action="accept", content={"decision": decision})


async def run(client: Client, prompt: str, **given: Any) -> Any:
    return await client.call_tool("run", {"prompt": prompt, **given})


@pytest.mark.slow
@pytest.mark.parametrize("agent", [*HTTP, *STDIO], ids="-".join, indirect=True)
async def test_client_runs_turns_and_reads_conversation(agent):
    questions: list[str] = []
    steps: list[str | None] = []

    def allow(params: Any) -> Any:
        questions.append(params.message)
        return mcp_types.ElicitResult(action="accept", content={"decision": "Allow once"})

    async def note(progress: float, total: float | None, message: str | None) -> None:
        steps.append(message)

    async with agent.client(allow) as client:
        (tool,) = (await client.list_tools()).tools
        assert (tool.name, tool.input_schema["required"]) == ("run", ["prompt"])
        result = await client.call_tool("run", {"prompt": "ask"}, progress_callback=note)
        assert result.content[0].text == "3 messages; ASK"
        assert questions == ["May it step?"]
        assert "tool step" in steps
        session = result.structured_content["session_id"]
        assert result.content[1].text == f"(session: {session})"
        again = await run(client, "hello", session=session)
        assert again.structured_content == {"response": "7 messages; HELLO", "session_id": session}
        page = await client.read_resource(f"amplifier://sessions/{session}/transcript")
        assert [message["role"] for message in json.loads(page.contents[0].text)][:2] == [
            "user",
            "assistant",
        ]


async def test_denied_or_unanswerable_question_denies(agent):
    async with agent.client(decided("Deny")) as client:
        assert "denied" in (await run(client, "ask")).content[0].text
    async with agent.client(decided("Something else")) as client:
        assert "denied" in (await run(client, "ask")).content[0].text
    async with agent.client(lambda params: mcp_types.ElicitResult(action="cancel")) as client:
        assert "denied" in (await run(client, "ask")).content[0].text
    async with agent.client() as client:
        assert "denied" in (await run(client, "ask")).content[0].text


@pytest.mark.slow
@pytest.mark.parametrize("agent", [*HTTP, STDIO[-1]], ids="-".join, indirect=True)
async def test_cancelled_call_stops_turn_only(agent):
    async with agent.client() as client:
        session = (await run(client, "hello")).structured_content["session_id"]
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: run(client, f"hang {agent.notes}", session=session))
            assert await wait_for(agent.notes.exists, timeout=60)
            group.cancel_scope.cancel()
        assert await wait_for(lambda: "cancelled" in agent.notes.read_text(), timeout=60)
        assert await wait_for(lambda: works_again(client, session), timeout=60)


async def works_again(client: Client, session: str) -> bool:
    return not (await run(client, "hello", session=session)).is_error


async def test_wrong_calls_get_clear_errors(agent):
    async with agent.client() as client:
        with pytest.raises(MCPError, match="there is no tool 'walk'; the only one is 'run'"):
            await client.call_tool("walk", {})
        with pytest.raises(
            MCPError, match="there is no session 'x'; leave session out to begin one"
        ):
            await run(client, "hello", session="x")
        assert (await run(client, " ")).content[
            0
        ].text == "prompt: expected a non-empty text, got ' '"
        wrong = await run(client, "hello", session=7)
        assert (
            wrong.content[0].text == "session: expected the session_id of an earlier result, got 7"
        )
        wrong = await run(client, "hello", model="x")
        assert wrong.content[0].text == "model: unknown key; known are prompt, session"
        with pytest.raises(MCPError, match="there is no resource") as missing:
            await client.read_resource("amplifier://sessions/x/transcript")
        assert missing.value.error.data == {"uri": "amplifier://sessions/x/transcript"}


async def test_own_commands_are_prompts(agent):
    async with agent.client() as client:
        assert [
            (each.name, each.description) for each in (await client.list_prompts()).prompts
        ] == [
            ("tidy", "Tidy up"),
            ("look", "Look around."),
        ]
        for name, given, text in (
            ("tidy", {"arguments": "the desk"}, "# Tidy up\nTidy the desk."),
            ("look", None, "Look around."),
        ):
            (message,) = (await client.get_prompt(name, given)).messages
            assert (message.role, message.content.text) == ("user", text)
        for name, given in (("nowhere", None), ("tidy", {"room": "x"})):
            with pytest.raises(MCPError, match="there are tidy, look"):
                await client.get_prompt(name, given)


async def test_prompts_without_choices_complete_to_nothing(agent):
    async with agent.client() as client:
        reference = mcp_types.PromptReference(name="tidy")
        found = await client.complete(reference, {"name": "arguments", "value": "the"})
        assert (found.completion.values, found.completion.has_more) == ([], False)
        with pytest.raises(MCPError, match="there is no prompt 'nowhere'"):
            await client.complete(
                mcp_types.PromptReference(name="nowhere"), {"name": "arguments", "value": ""}
            )
        with pytest.raises(MCPError, match="there is no template 'file:///x'"):
            await client.complete(
                mcp_types.ResourceTemplateReference(uri="file:///x"), {"name": "x", "value": ""}
            )


@pytest.mark.parametrize("agent", [("trio", "http", "legacy")], ids="-".join, indirect=True)
async def test_own_conversation_ids_are_completed(agent):
    async with agent.client() as one, agent.client() as other:
        mine, _ = [
            (await run(client, "hello")).structured_content["session_id"] for client in (one, other)
        ]
        (template,) = (await one.list_resource_templates()).resource_templates
        reference = mcp_types.ResourceTemplateReference(uri=template.uri_template)
        for start, values in ((mine[:4], [mine]), ("", [mine]), ("nothing", [])):
            found = await one.complete(reference, {"name": "session_id", "value": start})
            assert found.completion.values == values
        page = await one.read_resource(template.uri_template.replace("{session_id}", mine))
        assert "hello" in page.contents[0].text


@pytest.mark.parametrize("agent", [("trio", "http", "legacy")], ids="-".join, indirect=True)
async def test_clients_are_isolated(agent):
    async with agent.client() as one, agent.client() as other:
        first, second = [
            (await run(client, "hello")).structured_content["session_id"] for client in (one, other)
        ]
        assert first != second
        (mine,) = (await one.list_resources()).resources
        assert first in mine.uri
        with pytest.raises(MCPError, match="there is no session"):
            await run(other, "hello", session=first)
        with pytest.raises(MCPError, match="there is no resource"):
            await other.read_resource(mine.uri)


@pytest.mark.parametrize("agent", [("trio", "http", "legacy")], ids="-".join, indirect=True)
async def test_longest_idle_session_makes_room(agent):
    async with agent.client() as one, agent.client() as two, agent.client() as three:
        for client in (one, two, three):
            assert not (await run(client, "hello")).is_error
        assert (await one.list_resources()).resources == []
        assert len((await three.list_resources()).resources) == 1


@pytest.mark.slow
@pytest.mark.parametrize("agent", HTTP, ids="-".join, indirect=True)
async def test_only_authorized_clients_are_served(agent):
    async with agent.client() as client:
        assert (await run(client, "hello")).content[0].text == "3 messages; HELLO"
    right = f"Bearer {TOKEN}"
    refused = [
        (401, {"Authorization": "Bearer another-token-than-that"}),
        (401, {"Authorization": f"Basic {TOKEN}"}),
        (401, {"X-Nothing": "no token at all"}),
        (403, {"Authorization": right, "Origin": "https://example.org"}),
        (403, {"Authorization": right, "Host": "example.org"}),
    ]
    for status, headers in refused:
        with pytest.raises((MCPError, httpx2.HTTPStatusError, ExceptionGroup)):
            async with agent.client(**headers) as client:
                await run(client, "hello")
        async with httpx2.AsyncClient(headers=headers) as plain:
            assert (await plain.post(agent.target, json={})).status_code == status


async def test_http_without_token_needs_consent():
    with pytest.raises(
        ValueError, match="HTTP needs one; pass an empty text if something else checks"
    ):
        await serve(lambda: AmplifierSession({}), transport="http")
    with pytest.raises(ValueError, match="at least 16 printable ASCII characters"):
        await serve(lambda: AmplifierSession({}), transport="http", token="short", port=0)


def mock_plan(folder: Path) -> str:
    plan = folder / "plan.json"
    modules = {"orchestrator": "loop-basic", "context": "context-simple"}
    plan.write_text(json.dumps({"session": modules, "providers": ["provider-mock"]}))
    return str(plan)


@pytest.mark.slow
@pytest.mark.parametrize("is_default", [False, True], ids=["plan", "default plan"])
async def test_command_prints_token_for_http(anyio_backend_name, is_default, tmp_path):
    chosen = ["-p", "offline"] if is_default else [mock_plan(tmp_path)]
    words = [
        "mcp",
        "serve",
        *chosen,
        "--transport",
        "http",
        "--port",
        "0",
        "--backend",
        anyio_backend_name,
    ]
    environment = {
        name: value for name, value in os.environ.items() if name != "AMPLIFIER_SERVE_TOKEN"
    }
    async with await anyio.open_process(
        [sys.executable, "-m", "amplifier", *words], env=environment
    ) as process:
        assert process.stderr is not None
        text = b""
        while b"token: " not in text or not text.endswith(b"\n"):
            text += await process.stderr.receive()
        url, token = (line.split(" ")[-1] for line in text.decode().splitlines()[-2:])
        async with (
            httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}) as http_client,
            Client(streamable_http_client(url, http_client=http_client)) as client,
        ):
            assert [tool.name for tool in (await client.list_tools()).tools] == ["run"]
        async with httpx2.AsyncClient() as plain:
            assert (await plain.post(url, json={})).status_code == 401
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 128 + signal.SIGTERM


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--no-token", "--host", "0.0.0.0"],
            "without a token the server may listen on this machine only",
        ),
        (["--host", "0.0.0.0"], "needs --allow-host"),
    ],
)
def test_command_refuses_to_serve_everyone(words, message, tmp_path, capsys):
    assert (
        main(["mcp", "serve", mock_plan(tmp_path), "--transport", "http", "--port", "0", *words])
        == 2
    )
    assert message in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("server_backend", ["asyncio", "trio"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_command_waiting_for_client_ends_at_signal(number, server_backend, tmp_path):
    command = [
        sys.executable,
        "-m",
        "amplifier",
        "mcp",
        "serve",
        mock_plan(tmp_path),
        "--backend",
        server_backend,
    ]
    with Forked(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        hello = {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "test", "version": "1"},
        }
        process.stdin.write(
            json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}) + "\n"
        )
        process.stdin.flush()
        assert "serverInfo" in process.stdout.readline()
        process.send_signal(number)
        assert process.wait(60) == 128 + number
