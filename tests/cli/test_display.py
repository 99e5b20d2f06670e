"""What is shown of a turn: words once, lines that stay, live lines that go, and nothing a terminal would obey."""

from __future__ import annotations

import io
import logging
import os
import pty
import re
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amplifier.cli.terminal.display import Display, LogNotices, OutputFormat, summary
from amplifier.cli.terminal.output import Output, StandardStreams
from amplifier.contracts import CurrentCall, call_scope
from amplifier.contracts.questions import render_prompt
from amplifier.events import CONTENT_BLOCK_RESET
from amplifier.models import AnswerReset, TextDelta, ToolFinished, ToolStarted, TurnEvent
from amplifier.models.turns import ToolUse, TurnRecord
from amplifier.shared_sessions.edits import _edit
from tests._support.terminal import on_screen


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


class Screen(Display):
    """A display at a terminal, or with two pipes."""

    def __init__(
        self, output_format: OutputFormat = "text", *, is_piped: bool = False, quiet: bool = False
    ) -> None:
        self.streams = Streams(out=not is_piped, err=not is_piped)
        super().__init__(self.streams, output_format, quiet=quiet)

    @property
    def written(self) -> str:
        return self.streams.record.getvalue()

    @property
    def errors(self) -> str:
        """What pipes got on standard error."""
        stream = self.streams.err._stream
        assert isinstance(stream, Recorded)
        return stream.getvalue()


@pytest.fixture(autouse=True)
def _terminal(monkeypatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(TurnRecord, "seconds", 0.0)  # however slow the machine is


def delta(text: str, index: int = 0) -> TextDelta:
    data = {"block_index": index, "block_type": "text", "delta": text}
    return TextDelta(name="content_block:delta", data=data, text=text)


def block(text: str, *, is_new: bool = False) -> TurnEvent:
    name, data = "content_block:end", {"block": {"type": "text", "text": text}}
    return TextDelta(name=name, data=data, text=text) if is_new else TurnEvent(name=name, data=data)


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
        ([request(), block("whole", is_new=True)], "whole", "whole\n"),
        ([request(), delta("a"), block("a"), delta("b", 1), block("b")], "ab", "ab\n"),
        ([request(), delta("first"), request(), delta("second")], "second", "first\n\nsecond\n"),
        ([request(), delta("half")], "half\n\n[stopped]", "half\n\n[stopped]\n"),
        ([request(), delta("x")], "another", "x\n\nanother\n"),
        ([], "denied", "denied\n"),
        ([request(), delta("cut off")], None, "cut off"),
    ],
)
def test_answer_is_written_once_on_terminal(events, response, expected):
    screen = Screen()
    play(screen, *events)
    screen.end_turn(response)
    assert on_screen(screen.written) == expected.splitlines()


def test_pipe_gets_final_answer_only():
    screen = Screen(is_piped=True)
    play(screen, request(), delta("thinking aloud"), request(), delta("the answer"))
    screen.end_turn("the answer")
    assert screen.written == "the answer\n"


def test_json_formats_do_not_write_answer():
    screen = Screen("json")
    play(screen, request(), delta("x"))
    screen.end_turn("x")
    assert screen.written == ""


OWN_SEQUENCES = re.compile(r"\x1b\[\d+F\x1b\[J|\x1b\[[0-9;]*m")
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
MARKS = st.sampled_from("\n\n\n  \t#*_`~->|[]()!<&;\\.:1ax\x1b\u202e漢")


@given(
    st.one_of(
        st.text(alphabet=st.characters(codec="utf-8"), max_size=80),
        st.text(alphabet=MARKS, max_size=200),
    )
)
def test_model_output_is_escape_free_in_pieces(text):
    os.environ["TERM"] = "xterm"
    screens = []
    for events in (
        [delta(piece) for piece in re.findall(r"(?s).{1,7}", text)],
        [block(text, is_new=True)],
    ):
        screen = Screen()
        play(screen, request(), *events)
        screen.end_turn(text)
        written = screen.written
        assert CONTROLS.search(OWN_SEQUENCES.sub("", written)) is None
        screens.append(on_screen(written))
    assert screens[0] == screens[1]


# ── Markdown ─────────────────────────────────────────────────────────────────────────────────────

