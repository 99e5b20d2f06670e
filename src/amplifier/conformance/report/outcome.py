"""What became of the clauses of a contract: findings, their causes, and outcomes, as plain data with a stable JSON form."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from attrs import Factory, frozen

Status = Literal["kept", "broken", "not_applicable", "not_checked"]

STATUS_WORDS: dict[Status, str] = {
    "kept": "kept",
    "broken": "broken",
    "not_applicable": "not applicable",
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
            key=lambda found: (found.level != "required", found.input is None, len(repr(found.input))),
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
    def checks(self) -> list[str]:
        """The checks that saw it."""
        return _unique(found.check for found in self.findings)

    @property
    def backends(self) -> list[str]:
        """Where it was seen; empty when nothing was run."""
        return sorted(_unique(name for found in self.findings for name in (found.backend or "").split(", ") if name))

    @property
    def hints(self) -> list[str]:
        """How to fix it."""
        return _unique(found.hint for found in self.findings if found.hint)


def causes_of(findings: Iterable[Finding]) -> list[Cause]:
    """The causes of findings: violations first, then broken recommendations, otherwise in the order of the findings."""
    groups: list[list[Finding]] = []
    for found in sorted(findings, key=lambda each: each.level != "required"):
        group = next((group for group in groups if any(_have_one_cause(found, other) for other in group)), None)
        if group is None:
            groups.append([found])
        else:
            group.append(found)
    return [Cause(tuple(group)) for group in groups]


def _have_one_cause(one: Finding, other: Finding) -> bool:
    """Whether the same thing was seen at the same place, or by the same check, which sees it once for several clauses."""
    if one.what != other.what:
        return False
    same_place = (one.file, one.location) == (other.file, other.location)
    return same_place or (one.check == other.check and one.clause != other.clause)


def _unique(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(texts))
