"""Checks what a module does to its process: it does not block the event loop, it leaves what all code shares as it was, and it does not expose the keys it is given.

A busy machine can delay any program. So time in which the loop's thread waited for a CPU does not count, and only lines of
the module that block the loop in each of three runs are reported. Only settings that the module's own source reads under the name of a key are given; their
value occurs nowhere else.
"""

from __future__ import annotations

import logging
import random
import sys
import threading
import time
from contextlib import suppress
from typing import Any

import anyio
import anyio.lowlevel
import attrs

from amplifier.conformance.checks.every_module.cancellation import cancel_once
from amplifier.conformance.checks.registry import check
from amplifier.conformance.inputs.server_process import is_served, with_scenario
from amplifier.conformance.target.calls import KIT_THREAD, cpu_wait
from amplifier.conformance.target.mounted import CheckContext, MountFailed
from amplifier.conformance.target.process import ProcessState, captured_logs
from amplifier.conformance.target.source import settings_in
from amplifier.conformance.target.use import (
    SECRET,
    is_secret,
    secret_variables,
    set_environment,
    typical_operations,
)

_TICK = 0.005
_SAMPLING_INTERVAL = 0.01
_LIMIT = 0.1
_RUNS = 3
_OPERATION_SECONDS = (1.0, 0.2)
"""How long an operation is watched: here time is real, and a module may wait long; the second once several have."""
_MAX_LONG = 3


class _LoopWatch:
    """Finds the lines of the module that block the loop for longer than the limit.

    Attributes:
        blocked: The longest time for each line.
    """

    def __init__(self, ctx: CheckContext) -> None:
        self._ctx = ctx
        self._thread_id = threading.get_ident()
        self._native_id = threading.get_native_id()
        self._last, self._waited = time.monotonic(), cpu_wait(self._native_id)
        self._lines: dict[str, int] = {}
        self.over = threading.Event()
        self.blocked: dict[str, float] = {}

    async def tick(self) -> None:
        """Measure the delay of every tick, in the loop."""
        while True:
            now, waited = time.monotonic(), cpu_wait(self._native_id)
            delay = now - self._last - (waited - self._waited)
            if delay > _LIMIT + _TICK and self._lines:
                line = max(self._lines, key=lambda each: self._lines[each])
                self.blocked[line] = max(self.blocked.get(line, 0.0), delay - _TICK)
            self._lines = {}
            self._last, self._waited = now, waited
            await anyio.sleep(_TICK)

    def sample(self) -> None:
        """Count the lines of the module at which a late loop is found, in a thread."""
        while not self.over.wait(_SAMPLING_INTERVAL):
            if time.monotonic() - self._last > 2 * _SAMPLING_INTERVAL:
                line = self._ctx.line_of(sys._current_frames().get(self._thread_id))
                if line is not None:
                    self._lines[line] = self._lines.get(line, 0) + 1


@check("A17", kind="hygiene", real_time=True, ends_run=True)
async def blocks_nothing(ctx: CheckContext) -> None:
    """Uses the module while a task in the loop and a thread measure how long the loop is blocked; a delay counts if it recurs."""
    runs = [await _watched_run(ctx)]
    while runs[0] and len(runs) < _RUNS:
        runs.append(await _watched_run(ctx))
    for line in sorted(set.intersection(*(set(blocked) for blocked in runs)))[:1]:
        # Without the time, which is another one in every run.
        ctx.fault(
            "A17",
            f"the event loop was blocked for too long in each of {len(runs)} runs",
            location=line,
        )


async def _watched_run(ctx: CheckContext) -> dict[str, float]:
    watch = _LoopWatch(ctx)
    thread = threading.Thread(target=watch.sample, name=f"{KIT_THREAD} loop watch", daemon=True)
    async with anyio.create_task_group() as group:
        group.start_soon(watch.tick)
        await anyio.lowlevel.checkpoint()
        thread.start()
        try:
            async with ctx.mount() as mounted:
                long = 0
                for operation in typical_operations(mounted):
                    seconds = _OPERATION_SECONDS[long >= _MAX_LONG]
                    long += (
                        await mounted.call(operation.run, mounted, seconds=seconds)
                    ).kind == "late"
                    await anyio.sleep(_TICK)  # so that each of them is timed by itself
                    if watch.blocked:
                        break  # the others would take as long
                if mounted.cleanup is not None:
                    await mounted.call(mounted.cleanup)
        except MountFailed:
            pass
        finally:
            await anyio.sleep(_TICK)  # the last delay shows only when it is over
            watch.over.set()
            group.cancel_scope.cancel()
    thread.join()
    return watch.blocked


