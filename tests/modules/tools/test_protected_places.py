"""Protected places: the list, and that no file tool changes one without a question in any mode."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import amplifier
from amplifier import AmplifierSession, HookResult, PlanError
from amplifier.modules._shared.protected_places import (
    ENTRIES,
    ProtectedPlaces,
    own_places,
    protected_places,
)
from amplifier.modules.hooks.approval import MODES
from amplifier.modules.tools import filesystem as tool_filesystem
from amplifier.testing import MockProvider, TestCoordinator
from tests._support.tree import ROOT

PLACES = ProtectedPlaces()


def real(path: Path) -> str:
    return os.path.realpath(path)


def existing(folder: Path | str, places: ProtectedPlaces = PLACES) -> set[str]:
    """Return the places in a folder that are not in another one of them."""
    found = places.sweep.look([str(folder)]).places
    return {path for path in found if not any(path.startswith(f"{each}/") for each in found)}


def git(folder: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "protocol.file.allow=always")
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A real repository with one commit."""
    folder = Path(os.path.realpath(tmp_path)) / "project"
    folder.mkdir()
    git(folder, "init", "-q")
    git(folder, "commit", "-q", "--allow-empty", "-m", "first")
    return folder


# ── the list ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "path",
    [
        *(
            ".git",
            ".git/config",
            ".git/hooks/pre-commit",
            "vendor/x/.git/config",
            "sub/.git",
            ".GIT/config",
        ),
        *(
            ".g\u200dit/config",
            ".amplifier/settings.yaml",
            ".envrc",
            "a/b/.envrc",
            ".mcp.json",
            ".claude/settings.json",
        ),
        *(
            ".vscode/tasks.json",
            "deep/down/.VSCode/settings.json",
            ".idea/workspace.xml",
            ".devcontainer.json",
        ),
        *(
            ".devcontainer/devcontainer.json",
            ".cursor/mcp.json",
            ".windsurf/x",
            ".kiro/settings/mcp.json",
            ".roo/mcp.json",
        ),
        *(
            "opencode.json",
            ".husky/pre-commit",
            ".pre-commit-config.yaml",
            ".yarnrc.yml",
            ".github/hooks/x.json",
        ),
        *(
            ".venv/lib/python3.11/site-packages/x.pth",
            "env/lib/site-packages/x.pth",
            "sitecustomize.py",
        ),
    ],
)
def test_obeyed_places_are_asked_about(path: str, tmp_path: Path) -> None:
    root = os.path.realpath(tmp_path)
    assert PLACES.judge(f"{root}/{path}", root=root).verdict == "ask"


@pytest.mark.parametrize(
    "path",
    [
        *(
            "README.md",
            "src/a.py",
            ".gitignore",
            ".gitattributes",
            ".github/workflows/ci.yml",
            ".config/x",
            "git/config",
        ),
        *(
            "package.json",
            "Makefile",
            "AGENTS.md",
            "head/x",
            "site-packages/readme.txt",
            "[.git]/x",
            ".env",
            "x.pth",
        ),
    ],
)
def test_ordinary_files_are_not_asked_about(path: str, tmp_path: Path) -> None:
    root = os.path.realpath(tmp_path)
    assert PLACES.judge(f"{root}/{path}", root=root).verdict == "none"


def test_own_environment_is_refused() -> None:
    for path in (
        f"{sys.prefix}/x.pth",
        sys.executable,
        str(Path(amplifier.__file__).parent / "x.py"),
    ):
        assert PLACES.judge(os.path.realpath(path)).verdict == "refuse"
    assert (
        ProtectedPlaces(allowed=(sys.prefix,)).judge(f"{os.path.realpath(sys.prefix)}/x").verdict
        == "refuse"
    )
    assert os.path.realpath(sys.prefix) in own_places()


def test_name_above_root_protects_nothing(tmp_path: Path) -> None:
    root = os.path.realpath(tmp_path) + "/.cursor/worktrees/x"
    assert PLACES.judge(f"{root}/a.py", root=root).verdict == "none"
    assert PLACES.judge(f"{root}/a.py").verdict == "ask"


