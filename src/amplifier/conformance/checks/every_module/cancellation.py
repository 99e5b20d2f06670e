"""Checks of cancelled calls: how they end, what the module does and shows afterwards, its files and its processes, and what it leaves behind.

At each point the same call is cancelled many times in a fresh session, since a slot that is lost at every cancellation
shows only when the slots run out. Afterwards the module has to work as before, and nothing may remain once it is closed.
An operation is cancelled in a session in which all were made once.

The state is seen from outside only, by the results of typical operations: it is that after no call or that after a completed one, and each file is whole, old or
new. The sweep over all suspensions cancels a slow call at few points, and a process that is left alone for a second or two ends unseen meanwhile; so a call
with a process is cancelled as soon as its process is there, and the module is closed at once.
"""

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

_SETTLING_STEPS = 5
_PAUSE = 0.02
_KERNEL_TASKS = "amplifier.kernel."
"""Prefix of the names of the kernel's own tasks, which end a moment later."""


def task_ids() -> set[int]:
    """The ids of all running tasks."""
    return {task.id for task in anyio.get_running_tasks()}


async def new_tasks(before: set[int]) -> list[str]:
    """The tasks that were not running before and do not end within a few steps of the loop."""
    left: list[str] = []
    for _ in range(_SETTLING_STEPS):
        left = [task.name or "?" for task in anyio.get_running_tasks() if task.id not in before]
        left = [f"the task {name!r}" for name in left if not name.startswith(_KERNEL_TASKS)]
        if not left:
            break
        await anyio.lowlevel.checkpoint()
    return left


class Leftovers:
    """A snapshot of tasks, threads and processes to compare with later.

    Work that was handed to a thread pool and abandoned ends by itself, so open files do not count: a pool's thread may
    hold them.
    """

    def __init__(self) -> None:
        self._before = Resources()
        self._tasks = task_ids()

    async def found(self) -> list[str]:
        """What exists now and did not then, after it had the time to end."""
        counted, tasks = ("the thread", "the process"), await new_tasks(self._tasks)
        if not any(each.startswith(counted) for each in self._before.leaks()):
            return tasks
        return [
            *tasks,
            *(each for each in self._before.lasting_leaks() if each.startswith(counted)),
        ]


CALLS = 5
"""How often an operation that has left a file open is repeated."""


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
    give_up = time.monotonic() + PROCESS_EXIT_SECONDS
    while growing := [
        (path, count) for path, count in (open_files() - start).items() if count >= CALLS
    ]:
        if time.monotonic() >= give_up:
            path, count = growing[0]
            return f"{count} descriptors of {mounted.without_session(path)!r}"
        await anyio.lowlevel.checkpoint()
        time.sleep(_PAUSE)  # noqa: ASYNC251 — threads close files in real time, whatever the loop's clock is
    return None


_REPEATS = 20
"""How often a call is cancelled at one point before the module has to work again."""
_ENDS_WITHIN = 1.0
_CALLS = 10_000
"""The budget in the quick profile; only modules with many long operations reach it."""
_COSTLY = (3, 3)
"""A module that starts processes is cancelled at so many points of a call, so many times at each."""


def all_files(mounted: MountedModule) -> Contents:
    """Every file of a module, temporary ones and those in the home too, under names without the session id."""
    found = files_below(mounted.directory.parent)
    return {mounted.without_session(name): content for name, content in found.items()}


async def cancel_once(
    mounted: MountedModule, operation: Operation, k: int, *, native: bool = False
) -> Any:
    """Run an operation and cancel it at its k-th suspension; None if it raised, which other checks report."""
    count_call()
    with mounted.ctx.watchdog(what=operation.name):
        try:
            return await cancel_at(k, operation.run, mounted, native=native)
        except BaseException as error:  # noqa: BLE001 — foreign code: it may raise a group, or exit
            reraise_own_cancellation(error)
    return None


@attrs.frozen
class _Usual:
    """What one operation does undisturbed.

    Attributes:
        index: Which operation.
        suspensions: How often it suspends.
        outcome: How it ends when it is run a second time.
        first: What it returns when it is run for the first time.
    """

    index: int
    suspensions: int
    outcome: Outcome
    first: Outcome


@check("A7", "A8", "A9", "A14", kind="cancellation", needs_success=("A7", "A8", "A9"))
async def survives_cancellation(ctx: CheckContext) -> None:
    """Cancels typical calls at each suspension, many times over, uses the module again, and looks for leftovers."""
    budget = ctx.budget(_CALLS)
    async with ctx.mount() as mounted:
        count = len(typical_operations(mounted))
    for index in range(count):
        usual = await _undisturbed(ctx, index)
        if usual is not None and await _is_broken(ctx, usual, budget):
            return  # other points would show the same


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
    """How often the operation suspends, and how it ends when run again; None if it does not end by itself."""
    async with ctx.mount() as mounted:
        operation = await _ready(mounted, index)
        values: list[Any] = []

        async def run() -> None:
            values.append(await operation.run(mounted))

        first = await mounted.call(cancel_at, NEVER, run)
        again = await mounted.call(operation.run, mounted)
        if first.kind == "raised" and again.kind == "raised":
            return None  # shows nothing about cancellation; other checks report what it raises
        if not first.returned:
            ctx.cut_short(f"{operation.name} {first}, so it was not cancelled at every point")
            return None
        made = Outcome(kind="returned", value=values[0])
        return _Usual(index, first.value.suspensions, again, made)


async def _ready(mounted: MountedModule, index: int) -> Operation:
    """An operation of a session in which all were made once, if there are several: one may need what another leaves."""
    operations = typical_operations(mounted)
    for each in operations if len(operations) > 1 else ():
        await mounted.call(each.run, mounted)
    return operations[index]


