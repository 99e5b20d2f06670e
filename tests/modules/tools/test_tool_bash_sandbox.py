"""The sandbox of tool-bash: no attempt gets out of bubblewrap, what is missing is refused, and what is denied is explained."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import tempfile
import termios
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from amplifier.errors import ModuleLoadError, PlanError
from amplifier.modules._shared import processes
from amplifier.modules.hooks import approval as hooks_approval
from amplifier.modules.tools import bash as tool_bash
from amplifier.modules.tools.bash import _confinement
from amplifier.modules.tools.bash._options import BashOptions
from amplifier.testing import TestCoordinator, wait_for
from tests._support.bubblewrap import find_bubblewrap
from tests._support.processes import running_processes
from tests.modules.tools.sandbox_escapes import ATTEMPTS, KINDS, Attempt, run_attempt, world
from tests.modules.tools.test_tool_bash_killed import gone, is_alive

BWRAP = find_bubblewrap()
pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="there are sandboxes for Linux only"
)

IN_BUBBLEWRAP = [
    pytest.mark.slow,
    pytest.mark.skipif(BWRAP is None, reason="needs bubblewrap: make parts"),
]
SANDBOXES = [pytest.param("bwrap", marks=IN_BUBBLEWRAP)]


def in_bubblewrap(test: Any) -> Any:
    """Mark a test that runs commands in bubblewrap."""
    for mark in IN_BUBBLEWRAP:
        test = mark(test)
    return test


@pytest.fixture(autouse=True)
def _bubblewrap_on_the_path(monkeypatch):
    if BWRAP is not None:
        monkeypatch.setenv("PATH", f"{os.environ['PATH']}{os.pathsep}{Path(BWRAP).parent}")
        monkeypatch.chdir(
            "/"
        )  # programs in the current folder are not used, and the tests have theirs in the project


async def opened(folder: Path, **config) -> TestCoordinator:
    coordinator = TestCoordinator()
    await tool_bash.mount(coordinator, {"working_dir": str(folder), **config})
    return coordinator


async def run(coordinator: TestCoordinator, command: str, **given):
    return await coordinator.get("tools", "bash").execute({"command": command, **given})


def make_folders(root: Path, *names: str) -> None:
    for name in names:
        (root / name).mkdir(parents=True)


# ── escapes ──────────────────────────────────────────────────────────────────────────────────────


def test_attempts_are_many_and_distinct():
    assert len({attempt.name for attempt in ATTEMPTS}) == len(ATTEMPTS) >= 40
    assert {attempt.name for attempt in ATTEMPTS} >= QUICK
    assert not [attempt.name for attempt in ATTEMPTS if "bwrap" in attempt.open_in]


@pytest.mark.slow
def test_bubblewrap_is_tested_where_available():
    """The tests below run with what there is; on Debian that has to include bubblewrap."""
    assert BWRAP is not None or not Path("/usr/bin/apt-get").exists()


QUICK = {
    "create a file outside",
    "read a key in the home folder",
    "write through a symbolic link",
    "write by /proc/1/root",
    "read the environments of its parents",
    "kill everything",
    "leave a daemon without environment",
    "leave a child of a TERM trap",
    "connect by TCP",
    "connect to an abstract socket",
    "plant a library with LD_PRELOAD",
    "mount in a new namespace",
    "start 200 processes",
}
"""One or two of each kind, which are tried in bubblewrap on both backends. The others take turns."""


def marks(attempt: Attempt, kind: str, is_turn: bool) -> list[pytest.MarkDecorator]:
    if kind == "bwrap":
        return (
            IN_BUBBLEWRAP
            if is_turn or attempt.name in QUICK
            else [*IN_BUBBLEWRAP, pytest.mark.long]
        )
    return [pytest.mark.long]


# What is open is in the documentation. It does not have to stay open.
HELD = [
    pytest.param(
        attempt,
        kind,
        backend,
        id=f"{attempt.name}-{kind}-{backend}",
        marks=marks(attempt, kind, is_turn),
    )
    for number, attempt in enumerate(ATTEMPTS)
    for kind in KINDS
    if kind in attempt.only_in and kind not in attempt.open_in
    for backend, is_turn in (("asyncio", number % 2 == 0), ("trio", number % 2 == 1))
]


@pytest.mark.parametrize(("attempt", "kind", "anyio_backend"), HELD)
async def test_escape_attempt(attempt: Attempt, kind: str, monkeypatch):
    with world() as place:
        monkeypatch.setenv("HOME", str(place.home))
        results, how = await run_attempt(attempt, kind, place)
    assert how is None, results


# ── what still works ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", SANDBOXES)
async def test_ordinary_work_is_possible(kind, tmp_path):
    coordinator = await opened(tmp_path, sandbox=kind)
    work = "\n".join(
        [
            "set -e",
            "mkdir a; echo one > a/b; mv a/b a/c; ln -s c a/link; cat a/link",
            "cat <<< here; echo $((1 + 1)) > /dev/null; tee a/copy <<< x > /dev/null",
            "t=$(mktemp); echo t > $t; cat $t; (echo in background; sleep 0.01) & wait",
            "cat > s.sh <<'E'\n#!/bin/sh\necho script\nE\nchmod +x s.sh; ./s.sh; ls / > /dev/null; ps > /dev/null",
            "git init -q . && git status --short > /dev/null; rm -r a",
        ]
    )
    result = await run(coordinator, work)
    assert result.success, result
    assert result.output["stdout"].splitlines() == ["one", "here", "t", "in background", "script"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [".git", "s.sh"]


@pytest.mark.parametrize("kind", SANDBOXES)
async def test_home_below_dev_keeps_devices(kind, monkeypatch):
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        (Path(folder) / "home").mkdir()
        (Path(folder) / "work").mkdir()
        monkeypatch.setenv("HOME", f"{folder}/home")
        coordinator = await opened(Path(folder) / "work", sandbox=kind)
        result = await run(coordinator, "echo hello > file && cat file && echo > /dev/null")
        assert result.success, result
        assert result.output["stdout"] == "hello\n"


@pytest.mark.parametrize("kind", SANDBOXES)
async def test_terminals_and_shared_memory_stay_closed(kind, tmp_path):
    ours, theirs = pty.openpty()
    with tempfile.NamedTemporaryFile("w", dir="/dev/shm") as shared:
        shared.write("secret")
        shared.flush()
        coordinator = await opened(tmp_path, sandbox=kind)
        terminal = os.ttyname(theirs)
        result = await run(
            coordinator,
            f"echo x > {terminal}; exec 3< {terminal} && echo opened; cat {shared.name}",
        )
    os.set_blocking(ours, False)
    with pytest.raises(BlockingIOError):
        os.read(ours, 1)
    os.close(ours)
    os.close(theirs)
    assert result.output["stdout"] == ""
    assert (
        await run(
            coordinator,
            "head -c 1 /dev/urandom > /dev/null; echo x | cat /dev/stdin <(:) > /dev/stderr",
        )
    ).success


@pytest.mark.parametrize("kind", SANDBOXES)
async def test_credentials_beside_home_programs_are_hidden(kind, tmp_path, monkeypatch):
    share = tmp_path / "home" / ".local" / "share" / "uv"
    for name in ("python", "credentials"):
        (share / name).mkdir(parents=True)
        (share / name / "file").write_text(name)
    (tmp_path / "workspace").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    coordinator = await opened(tmp_path / "workspace", sandbox=kind)
    result = await run(coordinator, f"cat {share}/python/file {share}/credentials/file")
    assert result.output["stdout"] == "python"


@pytest.mark.slow
@pytest.mark.parametrize("kind", SANDBOXES)
async def test_temporary_files_do_not_last(kind, tmp_path):
    coordinator = await opened(tmp_path, sandbox=kind)
    first = await run(coordinator, "t=$(mktemp) && echo $t")
    assert first.success
    assert not await anyio.Path(first.output["stdout"].strip()).exists()


@pytest.mark.parametrize("kind", SANDBOXES)
async def test_plan_opens_folders_and_network(kind, tmp_path):
    (tmp_path / "work").mkdir()
    (tmp_path / "more").mkdir()
    (tmp_path / "seen").write_text("seen")
    server = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = server.extra(anyio.abc.SocketAttribute.local_port)
    options = {
        "writable": [str(tmp_path / "more")],
        "readable": [str(tmp_path / "seen")],
        "network": True,
    }
    coordinator = await opened(tmp_path / "work", sandbox=kind, **options)
    assert coordinator.get_capability("bash.sandbox") == {"kind": kind, "network": True}
    result = await run(
        coordinator,
        f"cat {tmp_path}/seen; echo x > {tmp_path}/more/new; : < /dev/tcp/127.0.0.1/{port}",
    )
    await server.aclose()
    assert result.success, result
    assert result.output["stdout"] == "seen"
    assert (tmp_path / "more" / "new").read_text() == "x\n"


@pytest.mark.parametrize("kind", SANDBOXES)
async def test_programs_find_readable_parts_of_home(kind, tmp_path, monkeypatch):
    (tmp_path / "home").mkdir()
    (tmp_path / "work").mkdir()
    (tmp_path / "home" / ".gitconfig").write_text("[user]\n\tname = Ada\n")
    (tmp_path / "home" / ".netrc").write_text("secret")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    coordinator = await opened(tmp_path / "work", sandbox=kind, readable=["~/.gitconfig"])
    result = await run(
        coordinator, "git config --global user.name; cat ~/.netrc; echo x >> ~/.gitconfig"
    )
    assert result.output["stdout"] == "Ada\n"
    assert "x" not in (tmp_path / "home" / ".gitconfig").read_text()


# ── what is denied is explained ──────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", SANDBOXES)
async def test_sandbox_limits_are_described(kind, tmp_path):
    coordinator = await opened(tmp_path, sandbox=kind)
    assert "Commands run in a sandbox" in coordinator.get("tools", "bash").description
    result = await run(coordinator, "echo x > /etc/amplifier-test")
    assert result.output["sandbox"].startswith(
        f"the sandbox ({kind}) allows writing below {tmp_path.resolve()} only"
    )
    assert result.output["sandbox"] in result.error["message"]
    assert "sandbox" not in (await run(coordinator, "false")).output


async def test_missing_sandbox_is_not_described(tmp_path):
    coordinator = await opened(tmp_path, sandbox="off")
    assert "sandbox" not in coordinator.get("tools", "bash").description
    assert coordinator.get_capability("bash.sandbox") == {"kind": "off", "network": True}


@pytest.mark.parametrize("kind", SANDBOXES)
async def test_excess_processes_end_command_with_reason(kind, tmp_path):
    coordinator = await opened(tmp_path, sandbox=kind, max_processes=10)
    result = await run(coordinator, "for i in $(seq 60); do sleep 600 & done; sleep 600")
    assert not result.success
    assert result.error["type"] in ("TooManyProcesses", "ExitCode", "Signal")
    if os.geteuid() == 0:  # the kernel counts the processes of everyone else
        assert result.error == {
            "message": "more than 10 processes at a time; all of them were ended",
            "type": "TooManyProcesses",
        }


@pytest.mark.parametrize("kind", SANDBOXES)
async def test_file_system_root_cannot_confine(kind, tmp_path):
    with pytest.raises(ModuleLoadError, match="the working directory is /"):
        await opened(Path("/"), sandbox=kind)
    coordinator = await opened(tmp_path, sandbox=kind)
    coordinator.register_capability("session.working_dir", "/")
    moving = TestCoordinator()
    moving.register_capability("session.working_dir", str(tmp_path))
    await tool_bash.mount(moving, {"sandbox": kind})
    moving.register_capability("session.working_dir", "/")
    assert (await run(moving, "true")).error["type"] == "Sandbox"


# ── choosing ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("problem", "expected"), [(None, "bwrap"), ("broken", "off")])
async def test_auto_selects_working_bubblewrap(problem, expected, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(_confinement, "find_program", lambda name, **_: f"/usr/bin/{name}")
    monkeypatch.setattr(_confinement, "bubblewrap_problem", lambda program: problem)
    coordinator = await opened(tmp_path, shell="/bin/sh")
    assert coordinator.get_capability("bash.sandbox")["kind"] == expected
    assert ("commands run without a sandbox: broken" in caplog.text) == (expected == "off")


async def test_machine_without_filter_has_no_sandbox(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(_confinement, "find_program", lambda name, **_: f"/usr/bin/{name}")
    monkeypatch.setattr(_confinement, "bubblewrap_problem", lambda program: None)
    monkeypatch.setattr(_confinement, "system_call_filter", lambda: None)
    coordinator = await opened(tmp_path, shell="/bin/sh")
    assert coordinator.get_capability("bash.sandbox")["kind"] == "off"
    assert "there is no filter of system calls for" in caplog.text


async def test_missing_requested_sandbox_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(_confinement, "bubblewrap_problem", lambda program: "broken")
    with pytest.raises(
        ModuleLoadError,
        match=r"asks for the sandbox 'bwrap', which does not work here: .*'auto' or 'off'",
    ):
        await opened(tmp_path, sandbox="bwrap")
    with pytest.raises(
        PlanError, match=r"\$\.sandbox: expected one of 'auto', 'bwrap', 'off', got 'landlock'"
    ):
        await opened(tmp_path, sandbox="landlock")


async def test_other_system_has_no_sandbox(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.platform", "darwin")
    sandbox, warning = _confinement.choose_sandbox(BashOptions(), str(tmp_path))
    assert (sandbox.kind, warning) == (
        "off",
        "commands run without a sandbox: there is no sandbox for darwin",
    )


# ── ending ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", [*SANDBOXES, "off"])
async def test_cancelled_command_leaves_nothing(kind, tmp_path):
    coordinator = await opened(tmp_path, sandbox=kind)
    token = f"600.{uuid.uuid4().int}"
    command = f"(setsid env -i sleep {token} >/dev/null 2>&1 &); trap '' TERM; sleep {token} & sleep {token}"
    async with anyio.create_task_group() as group:
        group.start_soon(run, coordinator, command)
        assert await wait_for(lambda: is_alive(token), timeout=60)
        group.cancel_scope.cancel()
    assert gone(token) == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*SANDBOXES, "off"])
def test_killed_agent_leaves_no_command(kind, tmp_path):
    token = f"600.{uuid.uuid4().int}"
    program = (
        "import anyio; from amplifier.modules.tools import bash; from amplifier.testing import TestCoordinator\n"
        "async def main():\n"
        "    c = TestCoordinator()\n"
        f"    await bash.mount(c, {{'sandbox': {kind!r}, 'working_dir': {str(tmp_path)!r}}})\n"
        f"    await c.get('tools', 'bash').execute({{'command': 'setsid env -i sleep {token} & sleep {token}'}})\n"
        "anyio.run(main)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program]) as agent:
        while len([line for line in running_processes(token) if " sleep " in line]) < 2:
            with pytest.raises(subprocess.TimeoutExpired):  # it must not end
                agent.wait(0.2)
        agent.kill()
    assert gone(token) == []


# ── keys of the agent ────────────────────────────────────────────────────────────────────────────


def test_agent_environment_is_unreadable_to_same_user():
    """As another user than root, whom nothing keeps from reading it."""
    code = (
        "import os, subprocess\n"
        "from amplifier.modules.tools.bash._tool import hide_environment\n"
        "from amplifier._internal.supervisor import PR_SET_DUMPABLE, prctl\n"
        "if os.geteuid() == 0:\n"
        "    os.setgroups([]); os.setresgid(12345, 12345, 12345); os.setresuid(12345, 12345, 12345)\n"
        "    prctl(PR_SET_DUMPABLE, 1)  # a change of user takes it away\n"
        "def read(): return subprocess.run(['cat', f'/proc/{os.getpid()}/environ'], capture_output=True).stdout\n"
        "before = read(); first, second = hide_environment(), hide_environment(); hidden = read(); first(); first()\n"
        "still = read(); second(); after = read()\n"
        "print(b'CANARY' in before, hidden, still, b'CANARY' in after)\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "KEY": "CANARY"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.stdout == "True b'' b'' True\n", found.stderr


# ── approval ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("kind", "action"),
    [pytest.param("bwrap", "continue", marks=IN_BUBBLEWRAP), ("off", "ask_user")],
)
async def test_rule_can_be_lenient_in_sandbox(kind, action, tmp_path):
    coordinator = await opened(tmp_path, sandbox=kind)
    rules = [
        {"tool": "bash", "sandboxed": True, "action": "allow"},
        {"tool": "bash", "sandboxed": False, "action": "ask"},
    ]
    await hooks_approval.mount(coordinator, {"rules": rules})
    call = {"tool_name": "bash", "tool_input": {"command": "make test | tee log"}}
    assert (await coordinator.hooks.emit("tool:pre", call)).action == action
    elsewhere = {"tool_name": "other", "tool_input": {"command": "make test"}}
    assert (await coordinator.hooks.emit("tool:pre", elsewhere)).action == "ask_user"


# ── the supervisor ───────────────────────────────────────────────────────────────────────────────


def test_quick_supervisor_is_not_awaited(monkeypatch):
    reported = b"pid 1\nstatus 7\n"
    wait_started = processes.StartedProcess.wait_started

    def wait_for_both_lines(process):
        while (
            process.news is not None
            and struct.unpack("i", fcntl.ioctl(process.news, termios.FIONREAD, bytes(4)))[0] < len(reported)
        ):  # fmt: skip
            assert process.process.poll() is None
        wait_started(process)

    def wait(*_):
        pytest.fail("there is nothing to wait for")

    monkeypatch.setattr(processes.StartedProcess, "wait_started", wait_for_both_lines)
    monkeypatch.setattr(
        processes, "select", SimpleNamespace(select=wait, poll=select.poll, POLLIN=select.POLLIN)
    )
    assert processes._supervisor_starts.__wrapped__()
