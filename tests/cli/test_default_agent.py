"""`amplifier run` with nothing configured: the default plan, the offline provider and the real tools, out of the box."""

from __future__ import annotations

import json
import os
import secrets
import time
from pathlib import Path

import pytest

from tests._support.processes import running_processes
from tests._support.terminal import PATIENCE, json_of, open_terminal, run_cli, run_without
from tests._support.tree import ROOT


@pytest.fixture
def files(workdir) -> Path:
    (workdir / "notes.txt").write_text("one\ntwo\nthree\n")
    return workdir


@pytest.mark.slow
def test_default_agent_answers_from_files(backend, home, files):
    words = (
        "run",
        "list the files and count the lines of notes.txt",
        "--output-format",
        "json-trace",
    )
    shown = json_of(run_cli(*words, "--backend", backend, home=home, cwd=files))
    assert (shown["status"], shown["exit_code"], shown["provider"]) == ("success", 0, "offline")
    assert "notes.txt has 3 lines" in shown["response"]
    assert {"list_directory", "read_file"} <= {step["tool"] for step in shown["execution_trace"]}
    assert all(step["result"]["success"] for step in shown["execution_trace"])
    events = [json.loads(line) for line in Path(shown["files"]["events"]).read_text().splitlines()]
    assert {"session:start", "tool:pre", "tool:post", "execution:end"} <= {
        event["event"] for event in events
    }
    folder = home / "sessions" / shown["session_id"]
    assert sorted(os.listdir(folder)) == ["checkpoints.json", "events.jsonl", "lock"]


@pytest.mark.slow
def test_writing_needs_permission(home, files):
    words = ("run", 'write "hello" to new.txt')
    finished = run_cli(*words, home=home, cwd=files)
    assert "There is no terminal to ask at." in finished.stderr
    assert not (files / "new.txt").exists()
    finished = run_cli(*words, "--yes", home=home, cwd=files)
    assert (
        "allowed (--yes): Allow the tool write_file to run? file_path: new.txt" in finished.stderr
    )
    assert (files / "new.txt").read_text().strip() == "hello"


@pytest.mark.slow
def test_double_ctrl_c_ends_command_processes(backend, home, files):
    sleep = f"sleep 1000.{secrets.randbelow(10**12)}"  # found by its command line: in a sandbox it has another process id
    with open_terminal("run", "--backend", backend, home=home, cwd=files) as terminal:
        terminal.expect("› ")
        terminal.type(f'run "{sleep}"\n')
        terminal.answer("y")
        wait_until_it_runs(sleep)
        terminal.press_ctrl_c("Press Ctrl-C again")
        terminal.press_ctrl_c("Stopped.")
        assert not running_processes(sleep)
        terminal.say("count the lines of notes.txt", "notes.txt has 3 lines")
        terminal.leave()


def wait_until_it_runs(text: str) -> None:
    give_up = time.monotonic() + PATIENCE
    while not any(line.split(maxsplit=1)[1].startswith(text) for line in running_processes(text)):
        assert time.monotonic() < give_up, f"{text} was not started"
        time.sleep(0.01)


def test_missing_package_drops_its_tool_only(home, files):
    finished = run_without(
        "truststore", "run", "count the lines of notes.txt", "-q", home=home, cwd=files
    )
    # Where bubblewrap is missing, a line says that there is no sandbox.
    errors = [line for line in finished.stderr.splitlines() if "without a sandbox" not in line]
    assert (finished.returncode, errors) == (0, [])
    assert "3 lines" in finished.stdout


def test_provider_without_key_names_variable(home, files):
    finished = run_cli("run", "hello", "-p", "anthropic", home=home, cwd=files)
    assert finished.returncode == 2
    assert "ANTHROPIC_API_KEY" in finished.stderr
    assert "amplifier run -p offline" in finished.stderr
    assert "Traceback" not in finished.stderr


def test_example_plan_runs(home, files):
    plan = str(ROOT / "examples" / "agent.yaml")
    finished = run_cli("run", "count the lines of notes.txt", "--plan", plan, home=home, cwd=files)
    assert finished.returncode == 0
    assert "notes.txt has 3 lines" in finished.stdout


def test_doctor_finds_no_problem(home, files):
    finished = run_cli("doctor", home=home, cwd=files)
    assert finished.returncode == 0, finished.stdout
    assert (
        "✓ provider   provider-offline answers by default; choose another with -p"
        in finished.stdout
    )
