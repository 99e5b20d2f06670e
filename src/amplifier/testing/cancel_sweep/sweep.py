"""Cancel a scenario at its first, second, third … suspension, until every one has been tried."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import sys
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, Protocol, final

import attrs

from amplifier.errors import MissingExtraError
from amplifier.testing.virtual_time import TimeWatch

from .asyncio_trial import run_asyncio_trial
from .injection import Injection, TrialOutcome, TrialSettings
from .report import Finding, SweepReport, Violation, broken_invariants, judge, watch_process

__all__ = ["LOOP_END_MODES", "MODES", "Scenario", "World", "cancel_everywhere"]

MODES = ("trio", "asyncio-scope", "asyncio-native", "asyncio-native-twice")
"""Every way in which a scenario can be cancelled: a trio scope, an AnyIO scope on asyncio,
``Task.cancel()``, and a second ``Task.cancel()`` while the first is still being handled, as on a
second Ctrl-C.
"""

LOOP_END_MODES = ("asyncio-all", "asyncio-all-twice")
"""The end of an asyncio loop, where every task of the loop is cancelled natively: once, or again
while the first cancel is still being handled. They are for code that owns the sessions of a
process. A module alone need not support them."""

_ALL_MODES = (*MODES, *LOOP_END_MODES)
_BUDGETS = {"virtual": 10_000.0, "real": 10.0}

# A sweep changes state of the whole process: warning filters, hooks, the garbage collector.
_ONE_SWEEP_AT_A_TIME = threading.Lock()

Scenario = Callable[[], Awaitable[object]]
Check = Callable[[], Iterable[str] | None]


class World(Protocol):
    """A fresh world for one trial: a scenario, and a check of its invariants."""

    async def scenario(self) -> object:
        """Do the work that is cancelled. Return only when all started tasks have ended."""
        ...

    def check(self) -> Iterable[str] | None:
        """Return the broken invariants, or nothing."""
        ...


# This is fault injection as in database test suites, with cancellation as the fault and every
# suspension, a yield of one of the scenario's tasks to the event loop, as a place for it. First the
# scenario runs undisturbed. If that run isn't clean, the mode isn't swept. Then a fresh world is
# made for each k and cancelled at its k-th suspension, until a run ends without a cancellation. By
# then, every point has been tried.
#
# The sweep counts yields, not bytecodes, so it covers neither a KeyboardInterrupt between two lines
# nor a loop without an await.


def cancel_everywhere(
    make: Callable[[], World | Scenario | tuple[Scenario, Check]],
    *,
    modes: Sequence[str] = MODES,
    seed: int = 0,
    budget: float | None = None,
    max_steps: int = 20_000,
    second_after: Sequence[int] = (1, 2, 3, 5, 8),
    max_points: int | None = None,
    only: int | None = None,
    expect: tuple[type[BaseException], ...] = (),
    clock: Literal["virtual", "real"] = "virtual",
    grace: float = 0.0,
    loop_factory: Callable[[], Any] | None = None,
    eager_tasks: bool = False,
    watch: TimeWatch | None = None,
) -> SweepReport:
    """Cancel a scenario at each of its suspension points in turn, and report every broken promise.

    Equal arguments give equal results: order comes from the seed, time is virtual, `random` is
    seeded. The function runs its own event loops, so async code has to call it in a thread, with
    ``anyio.to_thread.run_sync``.

    Args:
        make: Returns a fresh world: an object with ``scenario`` and ``check``, a pair of both, or a
            scenario alone.
        modes: The modes to sweep, of `MODES` and `LOOP_END_MODES`.
        seed: Chooses the order of tasks that could run in any order.
        budget: Seconds until a trial counts as hanging. By default 10,000 virtual or 10 real ones.
        max_steps: Suspensions until a trial counts as spinning.
        second_after: Numbers of suspensions between the first cancel and the second. Each is tried.
            A trial that ended before its second cancel is ignored, because the mode with one
            cancel covers it.
        max_points: Maximum number of suspension points per mode, drawn by seed. The report
            mentions the limit.
        only: The only k to run, to reproduce one finding. 0 is the run without a fault.
        expect: Exceptions that are legitimate outcomes, for example ExecutionCancelled.
        clock: ``"real"`` for scenarios with threads or subprocesses. It is slower, and only as
            deterministic as they are. The virtual clock waits for most of them on asyncio, but not
            on trio.
        grace: Seconds, on that clock, between the scenario's end and the search for leftovers.
        loop_factory: Makes the asyncio loops, for example ``uvloop.new_event_loop``. It needs
            ``clock="real"``.
        eager_tasks: True if every task on asyncio starts immediately, as with
            ``asyncio.eager_task_factory``. It needs Python 3.12.
        watch: Holds the virtual clock of trio during outside work, such as a child process. Its
            ``on_turn`` is called at every suspension.

    Raises:
        ValueError: An argument is invalid.
        MissingExtraError: The trio mode was requested and trio is not installed.
        RuntimeError: Called from inside an event loop.
    """
    _check_arguments(modes, second_after=second_after, budget=budget, only=only, clock=clock)
    if loop_factory is not None and clock != "real":
        raise ValueError(
            'loop_factory: your own loop has no virtual clock; pass clock="real" as well'
        )
    if eager_tasks and sys.version_info < (3, 12):
        raise ValueError("eager_tasks: expected Python 3.12 or newer; leave it out here")
    _require_no_running_loop()
    base = TrialSettings(
        seed=seed,
        budget=_BUDGETS[clock] if budget is None else budget,
        max_steps=max_steps,
        virtual=clock == "virtual",
        grace=grace,
        loop_factory=loop_factory,
        eager_tasks=eager_tasks,
        watch=watch,
    )
    report = SweepReport(seed=seed, clock=clock)
    with _ONE_SWEEP_AT_A_TIME, _steady_process():
        for mode in dict.fromkeys(modes):
            _ModeSweep(
                make, attrs.evolve(base, mode=mode), expect, tuple(second_after), report
            ).run(max_points, only)
    return report


@final
@attrs.define
class _ModeSweep:
    """The trials of one mode, which add to the report."""

    make: Callable[[], World | Scenario | tuple[Scenario, Check]]
    base: TrialSettings
    expect: tuple[type[BaseException], ...]
    second_after: tuple[int, ...]
    report: SweepReport

    def run(self, max_points: int | None, only: int | None) -> None:
        """Try one suspension point, a sample, or all of them."""
        if only is not None:
            self.try_point(only)
            return
        mode = self.base.mode
        undisturbed, findings = self._trial(self.base)
        self._record(self.base, undisturbed, findings)
        self.report.points[mode] = undisturbed.count
        self.report.traces[mode] = tuple(undisturbed.trace)
        if findings:
            self.report.notes.append(
                f"{mode}: not swept, because the run without any cancellation is not clean"
            )
            return
        if undisturbed.count == 0:
            self.report.notes.append(
                f"{mode}: the scenario never suspends, so there was nothing to cancel"
            )
        if max_points is not None and undisturbed.count > max_points:
            chosen = sorted(
                random.Random(self.base.seed).sample(range(1, undisturbed.count + 1), max_points)
            )
            self.report.notes.append(
                f"{mode}: only {max_points} of {undisturbed.count} points were tried (max_points)"
            )
            for k in chosen:
                self.try_point(k)
            return
        self._run_all(undisturbed.trace)

    def _run_all(self, trace: list[str]) -> None:
        """Try points until no fault fires. The count of the first run alone isn't a proof."""
        k, differs = 1, False
        while True:
            injection = self.try_point(k)
            if not injection.fired:
                break
            place = (injection.stack[-1:] or ("?",))[0]
            differs = differs or k > len(trace) or place != trace[k - 1]
            k += 1
        if differs or k - 1 != len(trace):
            self.report.notes.append(
                f"{self.base.mode}: the scenario is not deterministic; "
                "its runs did not suspend at the same places"
            )

    def try_point(self, k: int) -> Injection:
        """Run the trials of one suspension point: one for each delay of the second cancel."""
        if not self.base.mode.endswith("-twice") or k == 0:
            return self._try(attrs.evolve(self.base, k=k))
        injection: Injection | None = None
        for second in sorted(set(self.second_after)):
            injection = self._try(attrs.evolve(self.base, k=k, second=second))
            # The scenario had ended already, as it would for every later second cancel.
            if not injection.second_fired:
                break
        # _check_arguments() has made sure that second_after isn't empty.
        assert injection is not None
        return injection

    def _try(self, settings: TrialSettings) -> Injection:
        injection, findings = self._trial(settings)
        if settings.k == 0 or (
            injection.fired and (settings.second is None or injection.second_fired)
        ):
            self._record(settings, injection, findings)
        return injection

    def _trial(self, settings: TrialSettings) -> tuple[Injection, list[Finding]]:
        """Run and judge one trial.

        Exceptions hold frames and frames hold tasks, so the outcome is dropped before garbage is
        collected.
        """
        random.seed(settings.seed)
        with watch_process() as watch:
            scenario, check = _unpack(self.make())
            injection, outcome = _runner(settings.mode)(scenario, settings)
            findings = list(dict.fromkeys(judge(settings, injection, outcome, self.expect)))
            by_force = injection.spinning or outcome.hung
            watch.noise += outcome.noise
            del outcome, scenario
        if not by_force:
            findings += [("THREAD", text) for text in watch.leftover_threads()]
            findings += [("NOISE", text) for text in dict.fromkeys(watch.noise)]
            findings += broken_invariants(check)
        self.report.trials[settings.mode] = self.report.trials.get(settings.mode, 0) + 1
        return injection, findings

    def _record(
        self, settings: TrialSettings, injection: Injection, findings: list[Finding]
    ) -> None:
        self.report.violations += [
            Violation(
                mode=settings.mode,
                k=settings.k,
                second=settings.second,
                kind=kind,
                detail=detail,
                where=injection.stack[-1] if injection.stack else "?",
                stack=injection.stack,
            )
            for kind, detail in findings
        ]


