"""The approval systems of the command line."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import anyio
import attrs
import click
from rich.cells import chop_cells

from amplifier._internal.json import visible_text
from amplifier.cli.terminal.display import Display
from amplifier.cli.terminal.keyboard import Keyboard
from amplifier.cli.terminal.output import Output
from amplifier.errors import NoOneToAskError
from amplifier.shared_sessions.edits import diff_style
from amplifier.shared_sessions.questions import DENY, allowing

from .configuration import Permissions, rule_in_words
from .signals import SignalHandler

_MEANING = {"Allow always": " (this very call, in this session)"}
_NOTICE_LENGTH = 500
_LEFT_OUT: Final = object()
"""Marks an optional value that the user left out."""


@attrs.frozen
class AllowEverything:
    """Implements ``--yes``: shows every question and allows it with the narrowest option."""

    _display: Display

    async def request_approval(
        self, prompt: str, options: list[str], timeout: float, default: str
    ) -> str:
        """Allow the call."""
        self._display.notice(f"allowed (--yes): {_in_one_line(prompt)}")
        return next(iter(allowing(options)), "Allow")


@attrs.frozen
class NoOneToAsk:
    """There is no one to ask.

    If the client of a server can't show questions, the turn continues without the call. A command
    without a terminal interrupts the turn, which can be resumed at a terminal.

    Attributes:
        resume: The command that resumes the turn, or None to continue without the call.
    """

    _display: Display
    resume: str | None = None

    async def request_approval(
        self, prompt: str, options: list[str], timeout: float, default: str
    ) -> str:
        """Report the question.

        Raises:
            NoOneToAskError: Always.
        """
        if self.resume is None:
            self._display.notice(
                f"denied, no one could be asked: {_in_one_line(prompt)}", "warning"
            )
            raise NoOneToAskError("the client takes no questions")
        raise NoOneToAskError(
            f"no one could be asked: {_in_one_line(prompt)}\n"
            "There is no terminal to ask at. The turn stays as it was. "
            f"Continue it in a terminal, or allow everything with --yes: {self.resume}",
            keeps_turn=True,
        )


@attrs.frozen
class AskAtTerminal:
    """Asks the person at the terminal, one question at a time."""

    _display: Display
    _terminal: Output
    _keyboard: Keyboard
    _signal_handler: SignalHandler
    _permissions: Permissions | None = None
    _one_at_a_time: anyio.Lock = attrs.field(factory=anyio.Lock)

    async def request_approval(
        self, prompt: str, options: list[str], timeout: float, default: str
    ) -> str:
        """Ask until one of the options is chosen. Ctrl-C and the end of input deny."""
        async with self._asking():
            try:
                if not await self._show(prompt):
                    return DENY
                rule = None
                if self._permissions is not None and "Allow always" in options:
                    rule = self._permissions.offer(self._display.edits.current_input())
                for_good = "" if rule is None else f"Always in this project: {rule_in_words(rule)}"
                options = [option for option in (*options[:-1], for_good, *options[-1:]) if option]
                choices = [
                    f"[{key}] {_one_line(option)}{_MEANING.get(option, '')}"
                    for key, option in _keys(options).items()
                ]
                limit = self._terminal.styled(
                    f"  (no answer within {timeout:g} s means {default})", "dim"
                )
                self._keyboard.discard_input()
                chosen = await self._answer(
                    options, f"  {'  '.join(choices)}\n{limit}\n  Your answer: "
                )
                if rule is None or self._permissions is None or chosen != for_good:
                    return chosen
                self._permissions.remember(rule)
                return "Allow always"
            # The time is up, or everything is being cancelled.
            except BaseException:
                self._terminal.write("\n")
                raise

    @asynccontextmanager
    async def _asking(self) -> AsyncIterator[None]:
        with self._display.waiting():
            async with self._one_at_a_time:
                self._display.pause()
                try:
                    yield
                finally:
                    self._display.resume()

    async def _show(self, prompt: str) -> bool:
        """Show a question, one screen at a time. Return False if it is denied before the end."""
        terminal = self._terminal
        terminal.line(terminal.styled("Permission needed", "yellow"))
        width, height = terminal.size()
        # Mark continuation rows, so that none looks like a separate line.
        lines: list[tuple[str, str, str | None]] = [
            ("", line, None) for line in visible_text(prompt, strict=True).splitlines()
        ]
        if (edit := self._display.edits.current()) is not None:
            # The edit replaces the arguments that it shows.
            lines = [line for line in lines if line[1] not in edit.covers]
            more = terminal.glyph("↪", ">")
            lines[-1:-1] = [(f"{line[:1]}{more} ", line, diff_style(line)) for line in edit.lines]
        rows = [
            terminal.styled(f"{mark * (number > 0)}{row}", style)
            for mark, line, style in lines
            for number, row in enumerate(chop_cells(line, max(width - 5 - len(mark), 20)) or [""])
        ]
        page = max(height - 4, 4)
        for first in range(0, len(rows), page):
            if first:
                self._keyboard.discard_input()
                answer = await self._read(
                    f"  [Enter] shows the rest ({len(rows) - first} more lines)  [n] Deny: "
                )
                if answer is None:
                    terminal.write("\n")
                if answer is None or answer in ("n", "no", "deny"):
                    self._display.notice("denied")
                    return False
            for row in rows[first : first + page]:
                # Indent the text, so that no line of it looks like a message of the command.
                terminal.line(f"  {terminal.glyph('│', '|')} {row}")
        return True

    async def _answer(self, options: list[str], question: str) -> str:
        keys = _keys(options)
        while True:
            answer = await self._read(question)
            if answer is None:
                self._terminal.write("\n")
                self._display.notice("denied: no answer")
                return DENY
            chosen = keys.get(answer) or next(
                (option for option in options if option.lower() == answer), None
            )
            if chosen is not None:
                return chosen
            self._terminal.line(f"  Please answer with one of: {', '.join(keys)}")

    async def request_input(
        self, prompt: str, schema: dict[str, Any], timeout: float
    ) -> dict[str, Any] | None:
        """Ask for the values one by one. Ctrl-C and the end of input decline."""
        async with self._asking():
            terminal = self._terminal
            terminal.line(terminal.styled("Input needed (Ctrl-C declines)", "yellow"))
            for line in visible_text(prompt, strict=True).splitlines():
                terminal.line(f"  {terminal.glyph('│', '|')} {line}")
            self._keyboard.discard_input()
            values: dict[str, Any] = {}
            for name, about in (schema.get("properties") or {}).items():
                is_required = name in (schema.get("required") or ())
                value = await self._ask_for_value(name, about, is_required=is_required)
                if value is None:
                    self._display.notice("declined: no answer")
                    return None
                if value is not _LEFT_OUT:
                    values[name] = value
            return values

    async def _ask_for_value(self, name: str, about: dict[str, Any], *, is_required: bool) -> Any:
        """Return a valid value, `_LEFT_OUT` for an optional one, or None if the user declines."""
        kinds: dict[Any, tuple[Any, str]] = {
            "boolean": (click.BOOL, "yes or no"),
            "integer": (click.INT, "a whole number"),
            "number": (click.FLOAT, "a number"),
        }
        kind, expected = kinds.get(about.get("type"), (click.STRING, "a text"))
        if about.get("enum"):
            kind, expected = (
                click.Choice([*map(str, about["enum"])]),
                f"one of {', '.join(map(str, about['enum']))}",
            )
        label = _one_line(str(about.get("title") or name))
        if about.get("description"):
            label += f" ({_one_line(str(about['description']))})"
        if expected not in ("a text", "a number"):
            label += f" [{_one_line(expected)}]"
        while True:
            text = await self._read(f"  {label}: ", lower=False)
            if text is None:
                self._terminal.write("\n")
                return None
            if not text and "default" in about:
                return about["default"]
            if not text and not is_required:
                return _LEFT_OUT
            with suppress(click.BadParameter):
                if text:
                    return kind.convert(text, None, None)
            self._terminal.line(f"  Please give {_one_line(expected)}.")

    async def _read(self, question: str, *, lower: bool = True) -> str | None:
        """Return the typed line, or None at the end of input or after Ctrl-C."""
        answer: str | None = None
        with anyio.CancelScope() as scope:

            def interrupted() -> None:
                self._terminal.write("\n")
                self._signal_handler.interrupt_turn()
                scope.cancel()

            with self._signal_handler.redirect_interrupts(interrupted):
                self._terminal.write(question)
                line = await self._keyboard.read_line()
                answer = None if line is None else line.strip()
                if answer is not None and lower:
                    answer = answer.lower()
        return answer


def _in_one_line(prompt: str) -> str:
    """Return a question for a notice, not for a decision."""
    text = " ".join(prompt.split())
    if len(text) > _NOTICE_LENGTH:
        text = f"{text[:_NOTICE_LENGTH]}… ({len(text)} characters)"
    return _one_line(text)


def _one_line(text: str) -> str:
    return visible_text(text, multiline=False, strict=True)


def _keys(options: list[str]) -> dict[str, str]:
    """Return each option by its key: y, a and n for the usual ones, a number for others."""
    usual = {"allow": "y", "allow once": "y", "allow always": "a", "deny": "n"}
    keys: dict[str, str] = {}
    for number, option in enumerate(options, start=1):
        key = (
            "p"
            if option.startswith("Always in this project")
            else usual.get(option.lower(), str(number))
        )
        keys[str(number) if key in keys else key] = option
    return keys
