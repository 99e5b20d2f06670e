"""Undo of what turns did to the files of a folder, with the real git."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from amplifier.shared_sessions import checkpoints
from amplifier.shared_sessions.checkpoints import Checkpoints, UndoError


class Context:
    """The conversation; ignores the first replacement, as one that was loaded from its file does."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.was_loaded = True

    async def get_messages(self) -> list[dict[str, Any]]:
        return list(self.messages)

    async def set_messages(self, messages: list[dict[str, Any]]) -> None:
        if not self.was_loaded:
            self.messages = list(messages)

    async def clear(self) -> None:
        self.messages, self.was_loaded = [], False


class Turns:
    """Runs turns whose calls are shell commands."""

    def __init__(self, folder: Path) -> None:
        self.work = folder / "work"
        self.work.mkdir()
        self.state = folder / "sessions" / "one"
        self.context = Context()
        self.checkpoints = Checkpoints(self.state, self.work)

    def sh(self, command: str) -> str:
        return subprocess.run(
            command, shell=True, cwd=self.work, check=True, capture_output=True, text=True
        ).stdout

    async def turn(self, prompt: str, *commands: str, tool: str = "bash") -> None:
        await self.checkpoints.begin(prompt, self.context)
        self.context.messages.append({"role": "user", "content": prompt})
        for command in commands:
            await self.checkpoints(
                "tool:pre", {"tool_name": tool, "tool_input": {"command": command}}
            )
            self.sh(command)
        self.context.messages.append({"role": "assistant", "content": "done"})
        await self.checkpoints.end()

    async def undo(self, *, redo: bool = False) -> str:
        return "\n".join(await self.checkpoints.undo_open(self.context, redo=redo))

    def files(self) -> dict[str, str]:
        found = (path for path in sorted(self.work.rglob("*")) if ".git" not in path.parts)
        return {
            str(path.relative_to(self.work)): os.readlink(path)
            if path.is_symlink()
            else path.read_text()
            for path in found
            if path.is_symlink() or path.is_file()
        }


@pytest.fixture
def turns(tmp_path: Path) -> Turns:
    return Turns(tmp_path)


async def test_every_change_is_undone_and_redone(turns):
    turns.sh(
        "echo one > a; echo two > b; mkdir d; echo three > d/c; ln -s a link; printf 'x\\r\\ny\\n' > crlf; echo '* text=auto' > .gitattributes"
    )
    before = turns.files()
    await turns.turn(
        "change all",
        "echo more >> a; rm b; rm d/c",
        "rmdir d; echo file > d; rm link; ln -s b link; chmod +x a; mkdir -p e/f; echo new > e/f/g",
    )
    after = turns.files()
    said = await turns.undo()
    assert turns.files() == before
    assert (turns.work / "crlf").read_bytes() == b"x\r\ny\n"
    assert not os.access(turns.work / "a", os.X_OK)
    assert not (turns.work / "e").exists()
    assert turns.context.messages == []
    assert said.startswith("Taken back: change all\n  a, b, d, d/c, e/f/g, link\n")
    assert "cannot be taken back: what bash did outside of this folder" in said
    await turns.undo(redo=True)
    assert turns.files() == after
    assert os.access(turns.work / "a", os.X_OK)
    assert len(turns.context.messages) == 2
    await turns.undo()
    assert turns.files() == before


async def test_turns_are_undone_one_by_one(turns):
    """A new turn gives up the rest."""
    for number in (1, 2, 3):
        await turns.turn(f"turn {number}", f"echo {number} > file")
    await turns.undo()
    await turns.undo()
    assert turns.files() == {"file": "1\n"}
    assert len(turns.context.messages) == 2
    await turns.undo(redo=True)
    assert turns.files() == {"file": "2\n"}
    await turns.turn("another", "echo 4 > file")
    with pytest.raises(UndoError, match="nothing to redo"):
        await turns.undo(redo=True)
    for _ in range(3):
        await turns.undo()
    assert turns.files() == {}
    with pytest.raises(UndoError, match="no turn to undo"):
        await turns.undo()


async def test_foreign_changes_are_left_and_named(turns):
    turns.sh("echo one > a; echo one > b")
    await turns.turn("edit", "echo two > a; echo two > b; echo two > c", tool="write_file")
    turns.sh("echo mine > b; echo mine > other")
    assert await turns.undo() == "Taken back: edit\n  a, c\n  left as it is, changed since then: b"
    assert turns.files() == {"a": "one\n", "b": "mine\n", "other": "mine\n"}


