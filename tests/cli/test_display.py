"""What is shown of a turn: words once, lines that stay, live lines that go, and nothing a terminal would obey."""

from __future__ import annotations

import io
import logging
import os
import pty
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amplifier.cli.core.turn_record import ToolUse, TurnRecord
from amplifier.cli.terminal.display import Display, summary
from amplifier.cli.terminal.log_output import LogNotices
from amplifier.cli.terminal.output import Output, StandardStreams
from amplifier.models import TextDelta, ToolFinished, ToolStarted, TurnEvent


class Recorded(io.StringIO):
    """A stream that reports whether it is a terminal."""

    def __init__(self, *, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


class Streams(StandardStreams):
    """Both streams into one record, as on one terminal."""

    def __init__(self, *, out: bool, err: bool) -> None:
        self.record = Recorded(is_terminal=out)
        self.out = Output(self.record, is_required=True)
        self.err = self.out if out and err else Output(Recorded(is_terminal=err), is_required=False)


@pytest.fixture(autouse=True)
def _terminal(monkeypatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")


def delta(text: str, index: int = 0) -> TextDelta:
    data = {"block_index": index, "block_type": "text", "delta": text}
    return TextDelta(name="content_block:delta", data=data, text=text)


def block(text: str, index: int = 0) -> TurnEvent:
    return TurnEvent(name="content_block:end", data={"block_index": index, "block": {"type": "text", "text": text}})


def request() -> TurnEvent:
    return TurnEvent(name="provider:request", data={})


def play(screen: Display, *events: TurnEvent) -> None:
    record = TurnRecord()
    for event in events:
        record.add(event)
        screen.show(event, record)


@pytest.mark.parametrize(
    ("events", "response", "expected"),
    [
        ([request(), delta("one "), delta("two"), block("one two")], "one two", "one two\n"),
        ([request(), block("whole")], "whole", "whole\n"),
        ([request(), delta("a"), block("a"), delta("b", 1), block("b", 1)], "ab", "ab\n"),
        ([request(), delta("first"), request(), delta("second")], "second", "first\nsecond\n"),
        ([request(), delta("half")], "half\n\n[stopped]", "half\n\n[stopped]\n"),
        ([request(), delta("x")], "another", "x\nanother\n"),
        ([], "denied", "denied\n"),
        ([request(), delta("cut off")], None, "cut off"),
    ],
)
def test_the_answer_is_written_once_on_a_terminal(events, response, expected):
    streams = Streams(out=True, err=True)
    screen = Display(streams)
    play(screen, *events)
    screen.end_turn(response)
    assert streams.record.getvalue() == expected


def test_a_pipe_gets_the_final_answer_only():
    streams = Streams(out=False, err=False)
    screen = Display(streams)
    play(screen, request(), delta("thinking aloud"), request(), delta("the answer"))
    screen.end_turn("the answer")
    assert streams.record.getvalue() == "the answer\n"


def test_json_formats_do_not_write_the_answer():
    streams = Streams(out=True, err=True)
    screen = Display(streams, "json")
    play(screen, request(), delta("x"))
    screen.end_turn("x")
    assert streams.record.getvalue() == ""


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=80))
def test_model_output_has_no_escape_sequences(text):
    os.environ["TERM"] = "xterm"
    streams = Streams(out=True, err=True)
    screen = Display(streams)
    play(screen, request(), *map(delta, text))
    screen.end_turn(text)
    written = streams.record.getvalue()
    assert re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]", written) is None


def started(name: str = "t", call: str = "c1", **arguments: Any) -> ToolStarted:
    return ToolStarted(name="tool:pre", data={}, tool_name=name, tool_call_id=call, tool_input=arguments)


def finished(call: str = "c1", *, success: bool = True, **data: Any) -> ToolFinished:
    name = "tool:post" if success else "tool:error"
    return ToolFinished(name=name, data=data, tool_name="t", tool_call_id=call, success=success)


def test_live_lines_are_cleared_before_anything_else_is_written():
    streams = Streams(out=True, err=True)
    screen = Display(streams)
    play(screen, started(path="a"), started(call="c2", path="b"), finished(), finished("c2", success=False, error="no"))
    written = streams.record.getvalue()
    screen.end_turn("done")
    up, down = written.count("\x1b["), written.count("\x1b[J")
    assert up == 2 * down  # every ⟨go up⟩ has its ⟨erase⟩, and there is no other sequence
    assert "✓ t a (0.0 s)\n" in written
    assert written.endswith("✗ t b: no (0.0 s)\n")
    assert streams.record.getvalue().endswith("✗ t b: no (0.0 s)\ndone\n")


def test_number_of_live_lines_is_limited():
    streams = Streams(out=True, err=True)
    screen = Display(streams)
    play(screen, *(started(call=f"c{number}", path=f"p{number}") for number in range(20)))
    last = streams.record.getvalue().rpartition("\x1b[J")[2]
    assert last.count("\n") == 9
    assert last.endswith("⋯ and 12 more\n")


