"""tool-bash in a working directory that holds the agent's own environment, repositories and configuration of other programs."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path
from typing import Any

import pytest

import amplifier
from amplifier._internal.programs import find_program, safe_search_path
from amplifier.errors import ModuleLoadError
from amplifier.modules.tools import bash as tool_bash
from amplifier.modules.tools.bash import _sandbox_paths
from amplifier.modules.tools.bash._confinement import system_call_filter
from amplifier.modules.tools.bash._protected_paths import is_placeholder, placeholders
from amplifier.testing import TestCoordinator
from tests._support.tree import ROOT
from tests.modules.tools.test_tool_bash_sandbox import (
    BWRAP,
    SANDBOXES,
    _bubblewrap_on_the_path,
    in_bubblewrap,
    make_folders,
    opened,
    run,
)

__all__ = ["_bubblewrap_on_the_path"]

SOURCES = Path(amplifier.__file__).parent
"""What is imported, and not always below this repository: the fault programme plants bugs in a copy."""

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="there are sandboxes for Linux only"
)


# ── what the agent runs from ─────────────────────────────────────────────────────────────────────

AGENT = """
import importlib, json, os, sys
import anyio
from amplifier.modules.tools import bash as tool_bash, search as tool_search
from amplifier.testing import TestCoordinator

async def main(workspace, commands, marker, options):
    coordinator = TestCoordinator()
    coordinator.register_capability("session.working_dir", workspace)
    await tool_bash.mount(coordinator, {"sandbox": "bwrap", **options})
    await tool_search.mount(coordinator, {"allowed_paths": [workspace]})
    bash, grep = (coordinator.get("tools", name) for name in ("bash", "grep"))
    assert (await bash.execute({"command": "true"})).success
    escaped = []
    for command in commands:
        before = (await bash.execute({"command": command})).output
        result = await bash.execute({"command": "ls"})
        if not result.success:
            escaped.append([command, repr(result)])
        if os.path.exists(marker):
            escaped.append([command, repr(before)])
            os.remove(marker)
    await grep.execute({"pattern": "planted", "path": workspace})
    if os.path.exists(marker):
        escaped.append(["any of them", "found by a search"])
    importlib.import_module("amplifier.modules.tools.web")
    await coordinator.cleanup()
    print(json.dumps(escaped))

