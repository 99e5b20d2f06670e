"""Modes of a chat, and permissions that are remembered for a project."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from amplifier.modules.hooks._approval_rules import Call
from amplifier.modules.hooks.approval import rule_for_call
from tests._support.terminal import open_terminal, run_cli


def test_modes_are_switched_by_key_and_name(backend, home, workdir):
    with open_terminal(
        "run", "-p", "offline", "--backend", backend, home=home, cwd=workdir
    ) as terminal:
        terminal.expect("› ")
        terminal.enter("\x1b[Z/mode", "mode edits: ", "edits › ")
        terminal.enter("write 'one' to a.txt", "✓ write_file", "edits › ")
        terminal.enter("write 'two' to .git/config", "Permission needed", "Your answer: ")
        terminal.enter("n", "✗ write_file", "edits › ")
        terminal.enter("\x1b[Z/mode", "mode plan: ", "plan › ")
        terminal.enter(
            "write 'three' to a.txt", "denied: forbidden: plan mode: change nothing", "plan › "
        )
        terminal.enter("read a.txt", "✓ read_file", "plan › ")
        terminal.enter(
            "/mode ful",
            "there is no mode 'ful' (ask, edits, plan, full); did you mean 'full'?",
            "plan › ",
        )
        terminal.enter("/mode ask", "mode ask: you are asked before anything is changed", "› ")
        terminal.type("/exit\n")
        assert terminal.end() == 0
    assert (workdir / "a.txt").read_text() == "one\n"
    assert not (workdir / ".git").exists()


def test_question_marks_continued_rows(home, workdir):
    with open_terminal(
        "run",
        f"write '{'word ' * 20}' to a.txt",
        "-p",
        "offline",
        home=home,
        cwd=workdir,
        size=(40, 60),
    ) as terminal:
        terminal.expect("│ +word word", "│ +↪ ")
        terminal.answer("n")
        assert terminal.end() == 0


def test_revoked_permission_is_asked_for_again(backend, home, workdir):
    with open_terminal(
        "run", "-p", "offline", "--backend", backend, home=home, cwd=workdir
    ) as terminal:
        terminal.say(
            "write '1' to here.txt",
            "[a] Allow always (this very call, in this session)",
            "Your answer: ",
        )
        terminal.enter("p", "✓ write_file", "› ")
        terminal.enter("write '2' to here.txt", "✓ write_file", "› ")
        assert run_cli("permissions", "--revoke", "1", home=home, cwd=workdir).returncode == 0
        terminal.enter("write '3' to here.txt", "Permission needed", "Your answer: ")
        terminal.enter("n", "✗ write_file", "› ")
        terminal.type("/exit\n")
        assert terminal.end() == 0
    assert (workdir / "here.txt").read_text() == "2\n"


def test_full_mode_needs_sandbox(home, workdir):
    with open_terminal(
        "run", "run `touch here`", "-p", "offline", "--mode", "full", home=home, cwd=workdir
    ) as terminal:
        sandboxed = "sandbox off" not in terminal.expect("commands ")
        if not sandboxed:
            terminal.expect("Permission needed")
            terminal.type("n\n")
        assert terminal.end() == 0
    assert (workdir / "here").exists() == sandboxed


def test_project_permission_is_remembered_and_revocable(backend, home, workdir):
    def ask(answer: str | None) -> str:
        with open_terminal(
            "run", "run `touch here`", "-p", "offline", "--backend", backend, home=home, cwd=workdir
        ) as terminal:
            if answer is not None:
                terminal.expect("[p] Always in this project: the command 'touch here'")
                terminal.answer(answer)
            assert terminal.end() == 0
            return terminal.text

    # A command that was allowed without a sandbox is not allowed to run differently in one.
    where = " outside of a sandbox" if "sandbox off" in ask("p") else ""
    assert "Permission needed" not in ask(None)
    listed = run_cli("permissions", home=home, cwd=workdir)
    assert listed.stdout == f"1\tthe command 'touch here'{where}\n"
    assert (
        json.loads(run_cli("permissions", "--json", home=home, cwd=workdir).stdout)[0]["action"]
        == "allow"
    )
    assert "amplifier permissions" in run_cli("config", home=home, cwd=workdir).stdout
    elsewhere = run_cli("permissions", home=home, cwd=workdir.parent)
    assert "Nothing is permanently allowed" in elsewhere.stderr
    assert run_cli("permissions", "--revoke", "2", home=home, cwd=workdir).returncode == 2
    assert (
        "revoked: the command"
        in run_cli("permissions", "--revoke", "1", home=home, cwd=workdir).stdout
    )
    ask("n")


@pytest.mark.parametrize(
    ("tool", "given", "rule"),
    [
        (
            "bash",
            {"command": "make test", "description": "x"},
            {"tool": "bash", "command": ["make", "test"], "sandboxed": False},
        ),
        ("bash", {"command": "make test && rm -r x"}, None),
        ("bash", {"command": "ls '*'"}, None),
        ("bash", {"command": "make test", "sandbox": "off"}, None),
        ("bash", {}, None),
        (
            "edit_file",
            {"file_path": "src/a.py"},
            {"tool": ["write_file", "edit_file"], "path": "src/a.py"},
        ),
        ("write_file", {"file_path": "../a.py"}, None),
        ("small_echo", {"text": "x"}, {"tool": "small_echo"}),
    ],
)
def test_remembered_rule_is_narrow(tool: str, given: dict[str, Any], rule: dict[str, Any] | None):
    assert rule_for_call(Call(tool, given)) == (
        None if rule is None else {**rule, "action": "allow"}
    )


def test_project_cannot_grant_itself_permission(home: Path, workdir: Path):
    (workdir / ".amplifier").mkdir()
    (workdir / ".amplifier" / "projects.json").write_text(
        json.dumps({str(workdir): {"rules": [{"tool": "*", "action": "allow"}]}})
    )
    assert run_cli("permissions", home=home, cwd=workdir).stdout == ""
