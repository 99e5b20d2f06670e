"""Entering a line at a real pseudo-terminal: editing keys, history, completion, pasting, interruption; and the history file."""

from __future__ import annotations

import os
import signal
import stat
import threading
from pathlib import Path

import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document

from amplifier.cli._sessions import SessionStore
from amplifier.cli.terminal import line_prompt
from amplifier.cli.terminal.line_prompt import PromptHistory, _Completer
from tests._support.backends import mostly_on
from tests._support.terminal import open_terminal, run_cli
from tests._support.tree import ROOT


@pytest.mark.slow
def test_line_is_edited_recalled_and_pasted(backend, home, workdir, plan):
    with open_terminal(
        "run", "--plan", plan, "--backend", backend, home=home, cwd=workdir
    ) as terminal:
        terminal.expect("› ")
        terminal.type("sey one\x01\x1b[C\x1b[3~a\n")  # home, right, delete, a
        terminal.expect("\none")
        terminal.expect("› ")
        terminal.type("\x1b[A two\n")  # the line before, and more
        terminal.expect("\none two")
        terminal.expect("› ")
        terminal.type("\x1b[200~say a\nb\x1b[201~")
        terminal.expect("say a\n… b")
        terminal.enter("", "\na\nb", "› ")
        terminal.type(f"say {'long ' * 40}end\n")  # four rows
        row = " ".join(["long"] * 20)
        terminal.expect(
            f"\n{row}\n{row}\nend\n"
        )  # the answer: it is rendered in rows without blanks at their ends
        terminal.expect("› ")
        terminal.type(
            "\x0c\x1a/exit\n"
        )  # clear the screen, suspend (no shell would resume it, so it does nothing), leave
        terminal.ends(0)
        assert terminal.screen.count("\x1b[?2004h") == terminal.screen.count("\x1b[?2004l")


def test_lines_typed_ahead_wait(home, workdir, plan):
    with open_terminal("run", "--plan", plan, home=home, cwd=workdir) as terminal:
        terminal.say("say one\nsay two\nhistory\n/exit", "\none", "\ntwo", "3 prompts so far")
        assert terminal.end() == 0


EDITS = {
    "typed in the middle": ("say held\x1b[D\x1b[Dl", "helld"),
    "erased backwards": ("say abcd\x7f", "abc"),
    "deleted with Ctrl-D": ("xsay abc\x01\x04", "abc"),
    "the last word erased": ("say one two\x17three", "one three"),
    "everything before erased": ("wrong\x15say right", "right"),
    "everything behind erased": ("say one two\x01\x1bf\x1b[1;5C\x0b", "one"),
    "moved by words": ("say two\x1bbone ", "one two"),
    "moved to both ends": ("ay tw\x1b[Hs\x1b[Fo", "two"),
    "arrows of another kind": ("say ac\x1bODb", "abc"),
    "a line of its own with Alt-Enter": ("say one\x1b\rtwo", "one\ntwo"),
    "bytes that are no text": ("say a\udcffb", "ab"),
    "letters wider than a cell": ("say 漢字\x1b[D\x7f語", "語字"),
}


@mostly_on("trio")
def test_keys_edit_line(backend, home, workdir, plan):
    with open_terminal(
        "run", "--plan", plan, "--backend", backend, home=home, cwd=workdir
    ) as terminal:
        for keys, sent in EDITS.values():
            terminal.say(keys, f"\n{sent}\n")
        terminal.leave("\x04")


@pytest.mark.slow
@mostly_on("asyncio")
def test_history_survives_restart_and_keeps_draft(backend, home, workdir, plan):
    with open_terminal(
        "run", "--plan", plan, "--backend", backend, home=home, cwd=workdir
    ) as terminal:
        terminal.say("say one\x1b\rtwo", "\none\ntwo")
        terminal.leave()
    with open_terminal(
        "run", "--plan", plan, "--backend", backend, home=home, cwd=workdir
    ) as terminal:
        terminal.say("\x1b[A\x1b[A", "\none\ntwo")
        terminal.say("say dra\x1b[A\x1b[Bft", "\ndraft")
        terminal.leave("\x04")
    assert kept(PromptHistory(home / "history")) == [
        "say one\ntwo",
        "/exit",
        "say one\ntwo",
        "say draft",
    ]
    assert stat.S_IMODE((home / "history").stat().st_mode) == 0o600