def test_bare_layout_is_protected_once_complete(tmp_path: Path) -> None:
    root = os.path.realpath(tmp_path)
    bare = Path(root, "fixtures")
    (bare / "objects").mkdir(parents=True)
    assert PLACES.judge(f"{bare}/HEAD", root=root).verdict == "none"
    (bare / "HEAD").touch()
    assert PLACES.judge(f"{bare}/config", root=root).verdict == "none"
    assert PLACES.judge(f"{bare}/refs/keep", root=root).verdict == "ask"
    assert PLACES.judge(f"{bare}/commondir", root=root).verdict == "ask"
    (bare / "refs").mkdir()
    assert PLACES.judge(f"{bare}/config", root=root).verdict == "ask"


def test_bare_repository_and_separate_git_folder(tmp_path: Path, repository: Path) -> None:
    root = os.path.realpath(tmp_path)
    git(tmp_path, "init", "-q", "--bare", "x")
    git(tmp_path, "init", "-q", "--separate-git-dir", f"{root}/data", "tree")
    git(repository, "worktree", "add", "-q", f"{root}/second")
    for path in (
        "x/config",
        "data/config",
        "tree/.git",
        "second/.git",
        "project/.git/worktrees/second/gitdir",
    ):
        assert PLACES.judge(f"{root}/{path}", root=root).verdict == "ask", path
    assert existing(f"{root}/tree") == {f"{root}/tree/.git", f"{root}/data"}
    # What the pointer of a worktree leads to is outside of the folder.
    assert f"{root}/project/.git" in existing(f"{root}/second")


def test_places_named_by_git_configuration(repository: Path) -> None:
    for name in ("tools/hooks/x", "filter.sh", "more.config", "src/a.py"):
        (repository / name).parent.mkdir(parents=True, exist_ok=True)
        (repository / name).touch()
    git(repository, "config", "core.hooksPath", "tools/hooks")
    git(repository, "config", "filter.f.clean", "sh ./filter.sh %f")
    git(repository, "config", "include.path", "../more.config")
    git(repository, "config", "remote.origin.url", f"{repository}/src")
    root = str(repository)
    for path in ("tools/hooks/pre-commit", "filter.sh", "more.config"):
        assert PLACES.judge(f"{root}/{path}", root=root).verdict == "ask", path
    assert PLACES.judge(f"{root}/src/a.py", root=root).verdict == "none"
    found = {path.removeprefix(f"{root}/") for path in existing(root)}
    assert found == {".git", "tools/hooks", "filter.sh", "more.config"}


def test_existing_places_are_found_at_any_depth(repository: Path) -> None:
    git(repository, "init", "-q", "vendor/deep/nested")
    git(repository, "init", "-q", "--bare", "fixtures/bare.git")
    for name in (
        ".envrc",
        "services/api/.vscode/tasks.json",
        "a/.github/hooks/x",
        "a/.github/workflows/x",
    ):
        (repository / name).parent.mkdir(parents=True, exist_ok=True)
        (repository / name).touch()
    (repository / "real.json").touch()
    (repository / ".mcp.json").symlink_to("real.json")
    found = {path.removeprefix(f"{repository}/") for path in existing(repository)}
    assert found == {
        *(
            ".git",
            "vendor/deep/nested/.git",
            "fixtures/bare.git",
            ".envrc",
            "services/api/.vscode",
            "a/.github/hooks",
        ),
        *(".mcp.json", "real.json"),
    }


def test_fifo_instead_of_configuration_is_not_awaited(repository: Path) -> None:
    (repository / ".git" / "config").unlink()
    os.mkfifo(repository / ".git" / "config")
    os.mkfifo(repository / ".git" / "commondir")
    assert PLACES.judge(f"{repository}/a.py", root=str(repository)).verdict == "none"
    assert existing(repository) == {f"{repository}/.git"}


def test_plan_adds_and_allows(tmp_path: Path) -> None:
    root = os.path.realpath(tmp_path)
    value = {"add": ["deploy/*.sh", f"{root}/keys"], "allow": [".vscode", ".git/info"]}
    places = protected_places(TestCoordinator(config={"session": {"protected_places": value}}))
    verdicts = {
        path: places.judge(f"{root}/{path}", root=root).verdict
        for path in (
            "a/deploy/x.sh",
            "keys/x",
            "b/keys/x",
            "b/.vscode/x",
            ".git/info/exclude",
            ".git/config",
        )
    }
    assert list(verdicts.values()) == ["ask", "ask", "none", "none", "none", "ask"]
    for wrong in ({"ad": [".x"]}, {"add": ["../x"]}, {"add": "x"}, [".x"]):
        with pytest.raises(PlanError, match=r"\$\.session\.protected_places"):
            protected_places(TestCoordinator(config={"session": {"protected_places": wrong}}))


