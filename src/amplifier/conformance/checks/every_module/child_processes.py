"""Cancels calls while a process that they started is running: none may remain after cleanup.

The sweep over all suspensions cancels a slow call at few points, and a process that is left alone for a second or two ends
unseen meanwhile. Here the call is cancelled as soon as its process is there, and the module is closed at once.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel

from amplifier.conformance.harness.calls.outcome import CALL_SECONDS, Outcome, call_with_deadline
from amplifier.conformance.harness.check_registry import check
from amplifier.conformance.harness.mounted_module import CANCEL_GRACE, CheckContext, MountedModule
from amplifier.conformance.harness.resources.snapshot import SEES_PROCESSES, Resources, is_waiting
from amplifier.conformance.harness.typical_use import Operation, execute, schema_of, typical_operations
from amplifier.conformance.inputs.json_schema import resolved
from amplifier.conformance.inputs.schema_values import properties_of
from amplifier.conformance.target.source_literals import starts_programs

_MAX_OPERATIONS = 3
_ATTEMPTS = (0, 20, 20)
"""For how many looks in a row the process has to be waiting before the call is cancelled: none, or until it has started up.

A process that ends by itself while the module is being closed shows nothing, so that is tried again.
"""
_PAUSE = 0.005
_MAX_NUMBER = 1_000


@check("A14", kind="cancellation", real_time=True)
async def ends_its_processes(ctx: CheckContext) -> None:
    """Cancels a call as soon as it has started a process, and looks for the process after cleanup."""
    if not SEES_PROCESSES or not starts_programs(ctx.loaded.target):
        return
    async with ctx.mount() as mounted:
        count = len(list(_operations(mounted)))
    for index in range(min(count, _MAX_OPERATIONS)):
        for looks in _ATTEMPTS:
            if not await _cancel_with_a_process(ctx, index, looks):
                break
            if ctx.faults:
                return


def _operations(mounted: MountedModule) -> Iterator[Operation]:
    """The typical operations, and before each one the same with the largest numbers, such as seconds to wait."""
    for operation in typical_operations(mounted):
        if mounted.loaded.module_type == "tool":
            name, given = operation.given["tool"], operation.given["input"]
            largest = _with_largest_numbers(schema_of(mounted.instances[name]) or {}, given)
            if largest != given:
                run = partial(execute, name, largest)
                yield Operation(operation.name, {"tool": name, "input": largest}, run)
                continue
        yield operation


def _with_largest_numbers(schema: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    changed = copy.deepcopy(given)
    for name, part in properties_of(resolved(schema, schema)).items():
        most = resolved(part, schema).get("maximum")
        if name in given and isinstance(most, (int, float)) and most <= _MAX_NUMBER:
            changed[name] = most
    return changed


async def _cancel_with_a_process(ctx: CheckContext, index: int, looks: int) -> bool:
    """Cancel a call that has started a process, close the module and look for the process; whether there was one."""
    async with ctx.mount() as mounted:
        before = Resources()
        operation = list(_operations(mounted))[index]
        had_process = await _cancelled(mounted, operation, before, looks)
    if before.left_processes():
        for left in [each for each in before.leaks_after_patience() if each.startswith("the process")][:1]:
            what = f"{operation.name} was cancelled while its process ran, and {left} remains after cleanup"
            ctx.fault("A14", what, given=operation.given)
    return had_process


async def _cancelled(mounted: MountedModule, operation: Operation, before: Resources, looks: int) -> bool:
    """Run an operation and cancel it when it has a process that has been waiting so long; whether it had one."""
    outcomes: list[Outcome] = []
    scope = anyio.CancelScope()

    async def run() -> None:
        with scope:
            outcomes.append(await call_with_deadline(operation.run, mounted, seconds=CALL_SECONDS))
        outcomes.append(Outcome(kind="late"))

    had_process, waiting = False, 0
    with mounted.ctx.alarm(CALL_SECONDS + CANCEL_GRACE, "A8", operation.name):
        async with anyio.create_task_group() as group:
            group.start_soon(run)
            while not outcomes and not (had_process and waiting >= looks):
                await anyio.lowlevel.checkpoint()
                time.sleep(_PAUSE)  # noqa: ASYNC251 — a process runs in real time, whatever the loop's clock is
                running = before.left_processes()
                had_process = had_process or bool(running)
                waiting = waiting + 1 if running and all(map(is_waiting, running)) else 0
            scope.cancel()
    return had_process
