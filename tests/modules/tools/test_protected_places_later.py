"""Attacks on the look after a command: what git is still to do, commands at the same time, and files that stop the look."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import anyio
import pytest

from amplifier.modules._shared.git_configuration import real_path
from amplifier.modules._shared.git_configuration import settings as read_settings
from amplifier.modules.tools import bash as tool_bash
from amplifier.modules.tools.bash._aside import keep_aside
from amplifier.modules.tools.bash._git_files import _OPTIONS, findings, is_harmless
from amplifier.modules.tools.bash._git_profile import _subcommand
from amplifier.testing import TestCoordinator
from tests.modules.tools.test_protected_places_attacks import Asked
from tests.modules.tools.test_tool_bash_git import Desk, opened, outside
from tests.modules.tools.test_tool_bash_sandbox import (
    SANDBOXES,
    _bubblewrap_on_the_path,
    in_bubblewrap,
    run,
)

__all__ = ["_bubblewrap_on_the_path"]


@pytest.fixture(params=SANDBOXES)
async def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    return await opened(tmp_path, monkeypatch)


async def another(desk: Desk) -> Desk:
    """Open a second session in the same folder."""
    coordinator = TestCoordinator()
    config = {"working_dir": str(desk.folder), "sandbox": "bwrap"}
    await tool_bash.mount(coordinator, config)
    return Desk(desk.folder, coordinator)


async def until(path: Path) -> None:
    while not path.exists():  # noqa: ASYNC110, ASYNC240 - made by another process
        await anyio.sleep(0.02)


# ── what git is still to do ──────────────────────────────────────────────────────────────────────

TRACKED_HOOKS = (
    "mkdir .githooks; echo x > .githooks/README; git add .; git commit -qm hooks; git config core.hooksPath .githooks;"
    " git checkout -qb side; echo side > file; git commit -qam side; git checkout -q main; echo main > file; git commit -qam m"
)
# A commit of the agent's with hooks that the work tree does not have.
PLANT = """
b=$(printf '#!/bin/sh\\ntouch {marker}\\n' | git hash-object -w --stdin)
git branch work side; git symbolic-ref HEAD refs/heads/work; git reset -q side
for h in post-rewrite post-checkout post-commit prepare-commit-msg pre-commit; do
    git update-index --add --cacheinfo 100755,$b,.githooks/$h
done
tree=$(git write-tree); git update-ref refs/heads/work $(git commit-tree -p side -m agent $tree)
git symbolic-ref HEAD refs/heads/main; git reset -q main
"""
STEPS = {
    "a rebase": "git rebase main work",
    "a rebase by patches": "git rebase --apply main work",
    "a rebase by large patches": "seq 300000 > big; big=$(git hash-object -w big); rm big; git read-tree $tree; git update-index --add --cacheinfo 100644,$big,big;"
    " tree=$(git write-tree); git reset -q; git update-ref refs/heads/work $(git commit-tree -p side -m agent $tree); git rebase --apply main work",
    "a whole tree": "git rebase --rebase-merges main work",
    "a stash of a merge": "git update-ref MERGE_AUTOSTASH $(git commit-tree -p HEAD -p HEAD -m wip $tree)",
    "untracked files of a stash": "u=$(git commit-tree -m u $tree); git update-ref MERGE_AUTOSTASH $(git commit-tree -p HEAD -p HEAD -p $u -m wip HEAD^{tree})",
    "a cherry-pick": "git cherry-pick side work",
    "by a work tree that is gone": "mkdir t; git --git-dir=.git --work-tree=t update-ref MERGE_AUTOSTASH $(/usr/bin/git rev-parse work); rmdir t",
}
GOING_ON = (
    "echo done > file; git add file; git rebase --continue; git commit -qam person; git cherry-pick --continue;"
    " git checkout -q -b b2; git commit -q --allow-empty -m z"
)


@pytest.mark.parametrize("command", STEPS.values(), ids=STEPS)
async def test_going_on_with_what_the_agent_began_runs_nothing(
    command: str, desk: Desk, tmp_path: Path
) -> None:
    marker = tmp_path / "ran"
    outside(TRACKED_HOOKS, desk.folder)
    result = await run(desk.coordinator, PLANT.replace("{marker}", str(marker)) + command)
    assert "its steps write" in str(result.output["protected"]), result
    outside(GOING_ON, desk.folder, GIT_EDITOR="true")
    assert not marker.exists()
    assert sorted(os.listdir(desk.folder / ".githooks")) == ["README"]


async def test_steps_of_a_repository_of_the_agents(desk: Desk) -> None:
    """Nothing tells it from the user's once a person works in it."""
    make = "git init -q -b main r; cd r; echo 1 > f; git add f; git commit -qm 1; git checkout -qb side; echo 2 > f; git commit -qam 2;"
    make += "b=$(echo evil | git hash-object -w --stdin); git update-index --add --cacheinfo 100644,$b,.envrc; git commit -qm 3;"
    make += "git checkout -q -f main; echo 3 > f; git commit -qam 4; git rebase main $(git rev-parse side)"
    result = await run(desk.coordinator, make)
    assert "git-rebase-todo: was renamed" in str(result.output["protected"]), result
    outside("echo 4 > f; git add f; GIT_EDITOR=true git rebase --continue", desk.folder / "r")
    assert not (desk.folder / "r" / ".envrc").exists()