given = json.load(sys.stdin)
anyio.run(main, *given["arguments"], backend=given["backend"])
"""

PAYLOAD = '#!/bin/sh\necho x > {marker}\nexec {python} "$@"\n'
PLANTED = "import os; open({marker!r}, 'w')\n"

REPLACING = [
    "rm -f V/bin/python V/bin/python3; cp payload V/bin/python; cp payload V/bin/python3",
    "cp --remove-destination payload V/bin/python",
    "cat payload > V/bin/python",
    "ln -sfn $PWD/payload V/bin/python",
    "mv V/bin V/bin2; mkdir V/bin; cp payload V/bin/python",
    "mv V V2; mkdir -p V/bin; cp payload V/bin/python",
    "mv tools tools2; mkdir -p tools/.venv/bin; cp payload V/bin/python",
    "mv tools $TMPDIR/x; cp -a $TMPDIR/x tools; cp payload V/bin/python",
    "rm -rf tools; mkdir -p V/bin; cp payload V/bin/python",
    "mkdir -p fake/.venv/bin; cp payload fake/.venv/bin/python; rm -rf tools; mv fake tools",
    "mkdir -p fake/.venv/bin; cp payload fake/.venv/bin/python; EXCHANGE fake tools",
    "mkdir -p fake/bin; cp payload fake/bin/python; EXCHANGE fake V",
    "ln -s tools other; cp --remove-destination payload other/.venv/bin/python",
    "cp --remove-destination payload /proc/self/root$PWD/V/bin/python",
    "cp --remove-destination payload /proc/1/cwd/V/bin/python",
    "cp --remove-destination payload /proc/1/root$PWD/V/bin/python",
    "umount V; umount -l tools; cp --remove-destination payload V/bin/python",
    "mount -o remount,rw,bind V; cp --remove-destination payload V/bin/python",
    "unshare -rm sh -c 'umount -l V; cp --remove-destination payload V/bin/python'",
    "printf 'home = %s/fake\\n' $PWD > V/pyvenv.cfg",
    "cp planted.py S/sitecustomize.py; cp planted.py S/usercustomize.py",
    'echo \'import os; open("MARKER", "w")\' > S/evil.pth',
    "cat planted.py >> S/amplifier/_internal/supervisor.py",
    "cat planted.py >> S/amplifier/modules/tools/_matcher_process.py",
    "cat planted.py >> S/amplifier/modules/tools/web/__init__.py",
    "mkdir S/httpcore2; cp planted.py S/httpcore2/__init__.py; cp planted.py S/uvloop.py",
    "mkdir -p S/amplifier/modules/tools/web/__pycache__; cp planted.py S/amplifier/modules/tools/web/__pycache__/x.pyc",
    "cp payload V/bin/rg; cp payload V/bin/bwrap; cp payload V/bin/bash",
    "cp payload bin/rg; cp payload bin/bwrap; cp payload bin/bash; cp payload rg; cp payload bwrap; cp payload bash",
    "for f in V/bin/python V/bin V tools; do chmod -R u+w $f; truncate -s 0 $f; touch -d 2001-01-01 $f; done",
    "cp planted.py amplifier.py; cp planted.py ctypes.py; cp planted.py marshal.py; cp planted.py json.py; cp planted.py re.py",
]
_EXCHANGE = (
    "python3 -c 'import ctypes, sys; print(ctypes.CDLL(None).syscall({number}, -100, sys.argv[1].encode(), -100, "
    "sys.argv[2].encode(), 2))'"
)


@pytest.fixture(scope="module")
def environment():
    """A working directory with a virtual environment in it, in which amplifier itself is installed."""
    folder = Path(tempfile.mkdtemp(prefix="own-files-")).resolve()
    workspace = folder / "workspace"
    environment = workspace / "tools" / ".venv"
    (workspace / "bin").mkdir(parents=True)
    venv.create(environment, symlinks=True)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(environment)}))
    shutil.copytree(
        SOURCES, site / "amplifier"
    )  # with what is compiled: the agent may not write there
    (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    marker = folder / "marker"
    (workspace / "payload").write_text(PAYLOAD.format(marker=marker, python=sys.executable))
    (workspace / "payload").chmod(0o755)
    (workspace / "planted.py").write_text(PLANTED.format(marker=str(marker)))
    yield workspace, environment, site, marker
    shutil.rmtree(folder)


def snapshot(folder: Path) -> list[tuple[Any, ...]]:
    return sorted(
        (str(path), path.lstat().st_mode, 0 if path.is_dir() else path.lstat().st_mtime_ns)
        for path in folder.rglob("*")
        if "__pycache__" not in path.parts
    )


def escaped(
    own: Path, workspace: Path, commands: list[str], marker: Path, backend: str, **variables: str
) -> Any:
    """Which of these commands of an agent that runs from `own` changed what is executed."""
    done = subprocess.run(
        [own / "bin" / "python", "-P", "-c", AGENT],
        input=json.dumps(
            {"arguments": [str(workspace), commands, str(marker), {}], "backend": backend}
        ),
        cwd=workspace,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@in_bubblewrap
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_commands_cannot_change_agents_environment(environment, backend):
    workspace, own, site, marker = environment
    number = {"x86_64": 316, "aarch64": 276}.get(os.uname().machine, 0)
    commands = [
        command.replace("EXCHANGE", _EXCHANGE.format(number=number))
        .replace("MARKER", str(marker))
        .replace("S/", f"{site.relative_to(workspace)}/")
        .replace("V/", "tools/.venv/")
        .replace("V ", "tools/.venv ")
        .replace("V;", "tools/.venv;")
        for command in REPLACING[
            backend == "trio" :: 2
        ]  # each on one backend: the sandbox knows none
    ]
    before = snapshot(own)
    path = os.pathsep.join([str(workspace / "bin"), ".", "", str(own / "bin"), os.environ["PATH"]])
    variables = {**os.environ, "PATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    variables.pop("PYTHONPATH", None)
    assert escaped(own, workspace, commands, marker, backend, **variables) == []
    assert snapshot(own) == before
    subprocess.run(
        [own / "bin" / "python", "-c", "import amplifier.modules.tools.web"],
        cwd="/",
        env=variables,
        check=True,
    )
    assert not marker.exists()


@in_bubblewrap
def test_package_installed_in_place_is_protected(environment):
    """With an editable installation the package is in the working directory, outside of the environment."""
    workspace, own, _, marker = environment
    project = workspace / "project"
    shutil.copytree(SOURCES, project / "amplifier")
    before = snapshot(project)
    commands = [
        "for file in $(find project/amplifier -name '*.py'); do cat planted.py >> $file; done",
        "for folder in $(find project/amplifier -type d); do cp planted.py $folder/planted.py; done",
        "mv project/amplifier/_internal/programs.py x; mv project/amplifier x; mv project x",
    ]
    variables = {**os.environ, "PYTHONPATH": str(project), "PYTHONDONTWRITEBYTECODE": "1"}
    assert escaped(own, workspace, commands, marker, "asyncio", **variables) == []
    assert snapshot(project) == before


@pytest.mark.parametrize("kind", SANDBOXES)
async def test_writable_agents_environment_is_refused(kind, tmp_path, monkeypatch):
    make_folders(tmp_path, "work")
    (tmp_path / "work" / ".venv").symlink_to(sys.prefix)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "work" / ".venv"))
    with pytest.raises(
        ModuleLoadError, match=r"through the symbolic link .*\.venv, which they could replace"
    ):
        await opened(tmp_path / "work", sandbox=kind)
    monkeypatch.undo()
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}{os.pathsep}{Path(BWRAP or '/').parent}")
    monkeypatch.chdir("/")
    with pytest.raises(
        ModuleLoadError, match="choose another working directory, or install amplifier elsewhere"
    ):
        await opened(SOURCES / "modules", sandbox=kind)


@pytest.mark.parametrize("kind", SANDBOXES)
async def test_import_from_working_directory_is_reported(kind, tmp_path, monkeypatch, caplog):
    await opened(tmp_path, sandbox=kind)
    assert "imports Python modules" not in caplog.text
    monkeypatch.syspath_prepend(str(tmp_path))
    await opened(tmp_path, sandbox=kind)
    assert (
        f"imports Python modules from {tmp_path.resolve()}, which commands may change"
        in caplog.text
    )


# ── configuration that other programs execute ────────────────────────────────────────────────────


def git(folder: Path, *arguments: str) -> str:
    identity = [
        "-c",
        "user.name=a",
        "-c",
        "user.email=a@example.org",
        "-c",
        "protocol.file.allow=always",
    ]
    done = subprocess.run(
        ["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path): path.read_text() if path.is_file() else "folder"
        for path in sorted(folder.rglob("*"))
    }


@in_bubblewrap
async def test_repository_and_configuration_are_read_only(tmp_path, anyio_backend_name):
    git(tmp_path, "init", "-q", ".")
    (tmp_path / ".vscode").mkdir()
    (tmp_path / ".vscode" / "tasks.json").write_text("{}")
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / ".envrc").write_text("")
    kept = [tmp_path / ".git", tmp_path / ".vscode", tmp_path / "deep" / ".envrc"]

    def state() -> list[Any]:
        return [contents(path) if path.is_dir() else path.read_text() for path in kept]

    before = state()
    coordinator = await opened(tmp_path, sandbox="bwrap")
    commands = [
        "echo x >> .git/config",
        "/usr/bin/git config core.fsmonitor /bin/true",
        "git config core.fsmonitor ./evil",
        "git -c core.fsmonitor=./evil add .",
        "echo x > .git/hooks/post-checkout",
        "rm -rf .git/hooks; mkdir .git/hooks",
        "mv .git .git2",
        "rm -rf .git",
        "echo x > .git/commondir",
        "rm deep/.envrc",
        "mv deep/.envrc x",
        "echo x > deep/.envrc",
        "ln -s .git g; echo x > g/hooks/post-checkout",
        "echo x > .vscode/tasks.json",
        "mv .vscode x",
    ]
    for command in commands[
        anyio_backend_name == "trio" :: 2
    ]:  # each on one backend: the sandbox knows none
        result = await run(coordinator, command)
        assert not result.success, command
        assert state() == before, command


ELSEWHERE = {
    "of the repository": ("work/.git/config", "[core]\n\thooksPath = sub/../named\n"),
    "the user's": ("home/.gitconfig", "[core]\n\thooksPath = named\n"),
    "the user's, elsewhere": ("home/.config/git/config", "[core]\n\thooksPath = named\n"),
    "included": ("work/.git/config", '[include]\n\tpath = "../named"\n'),
    "included if": ("work/.git/config", '[includeIf "onbranch:main"]\n\tpath = ../named\n'),
    "included twice": ("home/.gitconfig", "[include]\npath = more\n"),
    "of a worktree": ("work/.git/config.worktree", "[core]\n\thooksPath = named\n"),
}


@in_bubblewrap
@pytest.mark.parametrize(("file", "text"), ELSEWHERE.values(), ids=ELSEWHERE)
async def test_places_named_by_git_are_read_only(
    file, text, tmp_path, monkeypatch, anyio_backend_name
):
    """Git executes it, or reads there what it executes, the next time that the user runs it here."""
    exists = anyio_backend_name == "trio"  # each on one backend: the sandbox knows none
    work, home = tmp_path / "work", tmp_path / "home"
    work.mkdir()
    git(work, "init", "-q", ".")
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (work / "sub").mkdir()
    with (tmp_path / file).open("a") as config:
        config.write(text)
    home.mkdir(exist_ok=True)
    (home / "more").write_text(f'[include]\n\tpath = "{work}/named"\n')
    if exists:
        (work / "named").mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    coordinator = await opened(work, sandbox="bwrap")
    result = await run(coordinator, "mkdir -p named && echo x > named/pre-commit || echo x > named")
    if not exists:
        assert "was renamed to named.amplifier-aside" in result.output["protected"][0]
    else:
        assert not result.success
    assert (await run(coordinator, "echo x > other")).success
    assert (work / "named").exists() is exists
    assert not (work / "named" / "pre-commit").exists()


@in_bubblewrap
async def test_startup_files_in_home_are_protected(tmp_path, monkeypatch):
    (tmp_path / ".bashrc").write_text("")
    monkeypatch.setenv("HOME", str(tmp_path))
    coordinator = await opened(tmp_path, sandbox="bwrap")
    for command in (
        "echo x >> ~/.bashrc",
        "mv .bashrc x",
        "echo x > .profile",
        "mkdir -p .local/bin && touch .local/bin/ls",
    ):
        assert not (await run(coordinator, command)).success
    assert (tmp_path / ".bashrc").read_text() == ""
    assert [path.name for path in tmp_path.iterdir() if path.name != ".local"] == [".bashrc"]


@in_bubblewrap
async def test_helper_below_writable_folder_is_protected(tmp_path, monkeypatch):
    make_folders(tmp_path, "tools/built", "bin", "work")
    helper = tmp_path / "tools" / "built" / "rg"
    helper.write_text("#!/bin/sh\n")
    helper.chmod(0o755)
    (tmp_path / "bin" / "rg").symlink_to(helper)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    coordinator = await opened(
        tmp_path / "work", sandbox="bwrap", writable=[str(tmp_path / "tools")]
    )
    for command in ("echo x > rg", "rm -f rg", "mv rg x", "cd ..; mv built built2"):
        assert not (await run(coordinator, f"cd {helper.parent} && {command}")).success
    assert (await run(coordinator, f"echo x > {helper.parent}/other")).success
    assert helper.read_text() == "#!/bin/sh\n"


@in_bubblewrap
async def test_command_plants_no_program_on_search_path(tmp_path, monkeypatch):
    """Neither in one that exists nor in one that does not; the next session or a server of tool-mcp would start it."""
    (tmp_path / "tools" / "bin").mkdir(parents=True)
    folders = [tmp_path / "tools" / "bin", tmp_path / "tools" / "later" / "bin"]
    monkeypatch.setenv("PATH", os.pathsep.join([*map(str, folders), os.environ["PATH"]]))
    coordinator = await opened(tmp_path / "tools", sandbox="bwrap")
    for folder in folders:
        await run(
            coordinator,
            f"mkdir -p {folder}; printf '#!/bin/sh\\n' > {folder}/rg; chmod +x {folder}/rg",
        )
    await run(coordinator, "mv bin bin2; mkdir bin; cp /bin/true bin/rg")
    assert (await run(coordinator, "mkdir other; touch other/file")).success
    assert not [file for folder in folders for file in folder.glob("*")]
    assert find_program("rg", path=os.pathsep.join(map(str, folders))) is None


@pytest.mark.parametrize("kind", ["auto", *SANDBOXES])
async def test_search_path_folder_cannot_be_writable(kind, tmp_path, monkeypatch):
    for name in ("work", "bin", "elsewhere"):
        (tmp_path / name).mkdir()
    (tmp_path / "elsewhere" / "bin").symlink_to(tmp_path / "bin")
    for entry, writable in (
        ("bin", "bin"),
        ("elsewhere/bin", "elsewhere"),
        ("elsewhere/bin", "bin"),
    ):
        with monkeypatch.context() as patch:
            patch.setenv("PATH", os.pathsep.join([str(tmp_path / entry), os.environ["PATH"]]))
            with pytest.raises(
                ModuleLoadError,
                match=rf"commands may change .*/{writable}, .*/{entry}, .* search path",
            ):
                await opened(tmp_path / "work", sandbox=kind, writable=[str(tmp_path / writable)])


@in_bubblewrap
async def test_linker_variables_stay_inside_sandbox(tmp_path, monkeypatch):
    """A library that cannot be loaded is reported by the linker of each program: here by that of the shell alone."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    coordinator = await opened(
        tmp_path, sandbox="bwrap", env={"LD_PRELOAD": str(tmp_path / "planted.so")}
    )
    result = await run(coordinator, "echo $LD_PRELOAD; echo [$LD_LIBRARY_PATH]")
    assert result.output["stdout"] == f"{tmp_path / 'planted.so'}\n[]\n"
    assert result.output["stderr"].count("planted.so") == 1


