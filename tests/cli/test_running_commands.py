"""Asking a running command what it is doing: `amplifier doctor --tasks`, `kill -USR1`, real processes that hang."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from amplifier.cli._exit_codes import CommandError
from amplifier.cli.commands.doctor import find_running
from amplifier.cli.terminal.display import Display
from amplifier.cli.terminal.output import StandardStreams
from amplifier.models import from_json
from amplifier.tracing import TaskTree
from amplifier.tracing.running_commands import answer_task_requests, request_tasks, running_commands
from tests._support.terminal import open_terminal, run_cli, start
from tests.cli._scripted_agent import call


def wait_until_it_waits(home: Path, pid: int) -> None:
    """A tool is announced before it is called; afterwards it is in it."""
    folder = home / "running"
    running = find_running(folder, str(pid))
    while "tool-scripted" not in {task.module for task in request_tasks(folder, running).tasks}:
        pass


def ask_while_it_sleeps(home: Path, workdir: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Ask again if the request came in one of the moments in which the tool looks for its file."""
    shown = run_cli("doctor", "--tasks", *words, home=home, cwd=workdir)
    for _ in range(10):
        if "running" in shown.stdout:
            shown = run_cli("doctor", "--tasks", *words, home=home, cwd=workdir)
    return shown


@contextmanager
def hanging_run(
    plan: str, home: Path, workdir: Path, backend: str, *options: str
) -> Iterator[subprocess.Popen[bytes]]:
    """An `amplifier run` whose tool waits for a file that is never created."""
    prompt = call("wait_for", path=workdir / "gate")
    words = ("run", prompt, "--plan", plan, "--backend", backend, "--session-id", "hung", *options)
    process = start(*words, home=home, cwd=workdir, text=False)
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if b"wait_for" in line:
                break
        wait_until_it_waits(home, process.pid)
        yield process
    finally:
        process.kill()
        process.communicate()


def test_doctor_shows_tasks_of_hanging_run(backend, home, workdir, plan):
    with hanging_run(plan, home, workdir, backend) as process:
        shown = ask_while_it_sleeps(home, workdir, str(process.pid))
        assert (shown.returncode, shown.stderr) == (0, "")
        assert f"tasks of process {process.pid}" in shown.stdout
        assert "session hung, module tool-scripted" in shown.stdout
        assert "in WaitFor.execute [tool-scripted] (anyio sleep)" in shown.stdout
        assert "await anyio.sleep(0.02)" in shown.stdout
        (workdir / "gate").touch()
        captured, errors = process.communicate()
        assert process.returncode == 0
        assert b"it is there" in captured
        assert b"tasks of process" not in errors
    assert list((home / "running").iterdir()) == []


@pytest.mark.slow
def test_doctor_gives_json_by_session(backend, home, workdir, plan):
    with hanging_run(plan, home, workdir, backend) as process:
        for wanted in ("hung", "last"):
            shown = ask_while_it_sleeps(home, workdir, wanted, "--json")
            tree = from_json(TaskTree, shown.stdout)
            assert (tree.pid, tree.backend, tree.is_blocked) == (process.pid, backend, False)
            assert "tool-scripted" in {task.module for task in tree.tasks}
        checked = run_cli("doctor", "--json", home=home, cwd=workdir)
        (found,) = [
            each for each in json.loads(checked.stdout)["findings"] if each["subject"] == "running"
        ]
        assert f"--tasks {process.pid}" in found["text"]


def test_signal_writes_tasks_to_stderr(backend, home, workdir, plan):
    with hanging_run(plan, home, workdir, backend) as process:
        process.send_signal(signal.SIGUSR1)
        assert process.stderr is not None
        # The tool may be asleep or just looking again when the signal arrives; either way the line shows where it is.
        assert any(b"in WaitFor.execute [tool-scripted]" in line for line in process.stderr)
        (workdir / "gate").touch()
        assert b"it is there" in process.communicate()[0]
        assert process.returncode == 0