def _runner(mode: str) -> Callable[[Scenario, TrialSettings], tuple[Injection, TrialOutcome]]:
    if mode != "trio":
        return run_asyncio_trial
    try:
        # This isn't at the top because importing amplifier.testing must not import trio.
        from .trio_trial import run_trio_trial  # noqa: PLC0415 — trio is an optional part
    except ImportError as error:
        raise MissingExtraError(
            "the trio mode of cancel_everywhere", extra="trio", missing="trio"
        ) from error
    return run_trio_trial


def _unpack(world: Any) -> tuple[Scenario, Check]:
    if isinstance(world, tuple):
        scenario, check = world
        return scenario, check
    if hasattr(world, "scenario"):
        return world.scenario, world.check
    return world, tuple


def _check_arguments(
    modes: Sequence[str],
    *,
    second_after: Sequence[int],
    budget: float | None,
    only: int | None,
    clock: str,
) -> None:
    is_sequence = bool(modes) and not isinstance(modes, str)
    unknown = [mode for mode in modes if mode not in _ALL_MODES] if is_sequence else modes
    if unknown or not is_sequence:
        raise ValueError(
            f"modes: found {unknown!r}, expected a sequence of {', '.join(map(repr, _ALL_MODES))}"
        )
    if any(mode.endswith("-twice") for mode in modes) and (
        not second_after or min(second_after) < 1
    ):
        raise ValueError(
            f"second_after: found {second_after!r}, expected one or more numbers from 1 up"
        )
    if budget is not None and budget <= 0:
        raise ValueError(f"budget: found {budget!r}, expected seconds above 0")
    if only is not None and only < 0:
        raise ValueError(f"only: found {only!r}, expected 0 (no fault) or the k of a violation")
    if clock not in ("virtual", "real"):
        raise ValueError(f"clock: found {clock!r}, expected 'virtual' or 'real'")


def _require_no_running_loop() -> None:
    probes: list[Callable[[], object]] = [asyncio.get_running_loop]
    # If trio was never imported, it isn't running.
    if (trio := sys.modules.get("trio")) is not None:
        probes.append(trio.lowlevel.current_task)
    for probe in probes:
        with contextlib.suppress(RuntimeError):
            probe()
            break
    else:
        return
    raise RuntimeError(
        "cancel_everywhere runs event loops of its own and was called inside one; "
        "call it from synchronous code, or with anyio.to_thread.run_sync"
    )


@contextlib.contextmanager
def _steady_process() -> Iterator[None]:
    """Collect garbage only on the sweep's request, and restore the state of `random`.

    Existing objects are frozen, so that a collection after each trial takes microseconds instead of
    walking the heap, and older garbage isn't mistaken for a trial's. Unfreezing is all or nothing,
    so objects that were frozen before become ordinary again. Python 3.12 starts with some.
    """
    enabled = gc.isenabled()
    state = random.getstate()
    gc.disable()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        if enabled:
            gc.enable()
        random.setstate(state)
