"""git in the sandbox of tool-bash: daily work succeeds, and nothing that an agent leaves behind runs a program later."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import attrs
import pytest

from amplifier import agent, on
from amplifier.events import TOOL_POST
from amplifier.modules.hooks.approval import MODES
from amplifier.modules.tools import bash as tool_bash
from amplifier.modules.tools.bash import _confinement
from amplifier.modules.tools.bash._git_files import findings, is_harmless, pointer_target, take_out
from amplifier.testing import TestCoordinator, script
from tests.modules.tools.test_tool_bash_sandbox import (
    SANDBOXES,
    _bubblewrap_on_the_path,
    in_bubblewrap,
    run,
)

__all__ = ["_bubblewrap_on_the_path"]

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="there are sandboxes for Linux only"
)

BASH = ("bash", "-c")
COMMITTING = {
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@example.org",
    "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@example.org",
}


def outside(script: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a script as a person at a terminal, who has git but not its prompt for a password."""
    environment = {**os.environ, **COMMITTING, "GIT_TERMINAL_PROMPT": "0", **variables}
    return subprocess.run(
        [*BASH, script],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )


@attrs.frozen
class Desk:
    """A repository in a folder, a session that works there, and a home with the name of its user."""

    folder: Path
    coordinator: TestCoordinator

    async def run(self, command: str) -> dict[str, Any]:
        """Run a command that has to succeed; returns its output."""
        result = await run(self.coordinator, command)
        assert result.success, (command, result)
        return dict(result.output)

    async def fail(self, command: str) -> dict[str, Any]:
        """Run a command that has to fail; returns its output."""
        result = await run(self.coordinator, command)
        assert not result.success, (command, result)
        return dict(result.output)


@pytest.fixture(params=SANDBOXES)
async def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    return await opened(tmp_path, monkeypatch)


async def opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: str = "", **config: Any
) -> Desk:
    folder, home = tmp_path / "work", tmp_path / "home"
    folder.mkdir()
    home.mkdir()
    own = "[user]\n\tname = Ada\n\temail = ada@example.org\n[alias]\n\tx = !touch ran\n"
    (home / ".gitconfig").write_text(own + settings)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    made = outside(
        "git init -q -b main . && echo one > file && git add . && git commit -q -m one", folder
    )
    assert made.returncode == 0, made.stderr
    coordinator = TestCoordinator()
    await tool_bash.mount(coordinator, {"working_dir": str(folder), "sandbox": "bwrap", **config})
    return Desk(folder, coordinator)


# ── daily work ───────────────────────────────────────────────────────────────────────────────────

WORK = {
    "a commit in a chain": "echo x >> file; git add -A && git commit -q -m 'x y' && git log -1 --format='%s by %an'",
    "a message on standard input": "echo hello | git commit -q --allow-empty -F - && git log -1 --format=%s | grep hello",
    "a message in a here-document": "git commit -q --allow-empty -m \"$(cat <<'E'\na\n\nb\nE\n)\" | cat; git log -1 | grep b",
    "a message in a temporary file": "echo hello > $TMPDIR/m; git commit -q --allow-empty -F $TMPDIR/m",
    "a patch in a temporary file": "echo x >> file; git diff > $TMPDIR/p; git checkout file; git apply $TMPDIR/p; git add file",
    "a call of a script": "/usr/bin/python3 -c \"import subprocess as s; s.run(['git','tag','-a','v9','-m','x'], check=True)\"; git tag | grep v9",
    "branches": "git switch -q -c topic && git branch -m topic other && git switch -q main && git branch -d other",
    "a merge": "git switch -q -c a && git commit -q --allow-empty -m a && git switch -q main && git merge -q --no-ff -m m a",
    "a stash": "echo x >> file; git stash -q && git stash pop -q && git diff --exit-code > /dev/null || git checkout -q file",
    "a rebase": "git switch -q -c a; git commit -q --allow-empty -m a; git switch -q main; git commit -q --allow-empty -m b; git rebase -q main a",
    "a rebase with a conflict": "git switch -q -c a; echo a > file; git commit -qam a; git switch -q main; echo b > file; git commit -qam b; git rebase main a; echo c > file; git add file; GIT_EDITOR=true git rebase --continue",
    "an autosquash": "echo x >> file; git commit -qam two; echo y >> file; git commit -qam 'fixup! two'; git rebase -q -i --autosquash HEAD~2; git log -1 --format=%s | grep -x two",
    "a cherry-pick and a revert": "git switch -q -c a; echo x > n; git add n; git commit -q -m n; git switch -q main; git cherry-pick a; git revert --no-edit HEAD",
    "a worktree": "git worktree add -q tree -b t && cd tree && echo x > n && git add n && git commit -q -m n && cd .. && git worktree remove tree",
    "a worktree in two commands": "git worktree add -q tree -b t\n--\ncd tree && git commit -q --allow-empty -m n",
    "a clone of a path": "git clone -q . copy && cd copy && git commit -q --allow-empty -m n && git push -q origin HEAD:refs/heads/n\n--\ncd copy && git commit -q --allow-empty -m o && git push -q origin HEAD:refs/heads/o && git -C .. branch | grep o",
    "a fetch and a pull": "git clone -q . up && git remote add up ./up && git fetch -q up && git pull -q --rebase up main",
    "settings": "git config user.name Bob && git commit -q --allow-empty -m n && git log -1 --format=%an | grep Bob",
    "an upstream": "git clone -q --bare . up.git; git remote add o ./up.git; git push -q -u o main; git rev-parse --abbrev-ref main@{u} | grep o/main",
    "restore, rm, mv, clean, reset": "touch n; git clean -qfd; git mv file f2; git commit -qm mv; git rm -q f2; git reset -q --hard; git restore f2",
    "notes, tags, gc": "git notes add -m n; git tag v1; git tag -d v1; git gc -q; git reflog expire --expire=now --all",
    "am": "git switch -q -c a; echo x > n; git add n; git commit -qm n; git format-patch -q -1 -o $TMPDIR; git switch -q main; git am -q $TMPDIR/*.patch",
    "a new repository": "git init -q -b main new && cd new && touch n && git add n && git -c user.name=a -c user.email=b commit -qm n",
    "reading": "git status --short; git log --oneline -1; git diff; git branch --list; git remote -v; git stash list; git config --get user.email",
}


