"""Standstills of the event loop: a clock inside it, a thread beside it that looks where the time goes.

A busy machine can make any program stand still. So the time in which the loop's thread was ready and got no processor does not
count, where the system tells it, and only what stands still in the subject's own code each of three times is reported. Above
stands the check; below stands the mounted.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from types import FrameType

import anyio
import anyio.lowlevel

from amplifier.conformance.harness.cpu_clock import cpu_wait
from amplifier.conformance.harness.mounted_module import CheckContext, MountFailed
from amplifier.conformance.harness.typical_use import typical_operations

_TICK = 0.005
_GLANCE = 0.01
LIMIT = 0.1
_TIMES = 3


class LoopWatch:
    """Notes the lines of the subject at which the loop stood still for longer than the limit, and for how long.

    Time that the thread spent waiting for a processor is the machine's and does not count, where the system tells it.
    """

    def __init__(self, ctx: CheckContext) -> None:
        self._ctx = ctx
        self._over = threading.Event()
        self._thread_id = threading.get_ident()
        self._native_id = threading.get_native_id()
        self._beat, self._waited = time.monotonic(), cpu_wait(self._native_id)
        self._lines: dict[str, int] = {}
        self.seen: dict[str, float] = {}

    async def beat(self) -> None:
        """Tick for as long as the loop lets it."""
        while True:
            now, waited = time.monotonic(), cpu_wait(self._native_id)
            still = now - self._beat - (waited - self._waited)
            if still > LIMIT + _TICK and self._lines:
                line = max(self._lines, key=lambda each: self._lines[each])
                self.seen[line] = max(self.seen.get(line, 0.0), still - _TICK)
            self._lines = {}
            self._beat, self._waited = now, waited
            await anyio.sleep(_TICK)

    def look(self) -> None:
        """Look from a thread, and note which of the subject's lines it is that the loop stands still at."""
        while not self._over.wait(_GLANCE):
            if time.monotonic() - self._beat > 2 * _GLANCE:
                line = self._line(sys._current_frames().get(self._thread_id))
                if line is not None:
                    self._lines[line] = self._lines.get(line, 0) + 1

    def _line(self, frame: FrameType | None) -> str | None:
        while frame is not None:
            if self._ctx.loaded.subject.owns(frame.f_code.co_filename):
                return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
            frame = frame.f_back
        return None

    def stop(self) -> None:
        """End the watching thread."""
        self._over.set()


async def look_for_blocking(ctx: CheckContext) -> None:
    """Use the subject three times under watch."""
    rounds = [await _watched(ctx) for _ in range(_TIMES)]
    for line in sorted(set.intersection(*(set(seen) for seen in rounds))):
        shortest = min(seen[line] for seen in rounds)
        what = f"the event loop stood still for at least {shortest * 1000:.0f} ms, three times out of three"
        ctx.fault("A17", what, location=line)
        return


async def _watched(ctx: CheckContext) -> dict[str, float]:
    watch = LoopWatch(ctx)
    thread = threading.Thread(target=watch.look, name="loop watch", daemon=True)
    async with anyio.create_task_group() as group:
        group.start_soon(watch.beat)
        await anyio.lowlevel.checkpoint()
        thread.start()
        try:
            async with ctx.mount() as mounted:
                for operation in typical_operations(mounted):
                    await mounted.call(operation.run, mounted)
                    await anyio.sleep(_TICK)  # so that each of them is timed by itself
                if mounted.cleanup is not None:
                    await mounted.call(mounted.cleanup)
        except MountFailed:
            pass
        finally:
            await anyio.sleep(_TICK)  # the last standstill is only seen when it is over
            watch.stop()
            group.cancel_scope.cancel()
    thread.join()
    return watch.seen
