"""The report on a module: findings, their causes and the outcome of each clause, as plain data with a stable JSON form, as text for people, and as JUnit XML.

`amplifier.models.to_json` and `from_json` write and read it. Every text of the module is made inert.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Literal
from xml.etree import ElementTree

from attrs import Factory, define, frozen

from amplifier._internal.json import visible_text

Status = Literal["kept", "broken", "not_checked"]

STATUS_WORDS: dict[Status, str] = {
    "kept": "kept",
    "broken": "broken",
    "not_checked": "not examined",
}
"""The words for each status in texts for people."""


@frozen(kw_only=True)
class Finding:
    """One broken promise, with everything an author needs to reproduce and to fix it.

    Attributes:
        clause: The id of the clause.
        level: ``required`` or ``recommended``.
        what: What happened, against what was promised.
        check: The check that saw it.
        backend: Where; None when nothing was run.
        input: The smallest input that shows it, as JSON values; None if there is none.
        cancelled_at: The await at which the call was cancelled, ``file:line function``.
        location: Where in the module to look, ``file:line``; the file is relative to the module's folder or project.
        file: The absolute path of that file, if it was found.
        hint: How to fix it.
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
        """The line of the location; None if it names a file only."""
        _, _, number = (self.location or "").rpartition(":")
        return int(number) if number.isascii() and number.isdigit() else None


@frozen(kw_only=True)
class ClauseOutcome:
    """What became of one clause.

    Attributes:
        status: ``kept`` as far as was examined; ``broken``; ``not_checked`` when it
            was not examined, and the notes of the report state why.
        how: How it was examined.
        backends: Where; empty when that took no running.
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
        findings: At least one; those against required clauses first.
    """

    findings: tuple[Finding, ...]

    @property
    def shown(self) -> Finding:
        """The finding that gives the input and the command: the one of highest rank with the smallest input."""
        return min(
            self.findings,
            key=lambda found: (
                found.level != "required",
                found.input is None,
                len(repr(found.input)),
            ),
        )

    @property
    def is_required(self) -> bool:
        """Whether it breaks a required clause."""
        return self.findings[0].level == "required"

    @property
    def clauses(self) -> list[str]:
        """The clauses that it breaks."""
        return _unique(found.clause for found in self.findings)

    @property
    def head(self) -> str:
        """The clauses that it breaks, for a heading."""
        return ", ".join(self.clauses) + ("" if self.is_required else " (recommended)")

    @property
    def checks(self) -> list[str]:
        """The checks that saw it."""
        return _unique(found.check for found in self.findings)

    @property
    def backends(self) -> list[str]:
        """Where it was seen; empty when nothing was run."""
        return sorted(
            _unique(
                name
                for found in self.findings
                for name in (found.backend or "").split(", ")
                if name
            )
        )

    @property
    def hints(self) -> list[str]:
        """How to fix it."""
        return _unique(found.hint for found in self.findings if found.hint)


def causes_of(findings: Iterable[Finding]) -> list[Cause]:
    """The causes of findings: violations first, then broken recommendations, otherwise in the order of the findings."""
    groups: list[list[Finding]] = []
    for found in sorted(findings, key=lambda each: each.level != "required"):
        group = next(
            (group for group in groups if any(_have_one_cause(found, other) for other in group)),
            None,
        )
        if group is None:
            groups.append([found])
        else:
            group.append(found)
    return [Cause(tuple(group)) for group in groups]


_RAISED = re.compile(r"\braised (\w+)")
_LEFT = re.compile(r"the (?:task|thread|process|temporary file|handler) '[^']*'")


def _have_one_cause(one: Finding, other: Finding) -> bool:
    """Whether the same error came from the same line, the same thing was left behind, or the same was seen at one place or by one check."""
    if _traces(one) & _traces(other):
        return True
    if one.what != other.what:
        return False
    same_place = (one.file, one.location) == (other.file, other.location)
    return same_place or (one.check == other.check and one.clause != other.clause)


def _traces(found: Finding) -> set[str]:
    """What identifies a fault whoever sees it: an error with its line, and things that were left behind."""
    raised = _RAISED.search(found.what) if found.line is not None else None
    return {
        *_LEFT.findall(found.what),
        *([] if raised is None else [f"{raised[1]} {found.file} {found.location}"]),
    }


def _unique(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(texts))


def shown_location(found: Finding) -> str | None:
    """The location for a reader, with the path of the file."""
    if found.file is None:
        return found.location
    file = shown_path(found.file)
    return file if found.line is None else f"{file}:{found.line}"


def shown_path(file: str) -> str:
    """The path of a file, below the working directory relative to it, elsewhere absolute, so that editors find it."""
    path, here = Path(file).resolve(), Path.cwd()
    return path.relative_to(here).as_posix() if path.is_relative_to(here) else file


