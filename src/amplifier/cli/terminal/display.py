"""The display of a turn: the streamed answer, live lines for running tools, and notices."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from rich.cells import cell_len, chop_cells, set_cell_size

from amplifier._internal.json import redact_text, visible_text
from amplifier.cli._error_messages import traceback_text
from amplifier.events import PROVIDER_REQUEST, PROVIDER_RETRY
from amplifier.models import AnswerReset, TextDelta, ToolFinished, ToolStarted, TurnEvent
from amplifier.models.turns import ToolUse, TurnRecord
from amplifier.shared_sessions.edits import CONTENT_ARGUMENTS, Edit, Edits, diff_style
from amplifier.shared_sessions.questions import person_is_asked

from .output import StandardStreams

if TYPE_CHECKING:
    from .markdown import MarkdownRows

OutputFormat: TypeAlias = Literal["text", "json", "json-trace"]

MAX_LIVE_LINES = 8
"""Maximum number of live lines. Lines that don't fit into the window could not be cleared."""

_TARGET_ARGUMENTS = ("file_path", "path", "command", "pattern", "url", "query", "prompt", "agent")
"""The arguments that best describe a tool call, in order of preference."""

_MAX_DIFF_LINES = 20
"""Maximum number of lines shown for a finished edit. A question shows all of them."""

_MAX_ARGUMENT = 60
_REDRAW_INTERVAL = 0.05
"""Seconds between two redraws of the answer's current block, unless rendering takes longer."""

_NOTICE_STYLES = {"info": "dim", "warning": "yellow", "error": "red"}
_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_STYLING = re.compile(r"\x1b\[[0-9;]*m")


