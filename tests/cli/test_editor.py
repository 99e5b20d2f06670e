"""Entering a line: keys from bytes however they are cut, editing, layout, and the real thing at a pseudo-terminal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from amplifier.cli.terminal.keys import Key, KeyParser
from amplifier.cli.terminal.line import Line, lay_out
from tests._support.terminal import open_terminal

# ── keys ─────────────────────────────────────────────────────────────────────────────────────────

SENT = {
    "plain text": (b"abc", [Key("text", "abc")]),
    "two bytes of one letter": ("é".encode(), [Key("text", "é")]),
    "enter": (b"\r\n", [Key("enter"), Key("enter")]),
    "arrows": (b"\x1b[A\x1b[B\x1b[C\x1b[D", [Key("up"), Key("down"), Key("right"), Key("left")]),
    "arrows of another kind": (b"\x1bOA\x1bOD", [Key("up"), Key("left")]),
    "home, end, delete": (b"\x1b[H\x1b[4~\x1b[3~", [Key("home"), Key("end"), Key("delete")]),
    "words": (b"\x1bb\x1b[1;5C\x17", [Key("word-left"), Key("word-right"), Key("erase-word")]),
    "alt and enter": (b"a\x1b\nb", [Key("text", "a"), Key("newline"), Key("text", "b")]),
    "a paste": (b"\x1b[200~one\r\ntwo\x1b[A\x1b[201~x", [Key("paste", "one\ntwo\x1b[A"), Key("text", "x")]),
    "sequences of no meaning": (b"\x1b[99;1u\x1b[?1;2ca\x1bOz\x00", [Key("text", "a")]),
    "bytes that are no text": (b"a\xffb", [Key("text", "a\ufffdb")]),
}


def merged(keys: list[Key]) -> list[Key]:
    """Text that came in pieces as one piece."""
    found: list[Key] = []
    for key in keys:
        if key.name == "text" and found and found[-1].name == "text":
            found[-1] = Key("text", found[-1].text + key.text)
        else:
            found.append(key)
    return found


@pytest.mark.parametrize("name", SENT)
def test_bytes_become_the_keys_that_were_pressed(name):
    data, expected = SENT[name]
    assert list(KeyParser().feed(data)) == expected


@given(st.lists(st.sampled_from(sorted(SENT)), max_size=6), st.data())
def test_it_does_not_matter_how_bytes_are_cut(names, data):
    sent = b"".join(SENT[name][0] for name in names)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=8)))
    parser, found = KeyParser(), []
    for start, end in zip([0, *cuts], [*cuts, len(sent)], strict=True):
        found += list(parser.feed(sent[start:end]))
    assert merged(found) == merged(list(KeyParser().feed(sent)))


@given(st.binary(max_size=60))
def test_no_bytes_break_the_parser_and_text_is_printable(data):
    for key in KeyParser().feed(data):
        assert key.name
        assert key.name == "paste" or key.text.isprintable()


def test_what_was_not_taken_is_handed_back():
    parser = KeyParser()
    keys = parser.feed(b"one\rtwo\r")
    assert [next(keys), next(keys)] == [Key("text", "one"), Key("enter")]
    assert parser.rest() == b"two\r"
    assert parser.rest() == b""


# ── editing ──────────────────────────────────────────────────────────────────────────────────────

EDITS = {
    "typed in the middle": (["text:held", "left", "left", "text:l"], "helld", 3),
    "erased backwards": (["text:abc", "backspace"], "ab", 2),
    "erased at the start": (["text:abc", "home", "backspace"], "abc", 0),
    "deleted": (["text:abc", "home", "delete"], "bc", 0),
    "deleted with Ctrl-D": (["text:abc", "home", "end-of-input"], "bc", 0),
    "the last word erased": (["text:one two  ", "erase-word"], "one ", 4),
    "all before erased": (["text:one two", "word-left", "erase-before"], "two", 0),
    "all behind erased": (["text:one two", "home", "word-right", "erase-after"], "one", 3),
    "a mark goes with its letter": (["text:ae\u0301", "backspace"], "a", 1),
    "over a letter with a mark": (["text:e\u0301x", "home", "right"], "e\u0301x", 2),
    "pasted lines": (["paste:one\ntwo\x1b[A\tx"], "one\ntwo[A    x", 14),
    "a line of one's own": (["text:one", "newline", "text:two"], "one\ntwo", 7),
    "history": (["up"], "second", 6),
    "the far end of history": (["up", "up", "up"], "first", 5),
    "back from history": (["text:draft", "up", "down"], "draft", 5),
    "no further than now": (["down"], "", 0),
}


@pytest.mark.parametrize("name", EDITS)
def test_keys_edit_the_line(name):
    pressed, text, cursor = EDITS[name]
    line = Line(["first", "second"])
    for each in pressed:
        key, _, characters = each.partition(":")
        assert line.press(Key(key, characters)) is None
    assert (line.text, line.cursor) == (text, cursor)


def test_keys_that_ask_for_something_are_handed_on():
    line = Line()
    assert line.press(Key("end-of-input")) == "leave"
    assert line.press(Key("suspend")) == "suspend"
    assert line.press(Key("clear-screen")) == "clear-screen"
    assert line.press(Key("enter")) == "submit"


_NAMES = ["left", "right", "home", "end", "word-left", "word-right", "backspace", "delete", "erase-word", "up", "down"]


@given(st.lists(st.one_of(st.sampled_from(_NAMES).map(Key), st.text(max_size=4).map(lambda t: Key("paste", t)))))
def test_the_cursor_never_leaves_the_text(keys):
    line = Line(["an earlier line"])
    for key in keys:
        line.press(key)
        assert 0 <= line.cursor <= len(line.text)


@given(st.text(max_size=60), st.integers(4, 20), st.data())
def test_every_row_fits_and_the_cursor_is_on_one(text, width, data):
    cursor = data.draw(st.integers(0, len(text)))
    layout = lay_out("> ", text, cursor, width)
    # A character that is spelled out, such as \u202e, may be wider than a window of four cells.
    assert all(cell_len(row) <= max(width, 10) for row in layout.rows)
    assert 0 <= layout.cursor_row < len(layout.rows)
    assert "".join(layout.rows).startswith("> ")


@pytest.mark.parametrize(
    ("text", "cursor", "rows", "place"),
    [
        ("", 0, ["> "], (0, 2)),
        ("abcd", 4, ["> abcd", ""], (1, 0)),
        ("abcde", 5, ["> abcd", "e"], (1, 1)),
        ("abcde", 4, ["> abcd", "e"], (1, 0)),
        ("abc漢", 3, ["> abc", "漢"], (1, 0)),
        ("a\nb", 3, ["> a↵b"], (0, 5)),
    ],
)
def test_a_long_line_is_broken_where_the_window_ends(text, cursor, rows, place):
    layout = lay_out("> ", text, cursor, 6)
    assert (layout.rows, (layout.cursor_row, layout.cursor_column)) == (rows, place)


# ── at the terminal ──────────────────────────────────────────────────────────────────────────────


def test_a_line_is_edited_recalled_and_pasted_at_the_terminal(backend, home, desk, plan):
    with open_terminal("run", "--plan", plan, "--backend", backend, home=home, cwd=desk) as terminal:
        terminal.expect("› ")
        terminal.type("sey one\x01\x1b[C\x1b[3~a\n")  # home, right, delete, a
        terminal.expect("\none")
        terminal.expect("› ")
        terminal.type("\x1b[A two\n")  # the line before, and more
        terminal.expect("\none two")
        terminal.expect("› ")
        terminal.type("\x1b[200~say a\nb\x1b[201~")
        terminal.expect("say a↵b")
        terminal.type("\n")
        terminal.expect("\na\nb")
        terminal.expect("› ")
        terminal.type(f"say {'long ' * 40}end\n")  # four rows
        terminal.expect("end")
        terminal.expect("› ")
        terminal.type("\x0c\x1a/exit\n")  # clear the screen, suspend (nobody would wake us, so it does nothing), leave
        assert terminal.end() == 0
        assert terminal.is_as_before()
        assert terminal.screen.count("\x1b[?2004h") == terminal.screen.count("\x1b[?2004l")


def test_lines_typed_ahead_wait_for_their_turn(home, desk, plan):
    with open_terminal("run", "--plan", plan, home=home, cwd=desk) as terminal:
        terminal.expect("› ")
        terminal.type("say one\nsay two\nhistory\n/exit\n")
        terminal.expect("\none")
        terminal.expect("\ntwo")
        terminal.expect("3 prompts so far")
        assert terminal.end() == 0


def test_a_terminal_without_abilities_can_chat_too(home, desk, plan):
    with open_terminal("run", "--plan", plan, home=home, cwd=desk, extra={"TERM": "dumb"}) as terminal:
        terminal.expect("› ")
        terminal.type("say hello\n")
        terminal.expect("\nhello")
        terminal.expect("› ")
        terminal.type("\x04")
        assert terminal.end() == 0
        assert "\x1b" not in terminal.screen
