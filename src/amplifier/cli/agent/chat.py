"""The interactive chat: messages, commands that begin with a slash, and mentioned files."""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from amplifier._internal.json import visible_text
from amplifier._internal.spelling import nearest
from amplifier.cli._error_messages import error_message
from amplifier.cli._exit_codes import CommandError
from amplifier.cli.terminal.keyboard import Keyboard
from amplifier.cli.terminal.output import Output
from amplifier.errors import AmplifierError, MissingExtraError
from amplifier.events import ORCHESTRATOR_STEERING_INJECTED
from amplifier.loading.loader import installed_ids
from amplifier.models import file
from amplifier.models.turns import Ended
from amplifier.modules.hooks.approval import MODES
from amplifier.plan import names_provider
from amplifier.servers.sessions import expanded, summary
from amplifier.shared_sessions.edits import diff_style
from amplifier.store import INTERRUPTED
from amplifier.tracing import totals, write_summary
from amplifier.tracing.sessions import read_trace, write_conversation

from .project_instructions import own_commands
from .terminal_agent import TerminalAgent, compaction_message

if TYPE_CHECKING:
    from amplifier.cli.terminal.line_prompt import LinePrompt


class Chat:
    """A chat with an agent.

    Args:
        agent: Answers the messages.
        keyboard: Reads lines.
        terminal: Shows the prompt.

    Attributes:
        commands: The commands of the chat.
    """

    def __init__(self, agent: TerminalAgent, keyboard: Keyboard, terminal: Output) -> None:
        self._agent = agent
        self._display = agent.display
        self._keyboard = keyboard
        self._terminal = terminal
        # None if the terminal can't move its cursor.
        self._line_prompt: LinePrompt | None = None
        self._was_interrupted = False
        self._is_over = False
        self._turn_runs = False
        # Lines typed during a turn: commands for later, and lines that the turn hasn't read.
        self._typed: list[str | None] = []
        self._unread: list[str] = []
        self.commands: ChatCommands = ChatCommands(agent, terminal)
        agent.signal_handler.before_exit = keyboard.restore
        agent.session.coordinator.hooks.register(
            ORCHESTRATOR_STEERING_INJECTED, self._note_read, name="chat"
        )

    async def run(self) -> None:
        """Chat until the user exits or opens another session, see `ChatCommands.reopen`."""
        self._greet()
        if self._terminal.can_move_cursor:
            self._line_prompt = await self._open_line_prompt()
        while not self._is_over:
            line = self._next_typed() if self._typed else await self._read_line()
            if line is None:
                await self._exit()
            elif line.startswith("//"):
                await self._turn(line[1:])
            elif line.startswith("/"):
                await self._command(line[1:].strip())
            elif line.strip():
                await self._turn(line)

    async def _open_line_prompt(self) -> LinePrompt:
        try:
            # Importing prompt_toolkit takes time.
            from amplifier.cli.terminal.line_prompt import (  # noqa: PLC0415
                LinePrompt,
                PromptHistory,
            )
        except ModuleNotFoundError as error:
            raise MissingExtraError(
                "a chat at a terminal", extra="cli", missing=error.name
            ) from error
        messages = await self.commands.messages()
        prompts = [message["content"] for message in messages if message.get("role") == "user"]
        recent = [text for text in prompts if isinstance(text, str)]
        return LinePrompt(
            self._keyboard,
            self._terminal,
            PromptHistory(self._agent.store.root.parent / "history", recent),
            next_mode=self._next_mode,
            completions={
                f"/{name}": text
                for name, text in {**self.commands.summaries, "exit": "leave"}.items()
            },
        )

    def _greet(self) -> None:
        agent = self._agent
        start = "A new session"
        if agent.session.is_resumed:
            start = f"Continuing session {agent.session.session_id}"
        model = agent.record.model
        # A third-party provider may raise anything.
        with suppress(Exception):
            first = next(iter(agent.session.coordinator.get("providers").values()))
            model = model or first.get_info().defaults.get("model")
        provider = agent.record.provider or "the plan’s provider"
        self._display.notice(f"{start}, answered by {provider}{f' ({model})' if model else ''}.")
        self._display.notice("/help lists commands, Ctrl-C stops a turn, Ctrl-D leaves.")

    # ── reading ──

    def _prompt(self) -> str:
        mode = self._agent.permissions.mode
        return f"{'' if mode == 'ask' else f'{mode} '}{self._terminal.glyph('› ', '> ')}"

    def _next_mode(self) -> str:
        # The plan may have no modes.
        with suppress(CommandError):
            self._agent.permissions.switch()
        return self._prompt()

    def _next_typed(self) -> str | None:
        line = self._typed.pop(0)
        if line is not None and self._line_prompt is not None:
            self._line_prompt.remember(line)
        return line

    async def _read_line(self) -> str | None:
        """Return one message.

        It is empty after a first Ctrl-C, and None after a second one and at the end of input.
        """
        if not self._terminal.at_line_start:
            self._terminal.write("\n")
        # The line prompt receives Ctrl-C as a key instead of a signal, and raises
        # KeyboardInterrupt.
        with suppress(KeyboardInterrupt), anyio.CancelScope() as scope:
            with self._agent.signal_handler.redirect_interrupts(scope.cancel):
                line = await self._enter(self._prompt())
            if not scope.cancel_called:
                self._was_interrupted = False
                return line
        dropped = "" if self._line_prompt is None else self._line_prompt.dropped
        if not dropped and self._agent.signal_handler.still_stops():
            return ""
        # If text has been entered, Ctrl-C only discards that text.
        if self._was_interrupted and not dropped:
            return None
        self._was_interrupted = True
        self._display.notice("Press Ctrl-C again to leave.")
        return ""

    async def _enter(self, prompt: str) -> str | None:
        """Return one line.

        Hold back notices meanwhile, because they would appear in the middle of it.
        """
        line_prompt = self._line_prompt
        self._display.pause(None if line_prompt is None else line_prompt.redraw)
        line: str | None = None
        try:
            if line_prompt is not None:
                return await line_prompt.read(prompt)
            self._terminal.write(prompt)
            # There is no key for a newline, so a backslash continues the message.
            lines: list[str] = []
            while (line := await self._keyboard.read_line()) is not None and line.endswith("\\"):
                lines.append(line.removesuffix("\\"))
                self._terminal.write(self._terminal.glyph("… ", "> "))
            return None if line is None else "\n".join([*lines, line])
        finally:
            if line is None and line_prompt is None:
                self._terminal.write("\n")
            self._display.resume()

    # ── answering ──

    async def _turn(self, prompt: str) -> None:
        attached = await anyio.to_thread.run_sync(mentioned_files, prompt, self._display.notice)
        with self.listening():
            outcome = await self._agent.run_turn(prompt, attached)
        # After a stop, the user may no longer want the typed lines.
        if outcome.status == "cancelled":
            waiting = [line for line in self._typed if line is not None]
            self._typed = [line for line in self._typed if line is None]
            self._keyboard.draft = "\n".join([*waiting, *filter(None, [self._keyboard.draft])])
        self.show_outcome(outcome)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Send lines typed during the block to the running turn."""
        self._turn_runs = True
        try:
            with self._keyboard.by_key() if self._terminal.can_move_cursor else nullcontext():
                yield
        finally:
            self._turn_runs = False
            self._display.draft = ""
            for message in self._unread:
                self._display.notice(f"no longer read: {message}", "warning")
            self._keyboard.draft = "\n".join([*self._unread, *filter(None, [self._keyboard.draft])])
            self._unread.clear()

    def take_typed(self) -> None:
        """Send typed lines to the running turn.

        Commands and unread lines wait until it has ended.
        """
        # While the display is paused, typed text answers a question.
        if not self._turn_runs or self._display.is_paused:
            return
        # Discard text after the end of input, so that it doesn't get to the shell.
        if None in self._typed:
            self._keyboard.typed_lines()
            self._keyboard.draft = ""
            return
        for line in self._keyboard.typed_lines():
            text = "" if line is None else line.strip()
            is_command = text.startswith("/") and not text.startswith("//") and "\n" not in text
            if text and not is_command and self._steer(text.removeprefix("/")):
                self._display.notice(f"read at the next step: {text}")
            elif text or line is None:
                self._typed.append(line)
                self._display.notice(f"after this turn: {text or 'leave'}")
        if self._display.draft != self._keyboard.draft:
            self._display.draft = self._keyboard.draft
            self._display.draw_live_lines()

    def _steer(self, message: str) -> bool:
        try:
            self._agent.session.steer(message)
        # The turn is over, or its loop accepts no messages.
        except Exception:  # noqa: BLE001
            return False
        self._unread.append(message)
        return True

    async def _note_read(self, event: str, data: dict[str, Any]) -> None:
        del self._unread[:1]

    def show_outcome(self, outcome: Ended) -> None:
        """Report the outcome of a turn, and prepare the next one."""
        self._agent.session.coordinator.cancellation.reset()
        if outcome.error is not None and outcome.status == "error":
            self._display.notice(error_message(outcome.error), "error")
        elif outcome.status == "cancelled":
            self._display.notice(self._agent.stopped_message(), "warning")
        self._display.notice(f"({self._agent.latest_in_words()})")

    async def _command(self, line: str) -> None:
        if line in LEAVING:
            await self._exit()
        elif (message := await self.commands.run(line)) is not None:
            await self._turn(message)
        self._is_over = self._is_over or self.commands.reopen is not None

    async def _exit(self) -> None:
        self._is_over = True
        if not self._terminal.at_line_start:
            self._terminal.write("\n")
        if self._agent.turns:
            session_id = self._agent.session.session_id
            self._display.notice(f"To continue later: amplifier run --resume {session_id}")


# ── commands ──

LEAVING = ("exit", "quit", "q")
_MENTION = re.compile(r'(?<!\S)@(?:"([^"]+)"|(\S+))')
_LIST_SECONDS = 20.0
_MAX_TEXT = 200_000
_MAX_BYTES = 5_000_000


class ChatCommands:
    """The commands of a chat.

    Args:
        agent: The session of the chat.
        terminal: The terminal of the chat.

    Attributes:
        reopen: The changes to the request for the next session. A command that opens one sets them.
    """

    def __init__(self, agent: TerminalAgent, terminal: Output) -> None:
        self._agent = agent
        self._show = agent.display.line
        self._terminal = terminal
        self.reopen: dict[str, Any] | None = None
        self._commands: dict[str, tuple[str, Callable[[str], Awaitable[None]]]] = {
            "help": ("this list", self._help),
            "model": (
                "[PROVIDER:]MODEL: continue with another model; alone: list the models",
                self._model,
            ),
            "mode": (
                "[ask|edits|plan|full]: what runs without a question (also Shift-Tab)",
                self._mode,
            ),
            "compact": (
                "replace older messages by a summary, in the model's view",
                self._compact,
            ),
            "uncompact": ("undo the latest compaction of the model's view", self._uncompact),
            "clear": ("forget the conversation, on disk too", self._clear),
            "undo": ("take back the latest turn, files and conversation", self._undo),
            "redo": ("repeat a turn that was taken back", lambda _: self._undo("redo")),
            "diff": ("the edits in this chat", self._diff),
            "cost": ("the cost of the session", self._cost),
            "status": ("the session, its model and its files", self._status),
            "tools": ("the agent's tools", self._tools),
            "tasks": ("the sessions of delegated tasks", self._tasks),
            "mcp": ("the MCP servers", self._mcp),
            "resume": ("[ID]: continue another session; alone: list them", self._resume),
            "export": ("[FILE]: write the conversation as Markdown, or HTML", self._export),
        }
        self._own = own_commands(
            Path.cwd(), taken=(*self._commands, *LEAVING), notice=agent.display.notice
        )

    @property
    def summaries(self) -> dict[str, str]:
        """The commands, each with a short description."""
        own = {name: summary(text) for name, text in self._own.items()}
        return {**own, **{name: summary for name, (summary, _) in self._commands.items()}}

    async def run(self, line: str) -> str | None:
        """Execute a command. Return the message of one of the user's own commands."""
        name, _, argument = line.partition(" ")
        command = self._commands.get({"?": "help"}.get(name, name))
        if command is None and name in self._own:
            return expanded(self._own[name], argument)
        if command is None:
            near = nearest(name, [*self.summaries, "exit"])
            advice = f"did you mean /{near}?" if near else "/help lists them"
            shown = visible_text(name, multiline=False)
            self._agent.display.notice(
                f"there is no command /{shown}; {advice} (// sends a slash)", "warning"
            )
            return None
        try:
            await command[1](argument.strip())
        except (AmplifierError, CommandError, OSError) as error:
            self._agent.display.notice(error_message(error), "error")
        return None

    def _list(self, rows: Sequence[tuple[str, object]], nothing: str) -> None:
        """Show rows of two columns, each in one line of the terminal."""
        first = max((len(name) for name, _ in rows), default=0)
        for name, text in rows or [(nothing, "")]:
            shown = visible_text(f"  {name:{first}} {' '.join(str(text).split())}", multiline=False)
            width = self._terminal.width() - 1
            self._show(
                shown
                if len(shown) <= width
                else shown[: width - 1] + self._terminal.glyph("…", ".")
            )

    async def _help(self, _: str) -> None:
        self._list(
            [
                (f"/{name}", text)
                for name, text in {**self.summaries, "exit": "leave (also Ctrl-D)"}.items()
            ],
            "",
        )
        key = "Alt-Enter" if self._terminal.can_move_cursor else "A backslash at the end of a line"
        self._show(f"  {key} begins another line of the same message.")
        self._show('  @FILE attaches a file, also @"A FILE"; // sends a slash.')
        self._show("  The agent reads a line that you type during a turn at its next step.")
        if self._terminal.can_move_cursor:
            self._show("  Tab completes, Ctrl-R searches, Ctrl-X Ctrl-E opens your editor.")

    async def _model(self, argument: str) -> None:
        agent = self._agent
        if not argument:
            model = agent.latest.model or agent.record.model
            self._list([("now", model or f"chosen by {agent.record.provider}")], "")
            with anyio.move_on_after(_LIST_SECONDS):
                for provider in agent.session.coordinator.get("providers").values():
                    models = await provider.list_models()
                    rows = [(model.id, f"{model.context_window:,} tokens") for model in models]
                    self._list(rows, "")
            return
        if agent.turns and not agent.store.has_messages(agent.session.session_id):
            raise CommandError(
                "the plan of this chat keeps no conversation, "
                "so it cannot continue with another model"
            )
        is_named = names_provider(argument, installed_ids().__contains__)
        self.reopen = {"model": argument, **({"provider": None} if is_named else {})}

    async def _mode(self, argument: str) -> None:
        now = f"mode {self._agent.permissions.mode}: {MODES[self._agent.permissions.mode][0]}"
        self._show(f"  {self._agent.permissions.switch(argument) if argument else now}")

    async def _compact(self, _: str) -> None:
        compact = getattr(self._agent.session.coordinator.get("context"), "compact", None)
        compaction = None if compact is None else await compact()
        text = "There is too little to compact; the conversation stays as it is."
        self._agent.display.notice(compaction_message(compaction) if compaction else text)

    async def _uncompact(self, _: str) -> None:
        undo = getattr(self._agent.session.coordinator.get("context"), "uncompact", None)
        is_undone = undo is not None and await undo()
        text = "There is no compaction to undo."
        if is_undone:
            text = "The latest compaction is undone."
        self._show(f"  {text}")

    async def _clear(self, _: str) -> None:
        context = self._agent.session.coordinator.get("context")
        if context is not None:
            await context.clear()
        self._agent.display.notice("The conversation is forgotten.")

    async def _undo(self, argument: str) -> None:
        context = self._agent.session.coordinator.get("context")
        for line in await self._agent.checkpoints.undo_open(context, redo=argument == "redo"):
            self._show(f"  {line}")

    async def _diff(self, _: str) -> None:
        lines = await anyio.to_thread.run_sync(self._agent.display.edits.changes)
        for line in lines or ["nothing was edited with write_file or edit_file"]:
            self._show(f"  {self._terminal.styled(line, diff_style(line))}")

    async def _cost(self, _: str) -> None:
        trace = await anyio.to_thread.run_sync(
            read_trace, self._agent.store, self._agent.session.session_id
        )
        total, turns, tokens = totals(trace), self._agent.turns, self._agent.tokens
        chat = f"{turns} turns and {tokens:,} tokens in this chat; no event log"
        self._show(f"  {write_summary(total) if total.turns else chat}")
        statistics = getattr(self._agent.session.coordinator.get("context"), "statistics", None)
        error = getattr(statistics() if callable(statistics) else None, "error", None)
        if isinstance(error, float):
            self._show(
                "  the tokens of the latest request were estimated "
                f"{error:+.1%} off the provider's count"
            )

    async def _tools(self, _: str) -> None:
        tools = self._agent.session.coordinator.get("tools") or {}
        texts = {
            name: str(getattr(tool, "description", "")).strip() for name, tool in tools.items()
        }
        self._list(
            [(name, text.partition("\n")[0]) for name, text in texts.items()],
            "no tools are mounted",
        )

    async def _tasks(self, _: str) -> None:
        store = self._agent.store
        children = [
            store.record(name) for name in store.descendants(self._agent.session.session_id)
        ]
        rows = [
            (child.session_id, f"{child.status or 'ended'}  {child.title or ''}")
            for child in children
        ]
        self._list(rows, "no task was delegated")

    async def _mcp(self, _: str) -> None:
        status = self._agent.session.coordinator.get_capability("mcp.status")
        servers = status() if status else ()
        rows = [
            (server["server"], server["error"] or f"{len(server['tools'])} tools")
            for server in servers
        ]
        self._list(rows, "no MCP servers; add one with: amplifier mcp add")

    async def _resume(self, argument: str) -> None:
        store, here = self._agent.store, str(Path.cwd())
        if not argument:
            rows = [
                (record.session_id, record.title or "")
                for record in store.records()
                if record.directory == here
            ]
            self._list(rows[:10], "there is no other session of this folder")
            return
        record = store.find(argument)
        if record.directory not in (None, here) or store.is_open(record.session_id):
            raise CommandError(
                f"it is open or of another folder ({record.directory}): "
                f"amplifier run --resume {record.session_id}"
            )
        plan = None if record.plan is None else Path(record.plan)
        changes = {
            "provider": record.provider if plan is None else None,
            "model": record.model,
            "plan": plan,
        }
        self.reopen = {
            "session_id": record.session_id,
            "resumed": record,
            "goes_on": record.status == INTERRUPTED,
            **changes,
        }

    async def _export(self, argument: str) -> None:
        title = self._agent.record.title or self._agent.session.session_id
        path = Path(argument or "conversation.md")
        text = write_conversation(title, await self.messages(), page=path.suffix == ".html")
        opening = anyio.open_file(path, "x", encoding="utf-8", errors="backslashreplace")
        async with await opening as new:
            await new.write(text)
        self._show(f"  {visible_text(str(path), multiline=False)}")

    async def messages(self) -> list[dict[str, Any]]:
        """Return the conversation."""
        context = self._agent.session.coordinator.get("context")
        return [] if context is None else await context.get_messages()

    async def _status(self, _: str) -> None:
        agent = self._agent
        facts = {
            "session": agent.session.session_id,
            "provider": agent.record.provider,
            "model": agent.latest.model or agent.record.model,
            "directory": agent.record.directory,
            "messages": str(len(await self.messages())),
            "turns": f"{agent.turns} in this chat, {agent.tokens} tokens",
            **agent.files(),
        }
        for name, value in facts.items():
            if value is not None:
                self._show(f"  {name:10} {visible_text(value, multiline=False)}")


def mentioned_files(message: str, notice: Callable[[str], None]) -> list[Any]:
    """Return the files of this folder that a message mentions as ``@PATH`` or ``@"PATH"``.

    The files become parts of a prompt. ``notice`` receives a message about each.
    """
    blocks: list[Any] = []
    for word in dict.fromkeys(quoted or plain for quoted, plain in _MENTION.findall(message)):
        path = Path(word if Path(word).is_file() else word.rstrip(".,;:!?)"))
        try:
            if not path.is_file():
                raise ValueError("it is a folder" if path.is_dir() else "there is no such file")
            if not path.resolve().is_relative_to(Path.cwd().resolve()):
                raise ValueError("it is outside of this folder")
            block = file(path, name=os.fspath(path), max_bytes=_MAX_BYTES)
            if len(getattr(block, "text", "")) > _MAX_TEXT:
                raise ValueError("it is too long; the agent can read parts of it")
        except (OSError, ValueError) as error:
            notice(f"not attached: {path}: {error}")
            continue
        blocks.append(block)
        notice(f"attached: {path}")
    return blocks
