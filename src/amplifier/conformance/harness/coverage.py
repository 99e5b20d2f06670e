"""Which clauses were examined, and on which backends: a check that found no module to look at has examined nothing."""

from __future__ import annotations

import attrs

from .check_registry import Check

DECLINED = "mount declined (it returned None and mounted nothing); give the configuration it needs"
"""The note about a module that declined, so that only its mount could be examined."""

NEEDS_NO_INSTANCE = {
    "every_module.mounts": frozenset({"A3", "A4", "A21", "T4", "P2", "O2", "C2", "H2"}),
    "every_module.takes_the_coordinator_when_ready": frozenset({"A6"}),
    "every_module.fails_without_traces": frozenset({"A5", "A7"}),
    "every_module.cleans_up": frozenset({"A11", "A12", "A13", "A14", "A15"}),
    "provider.declines_politely": frozenset({"P15"}),
}
"""The checks that examine a module even then, and the clauses that they can decide."""


class Unexamined(Exception):
    """Raised by a static check that cannot decide; the text gives the reason."""


@attrs.define(kw_only=True)
class StepCoverage:
    """What one step examined.

    Attributes:
        backends: The backends it ran on.
        mount_attempted: Whether it mounted the module, or mount_attempted to.
        instance_seen: Whether the module was mounted or registered what its type requires at least once.
    """

    backends: set[str] = attrs.field(factory=set)
    mount_attempted: bool = False
    instance_seen: bool = False


class ClauseCoverage:
    """The steps of one examination and what they examined."""

    def __init__(self) -> None:
        self._read: set[str] = set()
        self._unread: dict[str, str] = {}
        self._seen: dict[str, StepCoverage] = {}

    def read(self, check: str) -> None:
        """Record that a static check has decided."""
        self._read.add(check)

    def leave_unread(self, check: str, why: str) -> None:
        """Record that a static check could not decide."""
        self._unread[check] = why

    def see(self, step: str, coverage: StepCoverage) -> None:
        """Record that a step was completed."""
        self._seen[step] = coverage

    @property
    def absent(self) -> list[str]:
        """The backends on which the module was never present, though checks mounted it."""
        sights = {step: coverage for step, coverage in self._seen.items() if coverage.mount_attempted}
        without = {_backend(step) for step in sights if _check(step) not in NEEDS_NO_INSTANCE}
        return sorted(without - {_backend(step) for step, coverage in sights.items() if coverage.instance_seen})

    def where(self, check: Check, clause: str) -> list[str] | None:
        """The backends on which a check examined a clause, none for one that only reads; None if it did not."""
        if check.kind == "static":
            return [] if check.name in self._read else None
        found: set[str] = set()
        for step, coverage in self._seen.items():
            if _check(step) == check.name and self._has_looked(step, coverage, clause):
                found |= coverage.backends
        return sorted(found) or None

    def _has_looked(self, step: str, coverage: StepCoverage, clause: str) -> bool:
        if coverage.instance_seen or clause in NEEDS_NO_INSTANCE.get(_check(step), ()):
            return True
        # A check that did not mount the module has examined it, unless the module is absent.
        return not coverage.mount_attempted and _backend(step) not in self.absent

    def reasons(self, checks: list[Check]) -> list[str]:
        """Why static checks that could have decided a clause did not."""
        return [self._unread[check.name] for check in checks if check.name in self._unread]


def _check(step: str) -> str:
    return step.partition(":")[0]


def _backend(step: str) -> str:
    return step.partition(":")[2]
