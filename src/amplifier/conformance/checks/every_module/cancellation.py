"""Check cancelled calls: their end, the module's later results, its files and its leftovers."""

from __future__ import annotations

import gc
import json
import time
from contextlib import suppress
from typing import Any

import anyio
import anyio.lowlevel
import attrs

from amplifier.conformance.checks.registry import check
from amplifier.conformance.oracles.calls import NEVER, chosen_suspensions, first_difference
from amplifier.conformance.target.calls import (
    CALL_SECONDS,
    Budget,
    Outcome,
    call_with_deadline,
    count_call,
    process_cpu_wait,
    reraise_own_cancellation,
)
from amplifier.conformance.target.mounted import CANCEL_GRACE, CheckContext, Fault, MountedModule
from amplifier.conformance.target.process import (
    PROCESS_EXIT_SECONDS,
    SEES_PROCESSES,
    Resources,
    files_below,
    is_waiting,
    open_files,
)
from amplifier.conformance.target.source import starts_programs
from amplifier.conformance.target.use import Operation, typical_operations
from amplifier.testing import cancel_at

# At each point the same call is cancelled many times in a fresh session, because a slot that is
# lost at every cancellation shows only when the slots run out. Afterwards the module has to work as
# before, and nothing may remain once it is closed. All operations are made once beforehand, because
# one may need the effect of another.
#
# The state is observed from outside, by the results of typical operations. It has to be the state
# without the call or after the completed call, and each file has to be whole, in its old or new
# form.
#
# The sweep over all suspensions cancels a slow call at few points, and a process that outlives its
# call by a second or two ends unnoticed in the meantime. So a call with a process is cancelled as
# soon as its process exists, and the module is closed immediately.

_SETTLING_STEPS = 5
_PAUSE = 0.02
_KERNEL_TASKS = "amplifier.kernel."
"""Prefix of the names of the kernel's own tasks, which end a moment later."""


def task_ids() -> set[int]:
    """Return the ids of all running tasks."""
    return {task.id for task in anyio.get_running_tasks()}


async def new_tasks(before: set[int]) -> list[str]:
    """Return the new tasks that don't end within a few steps of the loop, as phrases."""
    left: list[str] = []
    for _ in range(_SETTLING_STEPS):
        left = [task.name or "?" for task in anyio.get_running_tasks() if task.id not in before]
        left = [f"the task {name!r}" for name in left if not name.startswith(_KERNEL_TASKS)]
        if not left:
            break
        await anyio.lowlevel.checkpoint()
    return left


class Leftovers:
    """A snapshot of tasks, threads and processes, for a later comparison.

    Open files don't count, because a pool's thread that completes abandoned work may hold them.
    """

    def __init__(self) -> None:
        self._before = Resources()
        self._tasks = task_ids()

    async def found(self) -> list[str]:
        """Return the leftovers that are new and had the time to end, as phrases."""
        counted, tasks = ("the thread", "the process"), await new_tasks(self._tasks)
        if not any(leak.startswith(counted) for leak in self._before.leaks()):
            return tasks
        return [
            *tasks,
            *(leak for leak in self._before.lasting_leaks() if leak.startswith(counted)),
        ]


CALLS = 5
"""Number of times that an operation is repeated after it has left a file open."""


