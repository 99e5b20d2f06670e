"""Processes that a program with the alias starts have it as well, and the environment is left as it was."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from amplifier.compat._alias import PLACE, export_alias, withdraw_alias

ASK = "import amplifier_core, amplifier; print(amplifier_core.HookResult is amplifier.HookResult)"


def ask(python: list[str]) -> str:
    ran = subprocess.run([*python, "-c", ASK], capture_output=True, text=True, check=False)
    return ran.stdout.strip() or ran.stderr.strip().splitlines()[-1]


@pytest.fixture(autouse=True)
def _environment_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.delenv("PYTHONPATH")


def test_child_process_has_exported_alias():
    export_alias()
    export_alias()
    with_alias = ask([sys.executable])
    entries = os.environ["PYTHONPATH"].split(os.pathsep)
    withdraw_alias()
    withdraw_alias()

    assert with_alias == "True"
    assert entries == [PLACE]
    assert "PYTHONPATH" not in os.environ
    assert "amplifier_core" in ask(
        [sys.executable]
    )  # No module named …, or the published one's name in an error


def test_other_path_entries_are_kept(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    export_alias()
    assert os.environ["PYTHONPATH"] == f"{PLACE}{os.pathsep}/somewhere"
    withdraw_alias()
    assert os.environ["PYTHONPATH"] == "/somewhere"


def test_command_exports_alias_to_children(tmp_path: Path):
    outer = tmp_path / "outer.py"
    outer.write_text(
        f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {ASK!r}], check=True)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-m", "amplifier.compat", str(outer)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.strip() == "True"
