"""A report for CI: as JUnit XML with one test case for each clause."""

from __future__ import annotations

from xml.etree import ElementTree

from amplifier._json import visible_text
from amplifier.conformance.report.model import ClauseOutcome, Report, cause_lines, causes_of, shown_path


def write_junit(report: Report) -> str:
    """The report as XML. A clause that is only recommended, and one that was not examined, is a skipped test.

    A module that could not be examined has an error in a test case of its own, so that its report does not pass for a good one.
    """
    suite = ElementTree.Element("testsuite", name=_text(f"amplifier module validate {report.module}"))
    for outcome in report.clauses:
        suite.append(_case(report, outcome))
    if report.verdict == "unchecked":
        case = _test_case(report, "it could be examined")
        _add(case, "error", report.summary, "\n".join(report.limits))
        suite.append(case)
    numbers = {
        "tests": len(suite),
        "failures": len(suite.findall("testcase/failure")),
        "errors": len(suite.findall("testcase/error")),
        "skipped": len(suite.findall("testcase/skipped")),
    }
    for name, number in numbers.items():
        suite.set(name, str(number))
    suite.set("time", f"{report.seconds:.3f}")
    ElementTree.SubElement(suite, "system-out").text = _text("\n".join(report.lines()))
    whole = ElementTree.Element("testsuites", suite.attrib)
    whole.append(suite)
    ElementTree.indent(whole)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{ElementTree.tostring(whole, encoding="unicode")}\n'


def _case(report: Report, outcome: ClauseOutcome) -> ElementTree.Element:
    case = _test_case(report, f"{outcome.id} {outcome.text}")
    causes = causes_of(outcome.findings)
    if causes:
        first = causes[0].shown
        if first.file is not None:
            case.set("file", _text(shown_path(first.file)))
            case.set("line", str(first.line or 1))
        text = "\n".join(line for cause in causes for line in cause_lines(cause))
        if outcome.level == "required":
            _add(case, "failure", first.what, text)
        else:
            _add(case, "skipped", f"recommended, not required: {first.what}", text)
    elif outcome.status != "kept":
        _add(case, "skipped", "not examined", "\n".join(report.limits))
    return case


def _test_case(report: Report, name: str) -> ElementTree.Element:
    return ElementTree.Element("testcase", classname=_text(report.module), name=_text(name), time="0")


def _add(case: ElementTree.Element, tag: str, message: str, text: str) -> None:
    ElementTree.SubElement(case, tag, type=tag, message=_text(message)).text = _text(text)


def _text(text: str) -> str:
    """Text without the characters that XML does not allow."""
    return visible_text(text).replace("\ufffe", "\\ufffe").replace("\uffff", "\\uffff")
