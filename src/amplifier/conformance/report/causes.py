"""Findings grouped by their cause: what several checks, backends or clauses show of one fault is reported once."""

from __future__ import annotations

from collections.abc import Iterable

from attrs import frozen

from .outcome import Finding


@frozen
class Cause:
    """One fault, with every finding that shows it; the first one gives the input and the command.

    Attributes:
        findings: At least one; those against required clauses first.
    """

    findings: tuple[Finding, ...]

    @property
    def first(self) -> Finding:
        """The finding to show."""
        return self.findings[0]

    @property
    def is_required(self) -> bool:
        """Whether it breaks a required clause."""
        return self.first.level == "required"

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
    return (one.file, one.location) == (other.file, other.location) or one.check == other.check


def _unique(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(texts))
