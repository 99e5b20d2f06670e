"""The commands, and the tests in one line."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests._support.programs import run_program

HERE = Path(__file__).parent
pytestmark = pytest.mark.slow


def amplifier(folder: Path, *words: str):
    environment = {**os.environ, "AMPLIFIER_HOME": str(folder), "XDG_CACHE_HOME": str(folder)}
    return run_program([sys.executable, "-m", "amplifier", "validate", *words], cwd=folder, env=environment)


def test_tools_left_open_are_not_called_and_named(tmp_path, monkeypatch):
    """The server deletes when its tool is called; by default it is not."""
    monkeypatch.setenv("PROOF", str(tmp_path / "proof"))
    words = f"{sys.executable} {HERE / 'planted.py'}"
    done = amplifier(tmp_path, "mcp", words, "--env", "PROOF", "--call", "sound_set", *_skip_all_but("sound_set"))
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stdout.startswith("will be called (declared read-only, or permitted): sound_double")
    assert "neither called nor skipped: delete_everything; decide with amplifier validate mcp" in done.stdout
    assert not (tmp_path / "proof").exists()


def _skip_all_but(*kept: str) -> list[str]:
    faulty = [
        "mixes",
        "writes",
        "lies",
        "hides_errors",
        "halves",
        "tears",
        "repeats",
        "hangs",
        "grows",
        "leaves_a_process",
    ]
    return [word for name in faulty if name not in kept for word in ("--skip", name)]


def test_functions_are_examined_as_they_are(tmp_path):
    target = f"{HERE / 'own_tools.py'}:FAULTY"
    done = amplifier(tmp_path, "python", target, "--call-all", "--json", "--junit", "report.xml", "--html", "r.html")
    assert done.returncode == 1, done.stdout + done.stderr
    report = json.loads(done.stdout)
    broken = {outcome["id"]: outcome["findings"][0] for outcome in report["clauses"] if outcome["status"] == "broken"}
    assert set(broken) == {"S5", "S8"}
    assert broken["S5"]["location"] == f"{HERE / 'own_tools.py'}:17"
    assert broken["S8"]["input"]["tool"] == "mixes"
    assert "amplifier validate python" in (tmp_path / "report.xml").read_text()
    assert "violations" in (tmp_path / "r.html").read_text()


def test_one_line_of_pytest_makes_a_test_for_each_clause(tmp_path):
    text = f"""
from amplifier.conformance.suites import python_conformance_tests

test_add = python_conformance_tests("{HERE / "own_tools.py"}:add", call_all=True)
test_open = python_conformance_tests("{HERE / "own_tools.py"}:add")
"""
    (tmp_path / "test_mine.py").write_text(text)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    done = run_program([sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider"], cwd=tmp_path)
    assert "test_add::S8[asyncio] PASSED" in done.stdout, done.stdout
    assert "test_add::permissions[asyncio] PASSED" in done.stdout
    assert "test_open::permissions[asyncio] FAILED" in done.stdout
    assert "neither called nor skipped: add" in done.stdout
