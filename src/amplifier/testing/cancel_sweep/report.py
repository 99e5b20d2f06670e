"""The rules that judge a trial, and the report of a sweep."""

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

# The kinds of findings:
#
# - HANG: not finished when the budget ran out. Even shielded waits are then broken, so that the
#   sweep continues.
# - LIVELOCK: more than max_steps suspensions, for instance a loop that swallows level-triggered
#   cancellation.
# - SWALLOWED: the unfinished root task accepted Task.cancel() and returned a value. asyncio
#   delivers a native cancel once. A suspended root task always receives it at its current await,
#   and a cancel that was held back and re-armed ends the task cancelled even without another await.
#   So this is always a fault. Scope modes never report it: a cancelled scope keeps cancelling, so a
#   scenario that completes inside shields, or ignores one delivery, takes nothing from its caller.
# - ERROR: an unexpected exception came out, alone or in a group.
# - ORPHAN: a task is alive after the scenario ended. THREAD: a thread is alive then.
# - NOISE: never awaited coroutines, never retrieved exceptions, unraisable errors, unclosed
#   resources.
# - INVARIANT: the scenario's own check returned or raised a violation.
#
# A trial that had to be killed (HANG, LIVELOCK) has only that finding, because killing it may have
# caused the others.
ViolationKind = Literal[
    "HANG", "LIVELOCK", "SWALLOWED", "ERROR", "ORPHAN", "THREAD", "NOISE", "INVARIANT"
]

_MAX_PLACES = 3


@final
@attrs.define(frozen=True, kw_only=True)
class Violation:
    """One broken promise in one trial.

    Attributes:
        mode: How the cancellation was delivered.
        k: The suspension that was hit, counted from 1 over all tasks of the scenario. 0 is the run
            without a fault.
        second: Number of suspensions between two cancels, or None for one cancel.
        kind: The kind of violation.
        detail: A description of the violation.
        where: The innermost user frame at the cancellation, as ``file:line function``.
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
        seed: The seed of all trials.
        points: Number of suspension points of the run without a fault, by mode.
        trials: Number of runs of the scenario, by mode.
        violations: The violations, in the order in which they were found.
        notes: Limits of the result: points left out, a scenario that isn't deterministic, nothing
            to cancel.
        traces: The place of each suspension of the run without a fault, by mode.
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
        """True if no promise was broken."""
        return not self.violations

    @property
    def total_trials(self) -> int:
        """Number of runs of the scenario over all modes."""
        return sum(self.trials.values())

    def raise_if_broken(self) -> None:
        """Raise the report if a promise was broken.

        Raises:
            AssertionError: A promise was broken. The text is the whole report, with a line to
                reproduce each finding.
        """
        if not self.ok:
            raise AssertionError(str(self))

    def __str__(self) -> str:
        verdict = "no violation" if self.ok else _counted(len(self.violations), "violation")
        total = _counted(self.total_trials, "trial")
        lines = [f"cancellation sweep: {verdict} in {total} (seed {self.seed})"]
        for mode, trials in self.trials.items():
            violations = [violation for violation in self.violations if violation.mode == mode]
            counts = [_counted(trials, "trial"), _counted(len(violations), "violation")]
            if mode in self.points:
                counts.insert(0, _counted(self.points[mode], "suspension point"))
            lines.append(f"  {mode}: {', '.join(counts)}")
            for group in _grouped(violations):
                lines += self._describe(group)
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join(lines)

    def _describe(self, group: list[Violation]) -> list[str]:
        first = group[0]
        lines = [f"    {first.kind} x{len(group)}: {first.detail}"]
        lines += [f"      {violation._place()}" for violation in group[:_MAX_PLACES]]
        if len(group) > _MAX_PLACES:
            lines.append(f"      and {len(group) - _MAX_PLACES} more")
        if len(first.stack) > 1:
            lines.append(f"      reached through {' > '.join(first.stack)}")
        return [*lines, f"      reproduce: {self._reproduction(first)}"]

    def _reproduction(self, violation: Violation) -> str:
        second = "" if violation.second is None else f", second_after=({violation.second},)"
        clock = "" if self.clock == "virtual" else f", clock={self.clock!r}"
        return (
            f'cancel_everywhere(make, modes=("{violation.mode}",), seed={self.seed}, '
            f"only={violation.k}{second}{clock})"
        )


def _grouped(violations: Iterable[Violation]) -> list[list[Violation]]:
    """Return groups of violations with equal text, most frequent first."""
    groups: dict[tuple[str, str], list[Violation]] = {}
    for violation in violations:
        groups.setdefault((violation.kind, violation.detail), []).append(violation)
    return sorted(groups.values(), key=len, reverse=True)


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


Finding = tuple[ViolationKind, str]

_THREAD_GRACE = 0.5
"""Real seconds for a thread to finish after its loop has ended. Pools need a moment to stop."""

_POOLED_THREADS = ("Trio thread ",)
"""Name prefixes of idle threads that trio keeps for the next run. A busy one has its job's name."""