async def test_an_ordinary_rebase_goes_on_in_the_next_command(desk: Desk) -> None:
    outside("echo e > .envrc; git add .; git commit -qm envrc", desk.folder)
    await desk.run(
        "git switch -q -c a; echo a > file; git commit -qam a; echo b > other; git add .; git commit -qm b;"
        " git switch -q main; echo c > file; git commit -qam c"
    )
    output = await desk.fail("git rebase main a")
    assert "protected" not in output
    output = await desk.run("echo d > file; git add file; git rebase --continue")
    assert "protected" not in output
    assert outside("git log --format=%s", desk.folder).stdout.split()[:2] == ["b", "a"]


EVIL = "b=$(echo evil | git hash-object -w --stdin)"
EVIL_TREE = f'{EVIL}; t=$( (git ls-tree HEAD; printf "100644 blob $b\\t.envrc\\n") | git mktree)'
IN_CONFLICT = (
    "git checkout -qb top; echo x > file; git commit -qam conflict; echo good > .envrc; git add .; git commit -qm env;"
    " git checkout -q main; echo y > file; git commit -qam y; git checkout -q top; git rebase -q main"
)
WITH_LABELS = (
    "git checkout -qb side; echo s > s; git add .; git commit -qm s; git checkout -qb top main; echo x > file; git commit -qam conflict;"
    " git merge -q side -m merge; git checkout -q main; echo y > file; git commit -qam y; git checkout -q top; git rebase -q -r main"
)
SAME_CONFLICT = (
    "echo base > .envrc; git add .; git commit -qm base; git checkout -qb top; echo t > .envrc; git commit -qam t; git checkout -q main;"
    " echo m > .envrc; git commit -qam m; git checkout -qb top2 top~1; echo x > file; git commit -qam conflict; git cherry-pick top;"
    " git checkout -q main; echo y > file; git commit -qam y; git checkout -q top2; git rebase -q main"
)
SHRUNK = (
    "seq 9 > {place}; git add .; git commit -qm 9; git checkout -qb top; echo x > file; git commit -qam conflict; sed -i s/9/ten/ {place};"
    " git commit -qam ten; git checkout -q main; git rm -q --cached {place}; mv {place} kept; echo y > file; git commit -qam y; rm kept; git checkout -q -f top;"
    " git rebase -q main"
)
UNDER_IT = (
    "git checkout --theirs file; git add file; git commit -qm step; b=$( (echo evil; git show main~1:{place}) | git hash-object -w --stdin);"
    ' t=$( (git ls-tree HEAD; printf "100644 blob $b\\t.envrc\\n") | git mktree); git reset -q --soft $(git commit-tree -p HEAD -m x $t);'
    " git read-tree HEAD; git update-index --skip-worktree .envrc"
)
SOLVE = (
    "git worktree add -q w main~2; cd w; git checkout -qb q1; echo base > f; git add f; git commit -qm 1; git checkout -qb q2; echo t > f;"
    " git commit -qam 2; git checkout -q q1; echo m > f; git commit -qam 3; git config rerere.enabled true;"
    " git config rerere.autoUpdate true; git merge -q q2; echo evil > f; git add f; git rerere"
)
STANDING_IN = {
    "another content": (IN_CONFLICT, f"{EVIL}; git replace $(git rev-parse top:.envrc) $b"),
    "another commit": (
        IN_CONFLICT,
        f"{EVIL_TREE}; git replace top $(git commit-tree -p top~1 -m x $t)",
    ),
    "another tree": (IN_CONFLICT, f"{EVIL_TREE}; git replace $(git rev-parse top^{{tree}}) $t"),
    "a packed ref": (
        IN_CONFLICT,
        f"{EVIL}; git update-ref refs/replace/a/$(git rev-parse top:.envrc) $b; git pack-refs --all",
    ),
    "other labels": (
        WITH_LABELS,
        f"{EVIL_TREE}; c=$(git commit-tree -p side -m x $t); for r in $(git for-each-ref --format='%(refname)' refs/rewritten); do git update-ref $r $c; done",
    ),
    "another beginning": (
        SHRUNK.replace("{place}", ".envrc"),
        UNDER_IT.replace("{place}", ".envrc"),
    ),
    "another name": (SHRUNK.replace("{place}", "notes"), UNDER_IT.replace("{place}", "notes")),
    "a solved conflict": (
        SAME_CONFLICT,
        SOLVE,
    ),
}