@pytest.mark.parametrize(("name", "command"), WORK.items(), ids=WORK)
async def test_daily_work(name: str, command: str, desk: Desk) -> None:
    for line in command.split("\n--\n"):
        output = await desk.run(f"set -e; {line}" if "conflict" not in name else line)
        assert "amplifier:" not in output["stderr"], output
        assert "protected" not in output, output
    checked = outside("git fsck --strict", desk.folder)
    assert checked.returncode == 0, checked


async def test_commits_belong_to_user(desk: Desk) -> None:
    await desk.run("git commit -q --allow-empty -m two")
    seen = outside("git log -1 --format='%an <%ae>'", desk.folder).stdout
    assert seen == "Ada <ada@example.org>\n"


# ── what does not work says so ───────────────────────────────────────────────────────────────────

REFUSED = {
    "a program after each step": (
        "git rebase -x 'touch ran' HEAD",
        "git rebase -x names a program",
    ),
    "abbreviated": ("git rebase --exe='touch ran' HEAD", "git rebase --exec names a program"),
    "an editor": (
        "GIT_SEQUENCE_EDITOR='touch ran;' git rebase -i HEAD",
        "GIT_SEQUENCE_EDITOR names a program",
    ),
    "a setting of the call": (
        "git -c core.fsmonitor='touch ran;' add .",
        "the setting core.fsmonitor",
    ),
    "a setting": ("git config core.sshCommand 'touch ran;'", "the setting core.sshCommand"),
    "a submodule": ("git submodule add ./x", "it is a shell script"),
    "another program at the remote": (
        "git fetch --upload-pack='touch ran;' .",
        "--upload-pack names a program",
    ),
    "a work tree in the repository": (
        "git worktree add .git/rebase-merge",
        "leads into a git folder",
    ),
}


@pytest.mark.parametrize(("command", "reason"), REFUSED.values(), ids=REFUSED)
async def test_call_needing_program_is_refused(command: str, reason: str, desk: Desk) -> None:
    output = await desk.fail(command)
    assert reason in output["stderr"]
    assert "ask the user to run it in a terminal" in output["stderr"]
    assert list(desk.folder.rglob("ran")) == []


async def test_filter_fails_and_stores_nothing(desk: Desk) -> None:
    """git would store the raw content with exit code 0 if the filter was only left out."""
    (desk.folder / ".gitattributes").write_text("*.bin filter=ours\n")
    outside("git config filter.ours.clean 'tr a-z A-Z'", desk.folder)
    output = await desk.fail("echo raw > x.bin; git add x.bin")
    assert "the filters ours of this repository are programs" in output["stderr"]
    assert outside("git ls-files", desk.folder).stdout == "file\n"


