"""The report as text: the order of its sections, one entry for each cause, inert texts; and as JUnit XML: one test case for each clause."""

from __future__ import annotations

from xml.etree import ElementTree

import attrs

from amplifier.conformance import Report
from amplifier.conformance.report import id_ranges, write_junit
from tests.conformance.report.reports import HOSTILE, finding, report

WORST = finding("T5", what="execute raised KeyError: 'text'", input={"text": 1}, location="x.py:7")


def test_sections_come_in_order_and_kept_clauses_are_left_out():
    mild = finding("T13", level="recommended", what="it prints")
    shown = report(mild, WORST, missed=("T8", "T9", "T10"), notes=["mount declined"]).lines()
    assert shown == [
        "tool-x (tool): violations; it breaks 1 required clause; 1 recommendation; 3 clauses not examined",
        "",
        "  broken       T5  execute returns a ToolResult for any JSON object, however wrong its keys and values.",
        "  recommended  T13 The tool reports through the logging module and prints nothing.",
        "",
        "  T5: execute raised KeyError: 'text'",
        "    input: {'text': 1}",
        "    on: asyncio",
        "    look at: x.py:7",
        "    fix: fix T5",
        "    reproduce: amplifier module validate x --only T5",
        "",
        "  T13 (recommended): it prints",
        "    on: asyncio",
        "    fix: fix T13",
        "    reproduce: amplifier module validate x --only T13",
        "",
        "not examined: T8 to T10",
        "note: mount declined",
        "",
        "37 of 42 clauses kept, 3 not examined, 1 violation, 1 recommendation (quick on asyncio and trio, seed 0, 1.2 s)",
    ]


def test_verbose_lists_every_other_clause_with_its_status():
    shown = report(WORST, missed=("T8",)).lines(verbose=True)
    assert sum(line.startswith("  kept ") for line in shown) == 40
    assert [line for line in shown if line.startswith("  not examined ")] == [
        f"  not examined T8  {next(each.text for each in report().clauses if each.id == 'T8')}"
    ]


def test_a_module_without_findings_gets_a_verdict_and_its_counts():
    shown = report().lines()
    assert shown[0] == "tool-x (tool): conforms"
    assert shown[1:2] == [""]
    assert len(shown) == 3


def test_the_reason_for_unexamined_clauses_is_given():
    assert (
        "not examined: T8; the examination was restricted to T5"
        in report(missed=("T8",), selected=["T5"]).lines()
    )
    assert (
        "not examined: T8; --static runs nothing of the module"
        in report(missed=("T8",), profile="static").lines()
    )


def test_findings_of_one_cause_are_shown_once_and_name_all_checks_backends_and_clauses():
    same = {"what": "execute raised KeyError: 'text'", "location": "x.py:7"}
    shown = report(
        finding("T5", **same, check="tool.one", backend="asyncio, trio"),
        finding("T5", **same, check="tool.two", backend="trio"),
        finding("T6", **same, check="tool.three", backend="asyncio"),
        finding("T6", what="another", location="x.py:7"),
    )
    entries = [line for line in shown.lines() if "KeyError" in line]
    assert entries == ["  T5, T6: execute raised KeyError: 'text'"]
    text = str(shown)
    assert "    on: asyncio, trio\n" in text
    assert "    found by: tool.one, tool.two, tool.three\n" in text
    assert "    fix: fix T5 fix T6\n" in text
    assert "2 violations, 0 recommendations" in text


def test_one_error_at_one_line_and_one_thing_left_behind_are_one_finding_each():
    at = {"location": "x.py:7", "file": "/x.py"}
    text = str(
        report(
            finding("T5", what="execute raised KeyError: 'a'", **at),
            finding("A7", what="it was cancelled and raised KeyError: 'b'", check="other", **at),
            finding("A14", what="the thread 'worker' remains after cleanup", check="other"),
            finding(
                "A5", what="mount failed, and the thread 'worker' was left behind", check="third"
            ),
            finding("T6", what="execute raised ValueError: c", **at),
        )
    )
    assert text.count("reproduce:") == 3
    assert "A7, T5: it was cancelled and raised KeyError: 'b'" in text
    assert "also seen in: T5: execute raised KeyError: 'a'" in text
    assert "A5, A14" in text


