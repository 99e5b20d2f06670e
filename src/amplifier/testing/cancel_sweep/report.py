"""What counts as broken after one trial, whatever the scenario, and the report of a sweep: plain data and a readable text.

- HANG: not finished when the budget ran out. Even shielded waits are then broken, so that the sweep goes on.
- LIVELOCK: more than ``max_steps`` suspensions, for instance a loop that eats level-triggered cancellation.
- SWALLOWED: the root task accepted ``Task.cancel()`` while it was unfinished, and returned a value all the same.
  asyncio delivers a native cancel once. A root task that was suspended when it came always has an await left to receive
  it at (the one it is suspended in), and a cancel that was held back and re-armed ends the task cancelled even when no
  await is left; so there is no innocent way to this finding. Scope modes never report it: a cancelled scope keeps
  cancelling, so a scenario that completes inside shields, or ignores one delivery, takes nothing from its caller.
- ERROR: an exception other than the cancellation came out, alone or in a group, and was not expected.
- ORPHAN: a task is alive after the scenario ended. THREAD: a thread is.
- NOISE: never awaited coroutines, never retrieved exceptions, unraisable errors, unclosed resources.
- INVARIANT: what the scenario's own check returned, or raised.

A trial that had to be ended by force (HANG, LIVELOCK) has that one finding: everything else it left behind may be our
own doing.
"""

from __future__ import annotations

import gc
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Literal, final

import attrs

from amplifier.contracts.cancellation import is_cancellation_type

from .injection import Injection, Killed, TrialOutcome, TrialSettings, raised_at, tidy

ViolationKind = Literal[
    "HANG", "LIVELOCK", "SWALLOWED", "ERROR", "ORPHAN", "THREAD", "NOISE", "INVARIANT"
]

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
        lines = [
            f"cancellation sweep: {verdict} in {_counted(self.total_trials, 'trial')} (seed {self.seed})"
        ]
        for mode, trials in self.trials.items():
            found = [violation for violation in self.violations if violation.mode == mode]
            size = (
                f"{_counted(self.points[mode], 'suspension point')}, "
                if mode in self.points
                else ""
            )
            lines.append(
                f"  {mode}: {size}{_counted(trials, 'trial')}, {_counted(len(found), 'violation')}"
            )
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
        return f'cancel_everywhere(make, modes=("{violation.mode}",), seed={self.seed}, only={violation.k}{second}{clock})'


def _grouped(violations: Iterable[Violation]) -> list[list[Violation]]:
    """Violations that read the same, most frequent first."""
    groups: dict[tuple[str, str], list[Violation]] = {}
    for violation in violations:
        groups.setdefault((violation.kind, violation.detail), []).append(violation)
    return sorted(groups.values(), key=len, reverse=True)


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


Finding = tuple[ViolationKind, str]

_THREAD_PATIENCE = 0.5
"""Real seconds a thread gets to finish after its loop is gone; pools need a moment to stop theirs."""

_POOLED_THREADS = ("Trio thread ",)
"""Names of idle threads that trio keeps for the next run, by design; a busy one carries its job's name."""


@final
@attrs.define
class ProcessWatch:
    """What was reported outside the scenario's own result: warnings, unraisable errors, dead threads, leftover threads."""

    noise: list[str] = attrs.field(factory=list)
    threads_before: frozenset[threading.Thread] = attrs.field(
        factory=lambda: frozenset(threading.enumerate())
    )

    def leftover_threads(self) -> list[str]:
        """Threads that did not exist before and do not end on their own soon."""
        new = [thread for thread in threading.enumerate() if thread not in self.threads_before]
        deadline = time.monotonic() + _THREAD_PATIENCE
        for thread in new:
            if not thread.name.startswith(_POOLED_THREADS):
                with suppress(RuntimeError):  # another thread is just starting it
                    thread.join(max(0.0, deadline - time.monotonic()))
        return sorted(
            tidy(f"thread {thread.name} is still running")
            for thread in new
            if thread.is_alive() and not thread.name.startswith(_POOLED_THREADS)
        )

    def take_unraisable(self, args: sys.UnraisableHookArgs) -> None:
        """Note an exception that Python could not raise."""
        if not isinstance(args.exc_value, Killed):
            what = f" ({args.err_msg})" if args.err_msg else ""
            self.noise.append(tidy(f"unraisable {args.exc_type.__name__}: {args.exc_value}{what}"))

    def take_thread_error(self, args: threading.ExceptHookArgs) -> None:
        """Note an exception that ended a thread."""
        name = args.thread.name if args.thread is not None else "?"
        self.noise.append(tidy(f"thread {name} died of {args.exc_type.__name__}: {args.exc_value}"))


@contextmanager
def watch_process() -> Iterator[ProcessWatch]:
    """Listen for one trial; garbage is collected at the end, so that its warnings belong to this trial."""
    watch = ProcessWatch()
    unraisable_hook, thread_hook = sys.unraisablehook, threading.excepthook
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        warnings.filterwarnings("always", message=".*never awaited", category=RuntimeWarning)
        warnings.simplefilter("always", category=ResourceWarning)
        sys.unraisablehook, threading.excepthook = watch.take_unraisable, watch.take_thread_error
        try:
            yield watch
            gc.collect()
        finally:
            sys.unraisablehook, threading.excepthook = unraisable_hook, thread_hook
        watch.noise += [tidy(warning.message) for warning in caught]


def judge(
    settings: TrialSettings,
    injection: Injection,
    outcome: TrialOutcome,
    expect: tuple[type[BaseException], ...],
) -> list[Finding]:
    """The findings that follow from how the scenario itself ended."""
    if injection.spinning:
        seen = f"more than {settings.max_steps} suspensions in {outcome.elapsed:g} s"
        return [("LIVELOCK", f"{seen}, spinning at {injection.spinning_at}")]
    if outcome.hung:
        stuck = f", waiting at {'; '.join(outcome.stuck)}" if outcome.stuck else ""
        return [("HANG", tidy(f"not finished after {settings.budget:g} s{stuck}"))]
    findings = [("ERROR", text) for error in outcome.errors for text in _unexpected(error, expect)]
    if outcome.swallowed:
        findings.append(
            (
                "SWALLOWED",
                "Task.cancel() reached the scenario, which then returned as if nothing had happened",
            )
        )
    findings += [("ORPHAN", text) for text in outcome.orphans]
    return findings  # type: ignore[return-value]  # the literals above are ViolationKinds


def broken_invariants(check: Callable[[], Iterable[str] | None]) -> list[Finding]:
    """Violations that the scenario's own check found."""
    try:
        return [("INVARIANT", tidy(text)) for text in check() or ()]
    except Exception as error:  # noqa: BLE001 — foreign code: a check written with assert statements speaks by raising
        return [("INVARIANT", tidy(f"check raised {type(error).__name__}: {error}"))]


def _unexpected(error: BaseException, expect: tuple[type[BaseException], ...]) -> Iterator[str]:
    leaves = list(_leaves(error))
    unexpected = [
        leaf for leaf in leaves if not isinstance(leaf, expect) and not is_cancellation_type(leaf)
    ]
    for leaf in unexpected:
        yield tidy(f"{type(leaf).__name__}: {leaf} (raised at {raised_at(leaf.__traceback__)})")
    if not unexpected and all(is_cancellation_type(leaf) for leaf in leaves):
        kind = (
            "inside an exception group"
            if isinstance(error, BaseExceptionGroup)
            else "of its own making"
        )
        yield tidy(f"a cancellation {kind} came out: {type(leaves[0]).__name__}: {leaves[0]}")


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error
