"""One trial on asyncio: by cancel scope or by ``Task.cancel()``, once or twice."""

from __future__ import annotations

import asyncio
import functools
import inspect
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, final

import anyio

from amplifier.testing.virtual_time import VirtualTimeLoop

from .injection import (
    CURRENT_INJECTION,
    Driven,
    Injection,
    Killed,
    TrialOutcome,
    TrialSettings,
    tidy,
    where,
)

_HASH_BITS = 60
_ROUNDS_BEFORE_KILLING = 10
_ROUNDS_BEFORE_GIVING_UP = 30
_ROUND_SECONDS = 0.05
"""Seconds between attempts to end a hanging scenario. It may be real time, so it is short."""


def run_asyncio_trial(
    scenario: Callable[[], Awaitable[object]], settings: TrialSettings
) -> tuple[Injection, TrialOutcome]:
    """Run one trial on its own event loop."""
    trial = _AsyncioTrial(scenario, settings)
    loop_factory = settings.loop_factory or (
        VirtualTimeLoop if settings.virtual else asyncio.SelectorEventLoop
    )
    with (
        ordered_cancel_scopes(_cancel_scope_class(), trial.order),
        asyncio.Runner(loop_factory=loop_factory) as runner,
    ):
        try:
            runner.run(trial.run())
        except KeyboardInterrupt:
            raise
        # SystemExit in a child task leaves the loop itself.
        except BaseException as error:  # noqa: BLE001
            trial.outcome.errors.append(error)
        trial.injection.closed = trial.injection.killing = True
    trial.injection.dismiss()
    return trial.injection, trial.outcome


@functools.cache
def _cancel_scope_class() -> type[Any]:
    """Return AnyIO's implementation class on asyncio, which takes a running loop."""

    async def ask() -> type[Any]:
        return type(anyio.CancelScope())

    with asyncio.Runner() as runner:
        return runner.run(ask())


def _wrapped_by_anyio(coro: Any) -> list[Any]:
    """Return the coroutine inside a coroutine of AnyIO's task groups, if neither has begun."""
    frame = coro.cr_frame
    # Private: closing only the outer coroutine would leave the inner one never awaited.
    inner = None if frame is None else getattr(frame.f_locals.get("self"), "_coro", None)
    if inspect.iscoroutine(inner) and inspect.getcoroutinestate(inner) == inspect.CORO_CREATED:
        return [inner]
    return []


def _is_of_anyio(coro: object) -> bool:
    """Return whether AnyIO creates this task.

    AnyIO keeps its tasks from starting eagerly if it recognises asyncio's eager factory, but it
    doesn't recognise this one.
    """
    frame = getattr(coro, "cr_frame", None)
    return frame is not None and str(frame.f_globals.get("__name__", "")).startswith("anyio.")