Colour = Literal["red", "green", "yellow", "dim", "bold"]
Paint = Callable[[str, Colour], str]
"""Colours a text, or leaves it as it is."""

_LONGEST_INPUT = 300
_LONGEST_OTHER = 120


def no_paint(text: str, _colour: Colour) -> str:
    """Leave a text as it is."""
    return text


def clause_lines(outcomes: Iterable[ClauseOutcome], paint: Paint = no_paint) -> list[str]:
    """One line for each clause: what became of it, its id and its promise."""
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
    """A cause and what is known about it."""
    head = paint(cause.head, "red" if cause.is_required else "yellow")
    lines = _hanging(f"  {head}: {visible_text(cause.shown.what)}", "    ")
    for label, text in details(cause).items():
        lines += _hanging(f"    {paint(f'{label}:', 'bold')} {visible_text(text)}", "      ")
    return lines


def details(cause: Cause) -> dict[str, str]:
    """What is known about a cause besides its clauses and what happened, as texts by their labels."""
    first = cause.shown
    given = None if first.input is None else repr(first.input)
    if given is not None and len(given) > _LONGEST_INPUT:
        given = f"{given[: _LONGEST_INPUT - 40]}… ({len(given)} characters)"
    others = [
        f"{each.clause}: {each.what[:_LONGEST_OTHER]}"
        for each in cause.findings
        if each.what != first.what
    ]
    texts = {
        "input": given,
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
    """The lines of a text, all but the first indented."""
    first, *others = text.splitlines()
    return [first, *(f"{indent}{line}" for line in others)]


def id_ranges(ids: Sequence[str]) -> str:
    """Clause ids, each a letter and a number, in few words: ``A1 to A3, T5``."""
    parts: list[str] = []
    for _, members in groupby(
        enumerate(ids), key=lambda pair: (pair[1][:1], int(pair[1][1:]) - pair[0])
    ):
        run = [each for _, each in members]
        parts += run if len(run) < 3 else [f"{run[0]} to {run[-1]}"]
    return ", ".join(parts)


Verdict = Literal["conforms", "violations", "unchecked"]

CUT_SHORT = "examined in part"
"""The first words of a note about examinations that ended before they were through."""

FORMAT = 1
"""Version of the JSON form; a change that readers would notice gets another number."""


@define(kw_only=True)
class Report:
    """The result of examining one module.

    Attributes:
        module: Its id.
        type: Its type.
        source: Where it was found.
        verdict: ``conforms``, ``violations`` (of required clauses), or ``unchecked`` when it could not be examined.
        profile: How deep: ``static``, ``quick`` or ``thorough``.
        backends: What it was run on.
        clauses: Every clause that a module of this type is bound by.
        limitations: What the module itself declares not to do.
        notes: What limits this result.
        selected: The clauses and checks that the caller restricted the examination to; empty for all.
        seconds: How long it took.
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
        return [found for found in self._findings() if found.level == "required"]

    @property
    def recommendations(self) -> list[Finding]:
        """Findings against recommended clauses; they do not count against the verdict."""
        return [found for found in self._findings() if found.level != "required"]

    @property
    def causes(self) -> list[Cause]:
        """All findings, those of one cause together, violations first."""
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
            # Which clauses a server can show depends on its tools, so a reader has to see what is missing.
            verdict += " where it was examined" if self.ok else ""
            parts += [f"not examined: {id_ranges(self.unexamined)}"] if self.unexamined else []
            parts += ["some tools were examined in part"] if cut_short else []
        return "; ".join([f"{self.module} ({self.type}): {verdict}", *parts])

    @property
    def counts(self) -> str:
        """How many clauses are kept, how many were not examined, how many required and recommended ones are broken, in words."""
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
        """How the module was examined, in words."""
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
        """What was not examined and why, and whatever else limits the result, as sentences."""
        sentences = []
        if self.unexamined:
            because = ""
            if any(found.check == "import" for found in self._findings()):
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
        """The report as text: the verdict, the broken clauses, the findings, what was not examined, the counts.

        Args:
            verbose: List kept and unexamined clauses, too.
            paint: Colours words.
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
        return [found for outcome in self.clauses for found in outcome.findings]

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
    """The report as XML. A clause that is only recommended, and one that was not examined, is a skipped test.

    A module that could not be examined has an error in a test case of its own, so that its report does not pass for a good one.
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
    return ElementTree.Element(
        "testcase", classname=_text(report.module), name=_text(name), time="0"
    )


def _add(case: ElementTree.Element, tag: str, message: str, text: str) -> None:
    ElementTree.SubElement(case, tag, type=tag, message=_text(message)).text = _text(text)


def _text(text: str) -> str:
    """Text without the characters that XML does not allow."""
    return visible_text(text).replace("\ufffe", "\\ufffe").replace("\uffff", "\\uffff")
