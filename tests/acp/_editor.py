"""An editor for tests: the official client of the protocol, which runs on asyncio, and a program of ours on either backend."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import acp
import attrs
from acp.schema import AllowedOutcome, DeniedOutcome, RequestPermissionResponse

from tests._support.terminal import command, environment

PATIENCE = 60.0
"""Seconds after which something that should have happened has not; only a failing test waits that long."""


@attrs.define
class Editor:
    """Collects what the agent shows, and answers its questions."""

    agent: Any = None
    process: Any = None
    updates: list[Any] = attrs.field(factory=list)
    questions: list[Any] = attrs.field(factory=list)
    answer: str = "Allow once"
    asked: asyncio.Event = attrs.field(factory=asyncio.Event)
    _changed: asyncio.Condition = attrs.field(factory=asyncio.Condition)

    # ── what the agent calls ──

    async def session_update(self, session_id: str, update: Any, **kwargs: Any) -> None:
        self.updates.append(update)
        async with self._changed:
            self._changed.notify_all()

    async def request_permission(self, session_id: str, tool_call: Any, options: list[Any], **kwargs: Any) -> Any:
        self.questions.append((tool_call, options))
        self.asked.set()
        if self.answer == "never":
            await asyncio.Event().wait()
        chosen = next((option for option in options if option.name == self.answer), None)
        if chosen is None:
            return RequestPermissionResponse(outcome=DeniedOutcome(outcome="cancelled"))
        return RequestPermissionResponse(outcome=AllowedOutcome(outcome="selected", option_id=chosen.option_id))

    def on_connect(self, conn: Any) -> None:
        self.agent = conn

    # ── what tests look at ──

    def kinds(self) -> list[str]:
        return [update.session_update for update in self.updates]

    def text(self, kind: str = "agent_message_chunk") -> str:
        return "".join(update.content.text for update in self.updates if update.session_update == kind)

    async def until(self, is_there: Callable[[], bool]) -> None:
        """Wait for an update that makes it true."""
        async with asyncio.timeout(PATIENCE), self._changed:
            await self._changed.wait_for(is_there)

    async def open(self, cwd: Path, **params: Any) -> str:
        """Begin a connection and a session."""
        await self.agent.initialize(protocol_version=1)
        opened = await self.agent.new_session(cwd=str(cwd), mcp_servers=params.get("mcp_servers", []))
        identifier: str = opened.session_id
        return identifier

    async def ask(self, session_id: str, text: str) -> Any:
        return await self.agent.prompt(session_id=session_id, prompt=[acp.text_block(text)])


def acp_command(backend: str, plan: str | Path) -> list[str]:
    return [*command(), "acp", "--backend", backend, "--plan", str(plan)]


@asynccontextmanager
async def editing(backend: str, plan: str | Path, home: Path, cwd: Path) -> AsyncIterator[Editor]:
    """Start the agent as an editor does; at the end its standard input is closed, and it has to end by itself."""
    editor = Editor()
    program, *arguments = acp_command(backend, plan)
    log = home.parent / "stderr.txt"
    with log.open("ab") as stderr:
        # A client that is slow to end the agent would send signals, and so hide that the agent does not end by itself.
        patience = {"shutdown_timeout": PATIENCE, "stderr": stderr.fileno()}
        async with acp.spawn_agent_process(
            cast(Any, editor), program, *arguments, env=environment(home), cwd=cwd, transport_kwargs=patience
        ) as (_, process):
            editor.process = process
            yield editor
    assert process.returncode == 0, log.read_text()


def edit(scenario: Callable[[], Any]) -> Any:
    """Run a scenario on the client's side."""
    return asyncio.run(asyncio.wait_for(scenario(), 2 * PATIENCE))


def plan_with(plan: str, folder: Path, **sections: Any) -> Path:
    """The scripted agent's plan with more in it; lists are extended."""
    content = json.loads(Path(plan).read_text())
    for name, value in sections.items():
        content[name] = [*content[name], *value] if isinstance(value, list) else value
    file = folder / "changed-plan.json"
    file.write_text(json.dumps(content))
    return file
