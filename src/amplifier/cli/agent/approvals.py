"""Who answers when a hook asks for permission: the person, a blanket yes, or nobody, which is a no.

Above: `_agent` gives one of these to the session. Below: the keyboard and the display. The kernel keeps the time of a question and
cancels it when that is over.
"""

from __future__ import annotations

from typing import Protocol

import anyio

from amplifier._json import visible_text
from amplifier.cli.terminal.display import Display
from amplifier.cli.terminal.keyboard import Keyboard
from amplifier.cli.terminal.output import Output

from .signals import SignalHandler

__all__ = ["AllowEverything", "ApprovalSystem", "AskAtTerminal", "DenyEverything"]

_ALLOWING = ("allow once", "allow", "allow always")
"""What counts as yes for the kernel, the narrowest first."""

_DENY = "Deny"


class ApprovalSystem(Protocol):
    """The session's approval system, as this room makes it."""

    async def request_approval(self, prompt: str, options: list[str], timeout: float, default: str) -> str:
        """Ask, and return the option chosen."""
        ...


def narrowest_yes(options: list[str]) -> str:
    """The option that allows the least; a plain yes where none does."""
    by_name = {option.lower(): option for option in options}
    return next((by_name[name] for name in _ALLOWING if name in by_name), "Allow")


def _in_one_line(prompt: str) -> str:
    return visible_text(" ".join(prompt.split()), multiline=False)


class AllowEverything:
    """``--yes``: the person has answered all questions beforehand."""

    def __init__(self, display: Display) -> None:
        self._display = display

    async def request_approval(self, prompt: str, options: list[str], timeout: float, default: str) -> str:
        """Say yes and tell what was allowed."""
        self._display.notice(f"allowed (--yes): {_in_one_line(prompt)}")
        return narrowest_yes(options)


class DenyEverything:
    """Nobody can be asked."""

    def __init__(self, display: Display) -> None:
        self._display = display

    async def request_approval(self, prompt: str, options: list[str], timeout: float, default: str) -> str:
        """Say no and tell how to say yes."""
        self._display.notice(
            f"denied: {_in_one_line(prompt)}\n"
            "There is no terminal to ask at. Run it in one, or allow everything with --yes.",
            "warning",
        )
        return _DENY


class AskAtTerminal:
    """Asks the person, one question at a time."""

    def __init__(self, display: Display, terminal: Output, keyboard: Keyboard, signal_handler: SignalHandler) -> None:
        self._display = display
        self._terminal = terminal
        self._keyboard = keyboard
        self._signal_handler = signal_handler
        self._one_at_a_time = anyio.Lock()

    async def request_approval(self, prompt: str, options: list[str], timeout: float, default: str) -> str:
        """Ask until one of the options is chosen. Ctrl-C and the end of input deny."""
        async with self._one_at_a_time:
            self._display.pause()
            try:
                self._show(prompt, options, timeout, default)
                self._keyboard.discard_input()
                return await self._answer(options)
            except BaseException:  # the time is over, or everything is being cancelled
                self._terminal.write("\n")
                raise
            finally:
                self._display.resume()

    def _show(self, prompt: str, options: list[str], timeout: float, default: str) -> None:
        terminal = self._terminal
        terminal.line(terminal.styled("Permission needed", "yellow"))
        for line in visible_text(prompt).splitlines():
            # Indented, so that no line of it can pass for one of ours.
            terminal.line(f"  {terminal.glyph('│', '|')} {line}")
        choices = "  ".join(f"[{key}] {visible_text(option, multiline=False)}" for key, option in _keys(options))
        terminal.line(f"  {choices}")
        terminal.line(terminal.styled(f"  (no answer within {timeout:g} s means {default})", "dim"))

    async def _answer(self, options: list[str]) -> str:
        keys = dict(_keys(options))
        while True:
            self._terminal.write("  Your answer: ")
            said = await self._read()
            if said is None:
                self._terminal.write("\n")
                self._display.notice("denied: no answer")
                return _DENY
            chosen = keys.get(said) or next((option for option in options if option.lower() == said), None)
            if chosen is not None:
                return chosen
            self._terminal.line(f"  Please answer with one of: {', '.join(keys)}")

    async def _read(self) -> str | None:
        """What was typed, in lower case; None at the end of input or after Ctrl-C, which also stops the turn."""
        answer: str | None = None
        with anyio.CancelScope() as scope:

            def interrupted() -> None:
                self._terminal.write("\n")
                self._signal_handler.interrupt_turn()
                scope.cancel()

            with self._signal_handler.redirect_interrupts(interrupted):
                line = await self._keyboard.read_line()
                answer = None if line is None else line.strip().lower()
        return answer


def _keys(options: list[str]) -> list[tuple[str, str]]:
    """A key for each option: y, a and n for the usual ones, else its number."""
    usual = {"allow": "y", "allow once": "y", "allow always": "a", "deny": "n"}
    keys: list[tuple[str, str]] = []
    for number, option in enumerate(options, start=1):
        key = usual.get(option.lower(), str(number))
        taken = {other for other, _ in keys}
        keys.append((str(number) if key in taken else key, option))
    return keys
