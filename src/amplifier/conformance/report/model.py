"""The report on a module: plain data with a stable JSON form, and a text for people.

`amplifier.models.to_json` and `from_json` write and read it.
"""

from __future__ import annotations

from typing import Any, Literal

from attrs import Factory, define, frozen

Status = Literal["kept", "broken", "not_applicable", "not_checked"]
Verdict = Literal["conforms", "violations", "unchecked"]

FORMAT = 1
"""Version of the JSON form; a change that readers would notice gets another number."""


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
        location: Where in the module to look, ``file:line``.
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
    hint: str = ""
    reproduce: str = ""


@frozen(kw_only=True)
class ClauseOutcome:
    """What became of one clause.

    Attributes:
        status: ``kept`` as far as was examined; ``broken``; ``not_applicable`` to this module; ``not_checked`` when it
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
    def ok(self) -> bool:
        """Whether the module conforms."""
        return self.verdict == "conforms"

    @property
    def counts(self) -> str:
        """How many clauses are kept, how many were not examined, and how much was found, in words."""
        kept = sum(outcome.status == "kept" for outcome in self.clauses)
        missed = sum(outcome.status == "not_checked" for outcome in self.clauses)
        parts = [f"{kept} of {len(self.clauses)} clauses kept", *([f"{missed} not examined"] if missed else [])]
        for found, noun in ((self.violations, "violation"), (self.recommendations, "recommendation")):
            parts.append(f"{len(found)} {noun}" if len(found) == 1 else f"{len(found)} {noun}s")
        return ", ".join(parts)

    def _findings(self) -> list[Finding]:
        return [found for outcome in self.clauses for found in outcome.findings]

    def raise_if_broken(self) -> None:
        """Do nothing if the module conforms.

        Raises:
            AssertionError: It does not; the text is the whole report.
        """
        if not self.ok:
            raise AssertionError(str(self))

    def __str__(self) -> str:
        run = f"{self.profile}, seed {self.seed}, {self.seconds:.1f} s"
        lines = [
            f"{self.module} ({self.type}, {self.source}): {self.verdict}",
            f"  {self.counts} ({run})",
        ]
        for found in [*self.violations, *self.recommendations]:
            lines += ["", *described(found)]
        lines += [f"  limitation: {text}" for text in self.limitations]
        lines += [f"  note: {text}" for text in self.notes]
        return "\n".join(lines)


STATUS_WORDS: dict[Status, str] = {
    "kept": "kept",
    "broken": "broken",
    "not_applicable": "not applicable",
    "not_checked": "not examined",
}
"""The words for each status in texts for people."""


def described(found: Finding) -> list[str]:
    """A finding in lines of text."""
    rank = "" if found.level == "required" else " (recommended)"
    lines = [f"  {found.clause}{rank}: {found.what}"]
    lines += [f"    on {found.backend}"] if found.backend else []
    return lines + [f"    {label}: {text}" for label, text in details(found, 300).items()]


def details(found: Finding, longest_input: int) -> dict[str, str]:
    """What is known about a finding besides its clause, what happened and where, as texts by their labels."""
    given = None if found.input is None else repr(found.input)
    if given is not None and len(given) > longest_input:
        given = f"{given[: longest_input - 40]}… ({len(given)} characters)"
    texts = {
        "input": given,
        "cancelled at": found.cancelled_at,
        "look at": found.location,
        "fix": found.hint,
        "reproduce": found.reproduce,
    }
    return {label: text for label, text in texts.items() if text}