@pytest.mark.parametrize(("begun", "command"), STANDING_IN.values(), ids=STANDING_IN)
async def test_users_steps_write_users_content(begun: str, command: str, desk: Desk) -> None:
    """The steps are the person's, and what they stand for is the agent's."""
    outside(begun, desk.folder)
    result = await run(desk.coordinator, command)
    assert result.output["protected"], result
    outside("git checkout --theirs file; git add file", desk.folder)
    outside("git rebase --continue; git rebase --continue", desk.folder, GIT_EDITOR="true")
    place = desk.folder / ".envrc"
    assert not place.exists() or "evil" not in place.read_text()


async def test_a_replacement_of_the_user_stays(desk: Desk) -> None:
    outside(
        "git replace HEAD $(git commit-tree -m other HEAD^{tree}); git pack-refs --all", desk.folder
    )
    before = outside("git replace -l", desk.folder).stdout
    assert before
    output = await desk.run("git tag v1; git pack-refs --all")
    assert "protected" not in output
    await desk.run(
        "git replace $(git rev-parse HEAD^{tree}) $(git hash-object -w -t tree /dev/null); git pack-refs --all"
    )
    assert outside("git replace -l", desk.folder).stdout == before
    assert outside("git tag; git fsck --no-dangling", desk.folder).stdout == "v1\n"


