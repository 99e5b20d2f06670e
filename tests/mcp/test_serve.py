"""An agent as an MCP server, asked by the SDK's own client: both backends on both sides, both transports, both forms of the protocol."""

from __future__ import annotations

import gc
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import attrs
import mcp_types
import pytest
from mcp import Client, MCPError
from mcp.client.stdio import StdioServerParameters

from amplifier.testing import wait_for
from tests._support.tree import ROOT

pytestmark = pytest.mark.filterwarnings("ignore:Async generator '(httpx2|httpcore2|mcp):ResourceWarning")

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
    async def client(self, answer: Any = None) -> AsyncIterator[Client]:
        async def elicit(context: Any, params: Any) -> Any:
            return answer(params)

        async with Client(self.target, mode=self.mode, elicitation_callback=elicit if answer else None) as client:
            yield client


WAYS = [
    ("asyncio", "stdio", "auto"),
    ("asyncio", "http", "legacy"),
    ("trio", "stdio", "legacy"),
    ("trio", "http", "auto"),
]
"""Backend of the server, transport, form of the protocol; each with a client on both backends."""
OTHER_WAYS = [
    ("asyncio", "stdio", "legacy"),
    ("asyncio", "http", "auto"),
    ("trio", "stdio", "auto"),
    ("trio", "http", "legacy"),
]
SLOW = [pytest.param(way, marks=pytest.mark.slow) for way in OTHER_WAYS]  # a server takes seconds to start
SOME = [*WAYS[1:3], *(pytest.param(way, marks=pytest.mark.slow) for way in (WAYS[0], WAYS[3]))]


@pytest.fixture(params=SOME, ids="-".join)
def agent(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Agent]:
    """A served agent."""
    server_backend, transport, mode = request.param
    notes = tmp_path / "notes"
    arguments = [PROGRAM, server_backend, transport, str(notes)]
    environment = {"PYTHONPATH": str(ROOT)}
    if transport == "stdio":
        yield Agent(StdioServerParameters(command=sys.executable, args=arguments, env=environment), mode, notes)
        return
    with subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield Agent(process.stdout.readline().strip(), mode, notes)
        finally:
            process.send_signal(signal.SIGINT)


def decided(decision: str) -> Any:
    return lambda params: mcp_types.ElicitResult(action="accept", content={"decision": decision})


async def run(client: Client, prompt: str, **given: Any) -> Any:
    return await client.call_tool("run", {"prompt": prompt, **given})


@pytest.mark.parametrize("agent", [*WAYS, *SLOW], ids="-".join, indirect=True)
async def test_a_client_runs_turns_asks_and_reads_its_conversation(agent):
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
        again = await run(client, "hello", session=session)
        assert again.structured_content == {"response": "7 messages; HELLO", "session_id": session}
        page = await client.read_resource(f"amplifier://sessions/{session}/transcript")
        assert [message["role"] for message in json.loads(page.contents[0].text)][:2] == ["user", "assistant"]


async def test_a_denied_or_unanswerable_question_denies(agent):
    async with agent.client(decided("Deny")) as client:
        assert "denied" in (await run(client, "ask")).content[0].text
    async with agent.client(decided("Something else")) as client:
        assert "denied" in (await run(client, "ask")).content[0].text
    async with agent.client(lambda params: mcp_types.ElicitResult(action="cancel")) as client:
        assert "denied" in (await run(client, "ask")).content[0].text
    async with agent.client() as client:
        assert "denied" in (await run(client, "ask")).content[0].text


async def test_a_cancelled_call_stops_the_turn_and_the_session_stays_usable(agent):
    async with agent.client() as client:
        session = (await run(client, "hello")).structured_content["session_id"]
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: run(client, "hang", session=session))
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
        with pytest.raises(MCPError, match="there is no session 'x'; leave session out to begin one"):
            await run(client, "hello", session="x")
        assert (await run(client, " ")).content[0].text == "prompt: expected a non-empty text"
        with pytest.raises(MCPError, match="there is no resource"):
            await client.read_resource("amplifier://sessions/x/transcript")


@pytest.mark.parametrize("agent", [("trio", "http", "legacy")], ids="-".join, indirect=True)
async def test_clients_do_not_see_each_other(agent):
    async with agent.client() as one, agent.client() as other:
        first, second = [(await run(client, "hello")).structured_content["session_id"] for client in (one, other)]
        assert first != second
        (mine,) = (await one.list_resources()).resources
        assert first in mine.uri
        with pytest.raises(MCPError, match="there is no session"):
            await run(other, "hello", session=first)
        with pytest.raises(MCPError, match="there is no resource"):
            await other.read_resource(mine.uri)


@pytest.mark.parametrize("agent", [("trio", "http", "legacy")], ids="-".join, indirect=True)
async def test_the_session_that_was_idle_longest_makes_room(agent):
    async with agent.client() as one, agent.client() as two, agent.client() as three:
        for client in (one, two, three):
            assert not (await run(client, "hello")).is_error
        assert (await one.list_resources()).resources == []
        assert len((await three.list_resources()).resources) == 1


@pytest.mark.parametrize("server_backend", ["asyncio", "trio"])
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_the_command_ends_at_a_signal_while_it_waits_for_its_client(number, server_backend, tmp_path):
    plan = tmp_path / "plan.json"
    plan.write_text(
        json.dumps(
            {"session": {"orchestrator": "loop-basic", "context": "context-simple"}, "providers": ["provider-mock"]}
        )
    )
    command = [sys.executable, "-m", "amplifier", "mcp", "serve", str(plan), "--backend", server_backend]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
        process.stdin.write(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}) + "\n")
        process.stdin.flush()
        assert "serverInfo" in process.stdout.readline()
        process.send_signal(number)
        assert process.wait(60) == 128 + number