@in_bubblewrap
async def test_failed_commit_without_profile_is_explained(tmp_path, monkeypatch):
    monkeypatch.setattr(
        _confinement,
        "open_git_profile",
        lambda *_, **__: (None, "unshare: Operation not permitted"),
    )
    desk = await opened(tmp_path, monkeypatch)
    output = await desk.fail("git commit -q --allow-empty -m two")
    assert (
        ".git is read-only, and git cannot write to it because unshare: Operation not permitted"
        in output["sandbox"]
    )


# ── hooks of the repository ──────────────────────────────────────────────────────────────────────


def add_hook(folder: Path, name: str, script: str) -> None:
    path = folder / ".git" / "hooks" / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


async def test_hook_checks_and_changes_commit(desk: Desk) -> None:
    add_hook(desk.folder, "pre-commit", "sed -i s/bad/good/ file && git add file && git stash list")
    await desk.run("echo bad > file && git commit -q -am two")
    assert outside("git show HEAD:file", desk.folder).stdout == "good\n"
    assert outside("git status --short", desk.folder).stdout == ""
    add_hook(desk.folder, "pre-commit", "echo refused by the hook >&2; exit 3")
    output = await desk.fail("git commit -q --allow-empty -m three")
    assert "refused by the hook" in output["stderr"]
    assert "the hook pre-commit of the repository ended with exit code 3" in output["stderr"]
    await desk.run("git commit -q --allow-empty --no-verify -m three")


async def test_hook_changes_and_refuses_messages(desk: Desk) -> None:
    add_hook(desk.folder, "commit-msg", 'grep -q bad "$1" && exit 1; echo "Signed" >> "$1"')
    await desk.run("git commit -q --allow-empty -m two")
    assert outside("git log -1 --format=%B", desk.folder).stdout.split() == ["two", "Signed"]
    await desk.fail("echo more >> file; git commit -q -am bad")
    assert outside("git log --format=%s", desk.folder).stdout.split() == ["two", "one"]
    assert outside("git diff --cached --name-only", desk.folder).stdout == "file\n"


LEFT_BEHIND = {
    "a link to a file outside": 'ln -sf {secret} "$1"',
    "a pipe": 'rm "$1"; mkfifo "$1"',
    "a huge file": 'truncate -s 1G "$1"',
    "nothing": 'rm "$1"',
}


@pytest.mark.parametrize("script", LEFT_BEHIND.values(), ids=LEFT_BEHIND)
async def test_message_from_hook_is_plain_file(script: str, desk: Desk, tmp_path: Path) -> None:
    secret = tmp_path / "home" / "secret"
    secret.write_text("CANARY")
    add_hook(desk.folder, "commit-msg", script.replace("{secret}", str(secret)))
    output = await desk.fail("timeout 20 git commit -q --allow-empty -m two")
    assert "the hook commit-msg of the repository left no message" in output["stderr"]
    assert outside("git log --format=%B", desk.folder).stdout.split() == ["one"]


@pytest.mark.parametrize(
    "script", ["ln -sf {secret} $i", "rm $i; mkfifo $i", "d=${i%/index}; rm -r $d; ln -s /dev $d"]
)
async def test_index_from_hook_is_plain_file(script: str, desk: Desk, tmp_path: Path) -> None:
    secret = tmp_path / "home" / "secret"
    secret.write_text("CANARY")
    outside("git worktree add -q tree -b t", desk.folder)
    hook = f"i=$(git rev-parse --git-path index); {script.replace('{secret}', str(secret))}"
    add_hook(desk.folder, "pre-commit", hook)
    output = await desk.fail("cd tree; timeout 20 git commit -q --allow-empty -m two")
    assert "the hook pre-commit of the repository left no index" in output["stderr"]
    assert outside("git log --format=%B t", desk.folder).stdout.split() == ["one"]


async def test_hook_runs_sandboxed_without_repository(desk: Desk, tmp_path: Path) -> None:
    secret = tmp_path / "home" / "secret"
    secret.write_text("CANARY")
    add_hook(
        desk.folder,
        "pre-commit",
        f"cat {secret} >&2; echo x > {tmp_path}/new; echo x > .git/hooks/post-commit; git config core.fsmonitor ./x;"
        " git update-ref refs/heads/planted HEAD; exit 0",
    )
    output = await desk.run("git commit -q --allow-empty -m two")
    assert "CANARY" not in output["stderr"]
    assert not (tmp_path / "new").exists()
    assert not (desk.folder / ".git" / "hooks" / "post-commit").exists()
    assert "fsmonitor" not in (desk.folder / ".git" / "config").read_text()
    assert outside("git branch", desk.folder).stdout == "* main\n"