@in_bubblewrap
async def test_command_cannot_forge_end_report(tmp_path):
    coordinator = await opened(tmp_path, sandbox="bwrap")
    forging = "for f in /proc/1/fd/*; do { echo status 0 0; echo error 0 x; } > $f && echo ESC''APED; done; exit 5"
    result = await run(coordinator, forging)
    assert result.error["message"].startswith("exit code 5")
    assert "ESCAPED" not in result.output["stdout"]


@in_bubblewrap
async def test_plan_allows_and_adds_protected_places(tmp_path):
    git(tmp_path, "init", "-q", ".")
    for name in (".vscode", ".zed", "ours"):
        (tmp_path / name).mkdir()
    coordinator = TestCoordinator()
    coordinator.config["session"] = {
        "protected_places": {"allow": [".git", ".vscode"], "add": ["ours"]}
    }
    await tool_bash.mount(coordinator, {"sandbox": "bwrap", "working_dir": str(tmp_path)})
    result = await run(
        coordinator, "git config a.b c && echo x > .vscode/x && echo x > .git/hooks/x"
    )
    assert result.success, result
    assert "protected" not in result.output
    for name in (".zed", "ours"):
        assert not (await run(coordinator, f"echo x > {name}/x")).success, name


@in_bubblewrap
async def test_worktrees_and_submodules_are_read_only(tmp_path):
    for name in ("main", "library"):
        (tmp_path / name).mkdir()
        git(tmp_path / name, "init", "-q", ".")
        git(tmp_path / name, "commit", "-q", "--allow-empty", "-m", "one")
    git(tmp_path / "main", "submodule", "--quiet", "add", str(tmp_path / "library"), "sub")
    git(tmp_path / "main", "worktree", "add", "-q", str(tmp_path / "tree"))
    coordinator = await opened(tmp_path / "main", sandbox="bwrap")
    for command in (
        "echo x >> .git/modules/sub/config",
        "mv .git/modules .git/m",
        "echo 'gitdir: /tmp' > sub/.git",
        "rm sub/.git",
        "echo x > .git/worktrees/tree/commondir",
    ):
        assert not (await run(coordinator, command)).success, command
    coordinator = await opened(
        tmp_path / "tree", sandbox="bwrap", writable=[str(tmp_path / "main" / ".git")]
    )
    for command in (
        "echo 'gitdir: /tmp' > .git",
        "mv .git x",
        f"echo x >> {tmp_path}/main/.git/config",
    ):
        assert not (await run(coordinator, command)).success, command
    result = await run(
        coordinator, "git -c user.name=a -c user.email=b commit -q --allow-empty -m two"
    )
    assert result.success, result


