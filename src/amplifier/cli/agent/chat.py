"""The interactive chat: reads messages, runs a turn for each, and executes commands that begin with a slash."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import anyio

from amplifier._json import visible_text
from amplifier._spelling import nearest
from amplifier.cli.agent.terminal_agent import TerminalAgent
from amplifier.cli.core.error_messages import error_message
from amplifier.cli.core.outcome import Outcome
from amplifier.cli.sessions.home_folder import history_file
from amplifier.cli.terminal.keyboard import Keyboard
from amplifier.cli.terminal.output import Output
from amplifier.errors import AmplifierError, MissingExtraError

if TYPE_CHECKING:
    from amplifier.cli.terminal.line_prompt import LinePrompt

__all__ = ["Chat"]

_CONTINUED = "\\"


class Chat:
    """A chat with an agent.

    Args:
        agent: Answers.
        keyboard: Where lines come from.
        terminal: Where the prompt is shown.
    """

    def __init__(self, agent: TerminalAgent, keyboard: Keyboard, terminal: Output) -> None:
        self._agent = agent
        self._display = agent.display
        self._keyboard = keyboard
        self._terminal = terminal
        self._line_prompt: LinePrompt | None = None  # None for a terminal that cannot move its cursor
        self._was_interrupted = False
        self._is_over = False
        self._commands: dict[str, tuple[str, Callable[[], Awaitable[None]]]] = {
            "help": ("this list", self._help),
            "tools": ("the tools the agent has", self._tools),
            "status": ("the session, its model and its files", self._status),
            "uncompact": ("undo the latest compaction of what the model is shown", self._uncompact),
            "clear": ("forget the conversation, on disk too", self._clear),
            "exit": ("leave (also Ctrl-D)", self._exit),
        }

    async def run(self) -> None:
        """Chat until the person leaves."""
        self._greet()
        if self._terminal.can_move_cursor:
            self._line_prompt = await self._open_line_prompt()
        while not self._is_over:
            line = await self._read()
            if line is not None and self._line_prompt is not None:
                self._line_prompt.remember(line)
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
            from amplifier.cli.terminal.line_prompt import LinePrompt, PromptHistory  # noqa: PLC0415  # other commands save the time its import takes
        except ModuleNotFoundError as error:
            raise MissingExtraError("a chat at a terminal", extra="cli", missing=error.name) from error
        messages = await self._messages()
        asked = [message["content"] for message in messages if message.get("role") == "user"]
        return LinePrompt(
            self._keyboard,
            self._terminal,
            PromptHistory(history_file(self._agent.store.root.parent)),
            recent=[text for text in asked if isinstance(text, str)],
            completions={f"/{name}": summary for name, (summary, _) in self._commands.items()},
        )

    def _greet(self) -> None:
        agent = self._agent
        start = f"Going on with session {agent.session.session_id}" if agent.session.is_resumed else "A new session"
        self._display.notice(f"{start}, answered by {agent.record.provider or 'the plan’s provider'}.")
        self._display.notice("Type a message and Enter. /help lists commands; Ctrl-C stops a turn, Ctrl-D leaves.")

    # ── reading ──

    async def _read(self) -> str | None:
        """One message; a line that ends in a backslash continues in the next one. None when the person wants to leave."""
        lines: list[str] = []
        while True:
            line = await self._read_line("… " if lines else "› ")
            if line is None:
                return None
            if not line.endswith(_CONTINUED):
                return "\n".join([*lines, line])
            lines.append(line.removesuffix(_CONTINUED))

    async def _read_line(self, prompt: str) -> str | None:
        """One line; empty after a first Ctrl-C, None after a second one and at the end of input."""
        if not self._terminal.at_line_start:
            self._terminal.write("\n")
        # The line prompt raises KeyboardInterrupt for Ctrl-C as a key, which comes in place of the signal.
        with suppress(KeyboardInterrupt), anyio.CancelScope() as scope:
            with self._agent.signal_handler.redirect_interrupts(scope.cancel):
                line = await self._enter(self._terminal.glyph(prompt, "> "))
            if not scope.cancel_called:
                self._was_interrupted = False
                return line
        dropped = "" if self._line_prompt is None else self._line_prompt.dropped
        if self._was_interrupted and not dropped:  # with text entered meanwhile, Ctrl-C drops that text
            return None
        self._was_interrupted = True
        self._display.notice("Press Ctrl-C again to leave.")
        return ""

    async def _enter(self, prompt: str) -> str | None:
        """One line from the person; notices are held back meanwhile, or they would appear in the middle of it."""
        line_prompt = self._line_prompt
        self._display.pause(None if line_prompt is None else line_prompt.redraw)
        line: str | None = None
        try:
            if line_prompt is not None:
                return await line_prompt.read(prompt)
            self._terminal.write(prompt)
            line = await self._keyboard.read_line()
            return line
        finally:
            if line is None and line_prompt is None:
                self._terminal.write("\n")
            self._display.resume()

    # ── answering ──

    async def _turn(self, prompt: str) -> None:
        self.show_outcome(await self._agent.run_turn(prompt))

    def show_outcome(self, outcome: Outcome) -> None:
        """Report how a turn ended, and let the next one begin."""
        self._agent.session.coordinator.cancellation.reset()
        if outcome.status == "error":
            self._display.notice(outcome.error or "the turn failed", "error")
        elif outcome.status == "cancelled":
            self._display.notice(self._agent.stopped_message(), "warning")
        self._display.notice(f"({self._agent.latest_in_words()})")

    async def _command(self, name: str) -> None:
        found = self._commands.get({"quit": "exit", "q": "exit", "?": "help"}.get(name, name))
        if found is None:
            near = nearest(name, self._commands)
            advice = f"did you mean /{near}?" if near else "/help lists them"
            shown = visible_text(name, multiline=False)
            self._display.notice(f"there is no command /{shown}; {advice} (// sends a slash)", "warning")
            return
        try:
            await found[1]()
        except (AmplifierError, OSError) as error:
            self._display.notice(error_message(error), "error")

    async def _help(self) -> None:
        for name, (summary, _) in self._commands.items():
            self._display.line(f"  /{name:9} {summary}")
        self._display.line("  A line that ends in \\ goes on in the next one; // at the start sends a slash.")

    async def _tools(self) -> None:
        tools = self._agent.session.coordinator.get("tools") or {}
        for name, tool in tools.items():
            summary = str(getattr(tool, "description", "")).strip().partition("\n")[0]
            shown = visible_text(f"  {name:16} {summary}", multiline=False)
            width = self._terminal.width() - 1
            if len(shown) > width:
                shown = shown[: width - 1] + self._terminal.glyph("…", ".")
            self._display.line(shown)
        if not tools:
            self._display.line("  no tools are mounted")

    async def _messages(self) -> list[dict[str, Any]]:
        context = self._agent.session.coordinator.get("context")
        return [] if context is None else await context.get_messages()

    async def _status(self) -> None:
        agent = self._agent
        messages = await self._messages()
        facts = {
            "session": agent.session.session_id,
            "provider": agent.record.provider,
            "model": agent.latest.model or agent.record.model,
            "directory": agent.record.directory,
            "messages": str(len(messages)),
            "turns": f"{agent.turns} in this chat, {agent.tokens} tokens",
            **agent.files(),
        }
        for name, value in facts.items():
            if value is not None:
                self._display.line(f"  {name:10} {visible_text(value, multiline=False)}")

    async def _uncompact(self) -> None:
        undo = getattr(self._agent.session.coordinator.get("context"), "uncompact", None)
        is_undone = undo is not None and await undo()
        self._display.notice("The latest compaction is undone." if is_undone else "There is no compaction to undo.")

    async def _clear(self) -> None:
        context = self._agent.session.coordinator.get("context")
        if context is not None:
            await context.clear()
        self._display.notice("The conversation is forgotten.")

    async def _exit(self) -> None:
        self._is_over = True
        if not self._terminal.at_line_start:
            self._terminal.write("\n")
        if self._agent.turns:
            self._display.notice(f"To go on later: amplifier run --resume {self._agent.session.session_id}")