ANSWER = """## Plan
Two *steps* for `main.py`,
see [the manual](https://example.org/manual):

1. read it
2. change a line that is too long for a narrow window

```python
def main() -> None:
    print("<b>")
```

| file | lines |
|---|---|
| main.py | 2 |

> done
"""
WIDE = """Plan

Two steps for main.py,
see the manual (https://example.org/manual):

 1 read it
 2 change a line that is too long for a narrow window

def main() -> None:
    print("<b>")

 file     lines
 ──────────────
 main.py  2

▌ done""".splitlines()
WRAPPED = {
    "see the manual (https://example.org/manual):": [
        "see the manual",
        "(https://example.org/manual):",
    ],
    " 2 change a line that is too long for a narrow window": [
        " 2 change a line that is too long for a",
        "   narrow window",
    ],
}
NARROW = [row for line in WIDE for row in WRAPPED.get(line, [line])]


def window(monkeypatch: pytest.MonkeyPatch, height: int, width: int) -> None:
    monkeypatch.setattr(Output, "size", lambda _: (width, height))


@pytest.mark.parametrize(
    ("size", "expected"), [((24, 80), WIDE), ((24, 40), NARROW), ((4, 40), NARROW)]
)
@pytest.mark.parametrize("piece", [1, 5, 1000])
def test_markdown_is_rendered_live_into_scrollback(size, expected, piece, monkeypatch):
    monkeypatch.setattr("amplifier.cli.terminal.display._REDRAW_INTERVAL", 0.0)
    monkeypatch.setattr(
        "amplifier.cli.terminal.display.time", SimpleNamespace(monotonic=lambda: 0.0)
    )  # every piece is drawn
    window(monkeypatch, *size)
    screen = Screen()
    play(
        screen,
        request(),
        *(delta(ANSWER[start : start + piece]) for start in range(0, len(ANSWER), piece)),
    )
    screen.end_turn(ANSWER)
    assert on_screen(screen.written, size) == expected


@pytest.mark.parametrize(("no_colour", "coloured"), [("1", False), ("", True)])
def test_no_color_leaves_emphasis_and_takes_colour(no_colour, coloured, monkeypatch):
    monkeypatch.setenv("NO_COLOR", no_colour)
    screen = Screen()
    screen.end_turn("**bold** `code`\n\n```python\nreturn 1\n```")
    written = screen.written
    assert "\x1b[1mbold" in written
    assert bool(re.search(r"\x1b\[(?:\d+;)*(?:3|9)[0-7]", written)) == coloured


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("[x](https://evil.example/\x1b]8;;)", "/%5Cx1b%5D8;;"),
        ("&#x202e;gnp &#27;[2J", "\\u202egnp"),
        ("![logo](https://evil.example/pixel.png)", "!logo (https://evil.example/pixel.png)"),
        ("[a]: https://evil.example", "[a]: https://evil.example"),
        ("a <!-- hidden --> b <div>c</div>", "a <!-- hidden --> b <div>c</div>"),
        (">" * 500 + " deep", "deep"),
        ("\n".join(" " * level + "- x" for level in range(60)) + "END", "END"),
        ("x" * 50_000 + "END", "END"),
        ("```python\n" + "x = 1\n" * 5_000 + "END", "END"),
    ],
)
def test_hostile_markdown_is_shown_inertly(text, shown):
    screen = Screen()
    play(screen, request(), delta(text))
    screen.end_turn(text)
    written = screen.written
    assert shown in "".join(on_screen(written))
    assert CONTROLS.search(OWN_SEQUENCES.sub("", written)) is None


def test_incomplete_line_finishes_no_block():
    text = "- a\n--- x"  # no rule below a list, but a second line of its item
    screen = Screen()
    play(screen, request(), delta(text[:7]), delta(text[7:]))
    screen.end_turn(text)
    assert on_screen(screen.written) == [" • a", "   --- x"]


def test_restarted_answer_drops_unfinished_block():
    screen = Screen()
    reset = AnswerReset(name=CONTENT_BLOCK_RESET, data={}, text="kept\n\nnext\n\nvoid\n")
    play(screen, request(), delta("kept\n\n"), delta("next\n\nvoid\n"), reset, delta("again"))
    screen.end_turn("again")
    assert on_screen(screen.written) == [
        "kept",
        "",
        "next",
        "the answer was interrupted; it begins again",
        "",
        "again",
    ]


def test_notice_goes_above_open_block():
    screen = Screen()
    play(screen, request(), delta("half a "))
    screen.notice("careful", "warning")
    assert on_screen(screen.written) == ["careful", "half a", "⠋ 0 s, Ctrl-C stops"]
    screen.end_turn("half a line")
    assert on_screen(screen.written) == ["careful", "half a line"]


def test_interrupted_turn_draws_nothing_live():
    screen = Screen()
    play(screen, request(), delta("half a "), started(path="a"))
    screen.end_turn(None)
    screen.notice("ended by SIGTERM", "warning")
    screen.draw_live_lines()
    assert on_screen(screen.written) == ["half a", "", "ended by SIGTERM"]