# Standard output receives only the answer. Everything else goes to standard error, as permanent
# lines. At a terminal that can move its cursor, the answer is rendered Markdown, and live lines are
# below: the current block of the answer, the running tools, the time and the tokens of the turn.
# They are redrawn from the first changed line, and cleared before anything else is written. The
# cursor is never hidden, so that nothing has to be restored if the process is killed.
class Display:
    """Shows turns.

    Args:
        streams: The standard streams.
        output_format: The answer is written only with ``text``.
        quiet: True shows only the answer, warnings and errors.
        light: True for a terminal with a light background.

    Attributes:
        edits: The edits of the running calls.
        hint: A hint about the key that stops the turn.
        draft: The text typed during the turn.
        is_paused: True while a question or the prompt uses the terminal.
    """

    def __init__(
        self,
        streams: StandardStreams,
        output_format: OutputFormat = "text",
        *,
        quiet: bool = False,
        light: bool = False,
    ) -> None:
        self._theme = "ansi_light" if light else "ansi_dark"
        self._out = streams.out
        self._err = streams.err
        self._quiet = quiet
        self._is_text = output_format == "text"
        self._streams_answer = self._is_text and self._out.is_terminal
        self._renders = (
            self._streams_answer and self._out.can_move_cursor and bool(self._out.glyph("•─", ""))
        )
        self._shares_terminal = streams.share_a_terminal
        self._record: TurnRecord | None = None  # the running turn
        self.edits: Edits = Edits(keeps_first=True)
        self.hint: str = ", Ctrl-C stops"
        self.draft: str = ""
        self._running: dict[str, ToolUse] = {}
        self._live = self._out if self._renders else self._err
        self._live_rows: list[str] = []
        self.is_paused: bool = False
        self._redraw_prompt: Callable[[], None] | None = None
        self._held_back: list[str] = []
        # The written part of the current answer, and the part that arrived during a question.
        self._shown = ""
        self._late = ""
        self._markdown: MarkdownRows | None = None
        self._next_redraw = 0.0
        # The kind of the latest output.
        self._above: Literal["", "text", "lines"] = ""

    # ── a turn ──

    def show(self, event: TurnEvent, record: TurnRecord) -> None:
        """Show one event of a turn. ``record`` already includes it.

        Raises:
            BrokenPipeError: The reader of the answer has gone.
        """
        self._record = record
        if isinstance(event, TextDelta):
            self._write_delta(event.text)
        elif isinstance(event, AnswerReset):
            self._drop_answer()
            self.notice("the answer was interrupted; it begins again", "warning")
        elif event.name == PROVIDER_REQUEST:
            self.end_text()
            self._shown = ""
        elif event.name == PROVIDER_RETRY:
            self.notice(_retry_text(event.data), "warning")
        elif isinstance(event, ToolStarted):
            self.end_text()
            self._running[event.tool_call_id] = record.tools[event.tool_call_id]
            self._show_started(record.tools[event.tool_call_id])
        elif isinstance(event, ToolFinished):
            self.end_text()
            self._running.pop(event.tool_call_id, None)
            edit = self.edits.pop(event.tool_call_id)
            self._show_finished(record.tools[event.tool_call_id], edit)

    def end_turn(self, response: str | None) -> None:
        """Clear the live lines and write the part of the answer that wasn't streamed."""
        self._running.clear()
        self._record = None
        shown, self._shown = self._shown, ""
        if self._is_text and response is not None:
            if self._streams_answer and response.startswith(shown):
                self._write_answer(response[len(shown) :])
            else:
                self.end_text()
                self._end_line()
                self._write_answer(response)
        self.end_text()
        self.clear_live_lines()
        if self._is_text and response is not None:
            self._end_line()

    def end_text(self) -> None:
        """Finish the current block of the answer, before other output or the end of the turn."""
        if self._markdown is not None:
            rows, self._markdown = self._markdown.finish(), None
            self._draw(rows)

    def _drop_answer(self) -> None:
        if self._markdown is not None:
            self._markdown.drop()
        self.end_text()
        self._shown = self._late = ""

    def _write_delta(self, text: str) -> None:
        if not self._streams_answer or not text:
            return
        if not self._shown:
            self._end_line()
        self._shown += text
        self._write_answer(text)

    def _write_answer(self, text: str) -> None:
        if self.is_paused:
            self._late += text
        elif self._renders and text:
            self._render(text)
        elif text:
            self.clear_live_lines()
            self._out.write(visible_text(text))

    def _render(self, text: str) -> None:
        if self._markdown is None:
            # Importing rich takes time.
            from .markdown import MarkdownRows  # noqa: PLC0415

            self._separate("text")
            self._markdown = MarkdownRows(
                self._out.width(), colour=self._out.has_colour, theme=self._theme
            )
        began = time.monotonic()
        rows = self._markdown.add(text)
        if rows or began >= self._next_redraw:
            self._draw(rows)
            now = time.monotonic()
            self._next_redraw = now + max(_REDRAW_INTERVAL, 4 * (now - began))

    def _separate(self, kind: Literal["text", "lines"]) -> None:
        """Write a blank line above rendered text, and below the answer of a turn."""
        is_text_next = kind == "text" or (self._above == "text" and self._record is None)
        if self._renders and self._above and is_text_next:
            self.clear_live_lines()
            self._live.line()
        self._above = kind

    def _end_line(self) -> None:
        self.clear_live_lines()
        if not self._out.at_line_start:
            self._out.write("\n")

    # ── notices ──

    def notice(self, text: str, level: str = "info") -> None:
        """Show a line that isn't part of the answer. The text may be untrusted."""
        if self._quiet and level == "info":
            return
        # Indented, so that no line of untrusted text looks like one of the command's own.
        shown = visible_text(redact_text(text)).replace("\n", "\n  ")
        self.line(self._err.styled(shown, _NOTICE_STYLES.get(level, "dim")))

    def show_message(self, message: str, level: str, source: str = "hook") -> None:
        """Show a hook's message to the user: the session's display system."""
        self.notice(f"[{source}] {message}", level)

    def line(self, text: str = "") -> None:
        """Write a safe text to standard error, or hold it back while a question waits."""
        if self.is_paused:
            self._held_back.append(text)
            return
        self.clear_live_lines()
        self._break_line()
        # During a block of the answer, the line goes above it.
        if self._markdown is None:
            self._separate("lines")
        self._err.line(text)
        self.draw_live_lines()

    def show_immediately(self, text: str) -> None:
        """Write a safe text even while a question waits."""
        self.clear_live_lines()
        self._break_line()
        line_start = "\r\n" if self.is_paused and self._err.is_terminal else ""
        self._err.line(line_start + text)
        if self._redraw_prompt is not None:
            self._redraw_prompt()

    def _break_line(self) -> None:
        """End a line of the answer on a terminal that shows both streams."""
        if self._shares_terminal and not self._out.at_line_start:
            self._out.write("\n")

    # ── tools ──

    def _show_started(self, use: ToolUse) -> None:
        if self._quiet:
            return
        if self._err.can_move_cursor:
            self.draw_live_lines()
        else:
            self.line(f"{self._err.glyph('→', '->')} {summary(use)}")

    def _show_finished(self, use: ToolUse, edit: Edit | None) -> None:
        if self._quiet:
            return
        glyphs, colour = (("✓", "ok"), "green") if use.success else (("✗", "failed"), "red")
        mark = self._err.styled(self._err.glyph(*glyphs), colour)
        text, result = visible_text(use.tool, multiline=False), ""
        if self._err.can_move_cursor:
            text = summary(use)
        if use.success:
            result = _short_result(use) if edit is None else f"{edit.counts} "
        else:
            text += f": {visible_text(redact_text(use.error or 'failed'), multiline=False)}"
        after = f"{result}({use.seconds:.1f} s)"
        if cell_len(after) > self._err.width() // 2:
            after = f"({use.seconds:.1f} s)"
        fitting = self._cut(text, cell_len(after) + 4)
        self.line(f"{mark} {fitting} {self._err.styled(after, 'dim')}")
        if use.success and edit is not None and self._err.is_terminal:
            self._show_diff(edit.lines)

    def _show_diff(self, lines: Sequence[str]) -> None:
        for line in lines[:_MAX_DIFF_LINES]:
            self.line(f"  {self._err.styled(self._cut(redact_text(line), 4), diff_style(line))}")
        if len(lines) > _MAX_DIFF_LINES:
            more = f"  and {len(lines) - _MAX_DIFF_LINES} more lines"
            self.line(self._err.styled(more, "dim"))

    def _cut(self, text: str, reserved: int) -> str:
        """Shorten text to one row of the terminal. Files and pipes receive all of it."""
        width = self._err.width() - reserved
        if not self._err.can_move_cursor or cell_len(text) <= width:
            return text
        return set_cell_size(text, max(width - 1, 1)) + self._err.glyph("…", "~")

    def waiting(self) -> AbstractContextManager[None]:
        """Stop the clock of the running calls while a question is open."""
        return person_is_asked(self._running)

    # ── live lines ──

    def draw_live_lines(self) -> None:
        """Show the answer's current block, the running tools, and the turn's time and tokens."""
        if self._live.can_move_cursor and not self.is_paused:
            self._draw()

    def _draw(self, final: Sequence[str] = ()) -> None:
        """Write final rows above the live lines, and redraw these from the first changed row."""
        live_rows = [] if self.is_paused else [*self._activity()]
        if self._markdown is not None and not self.is_paused:
            room = max(self._live.size()[1] - 1 - len(live_rows), 1)
            live_rows = [*self._markdown.unfinished()[-room:], *live_rows]
        rows = [*final, *live_rows]
        pairs = zip(self._live_rows, rows, strict=False)
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        self._erase(self._live_rows[same:])
        if rows[same:]:
            self._break_line()
            self._live.write("".join(f"{row}\n" for row in rows[same:]))
        self._live_rows = live_rows

    def _activity(self) -> list[str]:
        """Return a row for each running tool, one for the turn, and one for typed text."""
        if not self._err.can_move_cursor:
            return []
        draft = visible_text(self.draft, multiline=False)
        room = max(self._err.width() - 4, 1)
        typed = []
        if draft:
            end = draft if cell_len(draft) <= room else chop_cells(draft, room)[-1]
            typed = [f"{self._err.glyph('›', '>')} {end}"]
        if self._quiet:
            return typed
        bullet = self._err.styled(self._err.glyph("⋯", ".."), "cyan")
        running = list(self._running.values())
        rows = [
            f"{bullet} {self._cut(f'{use.seconds:.0f} s  {summary(use)}', 6)}"
            for use in running[:MAX_LIVE_LINES]
        ]
        if len(running) > MAX_LIVE_LINES:
            rows.append(f"{bullet} and {len(running) - MAX_LIVE_LINES} more")
        if self._record is not None and (self._renders or not self._streams_answer):
            spinner = self._err.glyph(_SPINNER[int(self._record.seconds * 4) % len(_SPINNER)], "*")
            text = self._cut(f"{spent(self._record, digits=0)}{self.hint}", 4)
            rows.append(f"{self._err.styled(spinner, 'cyan')} {self._err.styled(text, 'dim')}")
        return [*rows, *typed]

    def clear_live_lines(self) -> None:
        """Remove the live lines until they are drawn again."""
        self._erase(self._live_rows)
        self._live_rows = []

    def _erase(self, rows: Sequence[str]) -> None:
        """Erase the last drawn rows."""
        if rows:
            # A window that has become narrower shows some rows in several lines.
            width = self._live.width()
            lines = sum(max(-(-cell_len(_STYLING.sub("", row)) // width), 1) for row in rows)
            self._live.write(f"\x1b[{lines}F\x1b[J")
            self._live.at_line_start = True

    def note_terminal_echo(self) -> None:
        """Record that the terminal has echoed a key at the cursor, such as ^C."""
        if self._err.is_terminal and not self._live_rows:
            (self._out if self._shares_terminal else self._err).at_line_start = False

    def pause(self, redraw: Callable[[], None] | None = None) -> None:
        """Hold lines back until `resume`, so that nothing appears below a question.

        Args:
            redraw: Draws the question again below lines that are shown immediately.
        """
        self.end_text()
        self.clear_live_lines()
        self._break_line()
        self.is_paused = True
        self._redraw_prompt = redraw

    def resume(self) -> None:
        """Show the lines that were held back, after the answer to a question."""
        self.is_paused = False
        self._redraw_prompt = None
        # The user has pressed Enter, or the caller has ended the line.
        self._err.at_line_start = True
        held_back, self._held_back = self._held_back, []
        for text in held_back:
            self.line(text)
        late, self._late = self._late, ""
        self._write_answer(late)
        self.draw_live_lines()


def spent(record: TurnRecord, *, digits: int = 1) -> str:
    """Return the time, the tokens and the cost of a turn, as far as they are known."""
    parts = [f"{record.seconds:.{digits}f} s"]
    if record.input_tokens or record.output_tokens:
        cached = (
            f" ({record.cache_hit_rate:.0%} of the input cached)" if record.cache_hit_rate else ""
        )
        parts.append(f"{record.input_tokens + record.output_tokens:,} tokens{cached}")
    if record.cost:
        parts.append(f"${record.cost:.4f}")
    return ", ".join(parts)


def summary(use: ToolUse) -> str:
    """Return a tool call in one line: the tool, its main argument, and the others shortened."""
    arguments = {key: value for key, value in use.arguments.items() if key not in CONTENT_ARGUMENTS}
    best = next((key for key in _TARGET_ARGUMENTS if isinstance(arguments.get(key), str)), None)
    if best is None:
        best = next((key for key, value in arguments.items() if isinstance(value, str)), None)
    parts = [use.tool, *([] if best is None else [arguments.pop(best)])]
    parts += [f"{key}={value}" for key, value in arguments.items() if value not in _EMPTY]
    short = [
        part if len(part) <= _MAX_ARGUMENT else f"{part[:_MAX_ARGUMENT]}…" for part in parts[2:]
    ]
    return visible_text(redact_text(" ".join([*parts[:2], *short]).strip()), multiline=False)


_EMPTY: tuple[object, ...] = (None, "", [], {})


def _short_result(use: ToolUse) -> str:
    """Return a short single-line result, or the number of lines."""
    text = use.output if isinstance(use.output, str) else None
    if isinstance(use.output, dict):
        values = (use.output.get(key) for key in ("stdout", "content", "text"))
        text = next((value for value in values if isinstance(value, str)), None)
    if not text or not text.strip():
        return ""
    lines = text.strip().splitlines()
    if len(lines) > 1:
        return f"{len(lines)} lines "
    if len(lines[0]) > _MAX_ARGUMENT:
        return ""
    return f"{visible_text(redact_text(lines[0]), multiline=False)} "


def _retry_text(data: dict[str, Any]) -> str:
    delay = data.get("delay")
    seconds = f" in {delay:.1f} s" if isinstance(delay, int | float) else ""
    return f"{data.get('error_type')}: {data.get('error_message')}; trying again{seconds}"


# ── log output ──

_SESSION_LOGGER = "amplifier.session"
"""Logger of warnings about failed modules and the plan, which commands report themselves."""


class LogNotices(logging.Handler):
    """Shows warnings as notices of one line each.

    Notices can be held back, because an error message may include some of them.

    Args:
        display: Shows them.
        debug: True shows every record at once, with its traceback.
    """

    def __init__(self, display: Display, *, debug: bool = False) -> None:
        super().__init__(logging.DEBUG if debug else logging.WARNING)
        self._display = display
        self._debug = debug
        # None while notices are shown immediately.
        self._held: list[tuple[str, str]] | None = None

    def hold(self) -> None:
        """Hold notices until `show_held`."""
        self._held = []

    def show_held(self) -> None:
        """Show held notices, and stop holding new ones."""
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
        # Arguments of third-party log records may fail to format.
        except Exception:  # noqa: BLE001
            return
        if self._debug:
            error = record.exc_info[1] if record.exc_info else None
            text = visible_text(redact_text(message), multiline=False)
            line = f"{record.levelname} {record.name}: {text}"
            details = "" if error is None else f"\n{traceback_text(error)}"
            self._display.notice(f"{line}{details}", "debug")
            return
        level = "error" if record.levelno >= logging.ERROR else "warning"
        line = f"{record.name}: {visible_text(redact_text(''.join(message.splitlines()[:1])))}"
        if self._held is None:
            self._display.notice(line, level)
        else:
            self._held.append((line, level))


def install_log_handler(display: Display, *, debug: bool) -> LogNotices:
    """Replace the handlers of the root logger. A command calls this once."""
    root = logging.getLogger()
    lines = LogNotices(display, debug=debug)
    root.handlers[:] = [lines]
    if debug:
        logging.getLogger("amplifier").setLevel(logging.DEBUG)
    return lines
