"""The interactive chat: reads messages and runs a turn for each, or a command that begins with a slash."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from amplifier.cli.core.error_messages import error_message
from amplifier.cli.core.exit_codes import CommandError
from amplifier.cli.terminal.keyboard import Keyboard
from amplifier.cli.terminal.output import Output
from amplifier.errors import MissingExtraError
from amplifier.events import ORCHESTRATOR_STEERING_INJECTED
from amplifier.turns import Ended

from .chat_commands import LEAVING, ChatCommands, mentioned_files
from .terminal_agent import TerminalAgent

if TYPE_CHECKING:
    from amplifier.cli.terminal.line_prompt import LinePrompt


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
        self._turn_runs = False
        self._typed: list[str | None] = []  # while a turn ran, and not for it
        self._unread: list[str] = []  # given to the turn
        self.commands: ChatCommands = ChatCommands(agent, terminal)
        agent.signal_handler.before_exit = keyboard.restore
        agent.session.coordinator.hooks.register(ORCHESTRATOR_STEERING_INJECTED, self._note_read, name="chat")

    async def run(self) -> None:
        """Chat until the person leaves, or goes on with another session: `ChatCommands.reopen`."""
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
            from amplifier.cli.terminal.line_prompt import LinePrompt, PromptHistory  # noqa: PLC0415  # other commands save the time its import takes
        except ModuleNotFoundError as error:
            raise MissingExtraError("a chat at a terminal", extra="cli", missing=error.name) from error
        messages = await self.commands.messages()
        asked = [message["content"] for message in messages if message.get("role") == "user"]
        recent = [text for text in asked if isinstance(text, str)]
        return LinePrompt(
            self._keyboard,
            self._terminal,
            PromptHistory(self._agent.store.root.parent / "history", recent),
            next_mode=self._next_mode,
            completions={f"/{name}": text for name, text in {**self.commands.summaries, "exit": "leave"}.items()},
        )

    def _greet(self) -> None:
        agent = self._agent
        start = f"Going on with session {agent.session.session_id}" if agent.session.is_resumed else "A new session"
        model = agent.record.model
        with suppress(Exception):  # a provider of others
            first = next(iter(agent.session.coordinator.get("providers").values()))
            model = model or first.get_info().defaults.get("model")
        self._display.notice(
            f"{start}, answered by {agent.record.provider or 'the plan’s provider'}{f' ({model})' if model else ''}."
        )
        self._display.notice("/help lists commands, Ctrl-C stops a turn, Ctrl-D leaves.")

    # ── reading ──

    def _prompt(self) -> str:
        mode = self._agent.permissions.mode
        return f"{'' if mode == 'ask' else f'{mode} '}{self._terminal.glyph('› ', '> ')}"

    def _next_mode(self) -> str:
        with suppress(CommandError):  # the plan has no modes
            self._agent.permissions.switch()
        return self._prompt()

    def _next_typed(self) -> str | None:
        line = self._typed.pop(0)
        if line is not None and self._line_prompt is not None:
            self._line_prompt.remember(line)
        return line

    async def _read_line(self) -> str | None:
        """One message; empty after a first Ctrl-C, None after a second one and at the end of input."""
        if not self._terminal.at_line_start:
            self._terminal.write("\n")
        # The line prompt raises KeyboardInterrupt for Ctrl-C as a key, which comes in place of the signal.
        with suppress(KeyboardInterrupt), anyio.CancelScope() as scope:
            with self._agent.signal_handler.redirect_interrupts(scope.cancel):
                line = await self._enter(self._prompt())
            if not scope.cancel_called:
                self._was_interrupted = False
                return line
        dropped = "" if self._line_prompt is None else self._line_prompt.dropped
        if not dropped and self._agent.signal_handler.still_stops():
            return ""
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
            lines: list[str] = []  # there is no key for a newline
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
        if outcome.status == "cancelled":  # what was to come after it may not be wanted any more
            waiting = [line for line in self._typed if line is not None]
            self._typed = [line for line in self._typed if line is None]
            self._keyboard.draft = "\n".join([*waiting, *filter(None, [self._keyboard.draft])])
        self.show_outcome(outcome)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """A turn runs; what is typed meanwhile is for it."""
        self._turn_runs = True
        try:
            with self._keyboard.by_key() if self._terminal.can_move_cursor else nullcontext():
                yield
        finally:
            self._turn_runs = False
            self._display.draft = ""
            for message in self._unread:
                self._display.notice(f"not read any more: {message}", "warning")
            self._keyboard.draft = "\n".join([*self._unread, *filter(None, [self._keyboard.draft])])
            self._unread.clear()

    def take_typed(self) -> None:
        """Give the running turn what was typed meanwhile; commands, and what no turn would read, come after it."""
        if not self._turn_runs or self._display.is_paused:
            return  # in a pause it is the answer to a question
        # After the end of input there is no more; what no one sees must not get to the shell either.
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
        except Exception:  # noqa: BLE001  # the turn is over, or its loop takes no messages
            return False
        self._unread.append(message)
        return True

    async def _note_read(self, event: str, data: dict[str, Any]) -> None:
        del self._unread[:1]

    def show_outcome(self, outcome: Ended) -> None:
        """Report how a turn ended, and let the next one begin."""
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
            self._display.notice(f"To go on later: amplifier run --resume {self._agent.session.session_id}")
