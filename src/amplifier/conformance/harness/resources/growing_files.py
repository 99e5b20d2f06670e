"""Finds files that stay open after every call of an operation, one more each time."""

from __future__ import annotations

import gc
import time

import anyio.lowlevel

from amplifier.conformance.harness.mounted_module import MountedModule
from amplifier.conformance.harness.typical_use import Operation

from .snapshot import PATIENCE, open_files

CALLS = 5
"""How often an operation that has left a file open is repeated."""
_PAUSE = 0.02


async def find_growing_file(mounted: MountedModule, operation: Operation) -> str | None:
    """Run an operation; if it leaves a file open, run it again and return what each further call leaves open.

    Only the number of descriptors of one and the same file counts: a pool of connections grows and shrinks, and processes
    have pipes. A tool whose results differ may have opened the file on request, and returned a handle to close it.
    """
    before = open_files()
    outcome = await mounted.call(operation.run, mounted)
    if operation.is_last or not open_files() - before:
        return None
    start = open_files()
    results = {repr(outcome.value)}
    for _ in range(CALLS):
        results.add(repr((await mounted.call(operation.run, mounted)).value))
    if mounted.loaded.module_type == "tool" and len(results) > 1:
        return None
    gc.collect()
    give_up = time.monotonic() + PATIENCE
    while growing := [(path, count) for path, count in (open_files() - start).items() if count >= CALLS]:
        if time.monotonic() >= give_up:
            path, count = growing[0]
            return f"{count} descriptors of {mounted.without_session(path)!r}"
        await anyio.lowlevel.checkpoint()
        time.sleep(_PAUSE)  # noqa: ASYNC251 — threads close files in real time, whatever the loop's clock is
    return None
