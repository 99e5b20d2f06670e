"""Shows log records on standard error: with ``--debug`` all with tracebacks, else warnings in one line each."""

from __future__ import annotations

import logging

from amplifier._json import redact_text, visible_text
from amplifier.cli.core.error_messages import traceback_text

from .display import Display

_SESSION_LOGGER = "amplifier.session"
"""Its warnings are about failed modules and problems of the plan, which the commands report themselves."""


class LogNotices(logging.Handler):
    """Shows warnings as notices of one line each; they can be held until it is known which ones an error message includes.

    Args:
        display: Shows them.
        debug: Show every record, at once and with its traceback.
    """

    def __init__(self, display: Display, *, debug: bool = False) -> None:
        super().__init__(logging.DEBUG if debug else logging.WARNING)
        self._display = display
        self._debug = debug
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
        if record.name == _SESSION_LOGGER and record.levelno < logging.ERROR and not self._debug:
            return
        try:
            message = record.getMessage()
        except Exception:  # noqa: BLE001  # arguments of third-party log records may fail to format
            return
        if self._debug:
            error = record.exc_info[1] if record.exc_info else None
            line = f"{record.levelname} {record.name}: {visible_text(redact_text(message), multiline=False)}"
            self._display.notice(line if error is None else f"{line}\n{traceback_text(error)}", "debug")
            return
        level = "error" if record.levelno >= logging.ERROR else "warning"
        line = f"{record.name}: {visible_text(redact_text(''.join(message.splitlines()[:1])))}"
        if self._held is None:
            self._display.notice(line, level)
        else:
            self._held.append((line, level))


def install_log_handler(display: Display, *, debug: bool) -> LogNotices:
    """Replace the handlers of the root logger; called once, by the command."""
    root = logging.getLogger()
    lines = LogNotices(display, debug=debug)
    root.handlers[:] = [lines]
    if debug:
        logging.getLogger("amplifier").setLevel(logging.DEBUG)
    return lines