def test_what_one_check_sees_for_two_clauses_is_one_cause_wherever_they_point():
    shown = report(
        finding("A14", what="a handler remains", check="every_module.cleans_up", location="x.py:9"),
        finding(
            "T13",
            what="a handler remains",
            check="every_module.cleans_up",
            location="x.py:3",
            level="recommended",
        ),
        finding("T5", what="a handler remains", check="tool.other", location="x.py:20"),
    )
    assert [cause.clauses for cause in shown.causes] == [["A14", "T13"], ["T5"]]
    assert shown.counts == "39 of 42 clauses kept, 2 violations, 1 recommendation"


def test_the_smallest_input_of_a_cause_is_shown_with_its_command():
    same = {"what": "it raised", "location": "x.py:7"}
    shown = report(
        finding("T5", **same, check="tool.one", input={"text": "long"}, reproduce="one"),
        finding("T5", **same, check="tool.two", input={}, reproduce="two"),
        finding("T5", **same, check="tool.three", input=None, reproduce="three"),
        finding("T13", **same, check="tool.four", input=0, reproduce="four", level="recommended"),
    )
    assert "    input: {}\n    on: asyncio\n    look at: x.py:7\n" in str(shown)
    assert "    reproduce: two\n" in str(shown)


def test_clauses_of_a_module_that_cannot_be_imported_are_not_examined_for_that_reason():
    shown = report(finding("A1", check="import", backend=None), missed=("T8",))
    assert "not examined: T8; the module could not be imported" in shown.lines()


def test_no_text_of_the_module_reaches_the_terminal_as_it_is_or_starts_a_line():
    found = finding(
        what=HOSTILE, input=HOSTILE, hint=HOSTILE, location=f"{HOSTILE}.py:7", reproduce=HOSTILE
    )
    whole = report(found, module=HOSTILE, notes=[HOSTILE], limitations=[HOSTILE])
    whole.clauses = [attrs.evolve(outcome, text=HOSTILE) for outcome in whole.clauses]
    text = "\n".join(whole.lines(verbose=True))
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert not any(line.startswith("::") for line in text.splitlines())


def test_colours_do_not_change_the_text():
    found = report(WORST, missed=("T8",))
    painted = found.lines(verbose=True, paint=lambda text, colour: f"<{colour}>{text}</>")
    plain = "\n".join(painted)
    for colour in ("red", "green", "yellow", "dim", "bold"):
        plain = plain.replace(f"<{colour}>", "")
    assert plain.replace("</>", "") == "\n".join(found.lines(verbose=True))
    assert (
        painted[0]
        == "tool-x (tool): <red>violations</>; it breaks 1 required clause; 1 clause not examined"
    )


def test_ids_are_joined_into_ranges():
    assert id_ranges(["A1", "A2", "A3", "A5", "T1", "T2"]) == "A1 to A3, A5, T1, T2"
    assert id_ranges([]) == ""


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
    suite = suite_of(
        report(worst, finding("T13", level="recommended"), missed=("T8",), notes=["why"])
    )
    counts = {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped", "time")}
    assert counts == {
        "tests": "42",
        "failures": "1",
        "errors": "0",
        "skipped": "2",
        "time": "1.250",
    }
    cases = {case.attrib["name"].partition(" ")[0]: case for case in suite.findall("testcase")}
    failure = cases["T5"].find("failure")
    assert failure is not None
    assert failure.get("message") == "it raised"
    assert "reproduce: amplifier module validate x --only T5" in (failure.text or "")
    assert (cases["T5"].get("file"), cases["T5"].get("line")) == ("x.py", "7")
    skipped = {
        name: case.find("skipped")
        for name, case in cases.items()
        if case.find("skipped") is not None
    }
    assert set(skipped) == {"T13", "T8"}
    assert skipped["T13"].get("message") == "recommended, not required: T13 does not hold"
    assert "note: why" in (skipped["T8"].text or "")
    assert list(cases["T1"]) == []
    assert "tool-x (tool): violations" in (suite.findtext("system-out") or "")


def test_a_module_that_was_not_examined_is_an_error():
    suite = suite_of(report(verdict="unchecked", notes=["it could not be mounted"]))
    assert (suite.get("tests"), suite.get("errors")) == ("43", "1")
    error = suite.find("testcase/error")
    assert error is not None
    assert "it could not be mounted" in (error.text or "")


def test_any_text_is_valid_xml():
    every = "".join(map(chr, (*range(0x20), 0x7F, 0x85, 0xD800, 0xFFFE, 0xFFFF, 0x1F600)))
    found = finding(what=HOSTILE + every, input=every, location=f"{every}:7", hint=every)
    suite = suite_of(report(found, module=every, notes=[every], verdict="unchecked"))
    assert suite.find("script") is None