@in_bubblewrap
async def test_many_repositories_do_not_stop_commands(tmp_path):
    """Each of them could be one that a command invented; what is not covered is compared."""
    git(tmp_path, "init", "-q", ".")
    coordinator = await opened(tmp_path, sandbox="bwrap")
    many = "for i in $(seq 70); do git init -q r/$i; done; mkdir -p .x/modules/{1..210}; touch .x/modules/{1..210}/HEAD"
    assert (await run(coordinator, many)).success
    result = await run(
        coordinator, "for i in $(seq 70); do git -C r/$i config core.fsmonitor ./x; done; true"
    )
    assert result.success, result
    assert all("fsmonitor" not in path.read_text() for path in tmp_path.glob("r/*/.git/config"))
    assert (await run(coordinator, "true")).output == {"stdout": "", "stderr": "", "returncode": 0}


def test_last_command_removes_shared_placeholders(tmp_path):
    path = str(tmp_path / ".vscode")
    with placeholders([path]) as held:
        assert held == (path,)
        with placeholders([path]):
            assert is_placeholder(path)
        assert is_placeholder(path)
    assert not os.path.lexists(path)
    with placeholders([path]):
        (tmp_path / ".vscode" / "settings.json").write_text("{}")  # by an editor outside
    assert (tmp_path / ".vscode" / "settings.json").read_text() == "{}"
    other = str(tmp_path / "file")
    Path(other).write_text("")
    with pytest.raises(ValueError, match="cannot be protected"), placeholders([other]):
        pass


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_new_placeholder_is_recognised_at_once(tmp_path, monkeypatch, mask):
    """Another command that takes it for a folder of the user does not hold it, and loses it when this one ends."""
    path, seen = str(tmp_path / ".idea"), []
    opened = os.open

    def look(name, flags, *args, **options):
        seen.append(is_placeholder(path)) if name == ".idea" else None
        return opened(name, flags, *args, **options)

    monkeypatch.setattr(os, "open", look)
    before = os.umask(mask)
    try:
        with placeholders([path]):
            assert is_placeholder(path)
    finally:
        os.umask(before)
    assert seen == [True]
    assert not os.path.lexists(path)


