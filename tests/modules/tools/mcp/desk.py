"""A session with MCP servers, for the tests of tool-mcp."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import attrs

from amplifier import AmplifierSession, ModuleLoader
from amplifier.contracts import Coordinator
from amplifier.models import ChatResponse, TextBlock, ToolCallBlock, Usage
from amplifier.modules.context import simple as context_simple
from amplifier.modules.loop import basic as loop_basic
from amplifier.modules.tools import mcp as tool_mcp
from amplifier.testing import EventRecorder, MockProvider

SMALL = str(Path(__file__).with_name("small_server.py"))


def small(*options: str, **more: Any) -> dict[str, Any]:
    """The small server, as a plan names it."""
    return {"command": sys.executable, "args": ["-SE", SMALL, *options], **more}


def answer(text: str = "", *calls: tuple[str, dict[str, Any]]) -> ChatResponse:
    """What the model says."""
    blocks: list[Any] = [TextBlock(text=text)] if text else []
    blocks += [
        ToolCallBlock(id=f"call-{number}", name=name, input=given)
        for number, (name, given) in enumerate(calls, 1)
    ]
    return ChatResponse(
        content=blocks, usage=Usage(input_tokens=1, output_tokens=1, total_tokens=2)
    )


@attrs.define
class Desk:
    """An open session and the events since the beginning."""

    session: AmplifierSession
    recorder: EventRecorder

    @property
    def tools(self) -> dict[str, Any]:
        return self.session.coordinator.get("tools")

    async def call(self, tool: str, **given: Any) -> Any:
        return await self.tools[tool].execute(given)

    def status(self, server: str) -> dict[str, Any]:
        listed = self.session.coordinator.get_capability("mcp.status")()
        return next(each for each in listed if each["server"] == server)

    def events(self, name: str) -> list[dict[str, Any]]:
        return [data for event, data in self.recorder.events if event == name]


@contextmanager
def served(program: str, *arguments: str) -> Iterator[int]:
    """The port of a server of this folder that answers over HTTP, in a process of its own."""
    command = [sys.executable, str(Path(__file__).with_name(program)), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()


def new_session(
    servers: dict[str, Any],
    *,
    model: list[Any] | None = None,
    approval: Any = None,
    tools: dict[str, Any] | None = None,
    plan: dict[str, Any] | None = None,
    **config: Any,
) -> tuple[AmplifierSession, EventRecorder]:
    """A session that is not opened yet, with a scripted model."""
    recorder = EventRecorder()
    provider = MockProvider(model or [])

    async def mount_model(coordinator: Coordinator, config: Any) -> None:
        await coordinator.mount("providers", provider, name="mock")

    async def mount_watch(coordinator: Coordinator, config: Any) -> None:
        coordinator.hooks.register("*", recorder)

    modules: dict[str, Any] = {
        "loop-basic": loop_basic,
        "context-simple": context_simple,
        "tool-mcp": tool_mcp,
        "provider-model": mount_model,
        "hooks-watch": mount_watch,
        **(tools or {}),
    }
    whole: dict[str, Any] = {
        "session": {"orchestrator": "loop-basic", "context": "context-simple"},
        "providers": ["provider-model"],
        "tools": [{"module": "tool-mcp", "config": {"servers": servers, **config}}, *(tools or {})],
        "hooks": ["hooks-watch"],
        **(plan or {}),
    }
    session = AmplifierSession(
        whole, loader=ModuleLoader(modules=modules), approval_system=approval
    )
    return session, recorder


@asynccontextmanager
async def opened(servers: dict[str, Any], **options: Any) -> AsyncIterator[Desk]:
    """An open session."""
    session, recorder = new_session(servers, **options)
    async with session:
        yield Desk(session, recorder)