# ── what is left behind runs nothing ─────────────────────────────────────────────────────────────

RAN = 'f="$(dirname "$(git rev-parse --show-toplevel 2>/dev/null || pwd)")"; touch {marker}'
ATTACKS = {
    "hook": "echo '{payload}' > .git/hooks/pre-commit; chmod +x .git/hooks/pre-commit",
    "setting": "git config core.fsmonitor ./evil; /usr/bin/git config core.fsmonitor ./evil",
    "setting of the worktree": "echo x > .git/config.worktree; git config extensions.worktreeConfig true; git config --worktree core.fsmonitor ./evil",
    "include": "git config include.path ../evil.cfg; printf '[include]\\n path = ../evil.cfg\\n' >> .git/config",
    "alias of status": "git config alias.status '!./evil'; git config pager.status ./evil; git config core.pager ./evil",
    "moved repository": "mv .git .git2; git init -q .; git config core.fsmonitor $PWD/evil",
    "removed repository": "rm -rf .git; git init -q .; git config core.fsmonitor $PWD/evil",
    "nested repository": "git init -q sub; cd sub; git config core.fsmonitor $PWD/../evil",
    "nested repository as a submodule": "git init -q sub; cd sub; git commit -q --allow-empty -m x; git config core.fsmonitor $PWD/../evil; cd ..; git add sub",
    "hook of a nested repository": "git init -q sub; cp evil sub/.git/hooks/pre-commit; cp evil sub/.git/hooks/post-checkout",
    "linked hooks": "git init -q sub; rm -r sub/.git/hooks; mkdir h; cp evil h/pre-commit; ln -s ../../h sub/.git/hooks",
    "bare layout": "mkdir -p sub/objects sub/refs; echo ref: refs/heads/m > sub/HEAD; printf '[core]\\nbare=false\\nworktree=..\\nfsmonitor=%s/evil\\n' $PWD > sub/config",
    "pointer to a layout": "git init -q x; git -C x config core.fsmonitor $PWD/evil; mv x/.git y; mkdir sub; echo gitdir: ../y > sub/.git",
    "pointer outside": "mkdir -p $TMPDIR/x sub; git init -q $TMPDIR/x; echo gitdir: $TMPDIR/x/.git > sub/.git",
    "linked repository": "git init -q x; git -C x config core.fsmonitor $PWD/evil; mv x/.git y; mkdir sub; ln -s ../y sub/.git",
    "capitals": "git init -q x; git -C x config core.fsmonitor $PWD/evil; mkdir sub; mv x/.git sub/.GIT",
    "foreign commondir": "git init -q x; git -C x config core.fsmonitor $PWD/evil; mv x/.git y; git init -q sub; echo ../../y > sub/.git/commondir",
    "todo": "git init -q sub; cd sub; git commit -q --allow-empty -m x; mkdir .git/rebase-merge; echo 'exec ../evil' > .git/rebase-merge/git-rebase-todo",
    "strategy": "git init -q sub; cd sub; mkdir .git/rebase-merge; echo 'evil' > .git/rebase-merge/strategy",
    "todo by a work tree": "git branch e; mkdir -p t; git worktree add .git/rebase-merge e; git worktree add ./.git/../.git/rebase-merge e",
    "todo by a link": "ln -s .git/rebase-merge r; git worktree add r -b e2; git clone . .git/rebase-merge",
    "filter of the repository": "git config filter.x.clean $PWD/evil; git config filter.x.smudge ./evil; echo '* filter=x' > .gitattributes; git add .",
    "program of a diff": "git config diff.x.textconv ./evil; git config diff.external ./evil; echo '* diff=x' > .gitattributes",
    "merge driver": "git config merge.x.driver ./evil; echo '* merge=x' > .gitattributes",
    "sequence editor": "git config sequence.editor ./evil; git config core.editor ./evil; EDITOR=./evil git commit --allow-empty",
    "remote": "git remote add origin 'ext::sh -c ./evil'; git config remote.o2.url ext::./evil; git config remote.o2.vcs evil; git fetch origin",
    "credentials": "git config credential.helper '!./evil'; git config core.askPass ./evil; git config core.sshCommand ./evil",
    "signatures": "git config gpg.program ./evil; git config commit.gpgSign true; git config gpg.ssh.defaultKeyCommand ./evil",
    "template": "git config init.templateDir ./t; mkdir -p t/hooks; cp evil t/hooks/pre-commit; git clone -q --template=t . sub; git init -q --template=t sub2",
    "settings of a clone": "git clone -q -c core.fsmonitor=$PWD/evil . sub; git clone -q --config core.hooksPath=$PWD . sub2",
    "an alias of the user": "git x; git config --global core.fsmonitor ./evil",
    "a hook in a worktree": "git worktree add -q sub -b e; git -C sub config core.hooksPath $PWD; cp evil pre-commit; cp evil post-checkout",
    "a hook that plants": "git config core.hooksPath hooks; mkdir hooks; cp evil hooks/pre-commit; git commit -q --allow-empty -m x",
    "two commands": "git init -q sub\n--\ngit -C sub config core.fsmonitor $PWD/evil\n--\ncp evil sub/.git/hooks/pre-commit; cat evil > sub/.git/hooks/post-checkout",
    "a submodule's folder": "mkdir -p .git/modules/x sub; git init -q sub; mkdir sub/.git/modules; git init -q --bare sub/.git/modules/x; git -C sub/.git/modules/x config core.fsmonitor $PWD/evil",
    "in the background": "git init -q sub; (git -C sub config core.fsmonitor $PWD/evil; cp evil sub/.git/hooks/pre-commit) & wait",
    "program on the path": "mkdir -p bin; cp evil bin/git; cp evil git; export PATH=$PWD:$PATH; git config core.fsmonitor ./evil",
    "a socket of another's": "cd /run/amplifier-git && echo x > git; cp $OLDPWD/evil git; rm -f socket; ls",
}
LOOKING = (
    "git status; git diff; git log -1 -p; git add -A; git commit -q -m person; git stash; git stash pop; git checkout -q .;"
    " git rebase --continue; git branch; git fetch --all; git diff --cached; git submodule status; git gc --auto"
)