def test_narrowed_window_is_cleared(monkeypatch):
    screen = Screen()
    window(monkeypatch, 24, 80)
    play(screen, request(), delta("word " * 10))
    before = len(screen.written)
    window(monkeypatch, 24, 20)
    screen.clear_live_lines()
    assert screen.written[before:] == "\x1b[4F\x1b[J"  # 49 columns in 3 rows, and the status


def started(name: str = "t", call: str = "c1", **arguments: Any) -> ToolStarted:
    data: dict[str, Any] = {"tool_name": name, "tool_call_id": call, "tool_input": arguments}
    return ToolStarted(name="tool:pre", data=data, **data)


def finished(call: str = "c1", *, success: bool = True, **data: Any) -> ToolFinished:
    name = "tool:post" if success else "tool:error"
    ids = {"tool_name": "t", "tool_call_id": call}
    return ToolFinished(name=name, data={**data, **ids}, **ids, success=success)


def test_live_lines_are_cleared_before_output():
    screen = Screen()
    play(
        screen,
        started(path="a"),
        started(call="c2", path="b"),
        finished(),
        finished("c2", success=False, error="no"),
    )
    written = screen.written
    screen.end_turn("done")
    up, down = written.count("\x1b["), written.count("\x1b[J")
    assert up == 2 * down  # every ⟨go up⟩ has its ⟨erase⟩, and there is no other sequence
    assert on_screen(written) == ["✓ t a (0.0 s)", "✗ t b: no (0.0 s)", "⠋ 0 s, Ctrl-C stops"]
    assert on_screen(screen.written) == ["✓ t a (0.0 s)", "✗ t b: no (0.0 s)", "", "done"]


def test_number_of_live_lines_is_limited():
    screen = Screen()
    play(screen, *(started(call=f"c{number}", path=f"p{number}") for number in range(20)))
    rows = on_screen(screen.written)
    assert len(rows) == 10
    assert rows[-2:] == ["⋯ and 12 more", "⠋ 0 s, Ctrl-C stops"]


def test_nothing_is_written_below_question():
    screen = Screen()
    record = TurnRecord()
    for event in (started(path="a"), started(call="c2", path="b")):
        record.add(event)
        screen.show(event, record)
    screen.pause()
    asked = screen.written
    screen.notice("meanwhile")
    record.add(finished())
    screen.show(finished(), record)
    screen.draw_live_lines()
    assert screen.written == asked
    screen.resume()
    rest = screen.written[len(asked) :]
    assert rest.index("meanwhile") < rest.index("✓ t a") < rest.rindex("⋯")


def test_long_and_odd_arguments_fit_one_row():
    use = ToolUse("bash", {"note": "x", "command": "echo 1\n\x1b[2Jecho 漢"}, "", 0.0)
    assert summary(use) == "bash echo 1\\n\\x1b[2Jecho 漢 note=x"
    screen = Screen()
    play(screen, started(command="漢" * 300), finished())
    assert all(len(line) < 80 for line in screen.written.splitlines())


_NO_END = "\\ No newline at end of file"


@pytest.mark.parametrize(
    ("given", "before", "lines"),
    [
        ({"content": "a\nb\n"}, None, ["@@ -0,0 +1,2 @@", "+a", "+b"]),
        ({"content": "a\nc\n"}, b"a\nb\n", ["@@ -1,2 +1,2 @@", " a", "-b", "+c"]),
        ({"content": "a\n"}, b"a", ["@@ -1 +1 @@", "-a", _NO_END, "+a"]),
        (
            {"old_string": "a", "new_string": "b", "replace_all": True},
            b"a\na",
            ["@@ -1,2 +1,2 @@", "-a", "-a", _NO_END, "+b", "+b", _NO_END],
        ),
        ({"old_string": "a", "new_string": "b"}, b"\xff", ["@@ -1 +1 @@", "-a", "+b"]),
        ({"old_string": "gone", "new_string": "b"}, b"x", ["@@ -1 +1 @@", "-gone", "+b"]),
        ({"content": "x"}, b"\xff", None),
        ({"content": "x\n" * 5_000}, None, None),
        ({"old_string": "a"}, b"a", None),
    ],
)
def test_diff_comes_from_file_and_call(given, before, lines, tmp_path):
    if before is not None:
        (tmp_path / "f").write_bytes(before)
    edit = _edit({"file_path": "f", **given}, tmp_path)
    assert (None if edit is None else edit.lines) == lines


