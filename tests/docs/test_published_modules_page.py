"""The page about published modules, as a stranger follows it: its commands in a new environment, with a git server of this machine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from tests._support.programs import run_program
from tests.compat.published_loops import BASIC

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "run-published-modules.md"
PROJECT = """
[project]
name = "amplifier-module-loop-streaming"
version = "1.0.0"
[project.entry-points."amplifier.modules"]
loop-streaming = "amplifier_module_loop_streaming:mount"
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
"""


def repository(folder: Path, source: str) -> None:
    """A published-style module as a repository."""
    package = folder / "amplifier_module_loop_streaming"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(source)
    (folder / "pyproject.toml").write_text(PROJECT)
    author = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    for command in (["init", "-q"], ["add", "-A"], [*author, "commit", "-q", "-m", "module"]):
        subprocess.run(["git", *command], cwd=folder, check=True)


def environment(folder: Path) -> dict[str, str]:
    """A new environment that has what this one has, and no index."""
    made = folder / "venv"
    venv.create(made, with_pip=True, symlinks=True)
    python = made / "bin" / "python"
    place = next((made / "lib").glob("python*/site-packages"))
    (place / "here.pth").write_text(
        f"{sysconfig.get_path('purelib')}\n{Path(__file__).parents[2] / 'src'}\n"
    )
    command = made / "bin" / "amplifier"
    command.write_text(f'#!/bin/sh\nexec {python} -m amplifier "$@"\n')
    command.chmod(0o755)
    return {
        **{
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PYTHON", "PIP_", "AMPLIFIER"))
        },
        "PATH": f"{made / 'bin'}:{os.environ['PATH']}",
        "HOME": str(folder),
        "PIP_NO_INDEX": "1",
        "PIP_NO_BUILD_ISOLATION": "0",  # pip's way to say "without isolation"
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"url.{(folder / 'served').as_uri()}/.insteadOf",
        "GIT_CONFIG_VALUE_0": "https://github.com/microsoft/",
    }


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="the page is for a POSIX shell")
def test_page_leads_newcomer_to_answer(tmp_path: Path):
    text = PAGE.read_text().partition("## From nothing to an answer")[2].partition("\n## ")[0]
    repository(tmp_path / "served" / "amplifier-module-loop-streaming", BASIC)
    (tmp_path / "plan.yaml").write_text(re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)[0])
    commands = [
        line.removeprefix("$ ")
        for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL)
        for line in block.splitlines()
    ]
    assert [command.split()[0] for command in commands] == [
        "pip",
        "pip",
        "amplifier",
        "amplifier",
        "amplifier",
    ]
    surroundings, said = environment(tmp_path), {}
    for command in commands:
        ended = run_program(["sh", "-c", command], cwd=tmp_path, env=surroundings)
        assert ended.returncode == 0, f"{command}\n{ended.stdout}\n{ended.stderr}"
        said[command] = ended.stdout
    assert "amplifier_module_loop_streaming 1.0.0" in said["amplifier module list"]
    assert "provider-offline" in said['amplifier run --plan plan.yaml "hello"']
    assert "loop-streaming import amplifier_core" in said["amplifier doctor"]
