"""The set-up keeps its own promises: planted faults must fail, on a run of pytest with this project's configuration."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests._support.tree import ROOT

_PLUGINS = """
pytest_plugins = ["tests._support.backends", "tests._support.leaks", "tests._support.profiles"]
"""

_PLANTED = """
import asyncio, os, socket, subprocess, sys, threading, time
import anyio, anyio.from_thread, pytest
from anyio.lowlevel import checkpoint, current_token
from hypothesis import given, strategies as st
import sniffio

kept = []
release = threading.Event()

async def test_runs(anyio_backend_name):
    assert sniffio.current_async_library() == anyio_backend_name
    await checkpoint()

async def test_really_awaits():
    await checkpoint()
    assert False

@given(st.integers())
async def test_property_fails(n):
    await checkpoint()
    assert n < 100

async def leave_a_task():
    async def wait():
        await anyio.sleep_forever()
    if sniffio.current_async_library() == "asyncio":
        kept.append(asyncio.create_task(wait(), name="forgotten"))
    else:
        import trio
        trio.lowlevel.spawn_system_task(wait, name="forgotten")
    await checkpoint()

async def test_leaks_task():
    await leave_a_task()

@given(st.integers())
async def test_property_leaks_task(n):
    await leave_a_task()

def test_leaks_thread():
    threading.Thread(target=release.wait, name="forgotten", daemon=True).start()

async def test_leaks_busy_worker_thread():
    def wait():
        anyio.from_thread.run_sync(scope.cancel)
        release.wait()

    with anyio.CancelScope() as scope:
        await anyio.to_thread.run_sync(wait, abandon_on_cancel=True)

def test_leaks_process():
    kept.append(subprocess.Popen(["sleep", "60"]))

def test_leaks_forked_process():
    if os.fork() == 0:
        time.sleep(60)
        os._exit(0)

def test_leaks_unwaited_process():
    pid = os.posix_spawnp("true", ["true"], os.environ)

def test_leaks_orphaned_grandchild():
    subprocess.run(["sh", "-c", "sleep 60 &"], check=True, stdout=subprocess.DEVNULL)

def test_leaks_file():
    kept.append(open(os.devnull))

def test_leaks_socket():
    kept.append(socket.socket())

def test_leaks_path():
    sys.path.append("/nowhere")

@pytest.fixture
async def loop_wide():
    async with anyio.create_task_group() as tg:
        tg.start_soon(anyio.sleep_forever)
        yield
        tg.cancel_scope.cancel()

async def test_fixture_tasks_are_no_leak(loop_wide):
    await checkpoint()

def test_failing_is_blamed_once():
    kept.append(open(os.devnull))
    assert False

def test_next_is_clean():
    pass

def test_release():
    release.set()
"""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What became of every planted test: its name to outcomes with reasons, from one run for all."""
    folder: Path = tmp_path_factory.mktemp("planted")
    (folder / "conftest.py").write_text(_PLUGINS)
    (folder / "test_planted.py").write_text(_PLANTED)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-c",
        str(ROOT / "pyproject.toml"),
        f"--rootdir={folder}",
        "-rA",
    ]
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "COLUMNS": "300",  # the summary keeps the whole reason
        "HYPOTHESIS_PROFILE": "default",
        "LEAK_GUARD_PATIENCE": "0.5",
    }
    finished = subprocess.run(
        [*command, "--tb=short", "-p", "no:cacheprovider", "test_planted.py"],
        cwd=folder, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    found: dict[str, list[str]] = {}
    for outcome, name, reason in re.findall(
        r"^(PASSED|FAILED|ERROR) \S*test_planted\.py::(\S+)(.*)$", finished.stdout, re.MULTILINE
    ):
        found.setdefault(name, []).append(outcome + reason)
    assert found, finished.stdout + finished.stderr
    return found


BOTH = ("asyncio", "trio")


@pytest.mark.slow
@pytest.mark.parametrize("backend", BOTH)
@pytest.mark.parametrize("name", ["test_runs", "test_fixture_tasks_are_no_leak"])
def test_well_behaved_async_test_passes(outcomes, name, backend):
    assert outcomes[f"{name}[{backend}]"] == ["PASSED"]


@pytest.mark.slow
@pytest.mark.parametrize("backend", BOTH)
@pytest.mark.parametrize("name", ["test_really_awaits", "test_property_fails"])
def test_wrong_async_test_fails(outcomes, name, backend):
    (outcome,) = outcomes[f"{name}[{backend}]"]
    assert outcome.startswith("FAILED")


@pytest.mark.slow
@pytest.mark.parametrize("backend", BOTH)
@pytest.mark.parametrize("name", ["test_leaks_task", "test_property_leaks_task"])
def test_leaked_task_fails_test(outcomes, name, backend):
    (outcome,) = outcomes[f"{name}[{backend}]"]
    assert outcome.startswith("FAILED")
    assert "left behind: task 'forgotten'" in outcome


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("test_leaks_thread", "thread 'forgotten'"),
        ("test_leaks_busy_worker_thread[asyncio]", "thread "),
        ("test_leaks_busy_worker_thread[trio]", "thread "),
        ("test_leaks_process", "sleep 60"),
        ("test_leaks_forked_process", "process "),
        ("test_leaks_unwaited_process", "was never waited for"),
        ("test_leaks_orphaned_grandchild", "sleep 60"),
        ("test_leaks_file", os.devnull),
        ("test_leaks_socket", "socket:"),
        ("test_leaks_path", "sys.path entry '/nowhere'"),
    ],
)
def test_leaked_resource_fails_test_by_name(outcomes, name, what):
    passed, error = outcomes[name]
    assert passed == "PASSED"
    assert error.startswith("ERROR")
    assert "left behind" in error
    assert what in error


