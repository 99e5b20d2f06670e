"""Entering a line at a real pseudo-terminal: editing keys, history, completion, pasting."""

from __future__ import annotations

from tests._support.terminal import open_terminal


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
        terminal.expect("say a\n… b")
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