async def test_patches_of_a_rebase_are_steps(desk: Desk) -> None:
    """git goes on with them as with a rebase, and writes what they say."""
    patch = "From: A <a@b>\nSubject: x\n\n---\ndiff --git a/.envrc b/.envrc\nnew file mode 100644\n--- /dev/null\n+++ b/.envrc\n@@ -0,0 +1 @@\n+evil\n--\n2\n"
    (desk.folder / "patch").write_text(patch)
    make = "git init -q -b main r; cd r; echo 1 > f; git add f; git commit -qm 1; mkdir .git/rebase-apply; cd .git/rebase-apply;"
    make += " cp ../../../patch 0001; cp 0001 0002; echo 1 > next; echo 2 > last; for i in threeway quiet sign keep messageid; do echo f > $i; done;"
    make += " echo t > utf8; : > apply-opt; echo m > final-commit; echo refs/heads/main > head-name; git rev-parse HEAD > onto; cp onto orig-head; cp onto abort-safety;"
    make += r""" printf "GIT_AUTHOR_NAME='a'\nGIT_AUTHOR_EMAIL='a@b'\nGIT_AUTHOR_DATE='@1234567890 +0000'\n" > author-script; echo 2 > ../../f"""
    output = await desk.run(make)
    assert "0002: was renamed" in str(output.get("protected")), output
    outside("git add f; GIT_EDITOR=true git rebase --continue", desk.folder / "r")
    assert not (desk.folder / "r" / ".envrc").exists()


PROMPT = "/usr/lib/git-core/git-sh-prompt"


@pytest.mark.parametrize(
    "name", ["rebase-merge/msgnum", "rebase-merge/end", "rebase-apply/next", "rebase-apply/last"]
)
async def test_a_prompt_shows_numbers_only(name: str, desk: Desk, tmp_path: Path) -> None:
    """A shell expands its prompt, and git's own script for it puts these texts there."""
    await desk.run(
        f"git init -q -b main r; cd r/.git; mkdir rebase-merge rebase-apply; rmdir {'rebase-apply' if 'merge' in name else 'rebase-merge'};"
        f" for i in msgnum end next last; do echo 1 > {name.partition('/')[0]}/$i; done; echo refs/heads/x > rebase-merge/head-name;"
        f" echo '$(touch {tmp_path}/ran)' > {name}"
    )
    outside(f"bash -c '. {PROMPT}; __git_ps1 A B; : \"${{PS1@P}}\"'", desk.folder / "r")
    assert not (tmp_path / "ran").exists()
    assert not (desk.folder / "r" / ".git" / name).exists()


async def test_steps_of_the_user_stay(desk: Desk) -> None:
    outside(
        "git checkout -qb side; echo side > file; git commit -qam s; echo e > .envrc; git add .; git commit -qm e;"
        " git checkout -q main; echo main > file; git commit -qam m; git rebase main side",
        desk.folder,
    )
    output = await desk.run("echo done > file; git add file")
    assert "protected" not in output
    outside("GIT_EDITOR=true git rebase --continue", desk.folder)
    assert (desk.folder / ".envrc").read_text() == "e\n"


# ── commands at the same time ────────────────────────────────────────────────────────────────────

MANY = (
    "for i in $(seq 60); do mkdir -p a$i/.git/objects a$i/.git/refs; echo ref: refs/heads/x > a$i/.git/HEAD; done;"
    " mkdir n; cd n; git init -q; git config core.fsmonitor ./evil; touch ../planted;"
    " while [ ! -e ../started ]; do sleep .05; done"
)
BACK = (
    "touch started; while [ ! -e n/.git/config.amplifier-aside ]; do sleep .05; done; sleep .2;"
    " cp n/.git/config.amplifier-aside n/.git/config"
)


@pytest.mark.parametrize("is_same", [True, False], ids=["one session", "two sessions"])
async def test_a_command_does_not_bring_back_what_another_one_lost(
    is_same: bool, desk: Desk
) -> None:
    other = desk if is_same else await another(desk)

    async def bring_back() -> None:
        await until(desk.folder / "planted")
        await other.run(BACK)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(bring_back)
            await desk.run(MANY)
    assert "fsmonitor" not in (desk.folder / "n/.git/config").read_text()


# It lists the changed files at its end, and waits until someone reads them.
HANGING = "git checkout agent | (while [ ! -e seen ]; do sleep .05; done; cat > /dev/null)"