@pytest.mark.slow
def test_failing_test_is_not_blamed_twice(outcomes):
    (outcome,) = outcomes["test_failing_is_blamed_once"]
    assert outcome.startswith("FAILED")


@pytest.mark.slow
def test_leak_is_not_blamed_on_next_test(outcomes):
    assert outcomes["test_next_is_clean"] == ["PASSED"]


_INHERITED = """
import os, signal, subprocess

def test_signals_have_their_default_actions():
    kept = {signal.SIGPIPE, signal.SIGXFSZ}
    assert [number for number in signal.valid_signals() - kept if signal.getsignal(number) is signal.SIG_IGN] == []
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == set()

def test_sigint_ends_a_program():
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as program:
        program.send_signal(signal.SIGINT)
        assert program.wait(60) == -signal.SIGINT

def test_new_files_can_be_read_by_others(tmp_path):
    file = tmp_path / "file"
    file.touch()
    assert file.stat().st_mode & 0o777 == 0o644

def test_output_is_neither_coloured_nor_wrapped_nor_translated():
    names = {"NO_COLOR", "FORCE_COLOR", "COLUMNS", "LC_ALL", "ANTHROPIC_API_KEY"}
    assert names & set(os.environ) == set()
    assert os.environ["LANG"] == "C.UTF-8"

def test_state_of_the_user_is_not_seen(tmp_path_factory):
    assert os.environ["XDG_STATE_HOME"].startswith(str(tmp_path_factory.getbasetemp()))
"""


@pytest.mark.slow
@pytest.mark.parametrize("processes", ["0", "1"])
def test_shell_state_does_not_reach_tests(tmp_path, processes):
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["tests._support.surroundings"]\n')
    (tmp_path / "test_inherited.py").write_text(_INHERITED)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-c",
        str(ROOT / "pyproject.toml"),
        f"--rootdir={tmp_path}",
    ]
    command += ["-n", processes, "-p", "no:cacheprovider", "test_inherited.py"]
    program = (
        "import os, signal, sys\n"
        "for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGUSR1):\n"
        "    signal.signal(number, signal.SIG_IGN)\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGCHLD])\n"
        "os.umask(0o077)\n"
        "os.close(0)\n"
        "os.execv(sys.argv[1], sys.argv[1:])\n"
    )
    shell = {
        "NO_COLOR": "1",
        "FORCE_COLOR": "1",
        "COLUMNS": "20",
        "LC_ALL": "C",
        "ANTHROPIC_API_KEY": "key",
    }
    shell |= {"XDG_STATE_HOME": str(tmp_path), "HOME": "/nonexistent"}
    finished = subprocess.run(
        [sys.executable, "-c", program, *command],
        cwd=tmp_path, env=os.environ | shell | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stdout + finished.stderr
