"""The command line at a real pseudo-terminal: chat, Ctrl-C, questions, hang-ups, and the terminal as it was afterwards."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from amplifier.cli._sessions import SessionStore
from tests._support.backends import mostly_on
from tests._support.terminal import Terminal, on_screen, open_terminal, run_cli
from tests.cli._scripted_agent import call


def sessions(home: Path) -> SessionStore:
    return SessionStore(home / "sessions")


@pytest.mark.parametrize(
    ("columns", "item"),
    [
        (80, [" • a is one item of several words, yes indeed"]),
        (40, [" • a is one item of several words, yes", "   indeed"]),
    ],
)
@mostly_on("trio")
def test_markdown_is_rendered_at_terminal_only(columns, item, backend, home, workdir, plan):
    text = "# Title\n\n- `a` is **one** item of several words, yes indeed\n- b\n\n```python\nx = 1\n```"
    arguments = ("run", f"say {text}", "--plan", plan, "--backend", backend)
    with open_terminal(*arguments, home=home, cwd=workdir, size=(24, columns)) as terminal:
        assert terminal.end() == 0
        rows = terminal.rows
        last = next(number for number, row in enumerate(rows) if row.startswith("session "))
        assert rows[:last] == ["Title", "", *item, " • b", "", "x = 1", ""]
        assert "".join(rows[last:]).endswith("15 tokens (40% of the input cached), $0.0001)")
    assert run_cli(*arguments, home=home, cwd=workdir).stdout.rstrip() == text


@pytest.mark.parametrize("plain", [{"TERM": "dumb"}, {"AMPLIFIER_PLAIN": "1"}])
def test_plain_terminal_gets_original_text(plain, home, workdir, plan):
    arguments = ("run", "say **bold** and\n- item", "--plan", plan)
    with open_terminal(*arguments, home=home, cwd=workdir, extra=plain) as terminal:
        assert terminal.end() == 0
        assert terminal.text.startswith("**bold** and\n- item")
        assert "\x1b" not in terminal.screen


def test_chat_commands_bypass_model(home, workdir, plan):
    with open_terminal("run", "--plan", plan, home=home, cwd=workdir) as terminal:
        terminal.say("/help", "/clear")
        terminal.say("/tools")
        assert "Second line" not in terminal.expect("crash ")
        terminal.say("/status", "provider-scripted")
        terminal.say("/statsu", "there is no command /statsu; did you mean /status?")
        terminal.leave()
        assert "To continue later" not in terminal.text  # there was no turn


def test_clear_forgets_and_double_slash_sends(home, workdir, plan):
    with open_terminal("run", "--plan", plan, home=home, cwd=workdir) as terminal:
        terminal.say("history", "1 prompts so far")
        terminal.say("/clear", "forgotten")
        terminal.say("//slash", "\n/slash")
        terminal.say("history", "2 prompts so far")
        terminal.leave()


def test_text_typed_during_turn_is_read(backend, home, workdir, plan):
    with open_terminal(
        "run", "--plan", plan, "--backend", backend, home=home, cwd=workdir
    ) as terminal:
        terminal.say(call("wait_for", path=workdir / "gate"), "s  wait_for")
        start = terminal.screen.index("⋯")
        terminal.type("no\x15say it in red carpet\x17\x7f\x7f\x7f\x7f\x1b[Dblué\x7fe")
        terminal.expect("› say it in blue")
        terminal.type("\n")
        terminal.expect(
            "read at the next step: say it in blue"
        )  # at once, before the step has ended
        terminal.enter("/status\n", "after this turn: /status", "⋯")
        rows = on_screen(terminal.screen[start:])
        assert rows[:2] == ["read at the next step: say it in blue", "after this turn: /status"]
        assert [row[:1] for row in rows[2:]] in (
            ["⋯"],
            ["⋯", rows[-1][:1]],
        )  # no live line is left behind
        (workdir / "gate").touch()
        terminal.expect("\nit in blue")
        terminal.expect("1 in this chat")  # one turn; the command came after it
        terminal.leave()
    kept = [json.loads(line) for line in (home / "history").read_text().splitlines()]
    assert kept == [call("wait_for", path=workdir / "gate"), "/status", "/exit"]


@mostly_on("trio")
def test_unread_typed_text_is_returned(backend, home, workdir, plan):
    with open_terminal(
        "run", "--plan", plan, "--backend", backend, home=home, cwd=workdir
    ) as terminal:
        terminal.say(call("wait_for", path=workdir / "gate"), "s  wait_for")
        terminal.enter("say one", "read at the next step: say one")
        terminal.type("say tw")
        terminal.expect("› say tw")
        terminal.press_ctrl_c("Ctrl-C again to stop now", "stopping after this step")
        terminal.press_ctrl_c("no longer read: say one", "… say tw")
        terminal.enter("o", "say two")
        terminal.leave()


@mostly_on("asyncio")
def test_text_pasted_during_turn_is_one_message(backend, home, workdir, plan):
    with open_terminal(
        "run", "--plan", plan, "--backend", backend, home=home, cwd=workdir
    ) as terminal:
        terminal.say(call("wait_for", path=workdir / "gate"), "s  wait_for")
        assert "\x1b[?2004h" in terminal.screen
        terminal.type("\x1b[200~say look at\r/clear\rin the manual\x1b[201~\n")
        terminal.expect("read at the next step: say look at")
        terminal.enter("/clear", "after this turn: /clear")
        terminal.press_ctrl_c("Ctrl-C again to stop now")
        terminal.press_ctrl_c("no longer read: say look at", "in the manual")
        terminal.expect("/clear")  # in the line, to be entered or not
        terminal.press_ctrl_c("Press Ctrl-C again to leave.")
        terminal.type("/exit\n")
        terminal.ends(0)
        assert "forgotten" not in terminal.text


@mostly_on("trio")
def test_text_after_end_of_input_stays_private(backend, home, workdir, plan):
    """It does not get to the shell."""
    with open_terminal(
        "run", "--plan", plan, "--backend", backend, home=home, cwd=workdir
    ) as terminal:
        terminal.say(call("wait_for", path=workdir / "gate"), "s  wait_for")
        terminal.type("\x04")
        terminal.expect("after this turn: leave")
        terminal.type("touch pwned\n")
        terminal.expect("⋯")  # drawn anew, after the keys were looked at
        terminal.expect("⋯")
        (workdir / "gate").touch()
        assert terminal.end() == 0
        assert "pwned" not in terminal.text
        assert terminal.unread() == b""


# ── Ctrl-C ───────────────────────────────────────────────────────────────────────────────────────


def test_ctrl_c_once_lets_tool_finish(backend, home, workdir, plan):
    with open_terminal(
        "run", "--plan", plan, "--backend", backend, home=home, cwd=workdir
    ) as terminal:
        terminal.say(call("wait_for", path=workdir / "gate"), "s  wait_for")
        terminal.press_ctrl_c("Stopping after the running step. Press Ctrl-C again to stop now.")
        (workdir / "gate").touch()
        terminal.expect("✓ wait_for", "Stopped.")
        terminal.expect("› ")
        assert not (workdir / "gate.cancelled").exists()
        assert "done:" not in terminal.text  # the model was not asked again
        terminal.enter("say still here", "\nstill here")
        terminal.leave()


def test_ctrl_c_twice_stops_tool_at_once(backend, home, workdir, plan):
    with open_terminal(
        "run", "--plan", plan, "--backend", backend, home=home, cwd=workdir
    ) as terminal:
        terminal.say(call("wait_for", path=workdir / "gate"), "s  wait_for")
        terminal.press_ctrl_c("Press Ctrl-C again")
        terminal.press_ctrl_c("Stopping now.", "✗ wait_for", "Stopped.", "› ")
        assert (workdir / "gate.cancelled").exists()
        terminal.enter("say still here", "\nstill here")
        terminal.leave()


def test_ctrl_c_twice_ends_question_with_130(backend, home, workdir, plan):
    arguments = (
        "run",
        call("wait_for", path=workdir / "gate"),
        "--plan",
        plan,
        "--backend",
        backend,
    )
    with open_terminal(*arguments, home=home, cwd=workdir) as terminal:
        terminal.expect("s  wait_for")
        terminal.press_ctrl_c("Press Ctrl-C again")
        terminal.press_ctrl_c()
        terminal.ends(130)
    (record,) = sessions(home).records()
    assert record.status == "cancelled"
    messages = sessions(home).transcript(record.session_id)
    assert [message["role"] for message in messages] == ["user", "assistant", "tool"]


@pytest.mark.slow
def test_ctrl_c_twice_interrupts_hanging_model(backend, home, workdir, plan):
    with open_terminal(
        "run", "hang", "--plan", plan, "--backend", backend, home=home, cwd=workdir
    ) as terminal:
        terminal.expect("hanging")
        terminal.press_ctrl_c("Press Ctrl-C again")
        terminal.press_ctrl_c("every finished step are kept; the unfinished answer is not.")
        assert terminal.end() == 130


@pytest.mark.slow
@pytest.mark.parametrize(
    "press", [Terminal.press_ctrl_c, lambda terminal: terminal.send(signal.SIGINT)]
)
def test_ctrl_c_at_prompt_drops_then_leaves(press, backend, home, workdir, plan):
    """As a key, and as a signal that someone else has sent."""
    with open_terminal(
        "run", "--plan", plan, "--backend", backend, home=home, cwd=workdir
    ) as terminal:
        terminal.expect("› ")
        terminal.type("say never sent")
        terminal.expect("never sent")
        press(terminal)
        terminal.expect("Press Ctrl-C again to leave.")
        terminal.say("say sent", "\nsent", "› ")
        press(terminal)
        terminal.expect("Press Ctrl-C again to leave.")
        terminal.expect("› ")
        press(terminal)
        assert terminal.end() == 0
        assert "\nnever sent" not in terminal.text
        assert terminal.is_as_before()


# ── questions ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answers", "happens"),
    [(["y"], True), (["Allow once"], True), (["n"], False), (["maybe", "", "deny"], False)],
)
def test_question_is_answered_at_terminal(answers, happens, home, workdir, plan):
    with open_terminal(
        "run", call("risky", path=workdir / "trace"), "--plan", plan, home=home, cwd=workdir
    ) as terminal:
        for answer in answers:
            terminal.answer(answer)
        terminal.expect("✓ risky" if happens else "✗ risky")
        assert terminal.end() == 0
        assert (workdir / "trace").exists() == happens
        assert terminal.text.count("Please answer with one of: y, a, n") == len(answers) - 1
        assert terminal.is_as_before()


@pytest.mark.parametrize("answer", ["", "n"])
def test_long_question_is_shown_before_allowing(answer, home, workdir, plan):
    name = "/".join(["x" * 100] * 12) + "/END"
    prompt = f"call risky {json.dumps({'path': str(workdir / 'trace'), 'long': name})}"
    with open_terminal(
        "run", prompt, "--plan", plan, home=home, cwd=workdir, size=(12, 60)
    ) as terminal:
        for typed in ("y", answer):  # "y" is no answer yet
            shown = terminal.expect("[Enter] shows the rest (")
            assert "[y] Allow once" not in shown
            terminal.type(f"{typed}\n")
        if answer:
            terminal.expect("denied")
        else:
            terminal.expect("[y] Allow once")
            terminal.answer("y", "done: it was done")
        assert terminal.end() == 0
    assert (workdir / "trace").exists() == (not answer)


@pytest.mark.parametrize("columns", [80, 40])
@mostly_on("trio")
def test_edit_is_shown_as_diff(columns, backend, home, workdir, plan):
    with_files = json.loads(Path(plan).read_text())
    with_files["tools"].append("tool-filesystem")
    with_files["hooks"].append("hooks-approval")
    Path(plan).write_text(json.dumps(with_files))
    (workdir / "a.txt").write_text("one\ntwo\nthree\n\tfour\n")
    edit = {"file_path": "a.txt", "old_string": "two\nthree", "new_string": "2\x1b[2J\nthree"}
    arguments = ("run", f"call edit_file {json.dumps(edit)}", "--plan", plan, "--backend", backend)
    with open_terminal(*arguments, home=home, cwd=workdir, size=(30, columns)) as terminal:
        question = terminal.expect("Your answer: ")
        diff = ["@@ -1,4 +1,4 @@", " one", "-two", "+2\\x1b[2J", " three", " →   four"]
        assert "\n".join(f"  │ {line}" for line in diff) in question
        assert "old_string" not in question
        assert "file_path: a.txt" in question
        terminal.type("y\n")
        assert terminal.end() == 0
        rows = terminal.rows
        first = next(
            number for number, row in enumerate(rows) if row.startswith("✓ edit_file a.txt +1 -1 (")
        )
        assert rows[first + 1 : first + 7] == [f"  {line}" for line in diff]
        assert "\x1b[32m+2" in terminal.screen
        assert "\x1b[31m-two" in terminal.screen
    assert (workdir / "a.txt").read_text() == "one\n2\x1b[2J\nthree\n\tfour\n"


@pytest.mark.slow
@mostly_on("asyncio")
def test_always_allowed_call_is_not_asked_again(backend, home, workdir, plan):
    with open_terminal(
        "run", "--plan", plan, "--backend", backend, home=home, cwd=workdir
    ) as terminal:
        terminal.say(call("risky", path=workdir / "trace"), "Your answer: ")
        terminal.enter("a", "✓ risky")
        terminal.say(call("risky", path=workdir / "trace"))
        assert "Permission needed" not in terminal.expect("✓ risky")
        terminal.leave()


def test_question_spells_out_escapes(home, workdir, plan):
    """Keys typed before it are not an answer."""
    with open_terminal("run", "--plan", plan, home=home, cwd=workdir) as terminal:
        terminal.expect("› ")
        terminal.type(call("risky", path=workdir / "trace") + "\ny\ny\ny\n")
        terminal.expect("May risky touch trace?\\x1b[2J\\u202e")
        terminal.answer("n", "✗ risky")
        terminal.leave()
        assert "\x1b[2J" not in terminal.screen
        assert not (workdir / "trace").exists()


@pytest.mark.parametrize(
    ("key", "code"), [("\x03", 130), ("\x04", 0)], ids=["Ctrl-C", "the end of input"]
)
def test_other_key_denies_question(key, code, backend, home, workdir, plan):
    """Ctrl-C stops the turn too."""
    arguments = ("run", call("risky", path=workdir / "trace"), "--plan", plan, "--backend", backend)
    with open_terminal(*arguments, home=home, cwd=workdir) as terminal:
        terminal.expect("Your answer: ")
        terminal.type(key)
        terminal.expect("✗ risky")
        assert terminal.end() == code
        assert not (workdir / "trace").exists()
        assert terminal.is_as_before()


@pytest.mark.slow
def test_question_timeout_denies_and_cleans_line(backend, home, workdir, plan):
    arguments = ("run", call("risky", path=workdir / "quick"), "--plan", plan, "--backend", backend)
    with open_terminal(*arguments, home=home, cwd=workdir) as terminal:
        terminal.expect("(no answer within 0.3 s means deny)", "Your answer: \n", "✗ risky")
        assert terminal.end() == 0
        assert not (workdir / "quick").exists()
        assert terminal.is_as_before()


# ── ends ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.parametrize(("which", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_signal_closes_session_and_sets_exit_code(which, code, backend, home, workdir, plan):
    with open_terminal(
        "run", "--plan", plan, "--backend", backend, home=home, cwd=workdir
    ) as terminal:
        terminal.say(call("wait_for", path=workdir / "gate"), "s  wait_for")
        terminal.send(which)
        assert terminal.end() == code
        assert (workdir / "gate.cancelled").exists()
        assert terminal.is_as_before()


def test_lost_terminal_stops_tool(home, workdir, plan):
    with open_terminal(
        "run", call("wait_for", path=workdir / "gate"), "--plan", plan, home=home, cwd=workdir
    ) as terminal:
        terminal.expect("s  wait_for")
        terminal.hang_up()
        assert terminal.end() == 129
        assert (workdir / "gate.cancelled").exists()


@pytest.mark.slow
def test_session_continues_after_killed_process(backend, home, workdir, plan, tmp_path):
    with open_terminal(
        "run", "--plan", plan, "--backend", backend, home=home, cwd=workdir
    ) as terminal:
        terminal.say("history", "1 prompts so far")
        terminal.say(call("wait_for", path=workdir / "gate"), "s  wait_for")
        terminal.send(signal.SIGKILL)
        assert terminal.end() == -signal.SIGKILL
    assert [record.status for record in sessions(home).records()] == ["interrupted"]
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with open_terminal(
        "run", "--resume", "last", "--backend", backend, home=home, cwd=elsewhere
    ) as terminal:
        terminal.expect(
            f"Working in {workdir}, where this session was begun.", "Continuing session"
        )
        terminal.say("history", "3 prompts so far")
        terminal.leave()
    messages = sessions(home).transcript(sessions(home).find("last").session_id)
    calls = [call["id"] for m in messages for call in m.get("tool_calls") or ()]
    assert calls == [m["tool_call_id"] for m in messages if m["role"] == "tool"]
