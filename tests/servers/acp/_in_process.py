"""A client in the same process as the agent, which can send what no proper client sends."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import attrs

from amplifier import AmplifierSession, ModuleLoader
from amplifier.servers import SessionRequest
from amplifier.servers.acp import serve
from amplifier.store import SessionRecord
from tests.cli._scripted_agent import mount_hook, mount_provider, mount_tools

PLAN: dict[str, Any] = {
    "session": {"orchestrator": "loop-streaming", "context": "context-simple"},
    "providers": ["provider-scripted"],
    "tools": ["tool-scripted"],
    "hooks": ["hooks-ask"],
}


@attrs.define
class Host:
    """Makes sessions of the scripted agent, and remembers what it was asked for; it stands for the store as well."""

    has_mcp: bool = False
    made: list[AmplifierSession] = attrs.field(factory=list)
    servers: list[dict[str, Any]] = attrs.field(factory=list)
    turns: list[tuple[str, str | None]] = attrs.field(factory=list)
    deleted: list[str] = attrs.field(factory=list)
    more: dict[str, Any] = attrs.field(factory=dict)
    plan: dict[str, Any] = attrs.field(factory=dict)
    own: dict[str, str] = attrs.field(factory=dict)

    def new_id(self) -> str:
        return f"session-{len(self.made) + 1}"

    def make(self, wanted: SessionRequest) -> AmplifierSession:
        modules = {
            "provider-scripted": mount_provider,
            "tool-scripted": mount_tools,
            "hooks-ask": mount_hook,
        }
        loader = ModuleLoader(modules={**modules, **self.more})
        plan = {**PLAN, "tools": [*PLAN["tools"], *self.more], **self.plan}
        session_id, approvals = wanted.session_id, wanted.approvals
        self.made.append(
            AmplifierSession(plan, loader, session_id=session_id, approval_system=approvals)
        )
        self.made[-1].coordinator.register_capability("session.working_dir", str(wanted.directory))
        self.servers.append(wanted.servers)
        return self.made[-1]

    def check(self, session: AmplifierSession) -> None:
        assert session.initialized

    def commands(self, directory: Path) -> dict[str, str]:
        return dict(self.own)

    def records(self) -> list[SessionRecord]:
        return [
            SessionRecord(session_id=f"stored-{index}", directory="/tmp") for index in range(120)
        ]

    def delete(self, session_id: str) -> None:
        self.deleted.append(session_id)

    def record(self, session_id: str) -> SessionRecord:
        return SessionRecord(session_id=session_id)

    def write(self, record: SessionRecord) -> None:
        self.turns.append((record.session_id, record.status))

    async def serve(self, stream: Any) -> OSError | None:
        """Serve a client with this agent."""
        kept: Any = self
        return await serve(
            stream,
            self.make,
            storage=kept,
            check=self.check,
            commands=self.commands,
            has_mcp=self.has_mcp,
        )


class Client:
    """Both ends of the bytes: what `serve` reads and writes, and what a test sends and receives."""

    def __init__(self) -> None:
        self._to_agent, self._at_agent = anyio.create_memory_object_stream[bytes](1000)
        self._from_agent, self._at_client = anyio.create_memory_object_stream[bytes](1000)
        self._numbers = 0
        self.is_reading = anyio.Event()
        self.is_reading.set()

    # ── the agent's side ──

    async def receive(self) -> bytes:
        try:
            return await self._at_agent.receive()
        except anyio.EndOfStream:
            return b""

    async def send(self, data: bytes) -> None:
        await self.is_reading.wait()
        try:
            await self._from_agent.send(data)
        except anyio.BrokenResourceError:
            raise BrokenPipeError("the reader has gone") from None

    # ── the test's side ──

    def write(self, data: bytes) -> None:
        self._to_agent.send_nowait(data)

    def tell(self, method: str, **params: Any) -> int:
        """Send a request; returns its id."""
        self._numbers += 1
        message = {"jsonrpc": "2.0", "id": self._numbers, "method": method, "params": params}
        self.write(json.dumps(message).encode() + b"\n")
        return self._numbers

    def notify(self, method: str, **params: Any) -> None:
        self.write(
            json.dumps({"jsonrpc": "2.0", "method": method, "params": params}).encode() + b"\n"
        )

    def reply(self, number: Any, **outcome: Any) -> None:
        self.write(json.dumps({"jsonrpc": "2.0", "id": number, **outcome}).encode() + b"\n")

    async def next(self) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(await self._at_client.receive())
        return message

    async def answer_to(self, number: int | None) -> dict[str, Any]:
        """The answer to a request; notifications before it are skipped."""
        while True:
            message = await self.next()
            if "method" not in message and message["id"] == number:
                return message

    async def answer(self) -> dict[str, Any]:
        """The next answer to any request."""
        while "method" in (message := await self.next()):
            pass
        return message

    async def said(self) -> str:
        """The next text that is shown."""
        while "content" not in (update := (await self.next())["params"]["update"]):
            pass
        text: str = update["content"]["text"]
        return text

    async def question(self) -> dict[str, Any]:
        """The next request of the agent."""
        while True:
            message = await self.next()
            if "method" in message and "id" in message:
                return message

    async def open(self) -> str:
        await self.answer_to(self.tell("initialize", protocolVersion=1))
        answer = await self.answer_to(self.tell("session/new", cwd="/", mcpServers=[]))
        session_id: str = answer["result"]["sessionId"]
        return session_id

    def ask(self, session_id: str, text: str) -> int:
        return self.tell(
            "session/prompt", sessionId=session_id, prompt=[{"type": "text", "text": text}]
        )

    def hang_up(self) -> None:
        """Close the agent's input."""
        self._to_agent.close()

    def vanish(self) -> None:
        """Close both directions."""
        self._at_client.close()
        self._to_agent.close()

    def close(self) -> None:
        for stream in (self._to_agent, self._at_agent, self._from_agent, self._at_client):
            stream.close()


@asynccontextmanager
async def connected(host: Host | None = None) -> AsyncIterator[Client]:
    """A client of an agent; at the end it hangs up, and the agent has to end."""
    client = Client()
    try:
        async with anyio.create_task_group() as group:
            group.start_soon((host or Host()).serve, client)
            with anyio.fail_after(30):
                yield client
                client.hang_up()
    finally:
        client.close()