async def test_user_repository_is_not_touched(turns):
    turns.sh(
        "git init -q . && git config user.email a@b.c && git config user.name n && echo 1 > a && git add a && git commit -qm one && echo 2 > a && git add a && echo 3 > a"
    )
    kept = {path: path.read_bytes() for path in (turns.work / ".git").rglob("*") if path.is_file()}
    await turns.turn("edit", "echo 4 > a; echo 5 > new", tool="edit_file")
    await turns.undo()
    assert turns.files() == {"a": "3\n"}
    assert {
        path: path.read_bytes() for path in (turns.work / ".git").rglob("*") if path.is_file()
    } == kept
    assert turns.sh("git diff --cached --stat && git log --oneline | wc -l").strip().endswith("1")


async def test_ignored_files_are_never_removed(turns):
    turns.sh(
        "echo secret > .env; mkdir build; echo out > build/o; printf '.env\\nbuild/\\n' > .gitignore; git init -q nested; echo n > nested/n"
    )
    await turns.turn("stop ignoring", "rm .gitignore; echo 1 > a; rm -r nested/.git")
    said = await turns.undo()
    assert turns.files()[".env"] == "secret\n"
    assert turns.files()["nested/n"] == "n\n"
    assert "a" not in turns.files()
    assert turns.files()[".gitignore"] == ".env\nbuild/\n"
    assert "left as it is, not in the copy: .env, build/o, nested/n" in said


async def test_too_large_files_are_named_and_left(turns, monkeypatch):
    monkeypatch.setattr(checkpoints, "_MAX_FILE_BYTES", 1_000_000)
    turns.sh("echo small > small; head -c 1000001 /dev/zero > large; echo 1 > grows")
    await turns.turn("grow", "echo 2 > small; echo 2 > large; head -c 1000001 /dev/zero > grows")
    said = await turns.undo()
    assert turns.files()["small"] == "small\n"
    assert turns.files()["large"] == "2\n"
    assert (turns.work / "grows").stat().st_size == 1_000_001
    assert "left as it is, larger than 1 MB: grows, large" in said


async def test_too_large_folder_is_named(turns, monkeypatch):
    monkeypatch.setattr(checkpoints, "_MAX_FILES", 2)
    turns.sh("touch a b c")
    await turns.turn("edit", "echo 1 > a")
    said = await turns.undo()
    assert turns.files()["a"] == "1\n"
    assert "files stay as they are" in said
    assert "has 3 files and 0 bytes, which is too much to copy" in said
    assert turns.context.messages == []


async def test_undo_without_git_restores_conversation(turns, monkeypatch):
    monkeypatch.setenv("PATH", "")
    await turns.checkpoints.begin("edit", turns.context)
    turns.context.messages.append({"role": "user", "content": "edit"})
    await turns.checkpoints("tool:pre", {"tool_name": "bash"})
    await turns.checkpoints.end()
    assert "git is not installed" in await turns.undo()
    assert turns.context.messages == []


async def test_turn_without_changes_copies_nothing(turns):
    await turns.turn("look", "cat /dev/null", tool="read_file")
    assert not (turns.state / "checkpoints.git").exists()
    assert await turns.undo() == "Taken back: look\n  no file was changed"


async def test_killed_turn_is_undone_to_present(turns):
    turns.sh("echo 1 > a")
    await turns.checkpoints.begin("edit", turns.context)
    await turns.checkpoints("tool:pre", {"tool_name": "bash"})
    turns.sh("echo 2 > a")
    turns.checkpoints = Checkpoints(turns.state, turns.work)
    await turns.undo()
    assert turns.files() == {"a": "1\n"}
    await turns.undo(redo=True)
    assert turns.files() == {"a": "2\n"}


async def test_replaced_conversation_stays(turns):
    await turns.turn("first", "echo 1 > a")
    await turns.turn("second", "echo 2 > a")
    turns.context.messages = [{"role": "user", "content": "a summary"}] * 6
    assert "the conversation stays: it was replaced since then" in await turns.undo()
    assert turns.files() == {"a": "1\n"}
    assert len(turns.context.messages) == 6


