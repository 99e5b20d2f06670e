"""The commands of the chat at a real pseudo-terminal, commands of one's own, and files that a message mentions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from amplifier.cli._sessions import SessionStore
from amplifier.cli.agent.chat import mentioned_files
from amplifier.shared_sessions.edits import Edits
from amplifier.tracing.sessions import write_conversation
from tests._support.terminal import Terminal, open_terminal, run_cli
from tests.cli._scripted_agent import call


@contextmanager
def chat(home: Path, workdir: Path, *options: str, columns: int = 100) -> Iterator[Terminal]:
    with open_terminal("run", *options, home=home, cwd=workdir, size=(40, columns)) as terminal:
        yield terminal
        terminal.leave()


def test_model_changes_within_conversation(backend, home, workdir, plan):
    with chat(home, workdir, "--plan", plan, "--backend", backend) as terminal:
        terminal.say("history", "1 prompts so far")
        terminal.say("/model", "chosen by provider-scripted")
        terminal.say("/model large", "Continuing session", "answered by provider-scripted (large)")
        terminal.say("history", "2 prompts so far")
        terminal.say(
            "/model nowhere:large", "no provider 'nowhere' is installed", "Continuing session"
        )
        terminal.say("/model", "large")
        terminal.say("history", "3 prompts so far")
    (record,) = SessionStore(home / "sessions").records()
    assert record.model == "large"


def test_compact_shrinks_view_and_is_undoable(backend, home, workdir, plan):
    with chat(home, workdir, "--plan", plan, "--backend", backend) as terminal:
        terminal.say("/compact", "There is too little to compact")
        for number in range(
            1, 5
        ):  # what is expected is not in the line: one that is typed before the answer would steer the turn
            terminal.say(f"history {'word ' * 400}", f"{number} prompts so far")
        terminal.say("/compact", "context: older messages", "/uncompact in a chat undoes it")
        terminal.say("/status", "messages   8")
        terminal.say("/uncompact", "The latest compaction is undone.")
    (record,) = SessionStore(home / "sessions").records()
    assert len(SessionStore(home / "sessions").transcript(record.session_id)) == 8


@pytest.mark.parametrize("columns", [100, 40])
def test_informational_commands(columns, home, workdir, plan):
    with chat(home, workdir, "--plan", plan, columns=columns) as terminal:
        terminal.say("/diff", "nothing was edited")
        terminal.say("/mcp", "no MCP servers")
        terminal.say("/tasks", "no task was delegated")
        terminal.say("say words", "words")
        terminal.say("/cost", "1 turns and 15 tokens in this chat")
        terminal.say("/help", "/model", "/export", "Ctrl-R")
        assert all(
            len(row) <= columns for row in terminal.text.splitlines() if row.startswith("  /")
        )


def test_resume_lists_and_continues_sessions(home, workdir, plan):
    with chat(home, workdir, "--plan", plan, "--session-id", "first") as terminal:
        terminal.say("history", "1 prompts so far")
    with chat(home, workdir, "--plan", plan, "--session-id", "second") as terminal:
        terminal.say("/resume", "first", "history")
        terminal.say("/resume nowhere", "no session 'nowhere'")
        terminal.say("/resume first", "You asked last: history", "Continuing session first")
        terminal.say("history", "2 prompts so far")


def test_export_writes_markdown_and_page(home, workdir, plan):
    """It replaces no file."""
    with chat(home, workdir, "--plan", plan) as terminal:
        terminal.say("say <script>alert(1)</script> **bold**", "bold")
        terminal.say("/export", "conversation.md")
        terminal.say("/export", "File exists")
        terminal.say("/export page.html", "page.html")
    written = (workdir / "conversation.md").read_text()
    assert written.startswith("# say <script>")
    assert "## assistant\n\n<script>alert(1)</script> **bold**" in written
    page = (workdir / "page.html").read_text()
    assert "<strong>bold</strong>" in page
    assert "<script>" not in page


def test_page_loads_and_runs_nothing():
    message = {
        "role": "assistant",
        "content": "![x](http://e.example/x.png) [y](javascript:alert(1)) <img src=x>",
    }
    page = write_conversation("<title>", [message], page=True)
    assert "<img" not in page
    assert 'href="javascript' not in page
    assert "default-src 'none'" in page


def test_own_commands_are_messages(home, workdir, plan):
    for folder, text in (
        (home / "commands", "say mine $ARGUMENTS!"),
        (workdir / ".amplifier" / "commands", "say theirs"),
    ):
        folder.mkdir(parents=True)
        (folder / "greet.md").write_text(text)
        (folder / "help.md").write_text("say never")
    (workdir / ".amplifier" / "commands" / "review.md").write_text(
        "---\ndescription: Look at it closely\nmodel: x\n---\n\nsay reviewed"
    )
    with open_terminal("run", "--plan", plan, home=home, cwd=workdir) as terminal:
        terminal.expect("help.md is not used: the chat has a command of that name")
        terminal.say("/greet you", "mine you!")
        terminal.say("/review all", "reviewed\n\nall")
        terminal.say("/help", "Look at it closely", "this list", "/exit")
        terminal.leave()
        assert "---" not in terminal.text


def test_tab_completes_commands_and_files(backend, home, workdir, plan):
    """A mentioned file is attached."""
    (workdir / "notes.txt").write_text("the notes")
    (workdir / "my notes").mkdir()
    (workdir / "my notes" / "one.txt").write_text("more notes")
    with chat(home, workdir, "--plan", plan, "--backend", backend) as terminal:
        terminal.expect("› ")
        terminal.type("/expo\t")  # what was typed may be on the screen before it is completed
        terminal.expect("rt")
        terminal.type("\x15blocks @not\t")
        terminal.expect("es.txt")
        terminal.enter("", "attached: notes.txt", "text text", "› ")
        terminal.type("blocks @my\t")
        terminal.expect('"my notes/')
        terminal.type("on\t")
        terminal.expect('e.txt"')
        terminal.enter(" @nope", "attached: my notes/one.txt")
        terminal.expect("not attached: nope: there is no such file", "text text")


def test_user_editor_writes_message(home, workdir, plan, tmp_path):
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\necho "say from the editor" > "$1"\n')
    editor.chmod(0o700)
    with open_terminal(
        "run", "--plan", plan, home=home, cwd=workdir, extra={"EDITOR": str(editor), "VISUAL": ""}
    ) as terminal:
        terminal.expect("› ")
        terminal.type("\x18\x05")
        terminal.expect("say from the editor")
        terminal.enter("", "\nfrom the editor")
        terminal.leave()


def test_only_files_of_folder_are_attached(workdir, monkeypatch):
    monkeypatch.chdir(workdir)
    (workdir.parent / "secret").write_text("secret")
    (workdir / "link").symlink_to(workdir.parent / "secret")
    (workdir / "a.txt").write_text("a")
    (workdir / "long.txt").write_text("x" * 200_001)
    notices: list[str] = []
    message = (
        f"compare @a.txt, @../secret @link @{workdir.parent}/secret @missing @long.txt me@a.txt"
    )
    blocks = mentioned_files(message, notices.append)
    assert [block.text.count("a.txt") for block in blocks] == [1]
    assert [notice.partition(":")[0] for notice in notices] == ["attached", *["not attached"] * 5]


@pytest.mark.anyio
async def test_changes_span_first_edit_to_now(workdir, monkeypatch):
    monkeypatch.chdir(workdir)
    edits, path = Edits(keeps_first=True), workdir / "a.txt"
    path.write_text("one\n")
    for number, text in enumerate(["two\n", "three\n"]):
        given = {"file_path": "a.txt", "content": text}
        await edits(
            "tool:pre",
            {"tool_name": "write_file", "tool_call_id": str(number), "tool_input": given},
        )
        path.write_text(text)
    assert edits.changes()[3:] == ["-one", "+three"]
    path.unlink()
    assert "-one" in edits.changes()


def test_undo_and_redo_of_turn(backend, home, workdir, plan):
    with chat(
        home, workdir, "--plan", plan, "--backend", backend, "--session-id", "one"
    ) as terminal:
        terminal.say("/undo", "there is no turn to undo")
        terminal.say("say hello", "hello")
        terminal.say(call("risky", path=workdir / "made"), "Your answer: ")
        terminal.enter("a", "it was done")
        assert (workdir / "made").exists()
        terminal.say(
            "/undo",
            "Taken back: call risky",
            "  made",
            "cannot be taken back: what risky did outside",
        )
        assert not (workdir / "made").exists()
        terminal.say("history", "2 prompts so far")
        terminal.say("/redo", "there is nothing to redo")
        terminal.say("/undo", "Taken back: history")
        terminal.say("/redo", "Done again: history")
        terminal.say("history", "3 prompts so far")


def test_stored_session_undo_restores_files(home, workdir, plan):
    made = json.dumps({"path": str(workdir / "made")})
    run = ("run", "--plan", plan, "--session-id", "one", "-y")
    assert run_cli(*run, f"call risky {made}", home=home, cwd=workdir).returncode == 0
    undone = run_cli("session", "undo", "one", home=home, cwd=home)
    assert undone.stdout.startswith("Taken back: call risky")
    assert not (workdir / "made").exists()
    assert SessionStore(home / "sessions").transcript("one") == []
    again = run_cli("session", "undo", "--redo", home=home, cwd=home)
    assert again.stdout.startswith("Done again: call risky")
    assert (workdir / "made").exists()
    assert len(SessionStore(home / "sessions").transcript("one")) == 4
    nothing = run_cli("session", "undo", "--redo", home=home, cwd=home)
    assert (nothing.returncode, nothing.stderr) == (2, "amplifier: there is nothing to redo\n")