@pytest.mark.slow
def test_terminal_shows_tasks_above_live_lines(backend, home, workdir, plan):
    prompt = call("wait_for", path=workdir / "gate")
    with open_terminal(
        "run", prompt, "--plan", plan, "--backend", backend, home=home, cwd=workdir
    ) as terminal:
        terminal.expect("s  wait_for")
        wait_until_it_waits(home, terminal.process.pid)
        terminal.send(signal.SIGUSR1)
        terminal.expect("tasks of process")
        assert (
            "\x1b[2F\x1b[Jtasks of process" in terminal.screen
        )  # the live lines, tool and turn, were taken away first
        terminal.expect("module tool-scripted", "s  wait_for")
        (workdir / "gate").touch()
        terminal.expect("it is there")
        terminal.ends(0)


def test_stopped_run_is_named(home, workdir, plan, monkeypatch):
    monkeypatch.setattr("amplifier.tracing.running_commands.ANSWER_TIMEOUT", 0.3)
    with hanging_run(plan, home, workdir, "asyncio") as process:
        process.send_signal(signal.SIGSTOP)
        folder = home / "running"
        with pytest.raises(
            TimeoutError, match="it is stopped, or in a call that does not return to Python"
        ):
            request_tasks(folder, find_running(folder, str(process.pid)))


def test_process_without_handler_gets_no_signal(home, workdir):
    """SIGUSR1 would end a process that knows nothing of it."""
    other = subprocess.Popen(["sleep", "60"])
    try:
        asked = run_cli("doctor", "--tasks", str(other.pid), home=home, cwd=workdir)
        assert asked.returncode == 2
        assert "nothing is running" in asked.stderr
        (home / "running").mkdir(parents=True)
        left_behind = {
            "pid": other.pid,
            "session_id": "old",
            "started": "2026-01-01",
            "backend": "trio",
        }
        (home / "running" / f"{other.pid}.json").write_text(json.dumps(left_behind))
        assert run_cli("doctor", "--tasks", str(other.pid), home=home, cwd=workdir).returncode == 2
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()
    assert list((home / "running").iterdir()) == []  # what was left behind has been removed


def test_running_command_is_found_by_id(tmp_path, capsys):
    screen = Display(StandardStreams())
    with answer_task_requests(tmp_path, "monday", "asyncio", screen.show_immediately):
        (own,) = running_commands(tmp_path)
        assert (own.pid, own.session_id, own.backend) == (os.getpid(), "monday", "asyncio")
        assert find_running(tmp_path, "monday") == own
        with pytest.raises(CommandError, match=r"running now: .*monday"):
            find_running(tmp_path, "tuesday")
    assert list(tmp_path.iterdir()) == []


def test_ambiguous_name_is_refused_but_latest_works(tmp_path):
    with (
        answer_task_requests(tmp_path, "serve", "asyncio", print),
        (tmp_path / "7.json").open("w") as other,
    ):
        json.dump(
            {"pid": 7, "session_id": "serve", "started": "2026-01-01", "backend": "trio"}, other
        )
        other.flush()
        fcntl.flock(other, fcntl.LOCK_EX)  # as if it ran
        with pytest.raises(
            CommandError,
            match=f"'serve' is more than one process: {os.getpid()} and 7; give the id",
        ):
            find_running(tmp_path, "serve")
        assert (find_running(tmp_path, "7").pid, find_running(tmp_path, "last").pid) == (
            7,
            os.getpid(),
        )


def test_commands_are_listed_without_session_folder(tmp_path, monkeypatch, cli):
    monkeypatch.setenv("AMPLIFIER_HOME", str(tmp_path))
    (tmp_path / "sessions").touch()
    with answer_task_requests(tmp_path / "running", "monday", "asyncio", print):
        found = json.loads(cli("doctor", "--json", code=1).out)["findings"]
    texts = {each["subject"]: each["text"] for each in found}
    assert "sessions cannot be kept" in texts["state"]
    assert "session monday since" in texts["running"]


def test_command_runs_without_writable_state_folder(tmp_path, capsys):
    (tmp_path / "file").touch()
    with answer_task_requests(
        tmp_path / "file", "monday", "asyncio", Display(StandardStreams()).show_immediately
    ):
        signal.raise_signal(signal.SIGUSR1)
    assert "tasks of process" in capsys.readouterr().err
