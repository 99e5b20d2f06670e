"""Which clauses were examined, and on which backends; a clause that no check looked at must not count as kept."""

from __future__ import annotations

import attrs

from amplifier.conformance.harness.check_registry import CHECKS, Check
from amplifier.conformance.harness.coverage import StepCoverage


@attrs.define
class Coverage:
    """What the checks of one run got to see.

    Attributes:
        static: Names of the static checks that came to a result.
        unread: Why other static checks could not decide, by their names.
        steps: What each completed step got to see, by ``check:backend``.
    """

    static: set[str] = attrs.field(factory=set)
    unread: dict[str, str] = attrs.field(factory=dict)
    steps: dict[str, StepCoverage] = attrs.field(factory=dict)

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

    def backends_of(self, check: Check, clause: str) -> list[str] | None:
        """The backends on which a check examined a clause, none for a static check; None if it did not examine it."""
        if check.kind == "static":
            return [] if check.name in self.static else None
        found: set[str] = set()
        for step, covered in self.steps.items():
            name, _, backend = step.partition(":")
            if name != check.name:
                continue
            # A check that mounts nothing has read all there is, unless that is part of a module that is not there.
            has_read = not covered.mount_attempted and backend not in self.backends_without_instance()
            if covered.instance_seen or clause in check.without_instance or has_read:
                found.update(covered.backends)
        return sorted(found) or None