async def test_folder_that_became_link_stays_inside(turns, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "x").write_text("theirs")
    turns.sh("mkdir d; echo mine > d/x")
    await turns.turn("link", f"rm -r d; ln -s {outside} d")
    await turns.undo()
    assert turns.files() == {"d/x": "mine\n"}
    assert (outside / "x").read_text() == "theirs"
    await turns.undo(redo=True)
    assert (turns.work / "d").is_symlink()
    assert (outside / "x").read_text() == "theirs"


async def test_folder_settings_run_no_program(turns):
    turns.sh(
        "git init -q . && git config filter.evil.clean 'touch ran; cat' && git config filter.evil.smudge 'touch ran; cat' && "
        "git config core.fsmonitor 'touch ran' && echo '* filter=evil' > .gitattributes && echo 1 > a"
    )
    await turns.turn("edit", "echo 2 > a")
    await turns.undo()
    assert turns.files() == {".gitattributes": "* filter=evil\n", "a": "1\n"}


@pytest.mark.parametrize(
    ("had", "did", "made"),
    [
        ("echo old > x", "rm x", "mkdir x; echo mine > x/new"),
        ("echo old > x", "rm x", "mkdir x; echo mine > x/new; echo '*' > x/.gitignore"),
        ("echo old > x", "echo new > x", "rm x; mkdir x; echo mine > x/new"),
        ("echo old > x", "echo new > x", "rm x; mkdir x"),
        ("mkdir x; echo old > x/a", "rm -r x", "echo mine > x"),
        ("mkdir x; echo old > x/a", "rm -r x", "echo mine > x; echo x > .gitignore"),
        ("mkdir x; echo old > x/a", "rm -r x", "echo mine > y; ln -s y x"),
    ],
)
async def test_replacements_are_left_and_named(turns, had, did, made):
    turns.sh(f"{had}; echo old > other")
    await turns.turn("remove it", f"{did}; echo new > other")
    turns.sh(made)
    files = turns.files()
    told = await turns.undo()
    assert turns.files() == files | {"other": "old\n"}
    assert "left as it is" in told
    await turns.undo(redo=True)
    assert turns.files() == files


async def test_private_files_stay_private(turns):
    turns.sh(
        "echo old | tee secret gone run locked >/dev/null; chmod 600 secret gone run; chmod 440 locked"
    )
    await turns.turn(
        "change them",
        "echo new > secret; rm gone; echo new > run; chmod 700 run; rm locked; echo 1 > locked",
    )
    turns.sh("chmod 600 locked")

    def modes() -> dict[str, int]:
        return {path.name: path.stat().st_mode & 0o777 for path in turns.work.iterdir()}

    await turns.undo()
    assert modes() == {"secret": 0o600, "gone": 0o600, "run": 0o600, "locked": 0o440}
    await turns.undo(redo=True)
    assert modes() == {"secret": 0o600, "run": 0o700, "locked": 0o644}


async def test_permissions_are_restored_under_any_umask(turns):
    turns.sh(
        "echo old | tee keep tool text shared mine >/dev/null; chmod 644 keep tool text mine; chmod 664 shared"
    )

    def modes() -> dict[str, int]:
        return {path.name: path.stat().st_mode & 0o777 for path in turns.work.iterdir()}

    before = modes()
    await turns.turn(
        "change them", "chmod 600 keep; chmod 777 tool; echo new | tee text shared mine"
    )
    turns.sh("chmod 600 mine")
    umask = os.umask(0o077)
    try:
        said = await turns.undo()
    finally:
        os.umask(umask)
    assert "keep, mine, shared, text, tool" in said
    assert modes() == before | {"mine": 0o600}
    await turns.undo(redo=True)
    assert modes() == before | {"keep": 0o600, "tool": 0o777, "mine": 0o600}


async def test_file_that_became_folder_or_pipe(turns):
    turns.sh("echo old | tee f g keep fifo >/dev/null")
    before = turns.files()
    await turns.turn(
        "replace it",
        "rm f g fifo; mkdir f g; mkfifo fifo; echo in > f/x; echo other > keep; echo n > z",
    )
    said = await turns.undo()
    assert turns.files() == {name: text for name, text in before.items() if name != "fifo"}
    assert "left as it is, no regular file: fifo" in said
    await turns.undo(redo=True)
    assert turns.files() == {"f/x": "in\n", "keep": "other\n", "z": "n\n"}


