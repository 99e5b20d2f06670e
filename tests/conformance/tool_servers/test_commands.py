"""The commands, and the tests in one line."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests._support.programs import run_program
from tests._support.terminal import open_terminal

HERE = Path(__file__).parent
pytestmark = pytest.mark.slow


def amplifier(folder: Path, *words: str):
    environment = {**os.environ, "AMPLIFIER_HOME": str(folder), "XDG_CACHE_HOME": str(folder)}
    return run_program(
        [sys.executable, "-m", "amplifier", "validate", *words], cwd=folder, env=environment
    )


def test_tools_left_open_are_not_called_and_named(tmp_path, monkeypatch):
    """The server deletes when its tool is called; by default it is not."""
    monkeypatch.setenv("PROOF", str(tmp_path / "proof"))
    words = f"{sys.executable} {HERE / 'planted.py'}"
    done = amplifier(
        tmp_path, "mcp", words, "--env", "PROOF", "--call", "sound_set", *_skip_all_but("sound_set")
    )
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stdout.startswith("will be called (declared read-only, or permitted): sound_double")
    assert (
        "neither called nor skipped: delete_everything; decide with amplifier validate mcp"
        in done.stdout
    )
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
    done = amplifier(
        tmp_path,
        "python",
        target,
        "--call-all",
        "--json",
        "--junit",
        "report.xml",
        "--html",
        "r.html",
    )
    assert done.returncode == 1, done.stdout + done.stderr
    report = json.loads(done.stdout)
    broken = {
        outcome["id"]: outcome["findings"][0]
        for outcome in report["clauses"]
        if outcome["status"] == "broken"
    }
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
    done = run_program(
        [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider"], cwd=tmp_path
    )
    assert "test_add::S8[asyncio] PASSED" in done.stdout, done.stdout
    assert "test_add::permissions[asyncio] PASSED" in done.stdout
    assert "test_open::permissions[asyncio] FAILED" in done.stdout
    assert "neither called nor skipped: add" in done.stdout


def test_fixed_values_reach_the_tool_and_no_report(tmp_path):
    """A function that deletes unless it is told to pretend is only told to pretend."""
    fixed = {"*": {"pretend": True}, "delete": {"place": "opensesame"}}
    (tmp_path / "fixed.json").write_text(json.dumps(fixed))
    target = f"{HERE / 'own_tools.py'}:FIXED"
    words = ["--call-all", "--arguments", "fixed.json", "--json"]
    done = amplifier(tmp_path, "python", target, *words)
    assert done.returncode == 1, done.stdout + done.stderr
    [found] = [
        each for outcome in json.loads(done.stdout)["clauses"] for each in outcome["findings"]
    ]
    # The planted slip is reached with the fixed values only.
    assert found["clause"] == "S5"
    assert found["what"].startswith("delete: an input that the schema accepts raised NameError")
    assert found["input"]["input"] == {
        "pretend": "(from --arguments)",
        "place": "(from --arguments)",
    }
    assert "opensesame" not in done.stdout + done.stderr
    assert "--arguments fixed.json" in found["reproduce"]


@pytest.mark.parametrize(
    ("fixed", "words"),
    [
        ({"delet": {}}, "--arguments names 'delet': there is no such tool; did you mean 'delete'?"),
        (
            {"delete": {"pretnd": True}},
            "--arguments fixes 'pretnd', an argument that 'delete' does not have",
        ),
        ({"*": {"dry_run": True}}, "--arguments fixes 'dry_run', an argument that no tool has"),
        (["delete"], "expected an object by the names of tools"),
    ],
)
def test_fixed_values_that_would_go_nowhere_are_refused(fixed, words, tmp_path):
    (tmp_path / "fixed.json").write_text(json.dumps(fixed))
    target = f"{HERE / 'own_tools.py'}:FIXED"
    done = amplifier(tmp_path, "python", target, "--call-all", "--arguments", "fixed.json")
    assert done.returncode == 2, done.stdout + done.stderr
    assert words in done.stderr


@pytest.mark.parametrize(("typed", "code"), [("y", 1), ("n", 2), ("", 2)])
def test_a_person_is_asked_about_the_tools_left_open(typed, code, tmp_path):
    """Only a yes permits: what slips is found after it, and nothing is called without."""
    target = f"{HERE / 'own_tools.py'}:slips"
    with open_terminal(
        "validate", "python", target, home=tmp_path / "home", cwd=tmp_path
    ) as terminal:
        terminal.expect(
            "will not be called (not permitted): slips", "Call these as well?", "[y/N]: "
        )
        terminal.type(f"{typed}\n")
        terminal.expect(
            "or permitted): slips" if typed == "y" else "will not be called (--skip): slips"
        )
        terminal.ends(code)
    assert ("AttributeError" in terminal.text) is (typed == "y")


def test_nobody_is_asked_when_nothing_is_open(tmp_path):
    """The server is then started once."""
    started = tmp_path / "started"
    (tmp_path / "once.py").write_text(
        f"open({str(started)!r}, 'a').write('x')\n\n\ndef look(word: str) -> str:\n    return word\n"
    )
    monitored = f"{tmp_path / 'once.py'}:look"
    with open_terminal(
        "validate", "python", monitored, "--skip", "look", home=tmp_path / "home", cwd=tmp_path
    ) as terminal:
        terminal.expect("will not be called (--skip): look")
        terminal.ends(2)
    assert "Call these as well?" not in terminal.text
    assert started.read_text() == "x"
