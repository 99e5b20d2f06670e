"""git calls of a command: two at once, aliases, other places, protected files of the work tree, hooks, cleaning."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from amplifier.modules.tools import bash as tool_bash
from amplifier.modules.tools.bash._git_arguments import Refused, check_call, parse_call
from amplifier.modules.tools.bash._git_history import TrackedFiles, UsersHistory
from amplifier.modules.tools.bash._git_hooks import remove_tree
from amplifier.testing import TestCoordinator
from tests._support.processes import running_processes
from tests.modules.tools.test_tool_bash_git import Desk, add_hook, opened, outside
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
HISTORY = """
mkdir .vscode .husky; echo v1 > .vscode/settings.json; echo e1 > .envrc; echo p1 > .pre-commit-config.yaml
echo '#!/bin/sh' > .husky/pre-commit; git add .; git commit -q -m protected; git branch old
for f in .vscode/settings.json .envrc .pre-commit-config.yaml; do echo 2 > $f; done; git commit -q -a -m changed
"""
STATE = "cat .vscode/settings.json .envrc .pre-commit-config.yaml"


@pytest.fixture(params=SANDBOXES)
async def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    return await opened(tmp_path, monkeypatch, readable=[str(tmp_path)])


# ── two calls at once ────────────────────────────────────────────────────────────────────────────


async def test_piped_calls_run_concurrently(desk: Desk) -> None:
    """Each writes more than a pipe holds, so one after the other they would wait for ever."""
    await desk.run(
        "set -e; seq 60000 > file; timeout 30 git stash -q; timeout 30 git stash show -p | timeout 30 git apply;"
        " git diff | git apply --cached; git commit -q -m numbers; git log -p | head -1;"
        " git switch -q -c a; seq 60000 | tac > file; git commit -q -am back; git switch -q main;"
        " git format-patch --stdout main..a | git am -q; git log -1 --format=%s | grep back;"
        " git init -q new; git fast-export --all | git -C new fast-import --quiet;"
        " git rev-list --objects HEAD | git pack-objects -q --stdout | git unpack-objects -q -n"
    )
    # Both go through the broker.
    await desk.run(
        "set -e; for i in $(seq 3); do timeout 30 git hash-object -w --stdin < file | timeout 30 git commit-tree HEAD^{tree} -F -;"
        " done"
    )


async def test_call_ends_with_caller(desk: Desk) -> None:
    """What is left of it could write to the repository after the look at it."""
    mark = f"mark-{os.getpid()}-{desk.folder.parent.name}"
    await run(
        desk.coordinator,
        f"timeout -s KILL 1 git hash-object -w --stdin --path={mark} < <(sleep 60)",
    )
    assert running_processes(mark) == []
    await run(
        desk.coordinator, f"git hash-object -w --stdin --path={mark} < <(sleep 60)", timeout=1
    )
    assert running_processes(mark) == []


# ── protected files of the work tree ─────────────────────────────────────────────────────────────


async def test_git_restores_repository_contents(desk: Desk) -> None:
    outside(HISTORY, desk.folder)
    moves = [
        "git checkout -q old",
        "git switch -q main",
        "git reset -q --hard old",
        "git reset -q --hard main@{1}",
        "git restore -s old .envrc .vscode .pre-commit-config.yaml",
        "git restore .",
        "git switch -q -c topic old; git commit -q --allow-empty -m t; git merge -q --no-edit main",
        "git switch -q -c base old; git commit -q --allow-empty -m t; git rebase -q main",
    ]
    for move in moves:
        output = await desk.run(f"set -e; {move}; git status --porcelain; {STATE}")
        expected = (
            "v1\ne1\np1\n"
            if "old" in move and "rebase" not in move and "merge" not in move
            else "2\n2\n2\n"
        )
        clean = [line for line in output["stdout"].splitlines() if not line.startswith(" M")]
        assert "\n".join(clean) + "\n" == expected, (move, output)
        assert any("git changed it to a content" in note for note in output.get("protected", ())), (
            move,
            output,
        )


PLANTING = {
    "a commit": "git update-index --cacheinfo 100644,$blob,.envrc; git commit -q -m x; git checkout -q -f HEAD",
    "a tree": "git read-tree --index-output=$PWD/i HEAD || true; git restore --source=$tree .envrc",
    "a patch": "printf -- '--- a/.envrc\\n+++ b/.envrc\\n@@ -1 +1 @@\\n-2\\n+evil\\n' > p; git apply p",
    "a merge": "git merge -q $(git commit-tree $tree -p HEAD -m x)",
    "a replaced object": "git replace $(git rev-parse old:.envrc) $blob; git checkout -q -f old",
    "a write after git's": "git checkout -q old; echo evil > .envrc; rm -f .envrc; echo evil > .envrc",
    "a link": "git update-index --cacheinfo 120000,$blob,.envrc; git commit -q -m x; git checkout -q -f HEAD",
    "a file in a folder": "git update-index --add --cacheinfo 100644,$blob,.vscode/tasks.json; git checkout-index -f -a",
}


@pytest.mark.parametrize("script", PLANTING.values(), ids=PLANTING)
async def test_agent_commit_plants_nothing(script: str, desk: Desk) -> None:
    outside(HISTORY, desk.folder)
    make = (
        "blob=$(echo evil | git hash-object -w --stdin);"
        " tree=$(printf '100644 blob %s\\t.envrc\\n' $blob | git mktree);"
    )
    result = await run(desk.coordinator, f"{make} {script}")
    assert (desk.folder / ".envrc").read_text() in ("e1\n", "2\n"), result
    assert not (desk.folder / ".envrc").is_symlink()
    assert not (desk.folder / ".vscode" / "tasks.json").exists()
    reason = "git would read" if "replace" in script else "no commit of the user's has this content"
    assert reason in str(result.output.get("protected")), result
    again = TestCoordinator()
    await tool_bash.mount(again, {"working_dir": str(desk.folder), "sandbox": "bwrap"})
    await run(again, "git checkout -q -f main; git reset -q --hard")
    assert (desk.folder / ".envrc").read_text() in ("e1\n", "2\n"), "in a later session"


async def test_branches_differing_in_protected_files(desk: Desk) -> None:
    """Nothing has to be allowed, in one command or in several, because the user has committed all of it."""
    outside(
        f"git branch none; {HISTORY} mkdir tools .claude; echo a > tools/check; git config core.hooksPath tools; chmod +x tools/check;"
        " printf '#!/bin/sh\\n' > tools/pre-commit; chmod +x tools/pre-commit; echo {} > .claude/.mcp.json; git add .;"
        " git commit -q -m hooks; git branch hooks; echo b > tools/check; echo '# 2' >> tools/pre-commit; echo {2} > .claude/.mcp.json;"
        " git commit -q -am more",
        desk.folder,
    )
    for branch in ("hooks", "none", "main"):
        output = await desk.run(f"git switch -q {branch}; git status --porcelain")
        assert output["stdout"] == "", (branch, output)
        assert not any("aside" in note for note in output.get("protected", ())), (branch, output)
    await desk.fail("echo evil > .envrc || echo evil > tools/pre-commit")
    await desk.run("git worktree add -q tree old; test -d tree/.vscode && grep e1 tree/.envrc")
    await desk.run("git switch -q none; rm -rf tree; git worktree prune")
    await desk.run("git switch -q main; rm -f .envrc; echo evil > .envrc")
    assert not (desk.folder / ".envrc").exists()


async def test_agent_repository_stays_untrusted_next_session(desk: Desk) -> None:
    make = "git init -q -b main r && cd r && git commit -q --allow-empty -m one && git branch good"
    await desk.run(
        f"{make} && echo evil > .envrc && git add . && git commit -q -m two && git switch -q good"
    )
    again = TestCoordinator()
    await tool_bash.mount(again, {"working_dir": str(desk.folder), "sandbox": "bwrap"})
    result = await run(again, "cd r; git switch -q main; git status")
    assert not (desk.folder / "r" / ".envrc").exists(), result
    assert ".envrc" in str(result.output["protected"])
    outside(
        "cd r; git switch -q good; echo mine > .envrc; git add .; git commit -q -m mine",
        desk.folder,
    )
    await run(again, "cd r; git switch -q -c other HEAD~1")
    await run(again, "cd r; git switch -q good")
    assert (desk.folder / "r" / ".envrc").read_text() == "mine\n"


async def test_distant_work_tree_has_user_commits(tmp_path, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    outside(f"git init -q -b main . && {HISTORY}", elsewhere)
    desk = await opened(tmp_path, monkeypatch, readable=[str(tmp_path)])
    outside(
        f"rm -rf .git file; git -C {elsewhere} worktree add -q {desk.folder}/tree old", desk.folder
    )
    await desk.run("true")
    await desk.run("cd tree; cat .envrc")
    record = UsersHistory((elsewhere / ".git").stat().st_ino)
    with record.during_call(str(elsewhere / ".git")):
        assert record._record is not None
        assert len(record._record.users) == 1


async def test_user_commit_between_calls_counts(desk: Desk) -> None:
    outside(HISTORY, desk.folder)
    await desk.run("git switch -q -c topic && git commit -q --allow-empty -m mine")
    outside(
        "git switch -q main; echo 3 > .envrc; git commit -q -am three; git switch -q topic",
        desk.folder,
    )
    await desk.run("git rebase -q main && grep 3 .envrc")


def test_killed_agents_record_claims_no_commit(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    outside(
        "git init -q -b main . && echo 1 > .envrc && git add . && git commit -q -m one", tmp_path
    )
    git = f"{tmp_path}/.git"
    number = Path(git).stat().st_ino
    with UsersHistory(number).during_call(git):
        pass
    killed = UsersHistory(number).during_call(git)
    killed.__enter__()
    path = next(iter((tmp_path / "state").rglob("git/*.json")), None)
    record = path.read_text() if path else ""
    outside("echo 2 > .envrc && git commit -q -am two", tmp_path)
    killed.__exit__(None, None, None)
    assert path is not None
    path.write_text(record)
    later = UsersHistory(number)

    def log(name: str, commits: list[str]) -> str:
        command = [
            "git",
            "log",
            "--raw",
            "--no-abbrev",
            "--root",
            "--format=",
            *commits,
            "--",
            name,
        ]
        return subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout

    def blob(commit: str) -> str:
        return outside(f"git rev-parse {commit}:.envrc", tmp_path).stdout.strip()

    with later.during_call(git):
        assert later.has(".envrc", ("100644", blob("HEAD~1")), log)
        assert not later.has(".envrc", ("100644", blob("HEAD")), log)


def test_unrememberable_amount_is_not_opened(tmp_path: Path) -> None:
    (tmp_path / ".vscode").mkdir()
    (tmp_path / ".vscode" / "huge").write_bytes(bytes(17 << 20))
    os.mkfifo(tmp_path / ".envrc")
    assert TrackedFiles([f"{tmp_path}/.vscode", f"{tmp_path}/.envrc"], set()).paths == []


async def test_moved_repository_keeps_record(desk: Desk) -> None:
    outside(
        "git init -q -b main r; cd r; echo 2 > .envrc; git add .; git commit -q -m x", desk.folder
    )
    await desk.run(
        "cd r; git update-index --cacheinfo 100644,$(echo evil | git hash-object -w --stdin),.envrc; git commit -q -m x"
    )
    await desk.run("mv r s")
    output = await desk.fail("cd s; git checkout -q -f HEAD")
    assert "no commit of the user's has this content" in output["stderr"]
    assert (desk.folder / "s" / ".envrc").read_text() == "2\n"


async def test_hook_runs_after_protected_file_removal(desk: Desk) -> None:
    outside(f"git branch none; {HISTORY}", desk.folder)
    add_hook(desk.folder, "post-checkout", "echo ran >> ran")
    await desk.run(
        "git switch -q none && test ! -e .envrc && git switch -q main && test -e .envrc && grep -c ran ran"
    )


@in_bubblewrap
async def test_work_tree_shows_nothing_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "seen").mkdir()
    (tmp_path / "seen" / "secret").write_text("CANARY")
    (tmp_path / "seen" / "open").write_text("seen")
    hidden = [str(tmp_path / "seen" / "secret")]
    desk = await opened(tmp_path, monkeypatch, readable=[str(tmp_path / "seen")], hidden=hidden)
    assert "CANARY" not in (await run(desk.coordinator, f"cat {hidden[0]}")).output["stdout"]
    for tree in (tmp_path / "seen", tmp_path, Path("/")):
        await run(
            desk.coordinator,
            f"git --git-dir=.git --work-tree={tree} add {tree}/seen/secret {tree}/secret",
        )
        await run(desk.coordinator, f"GIT_DIR=.git GIT_WORK_TREE={tree} git stash -q -u")
        await run(desk.coordinator, f"git --git-dir=.git --work-tree={tree} add {tree}/secret")
    assert (
        "CANARY"
        not in outside(
            "git cat-file --batch --batch-all-objects | tr -cd '[:print:]'", desk.folder
        ).stdout
    )


# ── other places ─────────────────────────────────────────────────────────────────────────────────


async def test_repositories_outside_folder(desk: Desk, tmp_path: Path) -> None:
    outside("git init -q -b main other && cd other && git commit -q --allow-empty -m o", tmp_path)
    await desk.run(
        "set -e; git clone -q ../other sub; git clone -q . own; git remote add o ../other; git fetch -q o;"
        " git pull -q --rebase=false --allow-unrelated-histories --no-edit ../other main; git merge-base HEAD o/main"
    )
    await desk.run(
        "git -C sub commit -q --allow-empty -m x && rm -rf sub own && git worktree add -q tree -b t"
    )
    await desk.run(
        'rm -rf tree && git worktree prune && test -z "$(ls -d sub own tree 2>/dev/null)"'
    )
    for command, reason in {
        "git push -q o HEAD:x": f"{tmp_path}/other is outside of the folders that commands may change",
        "git worktree add $TMPDIR/x": "is empty for each command, so a work tree there is lost",
        "git worktree add /srv/x": "is outside of the folders that commands may change",
    }.items():
        output = await desk.fail(command)
        assert reason in output["stderr"], (command, output)
    await desk.run("git clone -q . $TMPDIR/x && git -C $TMPDIR/x commit -q --allow-empty -m x")


@in_bubblewrap
async def test_hidden_parts_stay_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = await opened(tmp_path, monkeypatch)
    outside("git init -q -b main other && cd other && git commit -q --allow-empty -m o", tmp_path)
    output = await desk.fail("git fetch ../other")
    assert f"commands can't see {tmp_path}/other; name the folder as readable" in output["stderr"]
    outside(f"echo {tmp_path}/other/.git/objects > .git/objects/info/alternates", desk.folder)
    output = await desk.fail("git commit -q --allow-empty -m x")
    assert f"objects of this repository are in {tmp_path}/other/.git/objects" in output["stderr"]


@in_bubblewrap
async def test_objects_of_another_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = await opened(tmp_path, monkeypatch, readable=[str(tmp_path)])
    outside(
        "git clone -q --bare work base; cd work; git gc -q; git clone -q --shared ../base ../x",
        tmp_path,
    )
    outside("rm -rf .git && mv ../x/.git . && git config user.name a", desk.folder)
    add_hook(desk.folder, "pre-commit", "git log --oneline >&2; echo x >> file; git add file")
    await desk.run("git commit -q --allow-empty -m x && git fsck && git show HEAD:file | grep x")


@in_bubblewrap
async def test_package_of_repository_above(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = await opened(tmp_path, monkeypatch)
    package = desk.folder / "package"
    package.mkdir()
    coordinator = TestCoordinator()
    await tool_bash.mount(
        coordinator,
        {"working_dir": str(package), "sandbox": "bwrap", "readable": [str(desk.folder)]},
    )
    inner = Desk(package, coordinator)
    add_hook(desk.folder, "pre-commit", "echo checked >> package/n; git add package/n")
    await inner.run(
        "echo x > n && git add n && git commit -q -m n && git switch -q -c t && git status --short"
    )
    assert outside("git show t:package/n", desk.folder).stdout == "x\nchecked\n"
    await inner.fail("git rm -q ../file")
    await inner.fail("echo x > ../file")
    assert (desk.folder / "file").read_text() == "one\n"


# ── aliases and forms ────────────────────────────────────────────────────────────────────────────


@in_bubblewrap
async def test_aliases_and_forms_of_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = await opened(tmp_path, monkeypatch)
    outside("git config alias.ci 'commit -q'; git config alias.e 'ci --allow-empty'", desk.folder)
    await desk.run(
        "set -e; git e -m a; git --git-dir=.git commit -q --allow-empty -m b; GIT_DIR=.git git commit -q --allow-empty -m c;"
        " GIT_DIR=$PWD/.git GIT_WORK_TREE=$PWD git tag v1; mkdir d; git -C d -c user.name=Bob e -m d;"
        " git --work-tree=. add -A; git log -1 --format=%an | grep Bob; git config user.name Eve; git config user.name | grep Eve"
    )
    outside("git config alias.sh '!touch ran'", desk.folder)
    for command, reason in {
        "git sh": "the alias sh is a shell command",
        "git x": "the alias x is a shell command",
        "git --exec-path=. commit --allow-empty -m x": "the option --exec-path of git",
        "GIT_INDEX_FILE=i git add file": "GIT_INDEX_FILE names a file",
        "git config --add core.pager ./x": "the setting core.pager can name a program",
        "git config --global user.name x": "changes a file outside of this repository",
        "git config alias.q status": "the setting alias.q",
    }.items():
        output = await desk.fail(command)
        assert reason in output["stderr"], (command, output)
    assert outside("git log --format=%s", desk.folder).stdout.split() == ["d", "c", "b", "a", "one"]


@in_bubblewrap
async def test_reading_alias_of_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = await opened(tmp_path, monkeypatch, settings="[alias]\n\tlg = log --format=%s\n")
    assert (await desk.run("mkdir d; cd d; git lg -1"))["stdout"] == "one\n"


READING = [
    *(
        "stash list",
        "stash show -p",
        "branch",
        "branch -vv",
        "branch --list x",
        "tag",
        "tag -l 'v*'",
        "tag -n3",
    ),
    *(
        "config user.name",
        "config --get a.b",
        "config -l",
        "remote -v",
        "worktree list",
        "reflog",
        "notes show",
    ),
    *(
        "apply --stat p",
        "hash-object f",
        "symbolic-ref HEAD",
        "submodule status",
        "-C x log",
        "-c a.b=c diff",
    ),
]
WRITING = [
    *(
        "stash",
        "stash pop",
        "branch x",
        "branch -d x",
        "branch -m x",
        "tag v",
        "tag -d v",
        "config a.b c",
    ),
    *(
        "remote add o x",
        "worktree add x",
        "reflog expire",
        "apply p",
        "apply --check --index p",
        "hash-object -w f",
    ),
    *("symbolic-ref HEAD x", "submodule add x", "-C x commit", "fast-import", "commit --dry-run"),
]


@pytest.mark.parametrize(
    ("line", "writes"), [*((each, False) for each in READING), *((each, True) for each in WRITING)]
)
def test_reading_call_needs_no_broker(line: str, writes: bool) -> None:
    words = parse_call(line.split(), "/w", {}, lambda name: None)
    assert words is not None
    assert words.is_writing is writes


def test_circular_alias_ends() -> None:
    words = parse_call(["a"], "/w", {}, {"a": "b -x", "b": "a"}.get)
    assert words is None or not words.is_writing
    with pytest.raises(Refused, match="shell command"):
        parse_call(["a"], "/w", {}, {"a": "b", "b": "!x"}.get)
    short = parse_call(["ci", "-m", "x"], "/w", {}, {"ci": "-c core.editor=./x commit"}.get)
    assert short is not None
    with pytest.raises(Refused, match=r"core\.editor"):
        check_call(short, {}, "/w/.git")


# ── hooks ────────────────────────────────────────────────────────────────────────────────────────


async def test_each_hook_runs_or_is_named(desk: Desk, tmp_path: Path) -> None:
    outside("git clone -q --bare . up.git; git remote add up ./up.git", desk.folder)
    for name in (
        "prepare-commit-msg",
        "post-commit",
        "post-rewrite",
        "post-checkout",
        "post-merge",
        "pre-push",
    ):
        add_hook(
            desk.folder,
            name,
            f'echo "{name} $# $(cat | wc -w)" >> "$(dirname "$0")/../../hooks.log" ',
        )
    for name in (
        "applypatch-msg",
        "pre-applypatch",
        "post-applypatch",
        "pre-merge-commit",
        "reference-transaction",
    ):
        add_hook(desk.folder, name, "exit 0")
    await desk.run(
        "set -e; git commit -q --allow-empty -m a; git commit -q --amend --allow-empty -m b; git switch -q -c t;"
        " git switch -q main; git commit -q --allow-empty -m c; git push -q up main t"
    )
    ran = (desk.folder / "hooks.log").read_text().splitlines()
    counted = {line: ran.count(line) for line in ran}
    assert counted == {
        "prepare-commit-msg 2 0": 3,
        "post-commit 0 0": 3,
        "post-rewrite 1 2": 1,
        "post-checkout 3 0": 2,
        "pre-push 2 8": 1,
    }
    merged = await desk.run(
        "git switch -q t && git merge -q --no-edit main && git format-patch -q -1 -o $TMPDIR main"
    )
    assert "post-merge 1 0" in (desk.folder / "hooks.log").read_text()
    assert (
        "were not run: pre-merge-commit, prepare-commit-msg, reference-transaction"
        in merged["stderr"]
    )
    output = await desk.run(
        "git switch -q -C u main; echo p >> file; git commit -qam p; git format-patch --stdout -1 > p"
        "; git reset -q --hard HEAD~1; git am -q p"
    )
    assert "were not run: applypatch-msg, pre-applypatch, post-applypatch" in output["stderr"]
    add_hook(desk.folder, "pre-push", "grep -q refs/heads/secret && exit 1; exit 0")
    assert (
        "pre-push of the repository ended"
        in (await desk.fail("git push -q up u:refs/heads/secret"))["stderr"]
    )
    add_hook(desk.folder, "prepare-commit-msg", 'echo "More" >> "$1"')
    await desk.run(
        "git commit -q --allow-empty --no-verify -m z && git log -1 --format=%B | grep More"
    )


# ── cleaning ─────────────────────────────────────────────────────────────────────────────────────

CLOSING = {
    "a folder that can't be written": "chmod a-w sub/.git sub/.git/hooks",
    "hooks that can't be listed": "chmod 300 sub/.git/hooks",
    "a repository that can't be listed": "chmod 300 sub sub/.git; ",
}
SCRIPT = """
import os, sys
from pathlib import Path
from amplifier.modules.tools.bash._git_files import findings, take_out
from amplifier.modules.tools.bash._git_hooks import remove_tree
if os.geteuid() == 0:
    os.setgroups([]), os.setgid(65534), os.setuid(65534)
