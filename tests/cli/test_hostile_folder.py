"""A folder that someone else filled, such as a repository, given to the commands: nothing of it is waited for, nothing of it is executed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests._support.terminal import run_cli


def fifo(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(path)


def endless(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to("/dev/zero")


COMMANDS = {
    "plan check": ("plan.json", ["plan", "check", "plan.json"], "expected a regular file"),
    "plan in YAML": ("plan.yaml", ["plan", "check", "plan.yaml"], "expected a regular file"),
    "run": ("plan.yaml", ["run", "hi", "--plan", "plan.yaml"], "expected a regular file"),
    "replay": ("tape.json", ["run", "hi", "--replay", "tape.json"], "expected a regular file"),
    "module": ("tool_x.py", ["module", "validate", "tool_x.py"], ""),
    "package": ("tool_x/__init__.py", ["module", "validate", "tool_x"], ""),
    "project": ("pyproject.toml", ["module", "validate", "."], ""),
}


@pytest.mark.parametrize("make", [fifo, endless])
@pytest.mark.parametrize(("name", "command", "words"), COMMANDS.values(), ids=COMMANDS)
def test_irregular_file_is_refused_without_waiting(name, command, words, make, home, workdir):
    make(workdir / name)
    finished = run_cli(*command, home=home, cwd=workdir)
    assert finished.returncode in (1, 2), finished.stderr
    assert words in finished.stderr
    assert "Traceback" not in finished.stderr


def test_oversized_plan_is_refused_unread(home, workdir):
    with (workdir / "plan.json").open("wb") as file:
        file.truncate(2_000_000_000)
    finished = run_cli("plan", "check", "plan.json", home=home, cwd=workdir)
    assert finished.returncode == 1
    assert "expected at most 16000000" in finished.stderr
