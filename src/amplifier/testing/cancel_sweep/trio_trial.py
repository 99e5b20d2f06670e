"""One trial on trio. Importing this module imports trio."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, final

import trio

from amplifier.testing.virtual_time import virtual_clock

from .injection import CURRENT_INJECTION, Injection, TrialOutcome, TrialSettings, kill, tidy, where

__all__ = ["deterministic_scheduling", "run_trio_trial"]

_ROUNDS_BEFORE_KILLING = 10
_ROUND_SECONDS = 0.05
"""Seconds between attempts to end a hanging scenario. It may be real time, so it is short."""


def run_trio_trial(
    scenario: Callable[[], Awaitable[object]], settings: TrialSettings
) -> tuple[Injection, TrialOutcome]:
    """Run one trial in its own trio run."""
    trial = _TrioTrial(scenario, settings)
    clock = virtual_clock(settings.watch) if settings.virtual else None
    with deterministic_scheduling(settings.seed):
        try:
            trio.run(trial.run, clock=clock, instruments=[trial])
        # It came from outside the scenario's task, for instance from a crashed system task.
        except BaseException as error:  # noqa: BLE001
            # The user interrupts the sweep, not the scenario.
            if _holds_interrupt(error):
                raise KeyboardInterrupt from None
            trial.outcome.errors.append(error)
    trial.injection.dismiss()
    if trial.broken is not None:
        raise trial.broken
    return trial.injection, trial.outcome


def _holds_interrupt(error: BaseException) -> bool:
    """Return whether an exception is or contains a KeyboardInterrupt."""
    # This doesn't use except*, because Python before 3.11.4 wraps exceptions raised there in a
    # group.
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(KeyboardInterrupt) is not None
    return isinstance(error, KeyboardInterrupt)


@contextmanager
def deterministic_scheduling(seed: int) -> Iterator[None]:
    """Sort each batch of runnable tasks and shuffle it by seed, as trio does for Hypothesis."""
    # This is private, but trio has no public way to repeat the order of its tasks, as trials must.
    run: Any = trio._core._run
    before, shuffler = run._ALLOW_DETERMINISTIC_SCHEDULING, run._r
    state = shuffler.getstate()
    run._ALLOW_DETERMINISTIC_SCHEDULING = True
    shuffler.seed(seed)
    try:
        yield
    finally:
        run._ALLOW_DETERMINISTIC_SCHEDULING = before
        shuffler.setstate(state)


# trio calls the instrument after every step of every task. The scenario's tasks carry the context
# variable.
#
# Private names of trio are used because it has no public way to fix the order of scheduling, to
# cancel the scopes around a task, or to resume a task with an exception.
@final
class _TrioTrial(trio.abc.Instrument):
    def __init__(self, scenario: Callable[[], Awaitable[object]], settings: TrialSettings) -> None:
        self.settings = settings
        self.outcome = TrialOutcome()
        self.scope = trio.CancelScope()
        self.injection = Injection(
            k=settings.k, fire=self.scope.cancel, max_steps=settings.max_steps, watch=settings.watch
        )
        self.broken: Exception | None = None
        self._scenario = scenario
        self._ended = trio.Event()

    async def run(self) -> None:
        started = trio.current_time()
        system_tasks = self._system_tasks()
        async with trio.open_nursery() as harness:
            harness.start_soon(self._watch_budget, name="watchdog")
            token = CURRENT_INJECTION.set(self.injection)
            harness.start_soon(self._body, name="scenario")
            CURRENT_INJECTION.reset(token)
            await self._ended.wait()
            self.outcome.elapsed = trio.current_time() - started
            if self.settings.grace:
                await trio.sleep(self.settings.grace)
            orphans = [
                task for task in harness.child_tasks if task.name not in ("watchdog", "scenario")
            ]
            orphans += self._system_tasks() - system_tasks
            self.outcome.orphans = sorted(
                tidy(f"task {task.name} at {where(task.coro)}") for task in orphans
            )
            harness.cancel_scope.cancel()

    async def _body(self) -> None:
        try:
            with self.scope:
                await self._scenario()
        except KeyboardInterrupt:
            raise
        # Every exception is an outcome, even a stray Cancelled.
        except BaseException as error:  # noqa: BLE001
            self.outcome.errors.append(error)
        finally:
            self.injection.closed = True
            self._ended.set()

    @staticmethod
    def _system_tasks() -> set[trio.lowlevel.Task]:
        root = trio.lowlevel.current_root_task()
        if root is None:
            return set()
        return {task for nursery in root.child_nurseries for task in nursery.child_tasks}

    # ── observing suspensions: trio calls these between the steps of tasks ──

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if not self.injection.killing or task.context.get(CURRENT_INJECTION) is not self.injection:
            return
        # A failing system task would end trio before the trial.
        if task in self._system_tasks():
            return
        # This is private, but there is no public way to end a task that ignores its cancellation.
        task._next_send_fn = lambda _value: kill(task.coro)

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        # A task that has just finished has no frame, so this wasn't a suspension.
        if task.context.get(CURRENT_INJECTION) is not self.injection or task.coro.cr_frame is None:
            return
        self.injection.tasks[task] = task.coro
        try:
            self.injection.suspended(task.coro)
        # trio would only log it and drop the instrument, and the sweep would silently test nothing.
        except Exception as error:  # noqa: BLE001
            self.broken = error
            self.scope.cancel()

    def task_exited(self, task: trio.lowlevel.Task) -> None:
        self.injection.tasks.pop(task, None)

    def _enclosing_scopes(self, task: trio.lowlevel.Task) -> Iterator[trio.CancelScope]:
        """Yield the scopes around a task, up to the trial's or trio's own, innermost first."""
        # This is private, but a trial must determine whether a cancellation can reach the task at
        # all.
        status: Any = task._cancel_status
        root = trio.lowlevel.current_root_task()
        trios = [] if root is None else [nursery.cancel_scope for nursery in root.child_nurseries]
        while (
            status is not None and (scope := status._scope) is not self.scope and scope not in trios
        ):
            yield scope
            status = status._parent

    # ── hanging ──

    async def _watch_budget(self) -> None:
        """Wait for the budget, record where tasks are stuck, then end them, shielded or not."""
        await trio.sleep(self.settings.budget)
        if self.injection.closed:
            return
        self.outcome.hung = True
        self.outcome.stuck = self.injection.stuck()
        self.scope.cancel()
        for attempt in range(self.settings.max_steps):
            self.injection.killing = attempt >= _ROUNDS_BEFORE_KILLING
            for task in list(self.injection.tasks):
                for scope in self._enclosing_scopes(task):
                    scope.cancel()
            await trio.sleep(_ROUND_SECONDS)