@pytest.mark.slow
def test_resumed_session_history_comes_first(home, workdir, plan):
    assert (
        run_cli(
            "run", "say asked", "--plan", plan, "--session-id", "mine", home=home, cwd=workdir
        ).returncode
        == 0
    )
    PromptHistory(home / "history").append_string("say other")
    with open_terminal("run", "--resume", "mine", home=home, cwd=workdir) as terminal:
        terminal.expect("› ")
        terminal.type("\x1b[A")
        terminal.expect("say asked")
        terminal.enter("\x1b[A", "\nother")
        terminal.leave("\x04")


@pytest.mark.slow
@mostly_on("asyncio")
def test_pasted_text_is_sent_exactly(backend, home, workdir, plan):
    """Its controls are spelled out on the screen."""
    family, word = (
        "👩\u200d👩\u200d👧",
        "می\u200cخواهم",
    )  # characters that nobody sees join the ones around them
    with open_terminal(
        "run", "--plan", plan, "--backend", backend, home=home, cwd=workdir
    ) as terminal:
        terminal.expect("› ")
        terminal.type("\x1b[200~say a\u202eb\x1b[31m\tc\r\nd\x1b[201~")
        terminal.expect("say a\\u202eb[31m    c\n… d")
        terminal.enter("", "\na\\u202eb[31m    c\nd", "› ")
        terminal.type(
            "\x1b[200~say a\u202ebc\x1b[201~\x1b[D\x1b[D\x7f\n"
        )  # the cursor is behind what is spelled out
        terminal.expect("\nabc")
        terminal.say(f"\x1b[200~say \u202e{family} {word}\x1b[201~", "› ")
        terminal.type("\x1b[A")
        terminal.expect("say \\u202e")
        terminal.type(" again\n")
        terminal.leave("\x04")
        assert "\u202e" not in terminal.screen
        assert "\x1b[31m" not in terminal.screen
    sent = [f"say \u202e{family} {word}", f"say \u202e{family} {word} again"]
    assert kept(PromptHistory(home / "history"))[-2:] == sent
    store = SessionStore(home / "sessions")
    asked = [
        each["content"]
        for each in store.transcript(store.find("last").session_id)
        if each["role"] == "user"
    ]
    assert asked[-2:] == sent


