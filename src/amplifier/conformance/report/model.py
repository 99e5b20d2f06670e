"""The report on a module: plain data with a stable JSON form, and a text for people.

`amplifier.models.to_json` and `from_json` write and read it.
"""

from __future__ import annotations

from typing import Literal

from attrs import Factory, define

from amplifier._json import visible_text
from amplifier.conformance.report.outcome import Cause, ClauseOutcome, Finding, causes_of
from amplifier.conformance.report.text import Paint, cause_lines, clause_lines, id_ranges, no_paint, paragraph

Verdict = Literal["conforms", "violations", "unchecked"]

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
    type: str
    source: str
    verdict: Verdict
    profile: str
    seed: int
    backends: list[str]
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
        parts += [f"{_counted(len(self.unexamined), 'clause')} not examined"] if self.unexamined else []
        return "; ".join([f"{self.module} ({self.type}): {self.verdict}", *parts])

    @property
    def counts(self) -> str:
        """How many clauses are kept, how many were not examined, how many required and recommended ones are broken, in words."""
        kept = sum(outcome.status == "kept" for outcome in self.clauses)
        missed = len(self.unexamined)
        parts = [f"{kept} of {len(self.clauses)} clauses kept", *([f"{missed} not examined"] if missed else [])]
        parts.append(_counted(len(self._broken("required")), "violation"))
        parts.append(_counted(len(self._broken("recommended")), "recommendation"))
        return ", ".join(parts)

    @property
    def run(self) -> str:
        """How the module was examined, in words."""
        where = " and ".join(self.backends)
        profile = "only read" if self.profile == "static" else f"{self.profile} on {where or 'no backend'}"
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

    def lines(self, *, verbose: bool = False, width: int | None = None, paint: Paint = no_paint) -> list[str]:
        """The report as text: the verdict, the broken clauses, the findings, what was not examined, the counts.

        Args:
            verbose: List kept and unexamined clauses, too.
            width: Wrap lines that are longer; commands and places are not wrapped.
            paint: Colours words.
        """
        colour: Literal["red", "green", "yellow"] = "yellow"
        if self.verdict != "unchecked":
            colour = "green" if self.ok else "red"
        first, *more = paragraph(visible_text(self.summary), width=width, hanging="  ")
        lines = [first.replace(self.verdict, paint(self.verdict, colour), 1), *more]
        lines += _section(clause_lines(self._broken(), width=width, paint=paint))
        for cause in self.causes:
            lines += _section(cause_lines(cause, width=width, paint=paint))
        limits = [line for text in self.limits for line in paragraph(visible_text(text), width=width, hanging="  ")]
        lines += _section(limits)
        if verbose:
            others = [outcome for outcome in self.clauses if outcome.status != "broken"]
            lines += _section(clause_lines(others, width=width, paint=paint))
        return [*lines, "", *paragraph(f"{self.counts} ({self.run})", width=width, hanging="  ")]

    def _findings(self) -> list[Finding]:
        return [found for outcome in self.clauses for found in outcome.findings]

    def _broken(self, level: str | None = None) -> list[ClauseOutcome]:
        broken = [outcome for outcome in self.clauses if outcome.status == "broken"]
        wanted = sorted(broken, key=lambda outcome: outcome.level != "required")
        return [outcome for outcome in wanted if level in (None, outcome.level)]

    def raise_if_broken(self) -> None:
        """Do nothing if the module conforms.

        Raises:
            AssertionError: It does not; the text is the whole report.
        """
        if not self.ok:
            raise AssertionError(str(self))

    def __str__(self) -> str:
        return "\n".join(self.lines())


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _section(lines: list[str]) -> list[str]:
    return ["", *lines] if lines else []