async def find_growing_file(mounted: MountedModule, operation: Operation) -> str | None:
    """Run an operation several times, and return a file that every call leaves open again.

    Only the number of descriptors of the same file counts, since a pool of connections grows and
    shrinks, and processes have pipes. A tool with different results may have opened the file on
    request and returned a handle to close it.
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
    give_up = time.monotonic() + PROCESS_EXIT_SECONDS
    while growing := [
        (path, count) for path, count in (open_files() - start).items() if count >= CALLS
    ]:
        if time.monotonic() >= give_up:
            path, count = growing[0]
            return f"{count} descriptors of {mounted.without_session(path)!r}"
        await anyio.lowlevel.checkpoint()
        # Threads close files in real time, whatever the loop's clock is.
        time.sleep(_PAUSE)  # noqa: ASYNC251
    return None


_REPEATS = 20
"""Number of cancellations at one point, after which the module has to work again."""
_UNWIND_SECONDS = 1.0
_CALLS = 10_000
"""Budget of the quick profile, which only modules with many long operations reach."""
_COSTLY = (3, 3)
"""Numbers of points in a call and of cancellations at each, for a module that starts processes."""


def all_files(mounted: MountedModule) -> Contents:
    """Return every file of a module, temporary ones included, by name without the session id."""
    files = files_below(mounted.directory.parent)
    return {mounted.without_session(name): content for name, content in files.items()}


async def cancel_once(
    mounted: MountedModule, operation: Operation, k: int, *, native: bool = False
) -> Any:
    """Run an operation and cancel it at its k-th suspension.

    Return None if it raised, which other checks report.
    """
    count_call()
    with mounted.ctx.watchdog(what=operation.name):
        try:
            return await cancel_at(k, operation.run, mounted, native=native)
        # Foreign code may raise a group, or exit.
        except BaseException as error:  # noqa: BLE001
            reraise_own_cancellation(error)
    return None


@attrs.frozen
class _Usual:
    """The undisturbed behaviour of an operation.

    Attributes:
        index: The position of the operation in the list.
        suspensions: Number of its suspensions.
        outcome: The outcome of its second run.
        first: The outcome of its first run.
    """

    index: int
    suspensions: int
    outcome: Outcome
    first: Outcome


@check("A7", "A8", "A9", "A14", kind="cancellation", needs_success=("A7", "A8", "A9"))
async def survives_cancellation(ctx: CheckContext) -> None:
    """Cancel typical calls many times at each suspension, use the module and find leftovers."""
    budget = ctx.budget(_CALLS)
    async with ctx.mount() as mounted:
        count = len(typical_operations(mounted))
    for index in range(count):
        usual = await _undisturbed(ctx, index)
        # The other operations would show the same fault.
        if usual is not None and await _is_broken(ctx, usual, budget):
            return


async def _is_broken(ctx: CheckContext, usual: _Usual, budget: Budget) -> bool:
    before = len(ctx.faults)
    points, repeats = _COSTLY if ctx.loaded.starts_processes else (ctx.points, _REPEATS)
    leftovers = Leftovers()
    tried: list[tuple[int, bool]] = []
    for k in chosen_suspensions(ctx, usual.suspensions, points):
        for native in ctx.cancel_modes:
            if budget.is_spent():
                break
            tried.append((k, native))
            ctx.faults += await _confirmed(ctx, usual, k, native, repeats)
            if len(ctx.faults) > before:
                return True
    if await leftovers.found():
        await _find_leaking_point(ctx, usual, tried)
    return len(ctx.faults) > before


async def _undisturbed(ctx: CheckContext, index: int) -> _Usual | None:
    """Run an operation twice and count its suspensions. Return None if it doesn't end by itself."""
    async with ctx.mount() as mounted:
        operation = await _ready(mounted, index)
        values: list[Any] = []

        async def run() -> None:
            values.append(await operation.run(mounted))

        first = await mounted.call(cancel_at, NEVER, run)
        again = await mounted.call(operation.run, mounted)
        # An error shows nothing about cancellation, and other checks report it.
        if first.kind == "raised" and again.kind == "raised":
            return None
        if not first.returned:
            ctx.cut_short(f"{operation.name} {first}, so it was not cancelled at every point")
            return None
        made = Outcome(kind="returned", value=values[0])
        return _Usual(index, first.value.suspensions, again, made)


async def _ready(mounted: MountedModule, index: int) -> Operation:
    """Make all operations once if there are several, and return the one at the index."""
    operations = typical_operations(mounted)
    for operation in operations if len(operations) > 1 else ():
        await mounted.call(operation.run, mounted)
    return operations[index]


# ── one point ──


async def _confirmed(
    ctx: CheckContext, usual: _Usual, k: int, native: bool, repeats: int
) -> list[Fault]:
    """Return the faults at one point.

    A call may fail or take long by chance, so these faults have to occur twice.
    """
    trial = attrs.evolve(ctx, faults=[])
    await _cancel_repeatedly(trial, usual, k, native, repeats)
    if any(fault.clause in ("A8", "A9") for fault in trial.faults):
        again = attrs.evolve(ctx, faults=[])
        await _cancel_repeatedly(again, usual, k, native, repeats)
        return trial.faults if again.faults else []
    return trial.faults