@check("A24", kind="hygiene", without_instance=("A24",))
async def leaves_the_process_as_found(ctx: CheckContext) -> None:
    """Compares what all code of the process shares before and after mount, calls, cancelled calls and cleanup."""
    first = await _changes(ctx, seed=1)
    if not first:
        return
    again = await _changes(
        ctx, seed=2
    )  # what is changed by an import, or by chance, does not show twice
    for what, (when, how, given) in first.items():
        if what in again and (what != _RANDOM or how == again[what][1]):
            shown = "it was seeded" if what == _RANDOM else how
            ctx.fault("A24", f"{when} {what}: {shown}", given=given)
            return


_RANDOM = "the random numbers of the process"
_STATE_POINTS = 4
"""How many suspensions of a call are tried: what is changed for the time of a call is mostly set at its beginning."""


async def _changes(ctx: CheckContext, seed: int) -> dict[str, tuple[str, str, Any]]:
    """What changes, first seen when, how and with which input."""
    found: dict[str, tuple[str, str, Any]] = {}
    state: list[ProcessState] = []
    mount = ctx.loaded.mount

    def mount_watched(*given: Any) -> Any:
        random.seed(seed)
        state.append(ProcessState())
        return mount(*given)

    def look(when: str, given: Any = None, *, closed: bool = False) -> None:
        for what, how in state[0].changes(lasting=closed).items():
            found.setdefault(what, (when, mounted.without_session(how), given))
        if random.getstate() != untouched:
            found.setdefault(_RANDOM, (when, str(hash(random.getstate())), given))

    random.seed(seed)
    untouched = random.getstate()
    trial = attrs.evolve(ctx.fresh(), loaded=attrs.evolve(ctx.loaded, mount=mount_watched))
    with suppress(MountFailed):
        async with trial.mount() as mounted:
            look("mount changed")
            for operation in typical_operations(mounted):
                await mounted.call(operation.run, mounted)
                look(f"{operation.name} changed", operation.given)
            for operation in () if found else typical_operations(mounted):
                for k in range(1, 2 if ctx.loaded.starts_processes else _STATE_POINTS):
                    await cancel_once(mounted, operation, k)
                    look(f"{operation.name}, when it was cancelled, changed", operation.given)
            await mounted.close()
            look("after cleanup there is a change of", closed=True)
    if state:
        state[0].restore()
    return found


_REFUSALS = ("status-401", "status-503")
"""Responses of the server that make modules log keys: a rejected key, a failed request."""
_LONGEST_CHAIN = 5


@check("A22", kind="hygiene")
async def keeps_secrets(ctx: CheckContext) -> None:
    """Sets every setting that looks like a key to a unique text, and searches events, logs and errors for it."""
    keys = [key for key in settings_in(ctx.loaded.target) if is_secret(key)]
    if not keys and not secret_variables(ctx.loaded):
        return
    set_environment(ctx.loaded)
    for scenario in ("auto", *_REFUSALS) if is_served(ctx.loaded.config) else ("auto",):
        config = with_scenario(ctx.loaded.config, scenario)
        for where, text in await _emitted(ctx, {**config, **dict.fromkeys(keys, SECRET)}):
            if SECRET in repr(text):
                given = {"settings": keys, "answer of the service": scenario}
                what = (
                    f"{where} holds the secret that was given as {', '.join(keys) or 'a variable'}"
                )
                ctx.fault("A22", what, given=given)
                return


async def _emitted(ctx: CheckContext, config: dict[str, Any]) -> list[tuple[str, Any]]:
    """The contents of events, errors and log records when the module is used with these settings."""
    found: list[tuple[str, Any]] = []

    def wants(record: logging.LogRecord) -> bool:
        return record.levelno >= logging.WARNING or ctx.loaded.target.owns(record.pathname)

    with captured_logs(wants) as records:
        try:
            async with ctx.mount(config=config) as mounted:
                for operation in typical_operations(mounted):
                    outcome = await mounted.call(operation.run, mounted)
                    found.append((f"the error of {operation.name}", _texts_of(outcome.error)))
                found += [(f"the event {name}", payload) for name, payload in mounted.events.events]
        except MountFailed as failed:
            found.append(("the error of mount", _texts_of(failed.outcome.error)))
    formatter = logging.Formatter()
    for record in records:
        found.append(
            (f"a log record, {record.levelname} of {record.name!r},", formatter.format(record))
        )
    return found


def _texts_of(error: BaseException | None) -> list[str]:
    """The texts of an error and of the errors that caused it."""
    texts: list[str] = []
    while error is not None and len(texts) < _LONGEST_CHAIN:
        texts.append(f"{error} {error!r}")
        error = error.__cause__ or error.__context__
    return texts