git = sys.argv[1]
take_out(findings(git))
print(findings(git), Path(git, "config.amplifier-aside").exists(), os.access(f"{git}/hooks/pre-commit", os.X_OK))
print(remove_tree(sys.argv[2]), os.path.lexists(sys.argv[2]))
"""


@pytest.mark.parametrize("command", CLOSING.values(), ids=CLOSING)
async def test_closed_folders_are_cleaned_as_root(command: str, desk: Desk) -> None:
    """As root everything can be opened; the test below is the same for a user."""
    await run(
        desk.coordinator,
        "git init -q sub; git -C sub config core.fsmonitor ./x; printf '#!/bin/sh\\n' > sub/.git/hooks/pre-commit;"
        f" chmod +x sub/.git/hooks/pre-commit; {command}",
    )
    assert "fsmonitor" not in (desk.folder / "sub/.git/config").read_text()
    assert not (desk.folder / "sub/.git/hooks/pre-commit").stat().st_mode & 0o111


def test_closed_folders_are_cleaned_as_user() -> None:
    with tempfile.TemporaryDirectory() as name:
        base = Path(name)
        outside(
            "git init -q r; git -C r config core.fsmonitor x; mkdir -p t/a/b; touch t/a/b/c; ln -s / t/a/l",
            base,
        )
        add_hook(base / "r", "pre-commit", "exit 0")
        if os.geteuid() == 0:
            for path in (base, *base.rglob("*")):
                os.chown(path, 65534, 65534, follow_symlinks=False)
        outside("chmod 0 t/a/b t/a; chmod 300 r/.git/hooks t; chmod a-w r/.git", base)
        command = [sys.executable, "-c", SCRIPT, f"{base}/r/.git", f"{base}/t"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.stdout == "[] True False\nNone False\n", done.stderr


def test_unremovable_part_is_reported(tmp_path: Path) -> None:
    assert remove_tree(f"{tmp_path}/missing") is not None


async def test_call_leaves_nothing(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    add_hook(
        desk.folder, "pre-commit", "mkdir -p .git/a/b; chmod 000 .git/a/b .git/a; chmod a-w .git"
    )
    await desk.run("git commit -q --allow-empty -m x; git commit -q --allow-empty -m y | cat")
    assert list(scratch.iterdir()) == []


# ── what becomes a commit of the user's ──────────────────────────────────────────────────────────

STAGE = "b=$(echo evil | git hash-object -w --stdin); git update-index --add --cacheinfo 100644,$b,.envrc"
BECOMES_THE_USERS = {
    "what is staged": (STAGE, "git commit -q --allow-empty -m mine"),
    "what is staged and hidden": (
        f"{STAGE}; git update-index --skip-worktree .envrc",
        "echo x >> file; git commit -qam mine",
    ),
    "a commit that is amended": (
        f"{STAGE}; git commit -qm agent",
        "echo x >> file; git add file; git commit -q --amend -m mine",
    ),
    "a merge that is concluded": (
        f"git switch -qc side; {STAGE}; git commit -qm agent; git switch -q main; git commit -q --allow-empty -m m; git merge -q --no-commit side",
        "git commit -qm mine",
    ),
}


@pytest.mark.parametrize(("script", "taken"), BECOMES_THE_USERS.values(), ids=BECOMES_THE_USERS)
async def test_commit_of_user_takes_nothing_over(script: str, taken: str, desk: Desk) -> None:
    await run(desk.coordinator, script)
    outside(taken, desk.folder)
    assert outside("git log -1 --format=%s", desk.folder).stdout == "mine\n"
    script = "git update-index --no-skip-worktree .envrc; git checkout HEAD -- .envrc; git checkout -- .envrc"
    await run(desk.coordinator, script)
    place = desk.folder / ".envrc"
    assert not place.exists() or "evil" not in place.read_text()


async def test_merge_of_user_counts(desk: Desk) -> None:
    """A person who merges a branch that the agent fetched has decided for its content."""
    await run(
        desk.coordinator, f"git switch -qc side; {STAGE}; git commit -qm theirs; git switch -q main"
    )
    outside("git merge -q --no-ff -m mine side; git switch -q -c before HEAD~1", desk.folder)
    await desk.run("git switch -q main")
    assert (desk.folder / ".envrc").read_text() == "evil\n"