# ── places are resolved once ─────────────────────────────────────────────────────────────────────


@in_bubblewrap
async def test_folder_replaced_by_link_opens_nothing(
    monkeypatch,
):
    """bubblewrap follows links, and looks at the folders later than this process did."""
    (ROOT / ".bubblewrap").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(
        dir=ROOT / ".bubblewrap"
    ) as folder:  # a place that commands can see
        workspace, outside, programs = (
            Path(folder) / name for name in ("workspace", "outside", "programs")
        )
        for each in (workspace / "d" / "hooks", outside / "hooks", programs):
            each.mkdir(parents=True)
        for each in (workspace / "d", outside):
            (each / "config").touch()
        (workspace / ".git").write_text("gitdir: d")
        script = programs / "bwrap"
        swap = f"[ ! -e {workspace}/swap ] || [ -L {workspace}/d ] || {{ mv {workspace}/d {workspace}/e; ln -s ../outside {workspace}/d; }}"
        script.write_text(f'#!/bin/sh\n{swap}\nexec {BWRAP} "$@"\n')
        script.chmod(0o755)
        monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
        coordinator = await opened(workspace, sandbox="bwrap")
        assert (await run(coordinator, "true")).success
        (workspace / "swap").touch()
        result = await run(coordinator, f"echo x > {outside}/new")
        assert not result.success
        # Of the second try, which sees the link; a home or a folder for temporary files that is hidden has no such file.
        is_hidden = any(
            outside.is_relative_to(place) for place in (os.environ["HOME"], tempfile.gettempdir())
        )
        assert (
            "No such file or directory" if is_hidden else "Read-only file system"
        ) in result.output["stderr"]
        assert sorted(os.listdir(outside)) == ["config", "hooks"]


def test_placeholders_are_not_made_behind_link(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / "bin").symlink_to("outside")
    with contextlib.suppress(ValueError), placeholders([f"{tmp_path}/bin/later"]):
        assert os.listdir(outside) == []
    assert os.listdir(outside) == []
    assert stat.S_IMODE(outside.stat().st_mode) & stat.S_ISVTX == 0


@in_bubblewrap
async def test_writable_folder_cannot_become_link(tmp_path):
    make_folders(tmp_path, "work/out/build", "secret")
    writable = tmp_path / "work" / "out" / "build"
    coordinator = await opened(tmp_path / "work", sandbox="bwrap", writable=[str(writable)])
    await run(
        coordinator,
        f"mv out out2; mkdir out; ln -s {tmp_path}/secret out/build; rmdir out/build; ln -s {tmp_path}/secret out/build",
    )
    await run(coordinator, f"echo x > {tmp_path}/secret/new; echo x > out/build/new")
    assert list((tmp_path / "secret").iterdir()) == []
    assert writable.is_dir()
    assert not writable.is_symlink()