@pytest.mark.parametrize(("name", "command"), ATTACKS.items(), ids=ATTACKS)
async def test_attack_leaves_nothing_git_runs(
    name: str, command: str, desk: Desk, tmp_path: Path
) -> None:
    """A person has a prompt with git's state in each folder, and commits there."""
    marker = tmp_path / "ran"
    (desk.folder / "evil").write_text(f"#!/bin/sh\ntouch {marker}\nexec cat 2>/dev/null\n")
    (desk.folder / "evil").chmod(0o755)
    payload = f"#!/bin/sh\ntouch {marker}"
    for line in command.split("\n--\n"):
        await run(desk.coordinator, line.replace("{payload}", payload))
        assert not marker.exists(), "it ran outside already"
    for folder in [desk.folder, *sorted(path for path in desk.folder.rglob("*") if path.is_dir())]:
        if (
            ".amplifier-aside" not in str(folder)
            and ".git/" not in f"{folder}/"
            and folder.is_dir()
        ):
            outside(LOOKING, folder)
            assert not marker.exists(), folder


async def test_removed_parts_are_named(desk: Desk) -> None:
    output = await desk.run(
        "git init -q sub; git -C sub config core.fsmonitor ./evil; git -C sub config user.name x"
    )
    (note,) = output["protected"]
    assert note.startswith(f"{desk.folder}/sub/.git/config: lost settings that name programs")
    assert "core.fsmonitor=./evil" in note
    assert "name" in (desk.folder / "sub/.git/config").read_text()
    assert "./evil" in (desk.folder / "sub/.git/config.amplifier-aside").read_text()
    assert (await desk.run("true")).get("protected") is None


async def test_user_settings_stay(desk: Desk) -> None:
    outside(
        "git config alias.lg 'log --oneline'; git config core.editor my-editor; git config credential.helper x",
        desk.folder,
    )
    before = (desk.folder / ".git" / "config").read_text()
    output = await desk.run(
        "git commit -q --allow-empty -m two; git config branch.main.description d"
    )
    assert "protected" not in output
    after = (desk.folder / ".git" / "config").read_text()
    assert after.startswith(before)
    assert "description = d" in after


# ── the rest of the sandbox ──────────────────────────────────────────────────────────────────────


