"""Attacks on protected places by what leads to them: configuration, links, second names, folders that move, and many of them."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import anyio
import pytest

from amplifier.errors import NoOneToAskError
from amplifier.models import HookResult
from amplifier.modules._shared.git_configuration import settings
from amplifier.modules._shared.protected_places import ProtectedPlaces
from amplifier.modules.tools.bash._options import BashOptions
from amplifier.modules.tools.bash._sandbox_paths import SandboxResolver, topmost
from tests.modules.tools.test_tool_bash_git import Desk, opened, outside
from tests.modules.tools.test_tool_bash_own_files import found_by_another_user
from tests.modules.tools.test_tool_bash_sandbox import BWRAP, _bubblewrap_on_the_path, run

__all__ = ["_bubblewrap_on_the_path"]

sandboxed = pytest.mark.skipif(BWRAP is None, reason="needs bubblewrap")


# ── git's configuration, as git reads it ──────────────────────────────────────────────────────────

CONFIGURATION = r"""
[core] hooksPath = a ; comment
	editor = "b # no comment" # comment
	pager = c\
d \
  e
	askPass = "f\"g\\h"  "i"
[Diff "X y"]textconv=sh conv.sh
[a.B]
key
	k2 =
 [filter "q\"r"] clean = l\tm
"""


def test_configuration_is_read_like_git() -> None:
    command = ["git", "config", "--file", "-", "-z", "--list"]
    for text in (CONFIGURATION, CONFIGURATION.replace("\n", "\r\n")):
        done = subprocess.run(command, input=text.encode(), capture_output=True, check=True)
        rows = [row.partition("\n") for row in done.stdout.decode().split("\0")[:-1]]
        assert [(key, value if is_given else None) for key, is_given, value in rows] == list(
            settings(text)
        )


# ── file tools ────────────────────────────────────────────────────────────────────────────────────

LED = {
    "a word without a slash": ("git config diff.x.textconv 'sh conv.sh'", "conv.sh"),
    "one that does not exist": (
        "git config filter.x.clean 'python tools/clean.py %f'",
        "tools/clean.py",
    ),
    "after a variable": ("git config alias.x '!sh $PWD/tools/x.sh'", "tools/x.sh"),
    "a module of a folder": (
        "mkdir tools; git config core.fsmonitor 'python tools'",
        "tools/__main__.py",
    ),
    "a quoted name": ("git config core.editor '\"my tools/ed\" -w'", "my tools/ed"),
    "a comment behind it": (
        "printf '[core]\\n hooksPath = tools # ours\\n' >> .git/config",
        "tools/pre-commit",
    ),
    "a continued line": (
        "printf '[core]\\n hooksPath = to\\\\\\nols\\n' >> .git/config",
        "tools/pre-commit",
    ),
    "the top as hooks": ("git config core.hooksPath .", "pre-commit"),
    "an include of an include": (
        "git config include.path ../a.cfg; git config -f a.cfg include.path b.cfg",
        "b.cfg",
    ),
    "a template": ("git config init.templateDir template", "template/hooks/pre-commit"),
    "a linked hook": ("ln -s ../../scripts/check .git/hooks/pre-commit", "scripts/check"),
    "a linked configuration": ("mv .git/config cfg; ln -s ../cfg .git/config", "cfg"),
    "beside a nested one": ("git config core.editor sub/ed; git init -q sub", "sub/ed"),
    "a nested one that names more": ("git init -q sub; git -C sub config core.editor ../ed", "ed"),
    "what a protected link leads to": ("mkdir conf; ln -s conf .vscode", "conf/tasks.json"),
    "what will be there": ("ln -s conf .vscode", "conf/tasks.json"),
    "a link in a place": ("mkdir .claude; ln -s ../more .claude/skills", "more/x/SKILL.md"),
    "a linked half of a name": ("mkdir conf; ln -s conf .cargo", "conf/config.toml"),
    "a linked half of a pattern": (
        "mkdir conf; touch conf/config.local.toml; ln -s conf mise",
        "conf/config.local.toml",
    ),
    "another case": ("git config diff.x.textconv 'sh conv.sh'", "Conv.SH"),
}


@pytest.mark.parametrize(("script", "path"), LED.values(), ids=LED)
def test_referenced_place_is_protected(script: str, path: str, tmp_path: Path) -> None:
    root = os.path.realpath(tmp_path)
    assert outside(f"git init -q . && {{ {script}; }}", tmp_path).returncode == 0
    places = ProtectedPlaces()
    assert places.judge(f"{root}/{path}", root=root).verdict == "ask"
    assert places.judge(f"{root}/src/a.py", root=root).verdict == "none"


def test_repository_above_folder_protects_inside(tmp_path: Path) -> None:
    root = f"{os.path.realpath(tmp_path)}/sub"
    outside(
        "git init -q .; mkdir sub; git config core.hooksPath sub; git config core.editor 'sh sub/ed'",
        tmp_path,
    )
    places = ProtectedPlaces()
    verdicts = [
        places.judge(f"{root}/{name}", root=root).verdict for name in ("pre-commit", "ed", "a.py")
    ]
    assert verdicts == ["ask", "ask", "none"]


def test_referenced_place_follows_its_reference(tmp_path: Path) -> None:
    """The configuration is in a folder that did not change."""
    root = os.path.realpath(tmp_path)
    outside("git init -q .; git config core.editor ./a", tmp_path)
    places = ProtectedPlaces()
    assert places.judge(f"{root}/a", root=root).verdict == "ask"
    outside("git config core.editor ./b", tmp_path)
    assert [places.judge(f"{root}/{name}", root=root).verdict for name in "ab"] == ["none", "ask"]


# ── mounts ────────────────────────────────────────────────────────────────────────────────────────


def finder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> SandboxResolver:
    (tmp_path / "home").mkdir()
    (tmp_path / "work").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    made = outside(script, tmp_path / "work")
    assert made.returncode == 0, made.stderr
    return SandboxResolver(BashOptions(), f"{os.path.realpath(tmp_path)}/work", ProtectedPlaces())


def test_first_repositories_are_mounted(tmp_path, monkeypatch):
    """Those that commands made are not."""
    found = finder(tmp_path, monkeypatch, "git init -q .; git init -q deep/down/here")
    workspace = found.workspace(f"{os.path.realpath(tmp_path)}/work")
    before = found.look(workspace)
    outside("for i in $(seq 60); do mkdir -p z$i/.git; done; git init -q made", tmp_path / "work")
    found.record_made(before, found.look(workspace), by_git=(), aside=())
    outside("for i in $(seq 60); do mkdir -p a$i; touch a$i/.envrc; done", tmp_path / "work")
    places = found.view(workspace, found.look(workspace))
    assert {f"{workspace}/.git", f"{workspace}/deep/down/here/.git"} <= {*places.protected}
    assert {*places.repositories} == {f"{workspace}/.git", f"{workspace}/deep/down/here/.git"}
    assert len([path for path in places.protected if path.startswith(workspace)]) == 50


def test_second_names_of_protected_files_are_found(tmp_path, monkeypatch):
    script = "mkdir .vscode src; echo x > .vscode/a; ln .vscode/a src/b; touch .envrc; ln .envrc c; touch d; ln d e"
    found = finder(tmp_path, monkeypatch, script)
    workspace = found.workspace(f"{os.path.realpath(tmp_path)}/work")
    places = found.view(workspace, found.look(workspace))
    inside = {
        path.removeprefix(f"{workspace}/")
        for path in places.protected
        if path.startswith(workspace)
    }
    assert inside == {".vscode", ".envrc", "src/b", "c"}


_CLOSED = """
import json, os, sys
from amplifier.modules._shared.protected_places import ProtectedPlaces
from amplifier.modules.tools.bash._git_files import open_up
root = sys.argv[1]
if os.geteuid() == 0:
    os.setgroups([]), os.setgid(65534), os.setuid(65534)
