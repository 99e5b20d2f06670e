"""SARIF: valid against the schema of SARIF 2.1.0, stable identities, paths from the root of the repository."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from amplifier.conformance import Finding, Report
from amplifier.conformance.report.sarif import write_sarif
from amplifier.contracts import clauses_for
from tests._support.node_parts import program
from tests.conformance.report.reports import HOSTILE, finding, report


@pytest.fixture(scope="module")
def validator() -> Any:
    file = Path(program("@microsoft/jest-sarif", "lib/schemas/sarif-2.1.0-rtm.5.json"))
    schema = json.loads(file.read_text(encoding="utf-8"))
    # As published it holds a pattern with an unbalanced bracket, for a property that we do not write.
    for name in ("run", "toolComponent"):
        del schema["definitions"][name]["properties"]["language"]["pattern"]
    return jsonschema_rs.validator_for(schema, validate_formats=True)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("GITHUB_WORKSPACE", raising=False)
    (tmp_path / "repository" / ".git").mkdir(parents=True)
    return tmp_path / "repository"


def run_of(shown: Report, validator: Any) -> Any:
    log = json.loads(write_sarif(shown))
    validator.validate(log)
    (run,) = log["runs"]
    return run


def found_in(file: Path, clause: str = "T5", line: int = 7, **fields: Any) -> Finding:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()
    return finding(clause, location=f"{file.name}:{line}", file=str(file), **fields)


def test_clauses_are_rules_and_findings_are_results(repository, validator):
    worst = found_in(repository / "src" / "a b#c%.py")
    run = run_of(report(worst, finding("T13", level="recommended"), missed=("T8",)), validator)
    rules = run["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == [clause.id for clause in clauses_for("tool")]
    assert all(rule["help"]["text"] and rule["shortDescription"]["text"] for rule in rules)
    first, second = run["results"]
    assert rules[first["ruleIndex"]]["id"] == first["ruleId"] == "T5"
    assert (first["level"], second["level"]) == ("error", "note")
    assert first["message"]["text"].splitlines()[0] == "T5 does not hold"
    assert first["locations"][0]["physicalLocation"] == {
        "artifactLocation": {"uri": "src/a%20b%23c%25.py", "uriBaseId": "%SRCROOT%"},
        "region": {"startLine": 7},
    }
    assert "locations" not in second
    assert run["invocations"][0] == {
        "executionSuccessful": True,
        "toolExecutionNotifications": [{"level": "note", "message": {"text": "not examined: T8"}}],
    }


def test_a_finding_about_a_whole_file_is_at_its_first_line(repository, validator):
    file = repository / "pyproject.toml"
    file.touch()
    run = run_of(report(finding("A1", location="pyproject.toml", file=str(file))), validator)
    assert run["results"][0]["locations"][0]["physicalLocation"]["region"] == {"startLine": 1}


def test_a_module_that_was_not_examined_is_no_success(validator):
    run = run_of(report(verdict="unchecked", notes=["it could not be mounted"]), validator)
    assert run["invocations"][0]["executionSuccessful"] is False
    assert run["results"] == []


def test_a_file_outside_the_repository_has_an_absolute_address(tmp_path, repository, monkeypatch, validator):
    monkeypatch.chdir(repository)
    run = run_of(report(found_in(tmp_path / "x.py")), validator)
    artifact = run["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]
    assert artifact == {"uri": (tmp_path / "x.py").as_uri()}


def test_a_fingerprint_survives_moved_lines_and_another_message_and_tells_findings_apart(repository, validator):
    def fingerprints(*found: Finding) -> list[str]:
        run = run_of(report(*found), validator)
        return [result["partialFingerprints"]["amplifierFinding/v1"] for result in run["results"]]

    file = repository / "x.py"
    (one,) = fingerprints(found_in(file, what="blocked for 120 ms"))
    assert fingerprints(found_in(file, line=9, what="blocked for 130 ms")) == [one]
    several = fingerprints(
        found_in(file),
        found_in(file, what="another"),
        found_in(file, clause="T6"),
        found_in(repository / "y.py"),
    )
    assert len(set(several)) == 4


def test_one_cause_of_two_clauses_is_a_result_for_each_rule(repository, validator):
    one, other = (found_in(repository / "x.py", clause, what="it raised") for clause in ("T5", "T6"))
    run = run_of(report(one, other), validator)
    assert [result["ruleId"] for result in run["results"]] == ["T5", "T6"]


def test_hostile_texts_stay_data(validator):
    found = finding(what=HOSTILE, input=HOSTILE, hint=HOSTILE, file="/tmp/\udc80<b>.py", location="x.py:7")
    text = write_sarif(report(found, module=HOSTILE, notes=[HOSTILE], verdict="unchecked"))
    validator.validate(json.loads(text))
    assert text.isascii()
    assert "\\u001b" not in text
