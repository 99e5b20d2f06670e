"""Detects code that blocks the event loop: a task measures delays, a thread samples the line that causes them.

A busy machine can delay any program. So time in which the loop's thread waited for a CPU does not count, and only lines of
the module that block the loop in each of three runs are reported.
"""

from __future__ import annotations

import sys
import threading
import time

import anyio
import anyio.lowlevel

from amplifier.conformance.harness.check_registry import check
from amplifier.conformance.harness.cpu_clock import cpu_wait
from amplifier.conformance.harness.mounted_module import CheckContext, MountFailed
from amplifier.conformance.harness.typical_use import typical_operations
from amplifier.conformance.harness.virtual_clock import KIT_THREAD

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


@check("A17", kind="hygiene", real_time=True)
async def blocks_nothing(ctx: CheckContext) -> None:
    """Uses the module while a task in the loop and a thread measure how long the loop is blocked; a delay counts if it recurs."""
    runs = [await _watched_run(ctx)]
    while runs[0] and len(runs) < _RUNS:
        runs.append(await _watched_run(ctx))
    for line in sorted(set.intersection(*(set(blocked) for blocked in runs)))[:1]:
        # Without the time, which is another one in every run.
        ctx.fault("A17", f"the event loop was blocked for too long in each of {len(runs)} runs", location=line)


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
                    long += (await mounted.call(operation.run, mounted, seconds=seconds)).kind == "late"
                    await anyio.sleep(_TICK)  # so that each of them is timed by itself
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