def test_documentation_names_every_entry() -> None:
    page = (ROOT / "docs" / "explanation" / "security.md").read_text()
    words = set(
        page.partition("```text")[2].partition("```")[0].replace(",", " ").replace(";", " ").split()
    )
    assert sorted(set(ENTRIES) - words) == []


# ── file tools in every mode ──────────────────────────────────────────────────────────────────────


class Person:
    """Answers questions about tool calls, and keeps them."""

    def __init__(self, answer: str = "Deny") -> None:
        self.answer = answer
        self.questions: list[str] = []

    async def request_approval(
        self, prompt: str, options: list[str], timeout: float, default: str
    ) -> str:
        self.questions.append(prompt)
        return self.answer


def plan(
    *calls: tuple[str, dict[str, Any]], mode: str | None = "full", **session: Any
) -> dict[str, Any]:
    hooks = []
    if mode is not None:
        approval = {"rules": MODES[mode][1], "use_default_rules": True}
        hooks = [{"module": "hooks-approval", "on_failure": "deny", "config": approval}]
    return {
        "session": {"orchestrator": "loop-basic", "context": "context-simple", **session},
        "providers": [MockProvider([*calls, "done"])],
        "tools": ["tool-filesystem"],
        "hooks": hooks,
    }


async def run(folder: Path, made: dict[str, Any], person: Person | None) -> list[dict[str, Any]]:
    """Run one turn in a folder; returns the results of its tool calls."""
    session = AmplifierSession(made, approval_system=person)
    session.coordinator.register_capability("session.working_dir", str(folder))
    async with session:
        await session.execute("go")
        messages = await session.coordinator.get("context").get_messages()
    return [message for message in messages if message["role"] == "tool"]


def write(path: str, content: str = "planted") -> tuple[str, dict[str, Any]]:
    return "write_file", {"file_path": path, "content": content}


ATTACKS = [
    *(
        ".mcp.json",
        ".envrc",
        ".vscode/tasks.json",
        "sub/.git/config",
        "nested/.git/hooks/pre-commit",
    ),
    *(
        "g/config",
        "shipped",
        "up/.git/config",
        ".venv/lib/python3.11/site-packages/x.pth",
        "bare/refs/heads/x",
    ),
]


def prepare(repository: Path) -> None:
    git(repository, "init", "-q", "nested")
    (repository / "g").symlink_to(".git")
    (repository / "shipped").symlink_to(".git/config")
    (repository / "up").symlink_to(".")
    (repository / "bare" / "objects").mkdir(parents=True)
    (repository / "bare" / "HEAD").write_text("ref: refs/heads/x\n")


@pytest.mark.parametrize("mode", ["ask", "edits", "full"])
@pytest.mark.parametrize("path", ATTACKS)
async def test_protected_place_asks_in_every_mode(repository: Path, mode: str, path: str) -> None:
    prepare(repository)
    before, place = snapshot(repository), real(repository / path)
    person = Person()
    await run(repository, plan(write(path), mode=mode), person)
    assert len(person.questions) == 1
    assert f"(real place): {place}" in person.questions[0]
    assert snapshot(repository) == before


@pytest.mark.parametrize("mode", ["full", None])
@pytest.mark.parametrize("path", ATTACKS)
async def test_protected_place_without_answerer_is_refused(
    repository: Path, mode: str | None, path: str
) -> None:
    prepare(repository)
    before = snapshot(repository)
    (result,) = await run(repository, plan(write(path), mode=mode), None)
    assert "denied" in result["content"].lower() or "protected" in result["content"]
    assert snapshot(repository) == before


@pytest.mark.parametrize("mode", ["full", None])
async def test_protected_place_changes_after_yes(repository: Path, mode: str | None) -> None:
    prepare(repository)
    person = Person("Allow once")
    edit = (
        "edit_file",
        {"file_path": "g/config", "old_string": "bare = false", "new_string": "bare = true"},
    )
    await run(repository, plan(write(".vscode/tasks.json"), edit, mode=mode), person)
    assert (repository / ".vscode" / "tasks.json").read_text() == "planted"
    assert "bare = true" in (repository / ".git" / "config").read_text()
    assert len(person.questions) == 2