@pytest.mark.parametrize("is_same", [True, False], ids=["one session", "two sessions"])
async def test_a_file_that_a_call_is_writing_is_not_the_users(is_same: bool, desk: Desk) -> None:
    """The call waits for a full pipe, with the agent's content in place."""
    outside(
        "echo user > .envrc; mkdir m; for i in $(seq 2500); do echo > m/a-file-with-a-long-name-for-a-long-list-$i; done;"
        " git add .; git commit -qm two",
        desk.folder,
    )
    await desk.run(
        "b=$(echo evil | git hash-object -w --stdin); git update-index --cacheinfo 100644,$b,.envrc; t=$(git write-tree);"
        " git reset -q; git update-ref refs/heads/agent $(git commit-tree -p HEAD -m agent $t); for f in m/*; do echo 2 > $f; done"
    )
    other = desk if is_same else await another(desk)

    async def take_it_for_known() -> None:
        while (desk.folder / ".envrc").read_text() == "user\n":  # noqa: ASYNC110 - as above
            await anyio.sleep(0.01)
        await run(
            other.coordinator,
            "git hash-object -w file; touch seen; sleep 1; git checkout -q -f main; git checkout -q -f agent",
        )

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(take_it_for_known)
            await run(desk.coordinator, HANGING)
    assert (desk.folder / ".envrc").read_text() == "user\n"


async def test_a_number_of_a_removed_place_is_no_proof(desk: Desk) -> None:
    """File systems give the number of a removed file to the next one."""
    outside("git worktree add -q wt", desk.folder)
    numbers = [(desk.folder / name).stat().st_ino for name in ("wt/.git", ".git/worktrees/wt")]
    find = (
        f"for n in $(seq 40); do mkdir d$n; i=$(stat -c %i d$n);"
        f" [ $i = {numbers[0]} -o $i = {numbers[1]} ] && break; done; mv d$n .git"
    )
    await desk.run(
        f"git worktree remove --force wt; mkdir wt; cd wt; {find}; /usr/bin/git init -q; /usr/bin/git config core.fsmonitor ./x"
    )
    assert "fsmonitor" not in (desk.folder / "wt/.git/config").read_text()


async def test_what_a_command_changed_is_no_pattern(desk: Desk) -> None:
    made = "mkdir -p .claude/.vscode; echo 1 > .claude/.vscode/settings.json"
    outside(made, desk.folder)
    await desk.run("mkdir e; cp -r .claude e/.claude")
    await desk.run(
        "echo evil > e/.claude/.vscode/settings.json; mkdir g; cp -r e/.claude/.vscode g"
    )
    assert not (desk.folder / "g" / ".vscode").exists()


def test_what_was_changed_after_it_was_asked_about_stays_aside(tmp_path: Path) -> None:
    place = tmp_path / ".vscode"
    place.mkdir()
    (place / "tasks.json").write_text("harmless")
    aside = keep_aside(str(place), "reason")
    (tmp_path / aside.name / "tasks.json").write_text("evil")
    assert not aside.put_back()
    assert not place.exists()
    aside = keep_aside(str(tmp_path / aside.name), "reason")
    assert aside.put_back()


# ── files that stop the look ─────────────────────────────────────────────────────────────────────

STOPPING = {
    "NUL in a path": "printf '[include]\\n\\tpath = \"x\\0y\"\\n' >> .git/config",
    "a long chain of links": "cd ..; mkdir l; /usr/bin/python3 -c \"import os; [os.symlink(f'l{i+1}', f'l/l{i}') for i in range(3000)]\"; ln -s l/l0 .vscode",
    "many blanks": "/usr/bin/python3 -c \"print('[' + ' ' * 1000000)\" > .git/config",
    "many options": "mkdir .git/sequencer; /usr/bin/python3 -c \"print('edit= ' * 60 + '!')\" > .git/sequencer/opts",
    "many folders": "mkdir .git/modules; cd .git/modules; mkdir $(seq 2100)",
}