async def _cancel_repeatedly(
    ctx: CheckContext, usual: _Usual, k: int, native: bool, repeats: int
) -> None:
    async with ctx.mount() as mounted:
        operation = await _ready(mounted, usual.index)
        how = "Task.cancel()" if native else "its cancel scope"
        where = ""
        for _ in range(repeats):
            waited = process_cpu_wait()
            count_call()
            with ctx.watchdog(what=f"{operation.name}, cancelled by {how},"):
                try:
                    trial = await cancel_at(k, operation.run, mounted, native=native)
                # An error of foreign code in place of the cancellation is the fault to be found.
                except BaseException as error:  # noqa: BLE001
                    reraise_own_cancellation(error)
                    worked = where and usual.outcome.returned
                    # The previous cancellation broke the module.
                    if worked and (await mounted.call(operation.run, mounted)).kind == "raised":
                        break
                    raised = f"{type(error).__name__}: {str(error)[:200]}"
                    what = f"{operation.name} was cancelled by {how} and raised {raised}"
                    ctx.fault("A7", what, given=operation.given, error=error, cancelled_at=where)
                    return
            # The call now takes another path, which is checked below.
            if not trial.fired:
                break
            where = trial.where
            details = {"given": operation.given, "cancelled_at": where}
            if trial.swallowed:
                ctx.fault(
                    "A7",
                    f"{operation.name} was cancelled by {how} and returned all the same",
                    **details,
                )
                return
            if (
                trial.seconds > _UNWIND_SECONDS
                and trial.seconds - (process_cpu_wait() - waited) > _UNWIND_SECONDS
            ):
                what = (
                    f"{operation.name} continued for more than {_UNWIND_SECONDS:g} s "
                    f"after it was cancelled by {how}"
                )
                ctx.fault("A8", what, **details)
                return
        await _check_works(mounted, operation, usual, where, repeats)
        await mounted.close()
        for name in (await mounted.temporary_files_left())[:1]:
            what = (
                f"{operation.name} was cancelled, "
                f"and the temporary file {name!r} remains after cleanup"
            )
            ctx.fault("A14", what, given=operation.given, cancelled_at=where)


async def _check_works(
    mounted: MountedModule, operation: Operation, usual: _Usual, where: str, repeats: int
) -> None:
    after = await mounted.call(operation.run, mounted)
    # A cancelled call may have had no effect, so this may be the first call with one.
    if _gist(after) in (_gist(usual.outcome), _gist(usual.first)):
        return
    # The module may refuse so many calls, cancelled or not.
    if after.kind == usual.outcome.kind and await _gist_after_many(
        mounted.ctx, usual, repeats
    ) != _gist(usual.outcome):
        return
    ended = f"{after}; without them it {usual.outcome}"
    if after.returned and usual.outcome.returned:
        ended = f"gave {first_difference(str(usual.outcome.value), str(after.value))}"
    what = f"after {repeats} cancelled calls {operation.name} {ended}"
    mounted.ctx.fault("A9", what, given=operation.given, cancelled_at=where, error=after.error)


def _gist(outcome: Outcome) -> str:
    """Reduce an outcome to a tool's success, a hook's action or the files that a resolver found."""
    value = outcome.value
    if isinstance(value, list) and value and isinstance(value[0], bool):
        return str(value[0])
    for key in ("action", "files"):
        if isinstance(value, dict) and key in value:
            return str(value[key])
    return outcome.kind


async def _gist_after_many(ctx: CheckContext, usual: _Usual, repeats: int) -> str:
    async with ctx.mount() as mounted:
        operation = await _ready(mounted, usual.index)
        for _ in range(repeats):
            await mounted.call(operation.run, mounted)
        return _gist(await mounted.call(operation.run, mounted))


async def _find_leaking_point(
    ctx: CheckContext, usual: _Usual, tried: list[tuple[int, bool]]
) -> None:
    """Find a point at which a single cancellation leaves something behind."""
    for k, native in tried:
        leftovers = Leftovers()
        async with ctx.mount() as mounted:
            operation = await _ready(mounted, usual.index)
            trial = await cancel_once(mounted, operation, k, native=native)
        for left in (await leftovers.found())[:1] if trial is not None else ():
            what = f"{operation.name} was cancelled, and {left} remains after cleanup"
            ctx.fault("A14", what, given=operation.given, cancelled_at=trial.where)
            return


Contents = dict[str, bytes | None]


