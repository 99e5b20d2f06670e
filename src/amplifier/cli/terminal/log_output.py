"""What the library logs, on standard error: with ``--debug`` everything with tracebacks, else warnings in one line each."""

from __future__ import annotations

import logging
import sys

from amplifier._json import redact_text, visible_text

from .display import Display

__all__ = ["LogNotices", "install_log_handler"]

_REPORTED_OTHERWISE = "amplifier.session"
"""Its warnings are about modules that failed and plans that are odd; the commands tell those themselves, in fewer words."""


class LogNotices(logging.Handler):
    """Warnings in one line each, between the lines of the display; or held back until it is known who tells them."""

    def __init__(self, display: Display) -> None:
        super().__init__(logging.WARNING)
        self._display = display
        self._held: list[tuple[str, str]] | None = None  # not while None

    def hold_back(self) -> None:
        """Show nothing for the time being."""
        self._held = []

    def show_held(self) -> None:
        """Show what was held back, and everything from now on."""
        held, self._held = self._held, None
        for text, level in held or ():
            self._display.notice(text, level)

    def take(self, about: str) -> str | None:
        """Take the held lines that name something, to be told in another way."""
        taken = [line for line in self._held or () if about in line[0]]
        self._held = [line for line in self._held or () if line not in taken]
        return "; ".join(text.partition(": ")[2] for text, _ in taken) or None

    def emit(self, record: logging.LogRecord) -> None:
        """Print one log record, or hold it while lines are held."""
        if record.name == _REPORTED_OTHERWISE and record.levelno < logging.ERROR:
            return
        try:
            first = record.getMessage().splitlines()[:1]
        except Exception:  # noqa: BLE001  # arguments of foreign log records may fail to format
            return
        level = "error" if record.levelno >= logging.ERROR else "warning"
        line = f"{record.name}: {visible_text(redact_text(''.join(first)))}"
        if self._held is None:
            self._display.notice(line, level)
        else:
            self._held.append((line, level))


def install_log_handler(display: Display, *, debug: bool) -> LogNotices:
    """Take over logging of the whole process; called once, by the command."""
    root = logging.getLogger()
    lines = LogNotices(display)
    root.handlers[:] = [lines]
    if debug:
        full = logging.StreamHandler(sys.stderr)
        full.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
        logging.getLogger("amplifier").setLevel(logging.DEBUG)
        root.handlers[:] = [full]
    return lines