@pytest.mark.parametrize("kind", SANDBOXES)
async def test_writable_folder_turned_link_is_refused(kind, tmp_path):
    make_folders(tmp_path, "work/out", "secret")
    coordinator = await opened(
        tmp_path / "work", sandbox=kind, writable=[str(tmp_path / "work" / "out")]
    )
    (tmp_path / "work" / "out").rmdir()
    (tmp_path / "work" / "out").symlink_to(tmp_path / "secret")
    result = await run(coordinator, f"echo x > {tmp_path}/secret/new")
    assert result.error["type"] == "Sandbox"
    assert "is a symbolic link now" in result.error["message"]
    with pytest.raises(
        ModuleLoadError,
        match=r"writable: .*/out is reached by the symbolic link .*name the folder itself",
    ):
        await opened(tmp_path / "work", sandbox=kind, writable=[str(tmp_path / "work" / "out")])
    with pytest.raises(ModuleLoadError, match=r"readable: .*/out is reached by the symbolic link"):
        await opened(tmp_path / "work", sandbox=kind, readable=[str(tmp_path / "work" / "out")])


@pytest.mark.parametrize("kind", SANDBOXES)
async def test_working_directory_behind_link_is_refused(kind, tmp_path):
    make_folders(tmp_path, "work", "secret")
    coordinator = TestCoordinator()
    coordinator.register_capability("session.working_dir", str(tmp_path / "work"))
    await tool_bash.mount(coordinator, {"sandbox": kind})
    assert (await run(coordinator, f"ln -s {tmp_path}/secret next")).success
    coordinator.register_capability("session.working_dir", str(tmp_path / "work" / "next"))
    result = await run(coordinator, "echo x > new")
    assert result.error["type"] == "Sandbox"
    assert "which commands may change" in result.error["message"]
    assert list((tmp_path / "secret").iterdir()) == []


@pytest.mark.parametrize("kind", SANDBOXES)
async def test_redirected_working_directory_is_refused(kind, tmp_path):
    """Commands of a session that works in a folder above can make any folder on the way a link."""
    make_folders(tmp_path, "place/a/keys", "secret/keys")
    above = await opened(tmp_path / "place", sandbox=kind)
    below = await opened(tmp_path / "place" / "a" / "keys", sandbox=kind)
    assert (await run(below, "echo x > allowed")).success
    assert (await run(above, "mv a b; ln -s ../secret a")).success
    result = await run(below, "echo x > new")
    assert result.error["type"] == "Sandbox"
    assert f"was {tmp_path}/place/a/keys when" in result.error["message"]
    assert list((tmp_path / "secret" / "keys").iterdir()) == []
    assert (await run(above, "rm a; mv b a")).success
    assert (await run(below, "cat allowed")).success


@pytest.mark.parametrize("kind", SANDBOXES)
async def test_folder_redirected_during_setup_is_refused(kind, tmp_path, monkeypatch):
    make_folders(tmp_path, "in/place", "in/out", "secret/place", "secret/out", "helpers")
    swap = f"mv {tmp_path}/in {tmp_path}/moved; ln -s secret {tmp_path}/in"
    helper = tmp_path / "helpers" / "bwrap"
    helper.write_text(f'#!/bin/sh\nif [ -e {tmp_path}/now ]; then {swap}; fi\nexec {BWRAP} "$@"\n')
    helper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{helper.parent}{os.pathsep}{os.environ['PATH']}")
    coordinator = await opened(
        tmp_path / "in" / "place", sandbox=kind, writable=[str(tmp_path / "in" / "out")]
    )
    assert (await run(coordinator, "touch allowed ../out/allowed")).success
    (tmp_path / "now").touch()
    result = await run(
        coordinator,
        f"touch {tmp_path}/in/place/new {tmp_path}/secret/place/new {tmp_path}/secret/out/new",
    )
    assert not result.success
    assert sorted(path.name for path in (tmp_path / "secret").rglob("*")) == ["out", "place"]


@in_bubblewrap
async def test_hidden_place_stays_hidden_after_move(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / ".env").write_text("CANARY")
    coordinator = await opened(
        tmp_path, sandbox="bwrap", hidden=[str(tmp_path / "a" / "b" / ".env")]
    )
    for command in (
        "mv a c; cat c/b/.env",
        "mv a/b a/c; cat a/c/.env",
        "mv a/b/.env x; rm -rf a",
        "ln -s c a; ln a/b/.env y",
    ):
        await run(coordinator, command)
        looked = await run(coordinator, "grep -r CANARY . ; cat */*/.env */.env .env x y")
        assert "CANARY" not in looked.output["stdout"]
    assert (tmp_path / "a" / "b" / ".env").read_text() == "CANARY"


# ── helpers ──────────────────────────────────────────────────────────────────────────────────────


def test_current_folder_programs_are_not_used(tmp_path, monkeypatch):
    (tmp_path / ".git").mkdir()
    for folder in ("bin", "sub/bin", "elsewhere"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "helper").write_text("#!/bin/sh\n")
        (tmp_path / folder / "helper").chmod(0o755)
    (tmp_path / "sub" / "helper").symlink_to("bin/helper")
    monkeypatch.chdir(tmp_path / "sub")
    for entries in (
        [".", ""],
        ["bin"],
        [str(tmp_path / "sub")],
        [str(tmp_path / "bin")],
        [str(tmp_path / "sub" / "bin")],
        [],
    ):
        monkeypatch.setenv("PATH", os.pathsep.join(entries))
        assert find_program("helper") is None
    monkeypatch.chdir("/")
    monkeypatch.setenv("PATH", f".{os.pathsep}{tmp_path / 'elsewhere'}{os.pathsep}")
    assert find_program("helper") == str(tmp_path / "elsewhere" / "helper")
    assert find_program("helper", avoid=[tmp_path]) is None
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "elsewhere"))
    assert safe_search_path(avoid=[tmp_path]) == str(tmp_path / "elsewhere")


