"""What a person sees of a turn: the words as they come, a live line for each running tool, notices in between.

Standard output gets the answer and nothing else. Everything besides goes to standard error, as lines that stay; where that is a
terminal, running tools have a region of live lines below, which is taken away before anything else is written. The cursor is never
hidden and no mode of the terminal is changed, so that there is nothing to put back if the process is killed.

Above: `_agent`. Below: `_output`, `_record`.
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
"""What does not fit into a window could not be taken away again."""

_TELLING = ("file_path", "path", "command", "pattern", "url", "query", "prompt", "agent")
"""The arguments that tell best what a tool call is about, by rank."""

_NOTICE_STYLES = {"info": "dim", "warning": "yellow", "error": "red"}


class Display:
    """Shows turns.

    Args:
        streams: Where to.
        output_format: With ``text`` the answer is written as words.
        quiet: Leave out everything but the answer, warnings and errors.
    """

    def __init__(self, streams: StandardStreams, output_format: OutputFormat = "text", *, quiet: bool = False) -> None:
        self._out = streams.out
        self._err = streams.err
        self._quiet = quiet
        self._is_text = output_format == "text"
        self._streams_words = self._is_text and self._out.is_terminal
        self._shares_terminal = streams.share_a_terminal
        self._running: dict[str, ToolUse] = {}
        self._live_rows = 0
        self._paused = False
        self._redraw_question: Callable[[], None] | None = None
        self._held_back: list[str] = []
        self._shown = ""  # of the answer that is being written
        self._blocks_with_pieces: set[Any] = set()

    # ── a turn ──

    def show(self, event: TurnEvent, record: TurnRecord) -> None:
        """Show one event of a turn; ``record`` has taken it already.

        Raises:
            BrokenPipeError: Nobody reads the answer any more.
        """
        if isinstance(event, TextDelta):
            self._blocks_with_pieces.add(event.data.get("block_index"))
            self._say(event.text)
        elif event.name == CONTENT_BLOCK_START:
            self._blocks_with_pieces.discard(event.data.get("block_index"))
        elif event.name == CONTENT_BLOCK_END:
            self._say_block(event.data)
        elif event.name == PROVIDER_REQUEST:
            self._shown = ""
            self._blocks_with_pieces.clear()
        elif event.name == PROVIDER_RETRY:
            self.notice(_retry_text(event.data), "warning")
        elif isinstance(event, ToolStarted):
            self._running[event.tool_call_id] = record.tools[event.tool_call_id]
            self._announce(record.tools[event.tool_call_id])
        elif isinstance(event, ToolFinished):
            self._running.pop(event.tool_call_id, None)
            self._tell_finished(record.tools[event.tool_call_id])

    def end_turn(self, response: str | None) -> None:
        """The turn is over: no live lines, and whatever of the answer was not written piece by piece is written now."""
        self._running.clear()
        self.clear_live_lines()
        if not self._is_text or response is None:
            return
        shown, self._shown = self._shown, ""
        if self._streams_words and response.startswith(shown):
            self._write_words(response[len(shown) :])
        elif not (self._streams_words and shown == response):
            self._end_line()
            self._write_words(response)
        self._end_line()

    def _say(self, text: str) -> None:
        if not self._streams_words or not text:
            return
        if not self._shown:
            self._end_line()
        self._shown += text
        self._write_words(text)

    def _say_block(self, data: dict[str, Any]) -> None:
        """A whole block, from a provider that does not stream; the pieces of one that does have been shown."""
        block = data.get("block")
        if not isinstance(block, dict) or block.get("type") != "text":
            return
        if data.get("block_index") not in self._blocks_with_pieces:
            self._say(str(block.get("text") or ""))

    def _write_words(self, text: str) -> None:
        self.clear_live_lines()
        self._out.write(visible_text(text))

    def _end_line(self) -> None:
        self.clear_live_lines()
        if not self._out.at_line_start:
            self._out.write("\n")

    # ── lines of our own ──

    def notice(self, text: str, level: str = "info") -> None:
        """A line for the person, not part of the answer; the text may be anybody's."""
        if self._quiet and level == "info":
            return
        self._line(self._err.styled(visible_text(redact_text(text)), _NOTICE_STYLES.get(level, "dim")))

    def show_message(self, message: str, level: str, source: str = "hook") -> None:
        """Show a hook's message to the user: the session's display system."""
        self.notice(f"[{source}] {message}", level)

    def line(self, text: str = "") -> None:
        """A line of the chat's own, such as the answer to a command; safe text only."""
        self._line(text)

    def show_immediately(self, text: str) -> None:
        """Lines that somebody asked for by a signal: at once, also while a question waits; safe text only."""
        self.clear_live_lines()
        self._break_line()
        begin = "\r\n" if self._paused and self._err.is_terminal else ""
        self._err.line(begin + text)
        if self._redraw_question is not None:
            self._redraw_question()

    def _line(self, text: str) -> None:
        if self._paused:
            self._held_back.append(text)
            return
        self.clear_live_lines()
        self._break_line()
        self._err.line(text)
        self.draw_live_lines()

    def _break_line(self) -> None:
        """On a terminal that shows both streams, words of the answer may stand in the line where we want to begin."""
        if self._shares_terminal and not self._out.at_line_start:
            self._out.write("\n")

    # ── tools ──

    def _announce(self, use: ToolUse) -> None:
        if self._quiet:
            return
        if self._err.can_move_cursor:
            self.draw_live_lines()
        else:
            self._line(f"{self._err.glyph('→', '->')} {summary(use)}")

    def _tell_finished(self, use: ToolUse) -> None:
        if self._quiet:
            return
        mark = (
            self._err.styled(self._err.glyph("✓", "ok"), "green")
            if use.success
            else self._err.styled(self._err.glyph("✗", "failed"), "red")
        )
        text = summary(use) if self._err.can_move_cursor else use.tool
        failure = "" if use.success else f": {_failure(use)}"
        took = self._err.styled(f"({use.seconds:.1f} s)", "dim")
        self._line(f"{mark} {self._cut(f'{text}{failure}', 12)} {took}")

    def _cut(self, text: str, reserved: int) -> str:
        """Text that fits one row of the terminal; files and pipes get all of it."""
        room = self._err.width() - reserved
        if not self._err.can_move_cursor or cell_len(text) <= room:
            return text
        return set_cell_size(text, max(room - 1, 1)) + self._err.glyph("…", "~")

    # ── live lines ──

    @property
    def has_live_lines(self) -> bool:
        """Whether anything would change if time alone passed."""
        return bool(self._running) and self._err.can_move_cursor and not self._quiet

    def draw_live_lines(self) -> None:
        """Show the running tools with the time they have taken."""
        if not self.has_live_lines or self._paused:
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
        """Leave the display as if there had been no live lines."""
        if self._live_rows:
            self._err.write(f"\x1b[{self._live_rows}F\x1b[J")
            self._err.at_line_start = True
            self._live_rows = 0

    def note_terminal_echo(self) -> None:
        """The terminal itself has written something where the cursor stood, such as ^C."""
        if self._err.is_terminal and not self._live_rows:
            self._err.at_line_start = False

    def pause(self, redraw: Callable[[], None] | None = None) -> None:
        """Hold everything back until `resume`: the person is being asked something, and nothing may be written below the question.

        Args:
            redraw: Draws the question again, below an interjection.
        """
        self.clear_live_lines()
        self._break_line()
        self._paused = True
        self._redraw_question = redraw

    def resume(self) -> None:
        """The question has been answered."""
        self._paused = False
        self._redraw_question = None
        self._err.at_line_start = True  # the person has pressed Enter, or whoever asked has ended the line
        held_back, self._held_back = self._held_back, []
        for text in held_back:
            self._line(text)
        self.draw_live_lines()


def summary(use: ToolUse) -> str:
    """A tool call in one line: the tool, and what it is about."""
    arguments = use.arguments
    telling = next((arguments[key] for key in _TELLING if isinstance(arguments.get(key), str)), None)
    if telling is None:
        telling = next((value for value in arguments.values() if isinstance(value, str)), "")
    return visible_text(redact_text(f"{use.tool} {telling}".strip()), multiline=False)


def _failure(use: ToolUse) -> str:
    error: Any = use.result.get("error") if isinstance(use.result, dict) else None
    message = error.get("message") if isinstance(error, dict) else error
    return visible_text(redact_text(str(message or "failed")), multiline=False)


def _retry_text(data: dict[str, Any]) -> str:
    delay = data.get("delay")
    seconds = f" in {delay:.1f} s" if isinstance(delay, int | float) else ""
    return f"{data.get('error_type')}: {data.get('error_message')}; trying again{seconds}"