@attrs.frozen
class Files:
    """The files of undisturbed calls.

    Attributes:
        old: The files before the call.
        new: The files after it.
        again: The files after such a call in another session.
    """

    old: Contents
    new: Contents
    again: Contents

    def problem(self, contents: Contents) -> str | None:
        """Return the fault of the files after a cancelled call, or None if they have none."""
        return next(filter(None, (self._problem(*item) for item in contents.items())), None)

    def _problem(self, name: str, content: bytes | None) -> str | None:
        if content is None or (name in self.old and content == self.old[name]):
            return None
        # SQLite keeps its files consistent, whatever their bytes.
        if content.startswith(b"SQLite format 3") or is_of_a_database(name):
            return None
        shown = repr(name.removeprefix("work/"))
        whole = self.new.get(name)
        if whole is None:
            # The names differ from run to run, or cleanup removes the file.
            if self.new.keys() != self.again.keys() or name in self.new or name.startswith("tmp/"):
                return None
            return f"the half-written file {shown} was left behind"
        # The file contains dates and ids, so there is no content to compare it with.
        if whole != self.again.get(name):
            if _is_readable(name, whole, whole) and not _is_readable(name, content, whole):
                return f"the file {shown} is not JSON any more"
            return None
        # The file has the new content, or is a log with complete lines.
        if content == whole or (content and content.endswith(b"\n") and whole.startswith(content)):
            return None
        return f"the file {shown} has neither its old nor its new content"


def is_of_a_database(name: str) -> bool:
    """Return whether SQLite keeps a file of this name next to an open database."""
    return name.endswith(("-journal", "-wal", "-shm"))


def _is_readable(name: str, content: bytes, whole: bytes) -> bool:
    """Return whether a file is a JSON text, or has one in every line."""
    if not content.strip():
        # An empty list of lines is readable.
        return name.endswith((".jsonl", ".ndjson", ".log")) or (
            whole.startswith(b"{") and not name.endswith(".json")
        )
    with suppress(ValueError):
        json.loads(content)
        return True
    with suppress(ValueError):
        return content.endswith(b"\n") and all(
            json.loads(line) is not None for line in content.splitlines()
        )
    return False


_MAX_OPERATIONS = 3
# Number of looks in a row at which the process has to be waiting before the call is cancelled:
# none, or until it has started up. If the process ends by itself while the module closes, that
# shows nothing, so that the call is tried twice.
_ATTEMPTS = (0, 20, 20)
_PROCESS_PAUSE = 0.005


@check("A14", kind="cancellation", real_time=True)
async def ends_its_processes(ctx: CheckContext) -> None:
    """Cancel a call as soon as it has started a process, and look for the process after cleanup."""
    if not SEES_PROCESSES or not starts_programs(ctx.loaded.target):
        return
    async with ctx.mount() as mounted:
        count = len(typical_operations(mounted))
    for index in range(min(count, _MAX_OPERATIONS)):
        for looks in _ATTEMPTS:
            if not await _cancel_with_a_process(ctx, index, looks):
                break
            if ctx.faults:
                return


async def _cancel_with_a_process(ctx: CheckContext, index: int, looks: int) -> bool:
    """Cancel a call that has started a process, and report a process that survives the module.

    Return whether the call had a process.
    """
    async with ctx.mount() as mounted:
        before = Resources()
        operation = typical_operations(mounted)[index]
        had_process = await _cancelled(mounted, operation, before, looks)
    if before.left_processes():
        for left in [leak for leak in before.lasting_leaks() if leak.startswith("the process")][:1]:
            what = (
                f"{operation.name} was cancelled while its process ran, "
                f"and {left} remains after cleanup"
            )
            ctx.fault("A14", what, given=operation.given)
    return had_process


async def _cancelled(
    mounted: MountedModule, operation: Operation, before: Resources, looks: int
) -> bool:
    """Cancel an operation once its process has been waiting for a number of looks.

    Return whether it had a process.
    """
    outcomes: list[Outcome] = []
    scope = anyio.CancelScope()

    async def run() -> None:
        with scope:
            outcomes.append(await call_with_deadline(operation.run, mounted, seconds=CALL_SECONDS))
        outcomes.append(Outcome(kind="late"))

    had_process, waiting = False, 0
    with mounted.ctx.watchdog(CALL_SECONDS + CANCEL_GRACE, "A8", operation.name):
        async with anyio.create_task_group() as group:
            group.start_soon(run)
            while not outcomes and not (had_process and waiting >= looks):
                await anyio.lowlevel.checkpoint()
                # A process runs in real time, whatever the loop's clock is.
                time.sleep(_PROCESS_PAUSE)  # noqa: ASYNC251
                running = before.left_processes()
                had_process = had_process or bool(running)
                waiting = waiting + 1 if running and all(map(is_waiting, running)) else 0
            scope.cancel()
    return had_process