@pytest.mark.parametrize("command", STOPPING.values(), ids=STOPPING)
async def test_nothing_stops_the_look(command: str, desk: Desk) -> None:
    await run(
        desk.coordinator,
        f"git init -q zz; git -C zz config core.fsmonitor ./evil; git init -q a; cd a; {command}",
    )
    assert "fsmonitor" not in (desk.folder / "zz/.git/config").read_text()


def test_a_module_behind_many_folders_is_judged(tmp_path: Path) -> None:
    outside(
        "git init -q .; cd .git; mkdir modules; cd modules; mkdir $(seq 2100); mkdir z z/z; git init -q --bare z/z/e;"
        " git -C z/z/e config core.fsmonitor ./x",
        tmp_path,
    )
    reasons = [each.reason for each in findings(f"{os.path.realpath(tmp_path)}/.git")]
    assert reasons == ["core.fsmonitor=./x"]


def test_texts_are_read_in_linear_time() -> None:
    assert read_settings("[" + " " * 1_000_000) == ()
    assert _OPTIONS.fullmatch("edit= " * 100_000 + "!") is None
    assert _OPTIONS.fullmatch("[options]\n\tedit = true\n\tallow-ff = true\n") is not None


def test_a_chain_of_links_has_its_own_place(tmp_path: Path) -> None:
    for number in range(3000):
        (tmp_path / f"l{number}").symlink_to(f"l{number + 1}")
    assert real_path(f"{tmp_path}/l0") == f"{tmp_path}/l0"


# ── others ───────────────────────────────────────────────────────────────────────────────────────


@in_bubblewrap
async def test_a_folder_that_is_closed_for_writing_keeps_nothing(tmp_path, monkeypatch):
    """As root it never was; `test_ordinary_user` runs this as a user."""
    desk = await opened(tmp_path, monkeypatch)
    asked = Asked(desk, monkeypatch, answer=None)
    await desk.run(
        "mkdir d e; echo evil > d/.envrc; chmod 555 d; mkdir e/.vscode; chmod 0 e/.vscode; chmod 555 e"
    )
    assert len(asked.questions) == 1
    assert not (desk.folder / "d/.envrc").exists()
    assert not (desk.folder / "e/.vscode").exists()
    await desk.run("chmod 755 d e e/.vscode*")


@in_bubblewrap
async def test_what_a_shell_obeys_in_a_home_that_is_the_folder(tmp_path, monkeypatch):
    home = tmp_path / "home"
    desk = await opened(tmp_path, monkeypatch)
    coordinator = TestCoordinator()
    await tool_bash.mount(coordinator, {"working_dir": str(home), "sandbox": "bwrap"})
    there = Desk(home, coordinator)
    asked = Asked(there, monkeypatch, answer=None)
    names = [".bash_aliases", ".inputrc", ".xsessionrc", ".tmux.conf", ".emacs.d", "bin"]
    await there.run(f"touch {' '.join(names[:4])}; mkdir -p .emacs.d bin src/bin; echo x > bin/git")
    assert [name for name in names if (home / name).exists()] == []
    assert (home / "src/bin").exists()
    assert len(asked.questions[0].splitlines()) == 1 + len(names)
    assert desk.folder.exists()


async def test_the_transports_of_plumbing_start_no_program(desk: Desk) -> None:
    for call in ("fetch-pack --upload-pack=x", "fetch-pack --exec=x", "send-pack --receive-pack=x"):
        output = await desk.fail(f"git {call} . fetch")
        assert "names a program" in output["stderr"]


def test_the_shell_is_for_transports_only() -> None:
    assert _subcommand(["-c", "a.b=push", "--no-pager", "commit", "-m", "push"]) == "commit"
    assert _subcommand(["push", "origin"]) == "push"
    assert _subcommand(["-c"]) == ""


def test_hooks_of_git_flow_are_programs() -> None:
    assert is_harmless("gitflow.branch.develop", "dev")
    assert not is_harmless("gitflow.path.hooks", "hooks")