os.makedirs(f"{root}/d/e/.vscode")
os.chmod(f"{root}/d/e", 0o311), os.chmod(f"{root}/d", 0o111)
places, found = ProtectedPlaces(), []
for _ in range(3):
    swept = places.sweep.look([root])
    found.append([*swept.closed, *swept.places])
    [open_up(path) for path in swept.closed]
print(json.dumps(found))
"""


def test_unlistable_folder_is_opened_again() -> None:
    """Its names can be used by whoever knows them, so it could hide a repository."""
    with tempfile.TemporaryDirectory() as name:
        base = Path(name)
        (base / "tree").mkdir()
        (base / "tree").chmod(0o777)
        found = found_by_another_user(_CLOSED, base, "tree", f"{base}/tree")
    d = f"{base}/tree/d"
    assert found == [[d], [f"{d}/e"], [f"{d}/e/.vscode"]]


def test_topmost() -> None:
    assert topmost(["/a/b", "/a", "/a-b", "/a-b/c", "/b/c"]) == ["/a", "/a-b", "/b/c"]


# ── commands ──────────────────────────────────────────────────────────────────────────────────────

NAMING = "git config diff.x.textconv 'sh conv.sh'; echo '* diff=x' > .gitattributes; "
COMMANDS = {
    "a program of a setting": (f"{NAMING} echo cat > conv.sh", "cp evil conv.sh"),
    "a program that did not exist": (NAMING, "cp evil conv.sh"),
    "a program by a new folder": (f"{NAMING} git config diff.x.textconv t/c; mkdir t; printf '#!/bin/sh\\ncat' > t/c; chmod +x t/c",
                                  "mv t u; mkdir t; cp evil t/c"),
    "hooks in the work tree": ("git config core.hooksPath tools; mkdir tools", "cp evil tools/pre-commit; cp evil tools/post-checkout"),
    "hooks that did not exist": ("git config core.hooksPath tools", "mkdir tools; cp evil tools/pre-commit; cp evil tools/post-checkout"),
    "hooks behind a link": ("mkdir real; ln -s real tools; git config core.hooksPath tools",
                            "cp evil real/pre-commit; rm tools; mkdir tools; cp evil tools/pre-commit"),
    "a linked hook": ("mkdir s; printf '#!/bin/sh\\n' > s/h; chmod +x s/h; ln -s ../../s/h .git/hooks/pre-commit",
                      "cp evil s/h; mv s t; mkdir s; cp evil s/h"),
    "a hook's second name": ("printf '#!/bin/sh\\n' > h; chmod +x h; ln h .git/hooks/pre-commit", "cat evil > h"),
    "the 51st repository": ("for i in $(seq 55); do git init -q r$i; done; mkdir -p z/z; git init -q z/z/r; git -C z/z/r config core.hooksPath h",
                            "mkdir z/z/r/h; cp evil z/z/r/h/pre-commit; cp evil z/z/r/.git/hooks/pre-commit"),
    "a repository in a place": ("mkdir .run", "true\n--\nmkdir x; git init -q x/sub; git -C x/sub config core.fsmonitor $PWD/evil; mkdir .run2; mv x .idea"),
    "a repository in a repository": ("true", ("git init -q s; mkdir s/.git/t; git init -q s/.git/t; git -C s/.git/t config core.fsmonitor $PWD/evil;"
                                     " mkdir -p s/.git/objects/aa; git init -q s/.git/objects/aa; git -C s/.git/objects/aa config core.fsmonitor $PWD/evil")),
    "what was taken out comes back": ("true", ("git init -q s; git -C s config core.fsmonitor $PWD/evil\n--\n"
                                      "cd s/.git; mv config.amplifier-aside config; cd ..; mv .git x.amplifier-aside\n--\nmv s/x.amplifier-aside s/.git")),
    "sixty empty ones": ("git init -q deep/er/r", "for i in $(seq 60); do mkdir -p a$i/.git; done\n--\ngit -C deep/er/r config core.fsmonitor $PWD/evil"),
    "removed and made again": ("true", "git init -q s; rm -rf s; git init -q s\n--\nrm -rf s; git init -q s; git -C s config core.fsmonitor $PWD/evil"),
}  # fmt: skip
LOOKING = "git status; git diff; git log -1 -p; git add -A; git commit -q --allow-empty -m person; git checkout -q -b b$RANDOM"


# Each makes some sixty repositories. Which of many are mounted is also tested without commands, above.
_SLOW = ("the 51st repository", "sixty empty ones")


@sandboxed
@pytest.mark.parametrize(
    ("script", "command"),
    [
        pytest.param(*each, id=name, marks=[pytest.mark.slow] * (name in _SLOW))
        for name, each in COMMANDS.items()
    ],
)
async def test_command_plants_nothing_that_runs(
    script: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = tmp_path / "ran"
    desk = await prepared(tmp_path, monkeypatch, marker, script)
    for line in command.split("\n--\n"):
        await run(desk.coordinator, line)
    for folder in sorted(path.parent for path in desk.folder.rglob(".git")):
        outside(LOOKING, folder)
        assert not marker.exists(), folder


async def prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, marker: Path, script: str
) -> Desk:
    desk = await opened(tmp_path, monkeypatch)
    (desk.folder / "evil").write_text(f"#!/bin/sh\ntouch {marker}\nexec cat 2>/dev/null\n")
    (desk.folder / "evil").chmod(0o755)
    outside(script, desk.folder)
    outside(LOOKING, desk.folder)
    await anyio.Path(marker).unlink(missing_ok=True)
    return desk


class Asked:
    """Answers the questions of a tool, and looks whether a place exists meanwhile."""

    def __init__(self, desk: Desk, monkeypatch: pytest.MonkeyPatch, *, answer: str | None) -> None:
        self.questions: list[str] = []
        self.there: list[bool] = []
        self.place = desk.folder / "deep" / ".vscode"
        self._answer = answer
        monkeypatch.setattr(desk.coordinator, "process_hook_result", self._process)

    async def _process(
        self, result: HookResult, event: str, hook_name: str = "unknown"
    ) -> HookResult:
        if result.action != "ask_user":
            return result
        self.questions.append(str(result.approval_prompt))
        self.there.append(self.place.exists())
        if self._answer is None:
            raise NoOneToAskError("no one")
        return (
            HookResult(action="continue")
            if self._answer == "Keep"
            else HookResult(action="deny", reason="no")
        )


@sandboxed
@pytest.mark.parametrize("answer", ["Keep", "Leave aside", None])
async def test_files_obeyed_elsewhere_wait_for_consent(answer, tmp_path, monkeypatch):
    desk = await opened(tmp_path, monkeypatch)

    async def lets_pass(tool: str, given: object) -> bool:
        return True

    # The rules about commands are no answer to this question.
    desk.coordinator.register_capability("approval.lets_pass", lets_pass)
    asked = Asked(desk, monkeypatch, answer=answer)
    made = "mkdir -p deep/.vscode && echo x > deep/.vscode/tasks.json && touch .envrc && ln -s deep .cursor"
    output = await desk.run(made)
    assert asked.there == [False]
    assert all(
        f"{desk.folder}/{name} (" in asked.questions[0]
        for name in ("deep/.vscode", ".envrc", ".cursor")
    )
    assert all(str(asked.place) in note for note in output["protected"] if "vscode" in note)
    assert len(output["protected"]) == 3
    is_kept = answer == "Keep"
    assert [asked.place.exists(), (desk.folder / ".envrc").exists()] == [is_kept, is_kept]
    assert (desk.folder / "deep" / ".vscode.amplifier-aside" / "tasks.json").exists() is not is_kept
    assert "protected" not in await desk.run("true")
    if is_kept:
        await desk.fail("echo y > deep/.vscode/tasks.json")
    else:
        await desk.run("mv deep/.vscode.amplifier-aside deep/.vscode")
        assert len(asked.questions) == 2
        assert not asked.place.exists()


@sandboxed
async def test_work_tree_and_clone_keep_places(tmp_path, monkeypatch):
    """They say what they said before, and what a command made can be removed again."""
    desk = await opened(tmp_path, monkeypatch)
    outside(
        "mkdir .vscode; echo x > .vscode/tasks.json; git add .; git commit -qm two", desk.folder
    )
    asked = Asked(desk, monkeypatch, answer=None)
    await desk.run("git worktree add -q deep -b t")
    await desk.run("git clone -q . copy && cd copy && git commit -q --allow-empty -m n")
    assert asked.questions == []
    assert asked.place.exists()
    await desk.run("git -C copy config user.name Bob && rm -rf copy deep && git worktree prune")
    assert not (desk.folder / "copy").exists()
    await desk.run("mkdir deep && cp -r .vscode deep && echo y > deep/.vscode/tasks.json")
    assert len(asked.questions) == 1


@sandboxed
async def test_more_places_than_mounts_are_compared(tmp_path, monkeypatch):
    desk = await opened(tmp_path, monkeypatch)
    outside(
        "for i in $(seq 10 70); do mkdir -p d$i/.vscode; echo x > d$i/.vscode/a; done", desk.folder
    )
    asked = Asked(desk, monkeypatch, answer=None)
    output = (await run(desk.coordinator, "for d in d*; do echo y > $d/.vscode/a; done")).output
    assert len(output["protected"]) == len(asked.questions[0].splitlines()) - 1 == 61 - 49
    left = [path.read_text() for path in desk.folder.glob("d*/.vscode/a")]
    assert left == ["x\n"] * 49