async def test_killed_git_does_not_disable_undo(turns):
    turns.sh("echo old > a")
    await turns.turn("change it", "echo new > a")
    (turns.state / "checkpoints.git" / "index.lock").touch()
    (turns.state / "checkpoints.git" / "index.goal.lock").touch()
    await turns.undo()
    assert turns.files() == {"a": "old\n"}


async def test_killed_undo_is_finished_by_next(turns, monkeypatch):
    turns.sh("echo old > a; echo old > b")
    await turns.turn("change them", "echo new > a; echo new > b")

    def killed(*_: object) -> None:
        (turns.work / "a").write_text("o")  # by half
        raise SystemError

    with monkeypatch.context() as patched:
        patched.setattr("amplifier.shared_sessions.checkpoints._Copies.move", killed)
        with pytest.raises(SystemError):
            await turns.undo()
    turns.checkpoints = Checkpoints(turns.state, turns.work)
    await turns.undo()
    assert turns.files() == {"a": "old\n", "b": "old\n"}


async def test_files_are_kept_exactly_despite_half_repository(turns):
    turns.sh(f"git init --quiet --bare --template= '{turns.state / 'checkpoints.git'}'")
    turns.sh("echo '* text eol=crlf' > .gitattributes; printf 'a\\nb\\n' > a")
    await turns.turn("change it", "echo new > a")
    await turns.undo()
    assert (turns.work / "a").read_bytes() == b"a\nb\n"


async def test_undo_without_space_replaces_no_file(turns, monkeypatch):
    turns.sh("echo old > a; echo old > gone")
    await turns.turn("change them", "echo new > a; rm gone")
    usage = shutil.disk_usage(turns.work)
    with monkeypatch.context() as full:
        full.setattr(shutil, "disk_usage", lambda _: usage._replace(free=7))
        with pytest.raises(UndoError, match="needs 8 bytes for the files, and has 7 left"):
            await turns.undo()
    assert turns.files() == {"a": "new\n"}
    turns.sh("echo mine > a")
    assert "left as it is, changed since then: a" in await turns.undo()
    assert turns.files() == {"a": "mine\n", "gone": "old\n"}


async def test_concurrent_foreign_changes_are_left_and_named(
    turns,
):
    turns.sh("mkdir real; ln -s real link; echo old | tee a real/b mine >/dev/null; ln -s a alias")
    await turns.checkpoints.begin("write", turns.context)
    for path in ("alias", "link/b", "bad\0name"):
        call = {"tool_name": "write_file", "tool_input": {"file_path": str(turns.work / path)}}
        await turns.checkpoints("tool:pre", call)
    turns.sh("echo new | tee a link/b mine >/dev/null; echo new > also")
    await turns.checkpoints.end()
    told = await turns.undo()
    assert "left as it is, not changed by the turn: also, mine" in told
    files = turns.files()
    assert [files[name] for name in ("a", "real/b", "mine", "also")] == [
        "old\n",
        "old\n",
        "new\n",
        "new\n",
    ]


@pytest.mark.parametrize("name", [".gitignore", ".gitattributes", "deep/.gitignore"])
async def test_pipe_stalls_nothing(turns, monkeypatch, name):
    """git opens these files by name, and waits for the other end of a pipe."""
    monkeypatch.setattr(
        checkpoints, "_COPY_SECONDS", 300.0
    )  # it would take the whole time of the test
    (turns.work / "keep").write_text("before")
    await turns.turn("plant", f"mkdir -p deep; echo after > keep; mkfifo {name}")
    with pytest.raises(UndoError, match="no regular file, and git would wait"):
        await turns.undo()
    (turns.work / name).unlink()
    assert "Taken back" in await turns.undo()
    assert (turns.work / "keep").read_text() == "before"


async def test_copies_are_private_under_any_umask(turns):
    umask = os.umask(0)
    try:
        await turns.turn("write", "echo x > new")
    finally:
        os.umask(umask)
    repository = turns.state / "checkpoints.git"
    assert repository.stat().st_mode & 0o777 == 0o700
    assert not [path for path in repository.rglob("*") if path.stat().st_mode & 0o077]
    repository.chmod(0o755)  # of an earlier version
    await turns.turn("write", "echo y > new")
    assert repository.stat().st_mode & 0o777 == 0o700