def test_completions_spell_out_controls(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a\u202eb.txt").touch()
    completer = _Completer({"/do": "turn \u202e it"})
    for begun, text, shown, about in (
        ("@a", "a\u202eb.txt", "a\\u202eb.txt", ""),
        ("/d", "/do", "/do", "turn \\u202e it"),
    ):
        (found,) = completer.get_completions(Document(begun), CompleteEvent())
        assert (found.text, found.display_text, found.display_meta_text) == (text, shown, about)


def test_line_goes_to_standard_error(home, workdir, plan, tmp_path):
    """The answer goes to standard output."""
    answers = tmp_path / "answers"
    with (
        answers.open("w") as file,
        open_terminal("run", "--plan", plan, home=home, cwd=workdir, stdout=file) as terminal,
    ):
        terminal.say("say hello", "say hello")
        terminal.leave("\x04")
    assert answers.read_text() == "hello \n"


@pytest.mark.slow
@pytest.mark.parametrize("which", [signal.SIGTERM, signal.SIGHUP])
def test_signal_during_input_restores_terminal(which, backend, home, workdir, plan):
    with open_terminal(
        "run", "--plan", plan, "--backend", backend, home=home, cwd=workdir
    ) as terminal:
        terminal.expect("› ")
        terminal.type("say half a li")
        terminal.expect("half a li")
        assert not terminal.is_as_before()  # raw mode
        terminal.send(which)
        terminal.ends(128 + which)
        assert terminal.screen.count("\x1b[?2004h") == terminal.screen.count("\x1b[?2004l")


def test_keys_after_ctrl_c_join_next_line(home, workdir, plan):
    with open_terminal("run", "--plan", plan, home=home, cwd=workdir) as terminal:
        terminal.say("say dropped\x03say kept", "Press Ctrl-C again to leave.", "\nkept")
        terminal.leave("\x04")
        assert "\ndropped" not in terminal.text


@pytest.mark.slow
def test_closed_window_ends_chat(backend, home, workdir, plan):
    with open_terminal(
        "run", "--plan", plan, "--backend", backend, home=home, cwd=workdir
    ) as terminal:
        terminal.expect("› ")
        terminal.hang_up()
        assert terminal.end() == 128 + signal.SIGHUP


# ── without prompt_toolkit ───────────────────────────────────────────────────────────────────────


@pytest.fixture
def without_prompt_toolkit(tmp_path: Path) -> dict[str, str]:
    """Variables for a command that cannot import prompt_toolkit."""
    package = tmp_path / "shadow" / "prompt_toolkit"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(
        "raise ModuleNotFoundError('hidden', name='prompt_toolkit')\n"
    )
    return {"PYTHONPATH": os.pathsep.join([str(ROOT), str(package.parent)])}


def test_dumb_terminal_needs_no_prompt_toolkit(without_prompt_toolkit, home, workdir, plan):
    extra = {**without_prompt_toolkit, "TERM": "dumb"}
    with open_terminal("run", "--plan", plan, home=home, cwd=workdir, extra=extra) as terminal:
        terminal.say("say hello", "\nhello")
        terminal.say("/help", "A backslash at the end of a line begins another line")
        terminal.say("say one\\", "… ")
        terminal.enter("two", "\none\ntwo")
        terminal.leave("\x04")
        assert "\x1b" not in terminal.screen


def test_missing_prompt_toolkit_names_extra(without_prompt_toolkit, home, workdir, plan):
    with open_terminal(
        "run", "--plan", plan, home=home, cwd=workdir, extra=without_prompt_toolkit
    ) as terminal:
        terminal.expect(
            "a chat at a terminal needs an optional part (prompt_toolkit is not installed)"
        )
        terminal.expect("pip install 'amplifier[cli]'")
        assert terminal.end() == 2


# ── the history file ─────────────────────────────────────────────────────────────────────────────


def kept(history: PromptHistory) -> list[str]:
    """The entries, oldest first."""
    return list(history.load_history_strings())[::-1]


def test_history_keeps_multiline_entries_in_order(tmp_path):
    history = PromptHistory(tmp_path / "home" / "history")
    for entry in ("one", "two\nlines", "漢 \u2028 \u202e \udcff"):
        history.append_string(entry)
    assert kept(PromptHistory(tmp_path / "home" / "history")) == [
        "one",
        "two\nlines",
        "漢 \u2028 \u202e \udcff",
    ]


def test_damaged_history_lines_are_left_out(tmp_path):
    (tmp_path / "history").write_bytes(b'"one"\n{\n7\n\xff\n\n"two"\n"torn')
    assert kept(PromptHistory(tmp_path / "history")) == ["one", "two"]


def test_history_file_keeps_latest_entries(tmp_path, monkeypatch):
    monkeypatch.setattr(line_prompt, "MAX_ENTRIES", 3)
    history = PromptHistory(tmp_path / "history")
    for number in range(6):
        history.append_string(str(number))
    assert kept(history) == ["3", "4", "5"]
    assert (tmp_path / "history").read_text().split() == ['"3"', '"4"', '"5"']
    assert stat.S_IMODE((tmp_path / "history").stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["history"]


def test_long_concurrent_entries_do_not_mix(tmp_path):
    entries = {letter * 50_000 for letter in "abcd"}

    def enter(entry: str) -> None:
        for _ in range(20):
            PromptHistory(tmp_path / "history").append_string(entry)

    threads = [threading.Thread(target=enter, args=(entry,)) for entry in entries]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = kept(PromptHistory(tmp_path / "history"))
    assert (len(found), set(found)) == (80, entries)


def test_unwritable_history_is_not_error(tmp_path):
    history = PromptHistory(tmp_path)  # a folder
    history.append_string("one")
    assert kept(history) == []
