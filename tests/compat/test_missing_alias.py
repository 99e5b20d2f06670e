"""Errors about a missing ``amplifier_core`` name the command that enables the alias for all processes of an environment."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import anyio
import pytest

from amplifier.cli import main
from amplifier.conformance import Report, check_module
from amplifier.errors import ModuleLoadError
from amplifier.loading import ModuleLoader
from tests._support.forked import run_forked

from .published_agent import write_package

ADVICE = "python -m amplifier.compat enable"

STARTS_A_CHILD = """
import subprocess, sys

def start():
    subprocess.run(
        [sys.executable, "-c", "import amplifier_core"],
        env={"PYTHONPATH": "", "PYTHONNOUSERSITE": "1"}, capture_output=True, text=True, check=True,
    )

start()
"""

MISSING = "raise ModuleNotFoundError(\"No module named 'amplifier_core'\", name='amplifier_core')\n"


def examine(target: Path) -> Report:
    async def run() -> Report:
        return await check_module(str(target), only=["T4"])

    return anyio.run(run)


@pytest.mark.slow
@pytest.mark.parametrize("source", [MISSING, STARTS_A_CHILD])
def test_module_needing_alias_is_reported_with_command(
    tmp_path: Path, source: str, capsys: pytest.CaptureFixture[str]
):
    target = write_package(tmp_path, "tool-shout", source)
    loader = ModuleLoader()
    with pytest.raises(ModuleLoadError) as caught:
        loader.find("tool-shout", str(target))
    loader.cleanup()
    assert str(caught.value).count(ADVICE) == 1

    report = examine(target)
    assert [found.what.count(ADVICE) for found in report.violations] == [1]

    assert main(["module", "validate", str(target), "--only", "T4"]) == 1
    assert ADVICE in capsys.readouterr().out


def test_other_missing_package_is_reported_without_command(tmp_path: Path):
    loader = ModuleLoader()
    with pytest.raises(ModuleLoadError) as caught:
        loader.find(
            "tool-shout", str(write_package(tmp_path, "tool-shout", "import amplifier_cores\n"))
        )
    loader.cleanup()
    assert ADVICE not in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("-p", "amplifier.compat.pytest")])
def test_suite_lacking_alias_ends_with_command(tmp_path: Path, options: tuple[str, ...]):
    suite = """
        import subprocess, sys

        def test_child():
            command = [sys.executable, "-c", "import amplifier_core"]
            ran = subprocess.run(command, env={"PYTHONPATH": ""}, capture_output=True, text=True)
            assert ran.returncode == 0, ran.stderr
    """
    (tmp_path / "test_it.py").write_text(textwrap.dedent(suite))
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        *options,
        "test_it.py",
    ]
    ended = run_forked(command, text=True, timeout=60, cwd=tmp_path)
    assert ended.returncode == 1, ended.stdout
    assert ended.stdout.count(ADVICE) == 1


def test_program_lacking_alias_ends_with_command(
    tmp_path: Path,
):
    (tmp_path / "program.py").write_text(STARTS_A_CHILD)
    command = [sys.executable, "-m", "amplifier.compat", "program.py"]
    ended = run_forked(command, text=True, timeout=60, cwd=tmp_path)
    assert ended.returncode == 1
    assert ended.stderr.count(ADVICE) == 1
