"""Shows log records on standard error: with ``--debug`` all with tracebacks, else warnings in one line each."""

from __future__ import annotations

import logging
import sys
import textwrap

from amplifier._json import redact_text, visible_text

from .display import Display

__all__ = ["LogNotices", "SafeFormatter", "install_log_handler"]

_SESSION_LOGGER = "amplifier.session"
"""Its warnings are about failed modules and problems of the plan, which the commands report themselves."""


class SafeFormatter(logging.Formatter):
    """Formats a record as one line and an indented traceback, so that no text in it controls the terminal or forges a line."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # named by the standard library
        """The line of a record."""
        return visible_text(redact_text(super().formatMessage(record)), multiline=False)

    def format(self, record: logging.LogRecord) -> str:
        """The line, and below it the traceback and the stack."""
        line, newline, rest = super().format(record).partition("\n")
        return line + newline + textwrap.indent(visible_text(redact_text(rest)), "    ")


class LogNotices(logging.Handler):
    """Shows warnings as notices of one line each; they can be held until it is known which ones an error message includes."""

    def __init__(self, display: Display) -> None:
        super().__init__(logging.WARNING)
        self._display = display
        self._held: list[tuple[str, str]] | None = None  # not while None

    def hold(self) -> None:
        """Hold notices until `show_held`."""
        self._held = []

    def show_held(self) -> None:
        """Show the held notices, and new ones immediately."""
        held, self._held = self._held, None
        for text, level in held or ():
            self._display.notice(text, level)

    def pop_about(self, name: str) -> str | None:
        """Remove and return the held messages that contain a name, for an error message."""
        held = self._held or []
        self._held = [notice for notice in held if name not in notice[0]]
        return "; ".join(text.partition(": ")[2] for text, _ in held if name in text) or None

    def emit(self, record: logging.LogRecord) -> None:
        """Show or hold one log record."""
        if record.name == _SESSION_LOGGER and record.levelno < logging.ERROR:
            return
        try:
            first = record.getMessage().splitlines()[:1]
        except Exception:  # noqa: BLE001  # arguments of third-party log records may fail to format
            return
        level = "error" if record.levelno >= logging.ERROR else "warning"
        line = f"{record.name}: {visible_text(redact_text(''.join(first)))}"
        if self._held is None:
            self._display.notice(line, level)
        else:
            self._held.append((line, level))


def install_log_handler(display: Display, *, debug: bool) -> LogNotices:
    """Replace the handlers of the root logger; called once, by the command."""
    root = logging.getLogger()
    lines = LogNotices(display)
    root.handlers[:] = [lines]
    if debug:
        full = logging.StreamHandler(sys.stderr)
        full.setFormatter(SafeFormatter("%(levelname)s %(name)s: %(message)s"))
        logging.getLogger("amplifier").setLevel(logging.DEBUG)
        root.handlers[:] = [full]
    return lines