@pytest.mark.parametrize(
    "command", [["doctor"], ["module", "validate", "tool-todo", "--only", "T4"]]
)
def test_command_line_executes_nothing_from_folder(command, tmp_path):
    marker = tmp_path / "marker"
    for name in ("bwrap", "rg", "bash", "sh", "python", "python3"):
        (tmp_path / name).write_text(f"#!/bin/sh\necho {name} >> {marker}\nexit 1\n")
        (tmp_path / name).chmod(0o755)
    for name in ("amplifier", "json", "ctypes", "sitecustomize", "anyio", "attrs"):
        (tmp_path / f"{name}.py").write_text(f"open({str(marker)!r}, 'a').write({name!r})\n")
    script = "import sys; from amplifier.cli import main; sys.exit(main())"
    variables = {
        **os.environ,
        "PATH": f".{os.pathsep}{tmp_path}{os.pathsep}{os.environ['PATH']}{os.pathsep}",
    }
    done = subprocess.run(
        [sys.executable, "-P", "-c", script, *command],
        cwd=tmp_path,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not marker.exists(), marker.read_text()


# ── the kernel ───────────────────────────────────────────────────────────────────────────────────

_CALLS = """
import ctypes, errno, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    result = libc.syscall(number, *arguments)
    return "allowed" if result >= 0 else errno.errorcode[ctypes.get_errno()]
print({name: call(number, *arguments) for name, number, *arguments in %r})
families = {}
for family in (1, 2, 10, 16, 38, 40, 31, 17):
    try:
        socket.socket(family, socket.SOCK_RAW if family in (16, 17) else socket.SOCK_STREAM if family != 38 else socket.SOCK_SEQPACKET).close()
        families[family] = "allowed"
    except OSError as error:
        families[family] = errno.errorcode[error.errno]
print(families)
"""


@pytest.mark.parametrize("kind", SANDBOXES)
async def test_escaping_system_calls_are_denied(kind, tmp_path):
    if system_call_filter() is None:
        assert os.uname().machine not in ("x86_64", "aarch64")
        return
    is_arm = os.uname().machine == "aarch64"
    calls = [
        ("keyctl", 219 if is_arm else 250, 0, -3, 0),
        ("add_key", 217 if is_arm else 248, b"user", b"a", b"b", 1, -3),
        ("request_key", 218 if is_arm else 249, b"user", b"a", None, -3),
        ("userfaultfd", 282 if is_arm else 323, 1),
        ("perf_event_open", 241 if is_arm else 298, b"\0" * 128, 0, -1, -1, 0),
        ("bpf", 280 if is_arm else 321, 0, b"\0" * 72, 72),
        ("setns", 268 if is_arm else 308, 0, 0),
        ("io_uring_setup", 425, 8, b"\0" * 120),
        ("openat2", 437, -100, b".", b"\0" * 24, 24),
        ("memfd_create", 279 if is_arm else 319, b"x", 0),
    ]
    missing = {"io_uring_setup", "openat2", "memfd_create"}
    program = tmp_path / "calls.py"
    program.write_text(_CALLS % calls)
    coordinator = await opened(tmp_path, sandbox=kind, readable=[sys.base_prefix])
    result = await run(coordinator, f"{sys.base_prefix}/bin/python3 calls.py")
    assert result.success, result
    denied, families = map(eval, result.output["stdout"].splitlines())
    assert denied.pop("setns") in ("EPERM", "EBADF", "EINVAL")
    assert denied == {
        name: "ENOSYS" if name in missing else "EPERM" for name, *_ in calls if name != "setns"
    }
    assert {families[family] for family in (1, 2, 10, 16)} == {"allowed"}
    assert {families[family] for family in (38, 40, 31, 17)} == {"EAFNOSUPPORT"}


@in_bubblewrap
async def test_key_names_are_hidden(tmp_path):
    coordinator = await opened(tmp_path, sandbox="bwrap")
    result = await run(coordinator, "cat /proc/keys /proc/key-users /proc/timer_list | wc -c")
    assert result.output["stdout"] == "0\n"


@in_bubblewrap
async def test_renamed_bound_socket_is_unreachable():
    (ROOT / ".bubblewrap").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ROOT / ".bubblewrap") as folder:
        make_folders(Path(folder), "work/deep")
        renames = [
            ("work/bound", "work/renamed"),
            ("work/a", "work/deep/b"),
            ("outside", "outside-renamed"),
        ]
        addresses = {**dict(renames), "work/kept": "work/kept"}
        servers = []
        for bound, renamed in addresses.items():
            servers.append(server := socket.socket(socket.AF_UNIX))
            os.chdir(folder)
            server.bind(bound if bound == "work/a" else f"{folder}/{bound}")
            os.chdir("/")
            server.listen()
            (Path(folder) / bound).rename(Path(folder) / renamed)
        coordinator = await opened(
            Path(folder) / "work", sandbox="bwrap", readable=[sys.base_prefix]
        )
        for name in addresses.values():
            connect = f'import socket; socket.socket(socket.AF_UNIX).connect("{folder}/{name}"); print("reached")'
            result = await run(coordinator, f"{sys.base_prefix}/bin/python3 -c '{connect}'")
            assert "reached" not in result.output["stdout"], name
        for server in servers:
            server.close()