@pytest.mark.parametrize("mode", ["ask", "full", None])
async def test_own_environment_is_refused_without_question(mode: str | None) -> None:
    person = Person("Allow once")
    target = Path(sys.prefix) / "amplifier-test.pth"
    try:
        (result,) = await run(
            Path(sys.prefix), plan(write("amplifier-test.pth"), mode=mode), person
        )
        assert not target.exists()
    finally:
        target.unlink(missing_ok=True)
    assert "the agent itself runs from" in result["content"]
    assert person.questions == []


async def test_full_mode_asks_about_no_ordinary_files(repository: Path) -> None:
    person = Person()
    made = plan(write("src/a.py"), write(".gitignore"), write(".github/workflows/ci.yml"))
    await run(repository, made, person)
    assert person.questions == []
    assert (repository / ".github" / "workflows" / "ci.yml").exists()


async def test_plan_allows_place(repository: Path) -> None:
    person = Person()
    await run(
        repository, plan(write(".vscode/a.json"), protected_places={"allow": [".vscode"]}), person
    )
    assert person.questions == []
    assert (repository / ".vscode" / "a.json").exists()


async def test_allow_rule_must_name_place(repository: Path) -> None:
    for pattern, asked in (
        (".vscode/**", 1),
        (".vscode/a.json", 0),
        (f"{repository}/.vscode/a.json", 0),
    ):
        person = Person()
        made = plan(write(".vscode/a.json"))
        made["hooks"][0]["config"] = {
            "rules": [{"tool": "write_file", "path": pattern, "action": "allow"}]
        }
        await run(repository, made, person)
        assert len(person.questions) == asked, pattern


async def test_place_changed_after_approval_is_refused(repository: Path) -> None:
    """A link is turned from a harmless file to git's configuration after the hooks have decided."""
    (repository / "notes").mkdir()
    (repository / "link").symlink_to("notes")
    before = (repository / ".git" / "config").read_text()

    async def swap(event: str, data: dict[str, Any]) -> HookResult:
        (repository / "link").unlink()
        (repository / "link").symlink_to(".git")
        return HookResult()

    for answer in ("Allow once", "Deny"):
        person = Person(answer)
        session = AmplifierSession(plan(write("link/config")), approval_system=person)
        session.coordinator.register_capability("session.working_dir", str(repository))
        async with session:
            session.coordinator.hooks.register("tool:pre", swap, priority=1000, name="swap")
            await session.execute("go")
            messages = await session.coordinator.get("context").get_messages()
        (result,) = [message for message in messages if message["role"] == "tool"]
        assert "when the call was judged" in result["content"]
        assert (repository / ".git" / "config").read_text() == before
        (repository / "link").unlink()
        (repository / "link").symlink_to("notes")


async def test_folder_moved_to_protected_name_is_unwritten(repository: Path, monkeypatch) -> None:
    """A command moves it between the check and the moment the file gets its name."""
    (repository / "conf").mkdir()
    synced = os.fsync

    def move(descriptor: int) -> None:
        synced(descriptor)
        if (repository / "conf").exists():
            (repository / "conf").rename(repository / ".vscode")

    monkeypatch.setattr(os, "fsync", move)
    (result,) = await run(repository, plan(write("conf/tasks.json")), Person())
    assert "being tampered with" in result["content"]
    assert list((repository / ".vscode").iterdir()) == []


async def test_editor_gets_no_protected_file(repository: Path) -> None:
    written: list[str] = []

    class Editor:
        async def read(self, path: str) -> str | None:
            return "text"

        async def write(self, path: str, text: str) -> bool:
            written.append(path)
            return True

    coordinator = TestCoordinator()
    coordinator.register_capability("session.editor_files", Editor())
    coordinator.register_capability("session.working_dir", str(repository))
    await tool_filesystem.mount(coordinator, {})
    tools: Any = coordinator.get("tools")
    (repository / ".envrc").write_text("text")
    await tools["write_file"].execute({"file_path": ".envrc", "content": "x"})
    await tools["edit_file"].execute(
        {"file_path": ".envrc", "old_string": "text", "new_string": "x"}
    )
    assert written == []
    await tools["write_file"].execute({"file_path": "a.py", "content": "x"})
    assert written == [f"{repository}/a.py"]


def snapshot(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b""
        for path in sorted(folder.rglob("*"))
    }
