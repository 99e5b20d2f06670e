"""Findings grouped by their cause: what several checks, backends or clauses show of one fault is reported once."""

from __future__ import annotations

from collections.abc import Iterable

from attrs import frozen

from .outcome import Finding


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