@in_bubblewrap
async def test_vanished_socket_does_not_matter(tmp_path, monkeypatch):
    found = [["/nonexistent/socket"], ["/nonexistent/socket"], []]
    monkeypatch.setattr(_sandbox_paths, "foreign_sockets", lambda seen: found.pop(0))
    coordinator = await opened(tmp_path, sandbox="bwrap")
    result = await run(coordinator, "echo x >> file; exit 3")
    assert result.error["message"] == "exit code 3"
    assert (tmp_path / "file").read_text() == "x\n"
    assert found == []


# ── the report of a command's end ────────────────────────────────────────────────────────────────


ENDS = [
    ("kill -KILL $$", -9, "ended by SIGKILL"),
    ("kill -40 $$", -40, "ended by signal 40"),
    ("kill -KILL 0", -9, "ended by SIGKILL"),
    ("exit 137", 137, "exit code 137"),
    ("sh -c 'kill -KILL $$'; exit $?", 137, "exit code 137"),
    ("sleep 600 & exit 3", 3, "exit code 3"),
    ("no-such-program", 127, "exit code 127"),
]


@pytest.mark.parametrize("kind", [*SANDBOXES, "off"])
async def test_command_end_is_reported_alike_everywhere(kind, tmp_path):
    coordinator = await opened(tmp_path, sandbox=kind, kill_grace=0.2)
    for command, code, message in ENDS:
        result = await run(coordinator, command)
        assert (result.output["returncode"], result.error["message"]) == (code, message), command
        note = (
            "processes left running in the background were ended: 1" if "sleep" in command else None
        )
        assert result.output.get("note") == note, command


@pytest.mark.parametrize("kind", [*SANDBOXES, "off"])
async def test_unrunnable_command_is_reported_alike(kind, tmp_path):
    coordinator = await opened(tmp_path, sandbox=kind)
    result = await run(coordinator, ": " + "\N{GRINNING FACE}" * 99_000)
    assert result.success or result.error["type"] == "TooLarge"
    assert (await run(coordinator, "ls -l /proc/self/fd | wc -l")).output["stdout"] == "5\n"


def found_by_another_user(
    program: str, base: Path, locked: str, *arguments: str, **variables: str
) -> Any:
    """What the program prints, which runs as another user if this is root; the locked folder is opened again."""
    base.chmod(0o755)
    try:
        finished = subprocess.run(
            [sys.executable, "-c", program, *arguments],
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        (base / locked).chmod(0o700)
    assert finished.returncode == 0, finished.stderr
    return json.loads(finished.stdout)


_PLACES_OF_A_USER = """
import json, os, sys
from amplifier.modules.tools.bash import _sandbox_paths
from amplifier.modules.tools.bash._options import BashOptions
from amplifier.modules.tools.bash._sandbox_paths import SandboxResolver
from amplifier.modules._shared.protected_places import ProtectedPlaces
workspace = sys.argv[1]
finder = SandboxResolver(BashOptions(), workspace, ProtectedPlaces())
if os.geteuid() == 0:  # root can look at everything, and may keep Python where no one else can
    finder.view(workspace, finder.look(workspace))
    _sandbox_paths._own = _sandbox_paths.own_folders()
    _sandbox_paths.own_folders = lambda: _sandbox_paths._own
    os.setgroups([]), os.setgid(65534), os.setuid(65534)
print(json.dumps(finder.view(workspace, finder.look(workspace)).readable))
"""


def test_unreadable_search_path_folder_is_omitted():
    """Bubblewrap would end with an error about it, and no command could be run."""
    with tempfile.TemporaryDirectory() as name:
        base = Path(name)
        make_folders(base, "home/open/bin", "home/locked/bin", "work")
        (base / "home" / "locked").chmod(0)
        variables = {
            "HOME": f"{base}/home",
            "PATH": f"{base}/home/open/bin:{base}/home/locked/bin:/usr/bin:/bin",
        }
        readable = found_by_another_user(
            _PLACES_OF_A_USER, base, "home/locked", f"{base}/work", **variables
        )
    assert f"{base}/home/open/bin" in readable
    assert f"{base}/home/locked/bin" not in readable


_SOCKETS_OF_A_USER = """
import json, os, socket, sys
from amplifier.modules.tools.bash._sandbox_paths import foreign_sockets
locked, opened = sys.argv[1:]
listening = [socket.socket(socket.AF_UNIX) for _ in range(2)]
listening[0].bind(f"{locked}/other"), listening[1].bind(f"{opened}/own")
os.chmod(locked, 0)
if os.geteuid() == 0:  # root can look at everything
    os.setgroups([]), os.setgid(65534), os.setuid(65534)
print(json.dumps(foreign_sockets([])))
"""


def test_unreadable_foreign_socket_is_omitted():
    """Every other user's tmux has one in a folder of its own; commands cannot reach it either."""
    with tempfile.TemporaryDirectory() as name:
        base = Path(name)
        make_folders(base, "locked", "opened")
        folders = str(base / "locked"), str(base / "opened")
        found = found_by_another_user(_SOCKETS_OF_A_USER, base, "locked", *folders)
    assert f"{base}/opened/own" in found
    assert f"{base}/locked/other" not in found
