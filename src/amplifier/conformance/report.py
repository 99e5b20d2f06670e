"""The report on a module: plain data with a stable JSON form, text for people, and JUnit XML."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Literal
from xml.etree import ElementTree

from attrs import Factory, define, frozen

from amplifier._internal.json import visible_text

# `amplifier.models.to_json` and `from_json` write and read a report. The texts for people and for
# XML show the control characters of a module's texts in a visible form.

Status = Literal["kept", "broken", "not_checked"]

STATUS_WORDS: dict[Status, str] = {
    "kept": "kept",
    "broken": "broken",
    "not_checked": "not examined",
}
"""The word for each status in texts for people."""


@frozen(kw_only=True)
class Finding:
    """One broken promise, with everything an author needs to reproduce and to fix it.

    Attributes:
        clause: The id of the broken clause.
        level: ``required`` or ``recommended``.
        what: The observed behaviour, and the expected one where it is not obvious.
        check: The name of the check that reported it.
        backend: The backends on which it occurred. None if nothing was run.
        input: The smallest input that shows it, as JSON values. None if it needs no input.
        cancelled_at: The await at which the call was cancelled, ``file:line function``.
            None if no call was cancelled.
        location: The place in the module, ``file:line``, relative to the module's folder or
            project. None if it is not known.
        file: The absolute path of the file in ``location``, or None if it was not found.
        hint: A way to fix it.
        reproduce: The command that reproduces exactly this finding.
    """

    clause: str
    level: str
    what: str
    check: str
    backend: str | None = None
    input: Any = None
    cancelled_at: str | None = None
    location: str | None = None
    file: str | None = None
    hint: str = ""
    reproduce: str = ""

    @property
    def line(self) -> int | None:
        """The line of the location, or None if it names only a file."""
        _, _, number = (self.location or "").rpartition(":")
        return int(number) if number.isascii() and number.isdigit() else None


@frozen(kw_only=True)
class ClauseOutcome:
    """The outcome of one clause.

    Attributes:
        id: The id of the clause, such as ``T5``.
        level: ``required`` or ``recommended``.
        text: The promise.
        law: The id of its law, or None if it belongs to no law.
        status: ``kept`` if no check found a fault, ``broken``, or ``not_checked``. The notes of
            the report state why a clause was not examined.
        how: The descriptions of the checks that examined it.
        backends: The backends of these checks, empty if they ran nothing.
        findings: The findings against it.
    """

    id: str
    level: str
    text: str
    law: str | None
    status: Status
    how: list[str] = Factory(list)
    backends: list[str] = Factory(list)
    findings: list[Finding] = Factory(list)


@frozen
class Cause:
    """One fault, with every finding that shows it.

    Attributes:
        findings: At least one finding, with required clauses first.
    """

    findings: tuple[Finding, ...]

    @property
    def shown(self) -> Finding:
        """The most important finding with the smallest input, which stands for the cause."""
        return min(
            self.findings,
            key=lambda finding: (
                finding.level != "required",
                finding.input is None,
                len(repr(finding.input)),
            ),
        )

    @property
    def is_required(self) -> bool:
        """Whether it breaks a required clause."""
        return self.findings[0].level == "required"

    @property
    def clauses(self) -> list[str]:
        """The clauses that it breaks."""
        return _unique(finding.clause for finding in self.findings)

    @property
    def head(self) -> str:
        """The clauses that it breaks, for a heading."""
        return ", ".join(self.clauses) + ("" if self.is_required else " (recommended)")

    @property
    def checks(self) -> list[str]:
        """The checks that reported it."""
        return _unique(finding.check for finding in self.findings)

    @property
    def backends(self) -> list[str]:
        """The backends on which it occurred. Empty if nothing was run."""
        return sorted(
            _unique(
                name
                for finding in self.findings
                for name in (finding.backend or "").split(", ")
                if name
            )
        )

    @property
    def hints(self) -> list[str]:
        """The ways to fix it."""
        return _unique(finding.hint for finding in self.findings if finding.hint)


def causes_of(findings: Iterable[Finding]) -> list[Cause]:
    """Group findings by their cause.

    Violations come before broken recommendations. Otherwise the order of the findings stays.
    """
    groups: list[list[Finding]] = []
    for finding in sorted(findings, key=lambda finding: finding.level != "required"):
        group = next(
            (group for group in groups if any(_have_one_cause(finding, other) for other in group)),
            None,
        )
        if group is None:
            groups.append([finding])
        else:
            group.append(finding)
    return [Cause(tuple(group)) for group in groups]


_RAISED = re.compile(r"\braised (\w+)")
_LEFT = re.compile(r"the (?:task|thread|process|temporary file|handler) '[^']*'")


def _have_one_cause(one: Finding, other: Finding) -> bool:
    """Return whether two findings show one fault.

    That is the case if the same error came from the same line, or if the same thing was left
    behind. It is also the case if their texts are equal, and either the place or the check is the
    same.
    """
    if _traces(one) & _traces(other):
        return True
    if one.what != other.what:
        return False
    same_place = (one.file, one.location) == (other.file, other.location)
    return same_place or (one.check == other.check and one.clause != other.clause)


def _traces(finding: Finding) -> set[str]:
    """Return the marks of a fault in a finding: an error with its line, and any leftovers."""
    raised = _RAISED.search(finding.what) if finding.line is not None else None
    return {
        *_LEFT.findall(finding.what),
        *([] if raised is None else [f"{raised[1]} {finding.file} {finding.location}"]),
    }


def _unique(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(texts))


def shown_location(finding: Finding) -> str | None:
    """Return the location of a finding for a reader, with the path of the file."""
    if finding.file is None:
        return finding.location
    file = shown_path(finding.file)
    return file if finding.line is None else f"{file}:{finding.line}"


def shown_path(file: str) -> str:
    """Return the path of a file in a form that editors find.

    It is relative below the working directory, and absolute elsewhere.
    """
    path, here = Path(file).resolve(), Path.cwd()
    return path.relative_to(here).as_posix() if path.is_relative_to(here) else file


Colour = Literal["red", "green", "yellow", "dim", "bold"]
Paint = Callable[[str, Colour], str]
"""A function that returns a text with a colour, or unchanged."""

_MAX_INPUT_LENGTH = 300
_MAX_OTHER_LENGTH = 120


def no_paint(text: str, _colour: Colour) -> str:
    """Return a text unchanged."""
    return text


def clause_lines(outcomes: Iterable[ClauseOutcome], paint: Paint = no_paint) -> list[str]:
    """Return a line for each clause, with its status, its id and its promise."""
    lines = []
    for outcome in outcomes:
        status, colour = _status(outcome)
        promise = visible_text(outcome.text, multiline=False)
        lines.append(f"  {paint(f'{status:<13}', colour)}{outcome.id:<4}{promise}")
    return lines


def _status(outcome: ClauseOutcome) -> tuple[str, Colour]:
    if outcome.status == "broken":
        return ("broken", "red") if outcome.level == "required" else ("recommended", "yellow")
    if outcome.status == "kept":
        return "kept", "green"
    return STATUS_WORDS[outcome.status], "dim"


def cause_lines(cause: Cause, paint: Paint = no_paint) -> list[str]:
    """Return a cause and its details as lines."""
    head = paint(cause.head, "red" if cause.is_required else "yellow")
    lines = _hanging(f"  {head}: {visible_text(cause.shown.what)}", "    ")
    for label, text in details(cause).items():
        lines += _hanging(f"    {paint(f'{label}:', 'bold')} {visible_text(text)}", "      ")
    return lines


def details(cause: Cause) -> dict[str, str]:
    """Return the details of a cause by their labels. Its clauses and its text are not included."""
    first = cause.shown
    shown_input = None if first.input is None else repr(first.input)
    if shown_input is not None and len(shown_input) > _MAX_INPUT_LENGTH:
        shown_input = f"{shown_input[: _MAX_INPUT_LENGTH - 40]}… ({len(shown_input)} characters)"
    others = [
        f"{finding.clause}: {finding.what[:_MAX_OTHER_LENGTH]}"
        for finding in cause.findings
        if finding.what != first.what
    ]
    texts = {
        "input": shown_input,
        "on": ", ".join(cause.backends),
        "cancelled at": first.cancelled_at,
        "look at": shown_location(first),
        "fix": " ".join(cause.hints),
        "also seen in": "; ".join(_unique(others)),
        "found by": ", ".join(cause.checks) if len(cause.checks) > 1 else "",
        "reproduce": first.reproduce,
    }
    return {label: text for label, text in texts.items() if text}


def _hanging(text: str, indent: str) -> list[str]:
    """Split a text into lines, and indent all but the first."""
    first, *others = text.splitlines()
    return [first, *(f"{indent}{line}" for line in others)]


def id_ranges(ids: Sequence[str]) -> str:
    """Shorten a list of clause ids, such as ``A1 to A3, T5``."""
    parts: list[str] = []
    for _, members in groupby(
        enumerate(ids), key=lambda pair: (pair[1][:1], int(pair[1][1:]) - pair[0])
    ):
        run = [clause for _, clause in members]
        parts += run if len(run) < 3 else [f"{run[0]} to {run[-1]}"]
    return ", ".join(parts)


Verdict = Literal["conforms", "violations", "unchecked"]

CUT_SHORT = "examined in part"
"""The first words of a note about examinations that were not completed."""

FORMAT = 1
"""Version of the JSON form. A change that readers would notice gets another number."""


@define(kw_only=True)
class Report:
    """The result of examining one module.

    Attributes:
        module: The id of the module.
        type: The type of the module, or of the tool server.
        source: The place where the module was found.
        verdict: ``conforms``, ``violations`` if a required clause is broken, or ``unchecked`` if
            the module could not be examined.
        profile: The depth of the examination: ``static``, ``quick`` or ``thorough``.
        seed: The seed of the drawn inputs.
        backends: The backends on which the module was run.
        clauses: The outcome of every clause that binds a module of this type.
        limitations: The limitations that the module itself declares.
        notes: Notes on the limits of this result.
        selected: The only clauses and checks that the caller selected, empty for all.
        seconds: The duration of the examination.
        format: The version of the JSON form.
    """

    module: str
    type: str = "unknown"
    source: str
    verdict: Verdict
    profile: str = "quick"
    seed: int
    backends: list[str] = Factory(list)
    clauses: list[ClauseOutcome] = Factory(list)
    limitations: list[str] = Factory(list)
    notes: list[str] = Factory(list)
    selected: list[str] = Factory(list)
    seconds: float = 0.0
    format: int = FORMAT

    @property
    def violations(self) -> list[Finding]:
        """Findings against required clauses."""
        return [finding for finding in self._findings() if finding.level == "required"]

    @property
    def recommendations(self) -> list[Finding]:
        """Findings against recommended clauses, which do not affect the verdict."""
        return [finding for finding in self._findings() if finding.level != "required"]

    @property
    def causes(self) -> list[Cause]:
        """All findings, grouped by cause, with violations first."""
        return causes_of(self._findings())

    @property
    def command(self) -> str:
        """The command that makes such a report."""
        return {"mcp server": "validate mcp", "python tools": "validate python"}.get(
            self.type, "module validate"
        )

    @property
    def ok(self) -> bool:
        """Whether the module conforms."""
        return self.verdict == "conforms"

    @property
    def summary(self) -> str:
        """The verdict on the module in one line."""
        required, recommended = self._broken("required"), self._broken("recommended")
        parts = [f"it breaks {_counted(len(required), 'required clause')}"] if required else []
        parts += [_counted(len(recommended), "recommendation")] if recommended else []
        if self.verdict == "unchecked":
            parts.insert(0, "too little of it could be examined")
        verdict: str = self.verdict
        cut_short = [note for note in self.notes if note.startswith(CUT_SHORT)]
        if self.command == "module validate" or not (self.unexamined or cut_short):
            parts += (
                [f"{_counted(len(self.unexamined), 'clause')} not examined"]
                if self.unexamined
                else []
            )
        else:
            # The clauses that a server can show depend on its tools, so list the missing ones.
            verdict += " where it was examined" if self.ok else ""
            parts += [f"not examined: {id_ranges(self.unexamined)}"] if self.unexamined else []
            parts += ["some tools were examined in part"] if cut_short else []
        return "; ".join([f"{self.module} ({self.type}): {verdict}", *parts])

    @property
    def counts(self) -> str:
        """The numbers of kept, unexamined and broken clauses, in words."""
        kept = sum(outcome.status == "kept" for outcome in self.clauses)
        missed = len(self.unexamined)
        parts = [
            f"{kept} of {len(self.clauses)} clauses kept",
            *([f"{missed} not examined"] if missed else []),
        ]
        parts.append(_counted(len(self._broken("required")), "violation"))
        parts.append(_counted(len(self._broken("recommended")), "recommendation"))
        return ", ".join(parts)

    @property
    def run(self) -> str:
        """The profile, the backends, the seed and the duration, in words."""
        where = " and ".join(self.backends)
        profile = (
            "only read"
            if self.profile == "static"
            else f"{self.profile} on {where or 'no backend'}"
        )
        return f"{profile}, seed {self.seed}, {self.seconds:.1f} s"

    @property
    def unexamined(self) -> list[str]:
        """The ids of the clauses that were not examined."""
        return [outcome.id for outcome in self.clauses if outcome.status == "not_checked"]

    @property
    def limits(self) -> list[str]:
        """Sentences about the limits of the result, such as the clauses that were not examined."""
        sentences = []
        if self.unexamined:
            because = ""
            if any(finding.check == "import" for finding in self._findings()):
                because = "; the module could not be imported"
            elif self.selected:
                because = f"; the examination was restricted to {', '.join(self.selected)}"
            elif self.profile == "static":
                because = "; --static runs nothing of the module"
            sentences.append(f"not examined: {id_ranges(self.unexamined)}{because}")
        return [
            *sentences,
            *(f"limitation: {text}" for text in self.limitations),
            *(f"note: {text}" for text in self.notes),
        ]

    def lines(self, *, verbose: bool = False, paint: Paint = no_paint) -> list[str]:
        """Return the report as text.

        Args:
            verbose: True to list kept and unexamined clauses as well.
            paint: Colours the status words and labels.
        """
        colour: Colour = {"conforms": "green", "violations": "red", "unchecked": "yellow"}[
            self.verdict
        ]  # type: ignore[assignment]
        first = visible_text(self.summary).replace(self.verdict, paint(self.verdict, colour), 1)
        lines = _hanging(first, "  ") + _section(clause_lines(self._broken(), paint))
        for cause in self.causes:
            lines += _section(cause_lines(cause, paint))
        lines += _section(
            [line for text in self.limits for line in _hanging(visible_text(text), "  ")]
        )
        if verbose:
            others = [outcome for outcome in self.clauses if outcome.status != "broken"]
            lines += _section(clause_lines(others, paint))
        return [*lines, "", f"{self.counts} ({self.run})"]

    def _findings(self) -> list[Finding]:
        return [finding for outcome in self.clauses for finding in outcome.findings]

    def _broken(self, level: str | None = None) -> list[ClauseOutcome]:
        broken = [outcome for outcome in self.clauses if outcome.status == "broken"]
        wanted = sorted(broken, key=lambda outcome: outcome.level != "required")
        return [outcome for outcome in wanted if level in (None, outcome.level)]

    def __str__(self) -> str:
        return "\n".join(self.lines())


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _section(lines: list[str]) -> list[str]:
    return ["", *lines] if lines else []


# ── JUnit ──


def write_junit(report: Report) -> str:
    """Return the report as JUnit XML, with a test case for each clause.

    A broken recommendation and an unexamined clause are skipped tests. A module that could not be
    examined gets an additional test case with an error, so that its report does not pass.
    """
    suite = ElementTree.Element(
        "testsuite", name=_text(f"amplifier {report.command} {report.module}")
    )
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
    text = ElementTree.tostring(whole, encoding="unicode")
    return f'<?xml version="1.0" encoding="utf-8"?>\n{text}\n'


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
    return ElementTree.Element(
        "testcase", classname=_text(report.module), name=_text(name), time="0"
    )


def _add(case: ElementTree.Element, tag: str, message: str, text: str) -> None:
    ElementTree.SubElement(case, tag, type=tag, message=_text(message)).text = _text(text)


def _text(text: str) -> str:
    """Escape the characters of a text that XML does not allow."""
    return visible_text(text).replace("\ufffe", "\\ufffe").replace("\uffff", "\\uffff")