@final
@attrs.define
class ProcessWatch:
    """Reports besides the scenario's result: warnings, unraisable errors, threads."""

    noise: list[str] = attrs.field(factory=list)
    threads_before: frozenset[threading.Thread] = attrs.field(
        factory=lambda: frozenset(threading.enumerate())
    )

    def leftover_threads(self) -> list[str]:
        """Return new threads that don't end soon."""
        new = [thread for thread in threading.enumerate() if thread not in self.threads_before]
        deadline = time.monotonic() + _THREAD_GRACE
        for thread in new:
            if not thread.name.startswith(_POOLED_THREADS):
                # Another thread may be in the middle of starting it.
                with suppress(RuntimeError):
                    thread.join(max(0.0, deadline - time.monotonic()))
        return sorted(
            tidy(f"thread {thread.name} is still running")
            for thread in new
            if thread.is_alive() and not thread.name.startswith(_POOLED_THREADS)
        )

    def take_unraisable(self, args: sys.UnraisableHookArgs) -> None:
        """Record an exception that Python could not raise."""
        if not isinstance(args.exc_value, Killed):
            source = f" ({args.err_msg})" if args.err_msg else ""
            message = f"unraisable {args.exc_type.__name__}: {args.exc_value}{source}"
            self.noise.append(tidy(message))

    def take_thread_error(self, args: threading.ExceptHookArgs) -> None:
        """Record an exception that ended a thread."""
        name = args.thread.name if args.thread is not None else "?"
        self.noise.append(tidy(f"thread {name} died of {args.exc_type.__name__}: {args.exc_value}"))


@contextmanager
def watch_process() -> Iterator[ProcessWatch]:
    """Watch the process for one trial. Collect garbage at the end, for its warnings."""
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
    """Return the findings about the end of the scenario."""
    if injection.spinning:
        count = f"more than {settings.max_steps} suspensions in {outcome.elapsed:g} s"
        return [("LIVELOCK", f"{count}, spinning at {injection.spinning_at}")]
    if outcome.hung:
        stuck = f", waiting at {'; '.join(outcome.stuck)}" if outcome.stuck else ""
        return [("HANG", tidy(f"not finished after {settings.budget:g} s{stuck}"))]
    findings: list[Finding] = []
    for error in outcome.errors:
        findings += [("ERROR", text) for text in _unexpected(error, expect)]
    if outcome.swallowed:
        text = "Task.cancel() reached the scenario, which then returned as if nothing had happened"
        findings.append(("SWALLOWED", text))
    findings += [("ORPHAN", text) for text in outcome.orphans]
    return findings


def broken_invariants(check: Callable[[], Iterable[str] | None]) -> list[Finding]:
    """Return the violations from the scenario's own check."""
    try:
        return [("INVARIANT", tidy(text)) for text in check() or ()]
    # The check is the user's code, and one with assert statements reports by raising.
    except Exception as error:  # noqa: BLE001
        return [("INVARIANT", tidy(f"check raised {type(error).__name__}: {error}"))]


def _unexpected(error: BaseException, expect: tuple[type[BaseException], ...]) -> Iterator[str]:
    leaves = list(_leaves(error))
    unexpected = [
        leaf for leaf in leaves if not isinstance(leaf, expect) and not is_cancellation_type(leaf)
    ]
    for leaf in unexpected:
        yield tidy(f"{type(leaf).__name__}: {leaf} (raised at {raised_at(leaf.__traceback__)})")
    if not unexpected and all(is_cancellation_type(leaf) for leaf in leaves):
        is_group = isinstance(error, BaseExceptionGroup)
        kind = "inside an exception group" if is_group else "that was not requested"
        yield tidy(f"a cancellation {kind} came out: {type(leaves[0]).__name__}: {leaves[0]}")


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error