def test_diff_of_irregular_file_does_not_wait(tmp_path):
    os.mkfifo(tmp_path / "f")
    assert _edit({"file_path": "f", "content": "x"}, tmp_path) is None


def test_other_arguments_stay_beside_diff(tmp_path):
    given = {"file_path": "f", "content": "if x:\n" + " " * 20 + "y"}
    edit = _edit(given, tmp_path)
    assert edit is not None
    question = render_prompt("write_file", given, "no rule").splitlines()
    assert [line for line in question if line not in edit.covers] == [
        question[0],
        "  file_path: f",
        question[-1],
    ]
    other = render_prompt(
        "write_file", {**given, "content": "something else"}, "no rule"
    ).splitlines()
    assert not edit.covers.intersection(other)


def test_answer_time_is_not_call_time(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    screen = Screen()
    record = TurnRecord()
    for event in (started(path="a"), started(call="c2", path="b")):
        record.add(event)
        screen.show(event, record)
    asked = CurrentCall(
        kind="tool", session_id="s", turn_number=1, iteration=1, call_id="c1", tool_name="t"
    )
    with call_scope(asked), screen.waiting():
        now[0] += 60
    now[0] += 2
    assert (record.tools["c1"].seconds, record.tools["c2"].seconds) == (2.0, 62.0)


def test_quiet_shows_warnings_and_no_tools():
    screen = Screen(is_piped=True, quiet=True)
    play(screen, started(), finished())
    screen.notice("for your information")
    screen.notice("careful", "warning")
    assert screen.errors == "careful\n"


def test_secrets_are_not_shown():
    screen = Screen(is_piped=True)
    screen.notice("key sk-ant-api03-abcdefghijklmnopqrstuvwxyz0123456789 was refused")
    assert "abcdefghijklmnop" not in screen.errors


def test_log_record_is_one_line():
    """Warnings about failed modules are hidden."""
    screen = Screen(is_piped=True)
    handler = LogNotices(screen)

    def log(name: str, level: int, text: str) -> None:
        handler.handle(logging.LogRecord(name, level, "", 0, text, None, None))

    log("amplifier.modules.x", logging.WARNING, "first\nTraceback …")
    log("amplifier.session", logging.WARNING, "tool 'x' is not available:\nTraceback …")
    log("amplifier.session", logging.ERROR, "worse")
    assert screen.errors.splitlines() == ["amplifier.modules.x: first", "amplifier.session: worse"]


def test_log_notices_can_move_into_error():
    screen = Screen(is_piped=True)
    lines = LogNotices(screen)
    lines.hold()
    for text in ("provider-x: no key", "another"):
        lines.handle(
            logging.LogRecord("amplifier.modules", logging.WARNING, "", 0, text, None, None)
        )
    assert screen.errors == ""
    assert lines.pop_about("provider-x") == "provider-x: no key"
    assert lines.pop_about("provider-x") is None
    lines.show_held()
    assert screen.errors == "amplifier.modules: another\n"


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


def test_only_required_stream_raises_without_reader():
    with pipe_without_reader() as stream:
        lost = Output(stream, is_required=False)
        lost.write("x")
        assert lost.is_lost
        lost.write("y")
    with pipe_without_reader() as stream, pytest.raises(BrokenPipeError):
        Output(stream, is_required=True).write("x")


def test_encoding_without_glyphs_gets_ascii():
    ascii_stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    output = Output(ascii_stream, is_required=False)
    assert (output.glyph("✓", "ok"), output.glyph("é", "e")) == ("ok", "e")
    output.write("漢")  # is spelled out instead of failing
    assert isinstance(ascii_stream.buffer, io.BytesIO)
    assert ascii_stream.buffer.getvalue() == b"\\u6f22"


@pytest.mark.parametrize(
    ("term", "no_colour", "capable", "coloured"),
    [
        ("xterm", "", True, True),
        ("xterm", "1", True, False),
        ("dumb", "", False, False),
        ("", "", False, False),
    ],
)
def test_terminal_capabilities_follow_environment(term, no_colour, capable, coloured, monkeypatch):
    monkeypatch.setenv("TERM", term)
    monkeypatch.setenv("NO_COLOR", no_colour)
    master, slave = pty.openpty()
    with os.fdopen(slave, "w") as stream:
        output = Output(stream, is_required=False)
        assert (output.is_terminal, output.can_move_cursor, output.has_colour) == (
            True,
            capable,
            coloured,
        )
        assert output.styled("x", "red") == ("\x1b[31mx\x1b[0m" if coloured else "x")
    os.close(master)
