"""Check the effects of a module on its process: blocking, changed state and exposed keys."""

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

# A busy machine can delay any program. So time in which the loop's thread waited for a CPU doesn't
# count, and only lines that block the loop in each of three runs are reported.

_TICK = 0.005
_SAMPLING_INTERVAL = 0.01
_LIMIT = 0.1
_RUNS = 3
# Real seconds for which an operation is watched, because a module may wait long. The second value
# holds once several operations have overrun.
_OPERATION_SECONDS = (1.0, 0.2)
_MAX_LONG = 3


class _LoopWatch:
    """Finds the lines of the module that block the loop for longer than the limit.

    Attributes:
        over: Set to end the sampling thread.
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
                line = max(self._lines, key=lambda name: self._lines[name])
                self.blocked[line] = max(self.blocked.get(line, 0.0), delay - _TICK)
            self._lines = {}
            self._last, self._waited = now, waited
            await anyio.sleep(_TICK)

    def sample(self) -> None:
        """Count the lines of the module at which the loop is late. This runs in a thread."""
        while not self.over.wait(_SAMPLING_INTERVAL):
            if time.monotonic() - self._last > 2 * _SAMPLING_INTERVAL:
                line = self._ctx.line_of(sys._current_frames().get(self._thread_id))
                if line is not None:
                    self._lines[line] = self._lines.get(line, 0) + 1


@check("A17", kind="hygiene", real_time=True, ends_run=True)
async def blocks_nothing(ctx: CheckContext) -> None:
    """Use the module while a task and a thread measure recurring delays of the loop."""
    runs = [await _watched_run(ctx)]
    while runs[0] and len(runs) < _RUNS:
        runs.append(await _watched_run(ctx))
    for line in sorted(set.intersection(*(set(blocked) for blocked in runs)))[:1]:
        # This leaves out the time, which differs from run to run.
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
                    # This separates the times of two operations.
                    await anyio.sleep(_TICK)
                    # The other operations would take as long.
                    if watch.blocked:
                        break
                if mounted.cleanup is not None:
                    await mounted.call(mounted.cleanup)
        except MountFailed:
            pass
        finally:
            # The last delay shows only when it is over.
            await anyio.sleep(_TICK)
            watch.over.set()
            group.cancel_scope.cancel()
    thread.join()
    return watch.blocked


@check("A24", kind="hygiene", without_instance=("A24",))
async def leaves_the_process_as_found(ctx: CheckContext) -> None:
    """Compare the process-wide state before and after mount, calls, cancelled calls and cleanup."""
    first = await _changes(ctx, seed=1)
    if not first:
        return
    # A change by an import or by chance does not occur twice.
    again = await _changes(ctx, seed=2)
    for what, (when, how, given) in first.items():
        if what in again and (what != _RANDOM or how == again[what][1]):
            shown = "it was seeded" if what == _RANDOM else how
            ctx.fault("A24", f"{when} {what}: {shown}", given=given)
            return


_RANDOM = "the random numbers of the process"
_STATE_POINTS = 4
"""Suspensions of a call that are tried. Most temporary changes are made at its beginning."""


async def _changes(ctx: CheckContext, seed: int) -> dict[str, tuple[str, str, Any]]:
    """Return each change with its first occurrence: when, how, and with which input."""
    changes: dict[str, tuple[str, str, Any]] = {}
    state: list[ProcessState] = []
    mount = ctx.loaded.mount

    def mount_watched(*given: Any) -> Any:
        random.seed(seed)
        state.append(ProcessState())
        return mount(*given)

    def look(when: str, given: Any = None, *, closed: bool = False) -> None:
        for what, how in state[0].changes(lasting=closed).items():
            changes.setdefault(what, (when, mounted.without_session(how), given))
        if random.getstate() != untouched:
            changes.setdefault(_RANDOM, (when, str(hash(random.getstate())), given))

    random.seed(seed)
    untouched = random.getstate()
    trial = attrs.evolve(ctx.fresh(), loaded=attrs.evolve(ctx.loaded, mount=mount_watched))
    with suppress(MountFailed):
        async with trial.mount() as mounted:
            look("mount changed")
            for operation in typical_operations(mounted):
                await mounted.call(operation.run, mounted)
                look(f"{operation.name} changed", operation.given)
            for operation in () if changes else typical_operations(mounted):
                for k in range(1, 2 if ctx.loaded.starts_processes else _STATE_POINTS):
                    await cancel_once(mounted, operation, k)
                    look(f"{operation.name}, when it was cancelled, changed", operation.given)
            await mounted.close()
            look("after cleanup there is a change of", closed=True)
    if state:
        state[0].restore()
    return changes


_REFUSALS = ("status-401", "status-503")
"""Responses of the server that make modules log keys: a rejected key, a failed request."""
_MAX_CAUSES = 5

# Only settings that the module's own source reads under the name of a key get a secret. Its text
# occurs nowhere else.


@check("A22", kind="hygiene")
async def keeps_secrets(ctx: CheckContext) -> None:
    """Set every key to a unique text, and search events, logs and errors for it."""
    keys = [key for key in settings_in(ctx.loaded.target) if is_secret(key)]
    if not keys and not secret_variables(ctx.loaded):
        return
    set_environment(ctx.loaded)
    for scenario in ("auto", *_REFUSALS) if is_served(ctx.loaded.config) else ("auto",):
        config = with_scenario(ctx.loaded.config, scenario)
        for where, text in await _emitted(ctx, {**config, **dict.fromkeys(keys, SECRET)}):
            if SECRET in repr(text):
                given = {"settings": keys, "answer of the service": scenario}
                names = ", ".join(keys) or "a variable"
                what = f"{where} holds the secret that was given as {names}"
                ctx.fault("A22", what, given=given)
                return


async def _emitted(ctx: CheckContext, config: dict[str, Any]) -> list[tuple[str, Any]]:
    """Use the module with some settings, and return the texts of events, errors and logs."""
    emitted: list[tuple[str, Any]] = []

    def wants(record: logging.LogRecord) -> bool:
        return record.levelno >= logging.WARNING or ctx.loaded.target.owns(record.pathname)

    with captured_logs(wants) as records:
        try:
            async with ctx.mount(config=config) as mounted:
                for operation in typical_operations(mounted):
                    outcome = await mounted.call(operation.run, mounted)
                    emitted.append((f"the error of {operation.name}", _texts_of(outcome.error)))
                emitted += [(f"the event {name}", data) for name, data in mounted.events.events]
        except MountFailed as failed:
            emitted.append(("the error of mount", _texts_of(failed.outcome.error)))
    formatter = logging.Formatter()
    for record in records:
        emitted.append(
            (f"a log record, {record.levelname} of {record.name!r},", formatter.format(record))
        )
    return emitted


def _texts_of(error: BaseException | None) -> list[str]:
    """Return the texts of an error and of its causes."""
    texts: list[str] = []
    while error is not None and len(texts) < _MAX_CAUSES:
        texts.append(f"{error} {error!r}")
        error = error.__cause__ or error.__context__
    return texts
