"""A report for CI: as JUnit XML with one test case for each clause, and as GitHub Actions workflow commands, annotations on the lines of a pull request."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from xml.etree import ElementTree

from amplifier._json import visible_text
from amplifier.conformance.report.model import (
    Cause,
    ClauseOutcome,
    Report,
    cause_lines,
    causes_of,
    details,
    repository_path,
)


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
        path = None if first.file is None else repository_path(first.file)
        if path is not None:
            case.set("file", _text(path))
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


_LONGEST_INPUT = 300


def github_annotations(report: Report) -> list[str]:
    """An ``::error`` for each violation, a ``::notice`` for each recommendation, and an ``::error`` for a module that was not examined."""
    lines = [_annotation(cause) for cause in report.causes]
    if report.verdict == "unchecked":
        text = "\n".join([report.summary, *report.limits])
        lines.append(_command("error", {"title": f"{report.module}: unchecked"}, text))
    return lines


def without_commands(lines: Sequence[str]) -> list[str]:
    """Lines between two commands that let the runner ignore commands, so that no text of the module is taken for one."""
    token = secrets.token_hex(16)
    return [f"::stop-commands::{token}", *lines, f"::{token}::"]


def _annotation(cause: Cause) -> str:
    found = cause.shown
    path = None if found.file is None else repository_path(found.file)
    properties = {} if path is None else {"file": path}
    if path is not None and found.line is not None:
        properties["line"] = str(found.line)
    rank = "" if cause.is_required else " (recommended)"
    properties["title"] = f"{', '.join(cause.clauses)}{rank}"
    facts = {
        label: text for label, text in details(cause, _LONGEST_INPUT).items() if path is None or label != "look at"
    }
    message = "\n".join([found.what, *(f"{label}: {text}" for label, text in facts.items())])
    return _command("error" if cause.is_required else "notice", properties, message)


def _command(name: str, properties: dict[str, str], message: str) -> str:
    given = ",".join(f"{key}={_escaped_property(value)}" for key, value in properties.items())
    return f"::{name}{' ' if given else ''}{given}::{_escaped(message)}"


def _escaped(text: str) -> str:
    return visible_text(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _escaped_property(text: str) -> str:
    return _escaped(text).replace(":", "%3A").replace(",", "%2C")