@contextlib.contextmanager
def listening(folder: Path) -> Iterator[str]:
    """Have a socket in another network namespace, as a container engine's is."""
    code = (
        "import ctypes, os, socket, sys; ctypes.CDLL(None).unshare(0x50000000);"
        "s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen(); print('ready', flush=True); sys.stdin.read()"
    )
    address = str(folder / "engine.sock")
    with subprocess.Popen(
        [sys.executable, "-c", code, address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n"
        try:
            yield address
        finally:
            server.kill()


async def test_socket_of_foreign_network_namespace_is_covered(desk: Desk) -> None:
    (desk.folder / "mounted").mkdir()
    with listening(desk.folder / "mounted") as address:
        assert address not in await anyio.Path("/proc/net/unix").read_text()
        connect = (
            f"import socket; socket.socket(socket.AF_UNIX).connect('{address}'); print('reached')"
        )
        result = await run(desk.coordinator, f'/usr/bin/python3 -c "{connect}"')
    assert "reached" not in result.output["stdout"], result


async def test_files_get_no_setuid_bit(desk: Desk) -> None:
    tries = [
        "cp /bin/true t; chmod u+s t",
        "cp /bin/true t; chmod 4755 t",
        "/usr/bin/python3 -c 'import os; os.open(\"t\", os.O_CREAT | os.O_WRONLY, 0o4755)'",
        "install -m 4755 /bin/true t",
        'python3 -c \'import os; d = os.open(".", os.O_TMPFILE | os.O_RDWR, 0o4755); os.link(f"/proc/self/fd/{d}", "t")\'',
    ]
    for command in tries:
        await run(desk.coordinator, f"rm -f t; {command}")
        path = desk.folder / "t"
        assert not path.exists() or not path.stat().st_mode & 0o4000, command
    await desk.run("git init -q --shared shared; mkdir d; chmod g+s d; chmod 755 d")


@in_bubblewrap
async def test_files_in_memory_count(tmp_path, monkeypatch):
    desk = await opened(tmp_path, monkeypatch, max_memory_mb=128)
    script = (
        "for d in /tmp ~ /dev/shm /var/tmp /dev /run; do head -c 100M /dev/zero > $d/x 2>/dev/null;"
        " stat -c %s $d/x 2>/dev/null; done"
    )
    sizes = [int(line) for line in (await run(desk.coordinator, script)).output["stdout"].split()]
    assert sum(sizes) <= 128 << 20
    assert len(sizes) >= 3
    shared = "import mmap; m = mmap.mmap(-1, 400 << 20); [m.write(bytes(1 << 20)) for _ in range(400)]; import time; time.sleep(60)"
    result = await run(desk.coordinator, f"/usr/bin/python3 -c '{shared}'", timeout=50)
    assert result.error["type"] == "TooMuchMemory"


@in_bubblewrap
async def test_home_on_search_path_is_hidden(tmp_path, monkeypatch):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "secret").write_text("CANARY")
    (tmp_path / "work").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for entry in (tmp_path / "home", f"{tmp_path}/home/", tmp_path, f"{tmp_path}/home/../home"):
        with monkeypatch.context() as patch:
            patch.setenv("PATH", f"{os.environ['PATH']}:{entry}")
            coordinator = TestCoordinator()
            await tool_bash.mount(
                coordinator, {"working_dir": str(tmp_path / "work"), "sandbox": "bwrap"}
            )
            result = await run(coordinator, f"cat {tmp_path}/home/secret")
        assert "CANARY" not in result.output["stdout"], entry


# ── the list of harmless settings ────────────────────────────────────────────────────────────────

HARMLESS = [
    ("core.bare", "false"),
    ("core.fsmonitor", "true"),
    ("remote.origin.url", "git@example.org:a/b.git"),
    ("branch.feature.x.merge", "refs/heads/x"),
    ("filter.lfs.clean", "git-lfs clean -- %f"),
    ("submodule.a.update", "checkout"),
    ("lfs.https://example.org/info/lfs.access", "basic"),
]
HARMFUL = [
    ("core.fsmonitor", "./x"),
    ("core.hookspath", "hooks"),
    ("core.sshcommand", "x"),
    ("remote.o.url", "ext::sh -c x"),
    ("remote.o.url", "--upload-pack=x"),
    ("remote.o.uploadpack", "x"),
    ("remote.o.vcs", "x"),
    ("alias.st", "!x"),
    ("include.path", "x"),
    ("includeif.gitdir:x.path", "y"),
    ("filter.x.clean", "x"),
    ("filter.lfs.clean", "x"),
    ("diff.x.textconv", "x"),
    ("merge.x.driver", "x"),
    ("submodule.a.update", "!x"),
    ("credential.helper", "x"),
    ("gpg.program", "x"),
    ("pager.log", "x"),
    ("new.key", "of a later git"),
]


@pytest.mark.parametrize(("key", "value"), HARMLESS)
def test_harmless_setting(key: str, value: str) -> None:
    assert is_harmless(key, value)


@pytest.mark.parametrize(("key", "value"), HARMFUL)
def test_setting_naming_program(key: str, value: str) -> None:
    assert not is_harmless(key, value)


def test_plain_repository_has_no_findings(tmp_path: Path) -> None:
    outside(
        "git init -q . && git commit -q --allow-empty -m x && git worktree add -q t && git clone -q . c",
        tmp_path,
    )
    assert findings(f"{tmp_path}/.git") == []
    assert findings(f"{tmp_path}/c/.git") == []


def test_submodule_has_no_findings(tmp_path: Path) -> None:
    made = outside(
        "git init -q lib && git -C lib commit -q --allow-empty -m x && git init -q top && cd top"
        " && git -c protocol.file.allow=always submodule --quiet add ../lib lib",
        tmp_path,
    )
    assert made.returncode == 0, made.stderr
    assert "worktree" in (tmp_path / "top/.git/modules/lib/config").read_text()
    assert findings(f"{tmp_path}/top/.git") == []


PLANTED = {
    "another work tree": ("git config core.worktree {tmp}/victim", "config"),
    "a work tree by a link": (
        "ln -s r/.. ../link; git config core.worktree {tmp}/link/r",
        "config",
    ),
    "linked state of a rebase": ("mkdir ../rm; ln -s ../../rm .git/rebase-merge", "rebase-merge"),
    "linked options": (
        "mkdir .git/sequencer; ln -s /dev/null .git/sequencer/opts",
        "sequencer/opts",
    ),
    "linked worktrees": ("mkdir ../wts; ln -s ../../wts .git/worktrees", "worktrees"),
    "linked submodule": ("mkdir .git/modules; ln -s ../../x .git/modules/x", "modules/x"),
    "a pipe": ("mkfifo .git/index", "index"),
    "huge options": ("mkdir .git/sequencer; truncate -s 2M .git/sequencer/opts", "sequencer/opts"),
    "a huge strategy": (
        "mkdir .git/rebase-merge; truncate -s 2M .git/rebase-merge/strategy",
        "rebase-merge/strategy",
    ),
    "a blank in commondir": (
        "mkdir -p .git/worktrees/w/c; cd .git/worktrees/w; printf '../.. \\n' > commondir; touch HEAD",
        "worktrees/w/commondir",
    ),
}


@pytest.mark.parametrize(("script", "place"), PLANTED.values(), ids=PLANTED)
def test_redirections_of_git_are_removed(script: str, place: str, tmp_path: Path) -> None:
    for name in ("victim", "r"):
        (tmp_path / name).mkdir()
    outside("git init -q . && " + script.replace("{tmp}", str(tmp_path)), tmp_path / "r")
    git = f"{tmp_path}/r/.git"
    found = findings(git)
    assert {finding.path for finding in found} == {f"{git}/{place}"}
    take_out(found)
    assert findings(git) == []


def test_changed_hook_is_new_finding(tmp_path: Path) -> None:
    outside("git init -q .", tmp_path)
    add_hook(tmp_path, "pre-commit", "exit 0")
    before = findings(f"{tmp_path}/.git")
    add_hook(tmp_path, "pre-commit", "exit 1")
    assert findings(f"{tmp_path}/.git") != before


def test_removal_keeps_earlier_removals(tmp_path: Path) -> None:
    outside(
        "git init -q . && mkdir .git/config.amplifier-aside && git config core.fsmonitor x",
        tmp_path,
    )
    take_out(findings(f"{tmp_path}/.git"))
    assert findings(f"{tmp_path}/.git") == []
    (aside,) = (tmp_path / ".git").glob("config.*.amplifier-aside")
    assert "fsmonitor" in aside.read_text()


def test_renamed_file_gets_own_content(tmp_path: Path) -> None:
    outside(
        "git init -q . && ln .git/config cfg && git init -q s && ln s/.git/hooks/pre-commit.sample h",
        tmp_path,
    )
    outside("printf '[core]\\n\\tfsmonitor = x\\n' >> cfg", tmp_path)
    take_out(findings(f"{tmp_path}/.git"))
    assert findings(f"{tmp_path}/.git") == []
    assert "filemode" in (tmp_path / ".git/config").read_text()
    with (tmp_path / "cfg").open("a") as file:
        file.write("[core]\n\tfsmonitor = y\n")
    assert findings(f"{tmp_path}/.git") == []
    (note,) = take_out(findings(f"{tmp_path}/s/.git"))
    assert "pre-commit.sample: was replaced with a copy" in note


def test_pointer_is_read_like_git(tmp_path: Path) -> None:
    assert pointer_target("gitdir: a \r\n") == "a "
    assert pointer_target("x gitdir: a") == ""
    assert pointer_target("gitdir: a\0b") == "a"


@pytest.mark.parametrize(
    "command",
    [
        "git checkout-index -f --prefix=.git/hooks/ pre-commit",
        "cp .git/hooks/pre-commit b; git merge-file .git/hooks/pre-commit b pre-commit",
        "git reflog show -1 --format='touch ran' --output=.git/hooks/pre-commit",
    ],
)
async def test_call_changes_no_hook(command: str, desk: Desk) -> None:
    add_hook(desk.folder, "pre-commit", "exit 0")
    before = (desk.folder / ".git/hooks/pre-commit").read_text()
    await run(
        desk.coordinator,
        f"echo 'touch ran' > pre-commit; chmod +x pre-commit; git add pre-commit; {command}",
    )
    assert (desk.folder / ".git/hooks/pre-commit").read_text() == before
    assert os.access(desk.folder / ".git/hooks/pre-commit", os.X_OK)


def test_removal_follows_no_link(tmp_path: Path) -> None:
    """Another command may replace a folder on the way by a link."""
    outside("git init -q . && git config core.fsmonitor x", tmp_path)
    found = findings(f"{tmp_path}/.git")
    (tmp_path / ".git").rename(tmp_path / "elsewhere")
    (tmp_path / ".git").symlink_to("elsewhere")
    (note,) = take_out(found)
    assert "could not be made harmless" in note
    assert "fsmonitor" in (tmp_path / "elsewhere" / "config").read_text()


# ── an agent ─────────────────────────────────────────────────────────────────────────────────────

A_DAY: list[tuple[str, dict[str, str]]] = [
    ("bash", {"command": "git clone -q . copy && git -C copy log --oneline | wc -l"}),
    (
        "bash",
        {
            "command": "cd copy && git switch -q -c fix && echo more >> file && git commit -qam 'in the copy'"
        },
    ),
    (
        "bash",
        {"command": "rm -rf copy/file && git -C copy checkout -q file && git switch -q -c topic"},
    ),
    ("write_file", {"file_path": "new.py", "content": "x=1\n"}),
    ("edit_file", {"file_path": "file", "old_string": "one", "new_string": "two"}),
    (
        "bash",
        {
            "command": "git add -A ':!copy' && git commit -q -m 'Add new.py' && git log -1 --format=%an && cat new.py"
        },
    ),
    (
        "bash",
        {
            "command": "git switch -q main && echo base > base && git add base && git commit -q -m base"
        },
    ),
    ("bash", {"command": "git rebase -q main topic && git log --oneline | wc -l"}),
    (
        "bash",
        {
            "command": "echo wip >> file && git stash -q && git switch -q main && git switch -q topic && git stash pop -q"
        },
    ),
    (
        "bash",
        {
            "command": "git commit -q -am wip && git commit -q --amend -m 'Change the file' && git status --short"
        },
    ),
    (
        "bash",
        {
            "command": "git worktree add -q tree -b other && cd tree && echo y > y && git add y && git commit -q -m y"
        },
    ),
    (
        "bash",
        {
            "command": "git -C tree log --oneline | wc -l && git worktree remove tree && git merge -q --no-edit other"
        },
    ),
]


# Each of these calls has a test of its own above.
@pytest.mark.slow
@in_bubblewrap
async def test_agent_uses_git_without_questions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It clones, branches, edits, commits with a hook, rebases, stashes and uses a worktree in mode ``full``."""
    desk = await opened(tmp_path, monkeypatch)
    add_hook(
        desk.folder, "pre-commit", "[ ! -e new.py ] || { echo 'x = 1' > new.py && git add new.py; }"
    )
    monkeypatch.chdir(desk.folder)
    asked: list[object] = []

    def approve(question: object) -> bool:
        asked.append(question)
        return False

    calls: list[tuple[str, Any]] = []

    @on(TOOL_POST)
    def note(event: str, data: dict[str, Any]) -> None:
        calls.append((data["tool_name"], data["result"]))

    with script(*A_DAY, "done") as model:
        work = agent(model, tools=["tool-bash", "tool-filesystem"], hooks=[note], approve=approve)
        async with work as session:
            session.coordinator.get_capability("approval.set_rules")(MODES["full"][1])
            assert await session.execute("Work.") == "done"
    assert asked == []
    assert len(calls) == len(A_DAY)
    for (name, result), (_, arguments) in zip(calls, A_DAY, strict=True):
        assert result["success"], (name, arguments, result)
    assert outside("git show topic:new.py", desk.folder).stdout == "x = 1\n"
    assert outside("git log --format=%s topic", desk.folder).stdout.splitlines()[-1] == "one"
    assert outside("git fsck", desk.folder).returncode == 0
