"""What a person sees of a turn: the answer as it is streamed, a live line for each running tool, notices.

Standard output gets the answer and nothing else. Everything else goes to standard error, as lines that stay. If that is a terminal,
running tools have live lines below, which are cleared before anything else is written. The cursor is never hidden and the mode of
the terminal is not changed, so that nothing has to be restored if the process is killed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

from rich.cells import cell_len, set_cell_size

from amplifier._json import redact_text, visible_text
from amplifier.cli.core.turn_record import ToolUse, TurnRecord
from amplifier.events import CONTENT_BLOCK_END, CONTENT_BLOCK_START, PROVIDER_REQUEST, PROVIDER_RETRY
from amplifier.models import TextDelta, ToolFinished, ToolStarted, TurnEvent

from .output import StandardStreams

__all__ = ["Display", "OutputFormat"]

OutputFormat: TypeAlias = Literal["text", "json", "json-trace"]

MOST_LIVE_LINES = 8
"""Lines that do not fit into the window could not be cleared."""

_TARGET_ARGUMENTS = ("file_path", "path", "command", "pattern", "url", "query", "prompt", "agent")
"""The arguments that best describe a tool call, the best first."""

_NOTICE_STYLES = {"info": "dim", "warning": "yellow", "error": "red"}


class Display:
    """Shows turns.

    Args:
        streams: The standard streams.
        output_format: Only with ``text`` the answer is written here.
        quiet: Leave out everything but the answer, warnings and errors.
    """

    def __init__(self, streams: StandardStreams, output_format: OutputFormat = "text", *, quiet: bool = False) -> None:
        self._out = streams.out
        self._err = streams.err
        self._quiet = quiet
        self._is_text = output_format == "text"
        self._streams_answer = self._is_text and self._out.is_terminal
        self._shares_terminal = streams.share_a_terminal
        self._running: dict[str, ToolUse] = {}
        self._live_rows = 0
        self._paused = False
        self._redraw_prompt: Callable[[], None] | None = None
        self._held_back: list[str] = []
        self._shown = ""  # of the answer that is being written
        self._streamed_blocks: set[Any] = set()

    # ── a turn ──

    def show(self, event: TurnEvent, record: TurnRecord) -> None:
        """Show one event of a turn; ``record`` includes it already.

        Raises:
            BrokenPipeError: The reader of the answer has gone.
        """
        if isinstance(event, TextDelta):
            self._streamed_blocks.add(event.data.get("block_index"))
            self._write_delta(event.text)
        elif event.name == CONTENT_BLOCK_START:
            self._streamed_blocks.discard(event.data.get("block_index"))
        elif event.name == CONTENT_BLOCK_END:
            self._write_block(event.data)
        elif event.name == PROVIDER_REQUEST:
            self._shown = ""
            self._streamed_blocks.clear()
        elif event.name == PROVIDER_RETRY:
            self.notice(_retry_text(event.data), "warning")
        elif isinstance(event, ToolStarted):
            self._running[event.tool_call_id] = record.tools[event.tool_call_id]
            self._show_started(record.tools[event.tool_call_id])
        elif isinstance(event, ToolFinished):
            self._running.pop(event.tool_call_id, None)
            self._show_finished(record.tools[event.tool_call_id])

    def end_turn(self, response: str | None) -> None:
        """Clear the live lines and write what was not streamed of the answer."""
        self._running.clear()
        self.clear_live_lines()
        if not self._is_text or response is None:
            return
        shown, self._shown = self._shown, ""
        if self._streams_answer and response.startswith(shown):
            self._write_answer(response[len(shown) :])
        elif not (self._streams_answer and shown == response):
            self._end_line()
            self._write_answer(response)
        self._end_line()

    def _write_delta(self, text: str) -> None:
        if not self._streams_answer or not text:
            return
        if not self._shown:
            self._end_line()
        self._shown += text
        self._write_answer(text)

    def _write_block(self, data: dict[str, Any]) -> None:
        """Write a whole block of a provider that does not stream; the deltas of one that does are written already."""
        block = data.get("block")
        if not isinstance(block, dict) or block.get("type") != "text":
            return
        if data.get("block_index") not in self._streamed_blocks:
            self._write_delta(str(block.get("text") or ""))

    def _write_answer(self, text: str) -> None:
        self.clear_live_lines()
        self._out.write(visible_text(text))

    def _end_line(self) -> None:
        self.clear_live_lines()
        if not self._out.at_line_start:
            self._out.write("\n")

    # ── notices ──

    def notice(self, text: str, level: str = "info") -> None:
        """Show a line that is not part of the answer; the text may come from any source."""
        if self._quiet and level == "info":
            return
        # Indented, so that a newline in foreign text does not begin a line that looks like one of ours.
        shown = visible_text(redact_text(text)).replace("\n", "\n  ")
        self.line(self._err.styled(shown, _NOTICE_STYLES.get(level, "dim")))

    def show_message(self, message: str, level: str, source: str = "hook") -> None:
        """Show a hook's message to the user: the session's display system."""
        self.notice(f"[{source}] {message}", level)

    def line(self, text: str = "") -> None:
        """Write a line to standard error, or hold it back while a question waits; safe text only."""
        if self._paused:
            self._held_back.append(text)
            return
        self.clear_live_lines()
        self._break_line()
        self._err.line(text)
        self.draw_live_lines()

    def show_immediately(self, text: str) -> None:
        """Write lines even while a question waits; safe text only."""
        self.clear_live_lines()
        self._break_line()
        line_start = "\r\n" if self._paused and self._err.is_terminal else ""
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

    def _show_finished(self, use: ToolUse) -> None:
        if self._quiet:
            return
        glyphs, colour = (("✓", "ok"), "green") if use.success else (("✗", "failed"), "red")
        mark = self._err.styled(self._err.glyph(*glyphs), colour)
        text = summary(use) if self._err.can_move_cursor else visible_text(use.tool, multiline=False)
        failure = "" if use.success else f": {_failure(use)}"
        took = self._err.styled(f"({use.seconds:.1f} s)", "dim")
        self.line(f"{mark} {self._cut(f'{text}{failure}', 12)} {took}")

    def _cut(self, text: str, reserved: int) -> str:
        """Text that fits one row of the terminal; files and pipes get all of it."""
        width = self._err.width() - reserved
        if not self._err.can_move_cursor or cell_len(text) <= width:
            return text
        return set_cell_size(text, max(width - 1, 1)) + self._err.glyph("…", "~")

    # ── live lines ──

    def draw_live_lines(self) -> None:
        """Show the running tools with the time they have taken."""
        if not self._running or not self._err.can_move_cursor or self._quiet or self._paused:
            return
        self.clear_live_lines()
        self._break_line()
        bullet = self._err.glyph("⋯", "..")
        running = list(self._running.values())
        rows = [
            f"{self._err.styled(bullet, 'cyan')} {self._cut(f'{use.seconds:.0f} s  {summary(use)}', 6)}\n"
            for use in running[:MOST_LIVE_LINES]
        ]
        if len(running) > MOST_LIVE_LINES:
            rows.append(f"{self._err.styled(bullet, 'cyan')} and {len(running) - MOST_LIVE_LINES} more\n")
        self._err.write("".join(rows))
        self._live_rows = len(rows)

    def clear_live_lines(self) -> None:
        """Remove the live lines."""
        if self._live_rows:
            self._err.write(f"\x1b[{self._live_rows}F\x1b[J")
            self._err.at_line_start = True
            self._live_rows = 0

    def note_terminal_echo(self) -> None:
        """Take into account that the terminal has echoed a key at the cursor, such as ^C."""
        if self._err.is_terminal and not self._live_rows:
            self._err.at_line_start = False

    def pause(self, redraw: Callable[[], None] | None = None) -> None:
        """Hold lines back until `resume`: the person is being asked something, and nothing may appear below the question.

        Args:
            redraw: Draws the question again below lines that are shown immediately.
        """
        self.clear_live_lines()
        self._break_line()
        self._paused = True
        self._redraw_prompt = redraw

    def resume(self) -> None:
        """Show the lines that were held back; the question has been answered."""
        self._paused = False
        self._redraw_prompt = None
        self._err.at_line_start = True  # the person has pressed Enter, or the caller has ended the line
        held_back, self._held_back = self._held_back, []
        for text in held_back:
            self.line(text)
        self.draw_live_lines()


def summary(use: ToolUse) -> str:
    """A tool call in one line: the tool, and the argument that describes the call best."""
    arguments = use.arguments
    target = next((arguments[key] for key in _TARGET_ARGUMENTS if isinstance(arguments.get(key), str)), None)
    if target is None:
        target = next((value for value in arguments.values() if isinstance(value, str)), "")
    return visible_text(redact_text(f"{use.tool} {target}".strip()), multiline=False)


def _failure(use: ToolUse) -> str:
    error: Any = use.result.get("error") if isinstance(use.result, dict) else None
    message = error.get("message") if isinstance(error, dict) else error
    return visible_text(redact_text(str(message or "failed")), multiline=False)


def _retry_text(data: dict[str, Any]) -> str:
    delay = data.get("delay")
    seconds = f" in {delay:.1f} s" if isinstance(delay, int | float) else ""
    return f"{data.get('error_type')}: {data.get('error_message')}; trying again{seconds}"