# ── one point ──


async def _confirmed(
    ctx: CheckContext, usual: _Usual, k: int, native: bool, repeats: int
) -> list[Fault]:
    """The faults at one point; those that may be due to chance have to show twice: calls fail and take long at times."""
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
                except BaseException as error:  # noqa: BLE001 — foreign code: this is what is being looked for
                    reraise_own_cancellation(error)
                    worked = where and usual.outcome.returned
                    if worked and (await mounted.call(operation.run, mounted)).kind == "raised":
                        break  # the cancellation before this one broke it
                    raised = f"{type(error).__name__}: {str(error)[:200]}"
                    what = f"{operation.name} was cancelled by {how} and raised {raised}"
                    ctx.fault("A7", what, given=operation.given, error=error, cancelled_at=where)
                    return
            if not trial.fired:
                break  # it takes another path now, which is checked below
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
                trial.seconds > _ENDS_WITHIN
                and trial.seconds - (process_cpu_wait() - waited) > _ENDS_WITHIN
            ):
                what = f"{operation.name} went on for more than {_ENDS_WITHIN:g} s after it was cancelled by {how}"
                ctx.fault("A8", what, **details)
                return
        await _check_works(mounted, operation, usual, where, repeats)
        await mounted.close()
        for name in (await mounted.temporary_files_left())[:1]:
            what = f"{operation.name} was cancelled, and the temporary file {name!r} remains after cleanup"
            ctx.fault("A14", what, given=operation.given, cancelled_at=where)


async def _check_works(
    mounted: MountedModule, operation: Operation, usual: _Usual, where: str, repeats: int
) -> None:
    after = await mounted.call(operation.run, mounted)
    # What was cancelled need not have been made, so this may be the first call.
    if _gist(after) in (_gist(usual.outcome), _gist(usual.first)):
        return
    if after.kind == usual.outcome.kind and await _gist_after_many(
        mounted.ctx, usual, repeats
    ) != _gist(usual.outcome):
        return  # so many calls are too many for it, cancelled or not
    ended = f"{after}; without them it {usual.outcome}"
    if after.returned and usual.outcome.returned:
        ended = f"gave {first_difference(str(usual.outcome.value), str(after.value))}"
    what = f"after {repeats} cancelled calls {operation.name} {ended}"
    mounted.ctx.fault("A9", what, given=operation.given, cancelled_at=where, error=after.error)


def _gist(outcome: Outcome) -> str:
    """The essence of an outcome: the success of a tool, the action of a hook, the files that a resolver found."""
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
    """Something remained after all cancellations; find a point at which one cancellation leaves it behind."""
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
    """The files before an undisturbed call, after it, and after another such call in another session."""

    old: Contents
    new: Contents
    again: Contents

    def problem(self, contents: Contents) -> str | None:
        """What is wrong with the files after a cancelled call."""
        return next(filter(None, (self._problem(*each) for each in contents.items())), None)

    def _problem(self, name: str, content: bytes | None) -> str | None:
        if content is None or (name in self.old and content == self.old[name]):
            return None
        if content.startswith(b"SQLite format 3") or is_of_a_database(name):
            return None  # SQLite keeps it consistent whatever its bytes
        shown = repr(name.removeprefix("work/"))
        whole = self.new.get(name)
        if whole is None:
            if self.new.keys() != self.again.keys() or name in self.new or name.startswith("tmp/"):
                return None  # names differ from run to run, or cleanup may remove it
            return f"the half-written file {shown} was left behind"
        if whole != self.again.get(name):  # dates, ids: there is no content to compare with
            if _is_readable(name, whole, whole) and not _is_readable(name, content, whole):
                return f"the file {shown} is not JSON any more"
            return None
        if content == whole or (content and content.endswith(b"\n") and whole.startswith(content)):
            return None  # new, or a log with complete lines
        return f"the file {shown} holds neither what it held before nor what it was to hold"


def is_of_a_database(name: str) -> bool:
    """Whether a file is one that SQLite keeps beside a database while that is open."""
    return name.endswith(("-journal", "-wal", "-shm"))


def _is_readable(name: str, content: bytes, whole: bytes) -> bool:
    """Whether a file is a JSON text, or has one in every line."""
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
_ATTEMPTS = (0, 20, 20)
"""For how many looks in a row the process has to be waiting before the call is cancelled: none, or until it has started up.

A process that ends by itself while the module is being closed shows nothing, so that is tried again.
"""
_PROCESS_PAUSE = 0.005


@check("A14", kind="cancellation", real_time=True)
async def ends_its_processes(ctx: CheckContext) -> None:
    """Cancels a call as soon as it has started a process, and looks for the process after cleanup."""
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
    """Cancel a call that has started a process, close the module and look for the process; whether there was one."""
    async with ctx.mount() as mounted:
        before = Resources()
        operation = typical_operations(mounted)[index]
        had_process = await _cancelled(mounted, operation, before, looks)
    if before.left_processes():
        for left in [each for each in before.lasting_leaks() if each.startswith("the process")][:1]:
            what = f"{operation.name} was cancelled while its process ran, and {left} remains after cleanup"
            ctx.fault("A14", what, given=operation.given)
    return had_process


async def _cancelled(
    mounted: MountedModule, operation: Operation, before: Resources, looks: int
) -> bool:
    """Run an operation and cancel it when it has a process that has been waiting so long; whether it had one."""
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
                time.sleep(_PROCESS_PAUSE)  # noqa: ASYNC251 — a process runs in real time, whatever the loop's clock is
                running = before.left_processes()
                had_process = had_process or bool(running)
                waiting = waiting + 1 if running and all(map(is_waiting, running)) else 0
            scope.cancel()
    return had_process
