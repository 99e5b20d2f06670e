"""What a cancellation sweep found: plain data and a readable text. Knows nothing of how it was found."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, final

import attrs

__all__ = ["SweepReport", "Violation", "ViolationKind"]

ViolationKind = Literal["HANG", "LIVELOCK", "SWALLOWED", "ERROR", "ORPHAN", "THREAD", "NOISE", "INVARIANT"]

_PLACES_SHOWN = 3


@final
@attrs.define(frozen=True, kw_only=True)
class Violation:
    """One broken promise in one trial.

    Attributes:
        mode: How the cancellation was delivered.
        k: The suspension that was hit, counted from 1 over all tasks of the scenario; 0 for the run without a fault.
        second: In the mode with two cancels, how many suspensions later the second one came.
        kind: Which oracle spoke.
        detail: What it found.
        where: The innermost user frame that was suspended when the cancellation came, ``file:line function``.
        stack: All user frames of that task, outermost first.
    """

    mode: str
    k: int
    second: int | None
    kind: ViolationKind
    detail: str
    where: str
    stack: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.kind} [{self.mode}] {self._place()}: {self.detail}"

    def _place(self) -> str:
        if self.k == 0:
            return "without any cancellation"
        again = f" and again {self.second} later" if self.second is not None else ""
        return f"k={self.k}{again} at {self.where}"


@final
@attrs.define(kw_only=True)
class SweepReport:
    """The result of `cancel_everywhere`.

    Attributes:
        seed: The seed all trials were run with.
        points: Suspension points of the run without a fault, by mode.
        trials: How many times the scenario was run, by mode.
        violations: What went wrong, in the order it was found.
        notes: What limits the result: points left out, a scenario that is not deterministic, nothing to cancel.
        traces: Where each suspension of the run without a fault happened, by mode.
        clock: ``"virtual"`` or ``"real"``.
    """

    seed: int
    clock: str = "virtual"
    points: dict[str, int] = attrs.field(factory=dict)
    trials: dict[str, int] = attrs.field(factory=dict)
    violations: list[Violation] = attrs.field(factory=list)
    notes: list[str] = attrs.field(factory=list)
    traces: dict[str, tuple[str, ...]] = attrs.field(factory=dict, repr=False)

    @property
    def ok(self) -> bool:
        """Whether no promise was broken."""
        return not self.violations

    @property
    def total_trials(self) -> int:
        """How many times the scenario was run over all modes."""
        return sum(self.trials.values())

    def raise_if_broken(self) -> None:
        """Do nothing if all is well.

        Raises:
            AssertionError: Something is not; the text is the whole report with a line to reproduce each finding.
        """
        if not self.ok:
            raise AssertionError(str(self))

    def __str__(self) -> str:
        verdict = "no violation" if self.ok else _counted(len(self.violations), "violation")
        lines = [f"cancellation sweep: {verdict} in {_counted(self.total_trials, 'trial')} (seed {self.seed})"]
        for mode, trials in self.trials.items():
            found = [violation for violation in self.violations if violation.mode == mode]
            size = f"{_counted(self.points[mode], 'suspension point')}, " if mode in self.points else ""
            lines.append(f"  {mode}: {size}{_counted(trials, 'trial')}, {_counted(len(found), 'violation')}")
            for group in _grouped(found):
                lines += self._describe(group)
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join(lines)

    def _describe(self, group: list[Violation]) -> list[str]:
        first = group[0]
        lines = [f"    {first.kind} x{len(group)}: {first.detail}"]
        lines += [f"      {violation._place()}" for violation in group[:_PLACES_SHOWN]]
        if len(group) > _PLACES_SHOWN:
            lines.append(f"      and {len(group) - _PLACES_SHOWN} more")
        if len(first.stack) > 1:
            lines.append(f"      reached through {' > '.join(first.stack)}")
        return [*lines, f"      reproduce: {self._reproduction(first)}"]

    def _reproduction(self, violation: Violation) -> str:
        second = "" if violation.second is None else f", second_after=({violation.second},)"
        clock = "" if self.clock == "virtual" else f", clock={self.clock!r}"
        return (
            f'cancel_everywhere(make, modes=("{violation.mode}",), seed={self.seed}, only={violation.k}{second}{clock})'
        )


def _grouped(violations: Iterable[Violation]) -> list[list[Violation]]:
    """Violations that read the same, most frequent first."""
    groups: dict[tuple[str, str], list[Violation]] = {}
    for violation in violations:
        groups.setdefault((violation.kind, violation.detail), []).append(violation)
    return sorted(groups.values(), key=len, reverse=True)


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