# A task factory observes suspensions: every task of the scenario runs inside a small coroutine that
# drives the real one by hand (`Driven`). That shell is a genuine coroutine because AnyIO inspects
# Task.get_coro().
#
# Events have the same order in every run, chosen by a seed. asyncio's ready queue is first in,
# first out, so order can vary only where code iterates over a set. asyncio and AnyIO keep tasks and
# cancel scopes in sets, which hash by memory address. Inside a trial both hash by a seeded random
# number instead, so one seed gives one order in which siblings are cancelled. trio has a switch for
# deterministic scheduling (see `trio_trial`).
@final
class _AsyncioTrial:
    def __init__(self, scenario: Callable[[], Awaitable[object]], settings: TrialSettings) -> None:
        self.settings = settings
        self.outcome = TrialOutcome()
        self.order = random.Random(settings.seed)
        self.injection = Injection(
            k=settings.k,
            second=settings.second,
            fire=self._fire,
            max_steps=settings.max_steps,
            watch=settings.watch,
        )
        self._scenario = scenario
        self._native = settings.mode != "asyncio-scope"
        self._cancels_all = settings.mode.startswith("asyncio-all")
        self._scope: anyio.CancelScope | None = None
        self._root: asyncio.Task[None] | None = None
        self._accepted = False

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        loop.set_task_factory(self._make_task)
        loop.set_exception_handler(self._take_noise)
        started = loop.time()
        token = CURRENT_INJECTION.set(self.injection)
        # This is a bare task on purpose. The trial cancels it natively, and nothing else may cancel
        # it.
        self._root = root = loop.create_task(self._body())
        CURRENT_INJECTION.reset(token)
        done, _ = await asyncio.wait({root}, timeout=self.settings.budget)
        if not done:
            await self._break_hang(root)
        self.outcome.elapsed = loop.time() - started
        if root.done():
            self._take_result(root)
        await self._find_orphans(root)

    async def _body(self) -> None:
        # An eager task is suspended for the first time before create_task() returns it.
        self._root = asyncio.current_task()
        try:
            if self._native:
                await self._scenario()
            else:
                with anyio.CancelScope() as self._scope:
                    await self._scenario()
        finally:
            self.injection.closed = True

    def _fire(self) -> None:
        if self._scope is not None:
            self._scope.cancel()
        elif self._cancels_all:
            for task in list(self.injection.tasks):
                accepted = task.cancel()
                self._accepted = self._accepted or (accepted and task is self._root)
        elif self._root is not None:
            self._accepted = self._root.cancel() or self._accepted

    # ── observing suspensions ──

    def _make_task(
        self, loop: asyncio.AbstractEventLoop, coro: Any, **options: Any
    ) -> asyncio.Task[Any]:
        context = options.get("context")
        injection = CURRENT_INJECTION.get() if context is None else context.get(CURRENT_INJECTION)
        if injection is not self.injection or injection.closed:
            return asyncio.Task(coro, loop=loop, **options)
        if self.settings.eager_tasks and not _is_of_anyio(coro):
            options["eager_start"] = True
        task = OrderedTask(self._shell(coro), order=self.order, loop=loop, **options)
        injection.tasks[task] = coro
        task.add_done_callback(self._forget_task)
        return task

    def _forget_task(self, task: asyncio.Task[Any]) -> None:
        coro = self.injection.tasks.pop(task, None)
        if inspect.iscoroutine(coro):
            # A task that was cancelled before its first step never entered the shell, so the real
            # coroutine hasn't started. Close it, or Python warns that it was never awaited.
            for inner in (coro, *_wrapped_by_anyio(coro)):
                inner.close()

    async def _shell(self, coro: Coroutine[Any, Any, Any]) -> Any:
        # An eager task isn't in the list yet.
        self.injection.tasks.setdefault(asyncio.current_task(), coro)
        return await Driven(coro, self.injection)

    # ── the end of a trial ──

    async def _break_hang(self, root: asyncio.Task[None]) -> None:
        """Record where tasks are stuck, then end them natively, through AnyIO's shields."""
        self.outcome.hung = True
        self.outcome.stuck = self.injection.stuck()
        for attempt in range(_ROUNDS_BEFORE_GIVING_UP):
            self.injection.killing = attempt >= _ROUNDS_BEFORE_KILLING
            for task in list(self.injection.tasks):
                task.cancel()
            done, _ = await asyncio.wait({root}, timeout=_ROUND_SECONDS)
            if done:
                return

    def _take_result(self, root: asyncio.Task[None]) -> None:
        error = None if root.cancelled() else root.exception()
        if error is not None:
            self.outcome.errors.append(error)
        elif root.cancelled() and not self._accepted:
            self.outcome.errors.append(
                asyncio.CancelledError("the scenario ended cancelled although it was not cancelled")
            )
        self.outcome.swallowed = self._accepted and not root.cancelled() and error is None

    async def _find_orphans(self, root: asyncio.Task[None]) -> None:
        if self.settings.grace:
            await asyncio.sleep(self.settings.grace)
        ours = {asyncio.current_task(), root}
        orphans = [task for task in asyncio.all_tasks() if task not in ours]
        coros = self.injection.tasks
        self.outcome.orphans = sorted(
            tidy(f"task {task.get_name()} at {where(coros.get(task) or task.get_coro())}")
            for task in orphans
        )
        self.injection.killing = True
        for task in orphans:
            task.cancel()
        if orphans:
            await asyncio.wait(orphans, timeout=1)

    def _take_noise(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, Killed):
            return
        cause = "" if error is None else f": {type(error).__name__}: {error}"
        self.outcome.noise.append(tidy(f"{context.get('message', 'unhandled')}{cause}"))


# ── the same order of events in every run ──


@final
class OrderedTask(asyncio.Task[Any]):
    """An asyncio task whose place in a set does not depend on its address."""

    def __init__(self, coro: Any, *, order: random.Random, **options: Any) -> None:
        # The base class adds the task to a set at once, so set this first.
        self._place = order.getrandbits(_HASH_BITS)
        super().__init__(coro, **options)

    def __hash__(self) -> int:
        return self._place


@contextmanager
def ordered_cancel_scopes(scope_class: Any, order: random.Random) -> Iterator[None]:
    """Make AnyIO's cancel scopes of a scenario hash by seed instead of by address.

    The class is AnyIO's, so it is changed only during a trial and only for scopes of the scenario.
    Scopes of other loops in the process keep their hash. A class of an unknown shape is not
    changed, and then only the order of sibling scopes isn't reproducible.
    """
    places: dict[int, int] = {}
    original_new = vars(scope_class).get("__new__")

    # This isn't done in __init__, because anyio.CancelScope calls that twice.
    def new(cls: Any, *args: Any, **kwargs: Any) -> Any:
        scope = original_new.__func__(cls, *args, **kwargs)
        if CURRENT_INJECTION.get() is None:
            # The address may have belonged to a scope of the scenario.
            places.pop(id(scope), None)
        else:
            places[id(scope)] = order.getrandbits(_HASH_BITS)
        return scope

    def place(scope: Any) -> int:
        return places.get(id(scope)) or object.__hash__(scope)

    if scope_class.__hash__ is not object.__hash__ or original_new is None:
        yield
        return
    scope_class.__new__ = new
    scope_class.__hash__ = place
    try:
        yield
    finally:
        scope_class.__new__ = original_new
        del scope_class.__hash__