def test_nothing_is_written_below_a_question():
    streams = Streams(out=True, err=True)
    screen = Display(streams)
    record = TurnRecord()
    for event in (started(path="a"), started(call="c2", path="b")):
        record.add(event)
        screen.show(event, record)
    screen.pause()
    asked = streams.record.getvalue()
    screen.notice("meanwhile")
    record.add(finished())
    screen.show(finished(), record)
    screen.draw_live_lines()
    assert streams.record.getvalue() == asked
    screen.resume()
    rest = streams.record.getvalue()[len(asked) :]
    assert rest.index("meanwhile") < rest.index("✓ t a") < rest.rindex("⋯")


def test_long_and_odd_arguments_fit_one_row():
    use = ToolUse("bash", {"note": "x", "command": "echo 1\n\x1b[2Jecho 漢"}, "", 0.0)
    assert summary(use) == "bash echo 1\\n\\x1b[2Jecho 漢"
    streams = Streams(out=True, err=True)
    screen = Display(streams)
    play(screen, started(command="漢" * 300), finished())
    assert all(len(line) < 80 for line in streams.record.getvalue().splitlines())


def test_quiet_shows_warnings_and_no_tools():
    streams = Streams(out=False, err=False)
    screen = Display(streams, quiet=True)
    play(screen, started(), finished())
    screen.notice("for your information")
    screen.notice("careful", "warning")
    assert isinstance(streams.err._stream, Recorded)
    assert streams.err._stream.getvalue() == "careful\n"


def test_secrets_are_not_shown():
    streams = Streams(out=False, err=False)
    Display(streams).notice("key sk-ant-api03-abcdefghijklmnopqrstuvwxyz0123456789 was refused")
    assert isinstance(streams.err._stream, Recorded)
    assert "abcdefghijklmnop" not in streams.err._stream.getvalue()


def test_a_log_record_is_one_line_and_warnings_about_failed_modules_are_hidden():
    streams = Streams(out=False, err=False)
    handler = LogNotices(Display(streams))

    def log(name: str, level: int, text: str) -> None:
        handler.handle(logging.LogRecord(name, level, "", 0, text, None, None))

    log("amplifier.modules.x", logging.WARNING, "first\nTraceback …")
    log("amplifier.session", logging.WARNING, "tool 'x' is not available:\nTraceback …")
    log("amplifier.session", logging.ERROR, "worse")
    assert isinstance(streams.err._stream, Recorded)
    assert streams.err._stream.getvalue().splitlines() == ["amplifier.modules.x: first", "amplifier.session: worse"]


def test_log_notices_can_be_held_and_moved_into_an_error_message():
    streams = Streams(out=False, err=False)
    lines = LogNotices(Display(streams))
    lines.hold()
    for text in ("provider-x: no key", "another"):
        lines.handle(logging.LogRecord("amplifier.modules", logging.WARNING, "", 0, text, None, None))
    assert isinstance(streams.err._stream, Recorded)
    assert streams.err._stream.getvalue() == ""
    assert lines.pop_about("provider-x") == "provider-x: no key"
    assert lines.pop_about("provider-x") is None
    lines.show_held()
    assert streams.err._stream.getvalue() == "amplifier.modules: another\n"


# ── streams ──────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def pipe_without_reader() -> Iterator[Any]:
    reading, writing = os.pipe()
    os.close(reading)
    stream = os.fdopen(writing, "w")
    try:
        yield stream
    finally:
        with pytest.raises(BrokenPipeError):  # what is left in its buffer
            stream.close()


def test_only_a_required_stream_raises_when_its_reader_has_gone():
    with pipe_without_reader() as stream:
        lost = Output(stream, is_required=False)
        lost.write("x")
        assert lost.is_lost
        lost.write("y")
    with pipe_without_reader() as stream, pytest.raises(BrokenPipeError):
        Output(stream, is_required=True).write("x")


def test_an_encoding_without_the_glyphs_gets_ascii():
    ascii_stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    output = Output(ascii_stream, is_required=False)
    assert (output.glyph("✓", "ok"), output.glyph("é", "e")) == ("ok", "e")
    output.write("漢")  # is spelled out instead of failing
    assert isinstance(ascii_stream.buffer, io.BytesIO)
    assert ascii_stream.buffer.getvalue() == b"\\u6f22"


@pytest.mark.parametrize(
    ("term", "no_colour", "capable", "coloured"),
    [("xterm", "", True, True), ("xterm", "1", True, False), ("dumb", "", False, False), ("", "", False, False)],
)
def test_terminal_capabilities_follow_the_environment(term, no_colour, capable, coloured, monkeypatch):
    monkeypatch.setenv("TERM", term)
    monkeypatch.setenv("NO_COLOR", no_colour)
    master, slave = pty.openpty()
    with os.fdopen(slave, "w") as stream:
        output = Output(stream, is_required=False)
        assert (output.is_terminal, output.can_move_cursor, output.has_colour) == (True, capable, coloured)
        assert output.styled("x", "red") == ("\x1b[31mx\x1b[0m" if coloured else "x")
    os.close(master)
