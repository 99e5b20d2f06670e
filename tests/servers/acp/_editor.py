"""An editor for tests: the official client of the protocol, which runs on asyncio, and a program of ours on either backend."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, cast

import acp
import attrs
from acp.schema import AllowedOutcome, DeniedOutcome, RequestPermissionResponse

from tests._support.terminal import start
from tests.servers.acp._schema import Wire

PATIENCE = 60.0
"""Seconds after which something that should have happened has not; only a failing test waits that long."""


@attrs.define
class Editor:
    """Collects what the agent shows, and answers its questions."""

    agent: Any = None
    process: Any = None
    updates: list[Any] = attrs.field(factory=list)
    commands: list[str] = attrs.field(factory=list)
    questions: list[Any] = attrs.field(factory=list)
    wire: Wire = attrs.field(factory=Wire)
    answer: str = "Allow once"
    asked: asyncio.Event = attrs.field(factory=asyncio.Event)
    _changed: asyncio.Condition = attrs.field(factory=asyncio.Condition)
    _is_initialized: bool = False

    def forget(self) -> None:
        """Begin again with nothing shown and nothing asked."""
        self.updates.clear()
        self.questions.clear()
        self.answer = "Allow once"
        self.asked.clear()

    # ── what the agent calls ──

    async def session_update(self, session_id: str, update: Any, **kwargs: Any) -> None:
        if (
            update.session_update == "available_commands_update"
        ):  # they belong to the session, not to a turn
            self.commands = [each.name for each in update.available_commands]
            return
        self.updates.append(update)
        async with self._changed:
            self._changed.notify_all()

    async def request_permission(
        self, session_id: str, tool_call: Any, options: list[Any], **kwargs: Any
    ) -> Any:
        self.questions.append((tool_call, options))
        self.asked.set()
        if self.answer == "never":
            await asyncio.Event().wait()
        chosen = next((option for option in options if option.name == self.answer), None)
        if chosen is None:
            return RequestPermissionResponse(outcome=DeniedOutcome(outcome="cancelled"))
        return RequestPermissionResponse(
            outcome=AllowedOutcome(outcome="selected", option_id=chosen.option_id)
        )

    def on_connect(self, conn: Any) -> None:
        self.agent = conn

    # ── what tests look at ──

    def kinds(self) -> list[str]:
        return [update.session_update for update in self.updates]

    def text(self, kind: str = "agent_message_chunk") -> str:
        return "".join(
            update.content.text for update in self.updates if update.session_update == kind
        )

    async def until(self, is_there: Callable[[], bool]) -> None:
        """Wait for an update that makes it true."""
        async with asyncio.timeout(PATIENCE), self._changed:
            await self._changed.wait_for(is_there)

    async def open(self, cwd: Path, **params: Any) -> str:
        """Begin a session; the first one begins the connection."""
        if not self._is_initialized:
            await self.agent.initialize(protocol_version=1)
            self._is_initialized = True
        opened = await self.agent.new_session(
            cwd=str(cwd), mcp_servers=params.get("mcp_servers", [])
        )
        identifier: str = opened.session_id
        return identifier

    async def ask(self, session_id: str, text: str) -> Any:
        return await self.agent.prompt(session_id=session_id, prompt=[acp.text_block(text)])


def acp_words(backend: str, plan: str | Path) -> tuple[str, ...]:
    return ("acp", "--backend", backend, "--plan", str(plan))


class _Reader(asyncio.StreamReader):
    """What the agent writes is checked before the client reads it."""

    def __init__(self, wire: Wire) -> None:
        super().__init__()
        self._wire = wire

    def feed_data(self, data: Any) -> None:
        self._wire.note(bytes(data), to_agent=False)
        super().feed_data(data)


class _Writer(asyncio.StreamWriter):
    """What the client writes is checked, too: the schema has to fit the official client."""

    wire: Wire

    def write(self, data: Any) -> None:
        self.wire.note(data, to_agent=True)
        super().write(data)


@asynccontextmanager
async def editing(backend: str, plan: str | Path, home: Path, cwd: Path) -> AsyncIterator[Editor]:
    """Start the agent as an editor does; at the end its standard input is closed, and it has to end by itself.

    Every message of both sides has to fit the schema of the protocol.
    """
    editor = Editor()
    log = home.parent / "stderr.txt"
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "text": False, "bufsize": 0}
    with (
        log.open("ab") as errors,
        start(
            *acp_words(backend, plan), home=home, cwd=cwd, stderr=errors, **pipes
        ) as editor.process,
    ):
        loop, reader = asyncio.get_running_loop(), _Reader(editor.wire)
        reading, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), editor.process.stdout
        )
        writing, flow = await loop.connect_write_pipe(
            lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), editor.process.stdin
        )
        writer = _Writer(writing, flow, None, loop)
        writer.wire = editor.wire
        connection = acp.connect_to_agent(cast(Any, editor), writer, reader)
        try:
            yield editor
        finally:
            await connection.close()
            writing.close()
            try:
                await asyncio.to_thread(editor.process.wait, PATIENCE)
            finally:
                editor.process.kill()
                reading.close()
    assert editor.process.returncode == 0, log.read_text()
    assert editor.wire.problems == [], "\n".join(editor.wire.problems)


class OpenEditor:
    """An editor that stays open, with one agent process, for scenarios one after the other.

    Attributes:
        backend: The event loop of the agent.
        plan: Its plan.
        home: Its state folder.
    """

    def __init__(
        self, runner: asyncio.Runner, editor: Editor, backend: str, plan: str | Path, home: Path
    ) -> None:
        self._runner = runner
        self._editor = editor
        self.backend = backend
        self.plan = plan
        self.home = home

    def run(self, scenario: Callable[[Editor], Any]) -> Any:
        """Run a scenario on the client's side; it sees nothing of those before it."""
        self._editor.forget()
        return self._runner.run(asyncio.wait_for(scenario(self._editor), 2 * PATIENCE))


@contextmanager
def open_editor(backend: str, plan: str | Path, home: Path, cwd: Path) -> Iterator[OpenEditor]:
    """Start an agent for several scenarios; at the end it has to end by itself."""

    async def hold(started: asyncio.Future[Editor], leave: asyncio.Event) -> None:
        async with editing(backend, plan, home, cwd) as editor:
            started.set_result(editor)
            await leave.wait()

    async def begin() -> tuple[Editor, asyncio.Event, asyncio.Task[None]]:
        started: asyncio.Future[Editor] = asyncio.get_running_loop().create_future()
        leave = asyncio.Event()
        holding = asyncio.create_task(hold(started, leave))
        holding.add_done_callback(lambda task: started.done() or started.cancel())
        try:
            return await started, leave, holding
        except asyncio.CancelledError:
            await holding  # raises what went wrong
            raise

    async def end(leave: asyncio.Event, holding: asyncio.Task[None]) -> None:
        leave.set()
        await holding

    with asyncio.Runner() as runner:
        editor, leave, holding = runner.run(begin())
        try:
            yield OpenEditor(runner, editor, backend, plan, home)
        finally:
            runner.run(end(leave, holding))


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
