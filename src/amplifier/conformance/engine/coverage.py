"""Which clauses were examined, and on which backends; a clause that no check looked at must not count as kept."""

from __future__ import annotations

import attrs

from amplifier.conformance.harness.check_registry import CHECKS, Check
from amplifier.conformance.harness.coverage import StepCoverage

NO_SUCCESS = (
    "no call succeeded, so that nothing shows it; give examples in the schema, or the settings it needs by --config"
)


@attrs.define
class Coverage:
    """What the checks of one run got to see.

    Attributes:
        static: Names of the static checks that came to a result.
        unread: Why other static checks could not decide, by their names.
        steps: What each completed step got to see, by ``check:backend``.
        failed: Why other steps could not be completed, by ``check:backend``.
    """

    static: set[str] = attrs.field(factory=set)
    unread: dict[str, str] = attrs.field(factory=dict)
    steps: dict[str, StepCoverage] = attrs.field(factory=dict)
    failed: dict[str, str] = attrs.field(factory=dict)

    def backends_without_instance(self) -> list[str]:
        """The backends on which nothing of the module was ever mounted, though checks looked for it."""
        looked, seen = set(), set()
        for step, covered in self.steps.items():
            name, _, backend = step.partition(":")
            if covered.mount_attempted and not CHECKS[name].without_instance:
                looked.add(backend)
            if covered.instance_seen:
                seen.add(backend)
        return sorted(looked - seen)

    def examined_on(self, check: Check, clause: str) -> list[str] | None:
        """The backends on which a check examined a clause, none for a static check; None if it did not examine it."""
        if check.kind == "static":
            return [] if check.name in self.static else None
        found: set[str] = set()
        for backend, covered in self._steps_of(check).items():
            # A check that mounts nothing has read all there is, unless that is part of a module that is not there.
            has_read = not covered.mount_attempted and backend not in self.backends_without_instance()
            was_there = covered.instance_seen or clause in check.without_instance or has_read
            if was_there and self.obstacle(check, clause, backend) is None:
                found.update(covered.backends)
        return sorted(found) or None

    def obstacle(self, check: Check, clause: str, backend: str) -> str | None:
        """What kept a check from examining a clause on a backend all the way; None if nothing did."""
        step = f"{check.name}:{backend}"
        if step in self.failed:
            return self.failed[step]
        covered = self.steps.get(step)
        if covered is None:
            return None
        if covered.cut_short is not None:
            return covered.cut_short
        is_lacking = clause in check.needs_success and covered.instance_seen and not self._has_succeeded(backend)
        return NO_SUCCESS if is_lacking else None

    def _has_succeeded(self, backend: str) -> bool:
        return any(covered.succeeded for step, covered in self.steps.items() if step.endswith(f":{backend}"))

    def _steps_of(self, check: Check) -> dict[str, StepCoverage]:
        """What the steps of a check got to see, by backend."""
        found = {}
        for step, covered in self.steps.items():
            name, _, backend = step.partition(":")
            if name == check.name:
                found[backend] = covered
        return found
