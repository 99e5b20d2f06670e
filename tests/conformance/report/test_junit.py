"""JUnit XML: one test case for each clause, and none that passes for a module that was not examined."""

from __future__ import annotations

from xml.etree import ElementTree

from amplifier.conformance import Report
from amplifier.conformance.report import write_junit
from tests.conformance.report.reports import HOSTILE, finding, report


def suite_of(shown: Report) -> ElementTree.Element:
    whole = ElementTree.fromstring(write_junit(shown))
    (suite,) = whole.findall("testsuite")
    assert whole.tag == "testsuites"
    for name in ("tests", "failures", "errors", "skipped"):
        assert whole.get(name) == suite.get(name)
    return suite


def test_each_clause_is_a_test_case(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "x.py"
    file.touch()
    worst = finding("T5", what="it raised", location="x.py:7", file=str(file))
    suite = suite_of(report(worst, finding("T13", level="recommended"), missed=("T8",), notes=["why"]))
    counts = {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped", "time")}
    assert counts == {"tests": "40", "failures": "1", "errors": "0", "skipped": "2", "time": "1.250"}
    cases = {case.attrib["name"].partition(" ")[0]: case for case in suite.findall("testcase")}
    failure = cases["T5"].find("failure")
    assert failure is not None
    assert failure.get("message") == "it raised"
    assert "reproduce: amplifier module validate x --only T5" in (failure.text or "")
    assert (cases["T5"].get("file"), cases["T5"].get("line")) == ("x.py", "7")
    skipped = {name: case.find("skipped") for name, case in cases.items() if case.find("skipped") is not None}
    assert set(skipped) == {"T13", "T8"}
    assert skipped["T13"].get("message") == "recommended, not required: T13 does not hold"
    assert "note: why" in (skipped["T8"].text or "")
    assert list(cases["T1"]) == []
    assert "tool-x (tool): violations" in (suite.findtext("system-out") or "")


def test_a_module_that_was_not_examined_is_an_error():
    suite = suite_of(report(verdict="unchecked", notes=["it could not be mounted"]))
    assert (suite.get("tests"), suite.get("errors")) == ("41", "1")
    error = suite.find("testcase/error")
    assert error is not None
    assert "it could not be mounted" in (error.text or "")


def test_any_text_is_valid_xml():
    every = "".join(map(chr, (*range(0x20), 0x7F, 0x85, 0xD800, 0xFFFE, 0xFFFF, 0x1F600)))
    found = finding(what=HOSTILE + every, input=every, location=f"{every}:7", hint=every)
    suite = suite_of(report(found, module=every, notes=[every], verdict="unchecked"))
    assert suite.find("script") is None
