"""Checks of cancelled calls: what the module shows, its files and its processes afterwards.

The state is seen from outside only, by the results of typical operations: it is that after no call or that after a completed one, and each file is whole, old or
new. The sweep over all suspensions cancels a slow call at few points, and a process that is left alone for a second or two ends unseen meanwhile; so a call
with a process is cancelled as soon as its process is there, and the module is closed at once.
"""

from __future__ import annotations

import copy
import json
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import attrs

from amplifier.conformance.checks.registry import check
from amplifier.conformance.inputs.json_schema import resolved
from amplifier.conformance.inputs.values import properties_of
from amplifier.conformance.oracles.cancelled import NEVER, cancel_once, chosen_suspensions
from amplifier.conformance.target.calls import CALL_SECONDS, Outcome, call_with_deadline
from amplifier.conformance.target.literals import starts_programs
from amplifier.conformance.target.mounted import CANCEL_GRACE, CheckContext, MountedModule
from amplifier.conformance.target.process import SEES_PROCESSES, Resources, files_below, is_waiting
from amplifier.conformance.target.use import Operation, execute, schema_of, typical_operations

_CALLS = 6_000
_Contents = dict[str, bytes | None]
_Shown = dict[str, str]
"""From a path in the results of typical operations to the value there."""


@check("A9", "A10", kind="cancellation", needs_success=("A9", "A10"))
async def tears_nothing(ctx: CheckContext) -> None:
    """Cancels a call once at each suspension; files, and what a tool or hook shows, are as after no call or as after a completed one."""
    budget = ctx.budget(_CALLS)
    async with ctx.mount() as mounted:
        operations = typical_operations(mounted)
    for index, operation in enumerate(operations):
        if budget.is_spent():
            return
        (old_files, old, _), (new_files, new, completed), (again_files, again, _) = [
            await _state_after(ctx, index, k) for k in (0, NEVER, NEVER)
        ]
        files = _Files(old_files, new_files, again_files)
        # What is not the same every time shows nothing.
        is_steady = old is not None and new == again and (await _state_after(ctx, index, 0))[1] == old
        if completed is None or not (is_steady or old_files != new_files):
            continue
        for k in chosen_suspensions(ctx, completed.suspensions):
            if budget.is_spent():
                return
            contents, state, trial = await _state_after(ctx, index, k)
            if trial is None or not trial.fired:
                continue
            details = {"given": operation.given, "cancelled_at": trial.where}
            problem = next(filter(None, (files.problem(*each) for each in contents.items())), None)
            if problem is not None:
                ctx.fault("A10", f"{operation.name} was cancelled, and {problem}", **details)
                return
            if not is_steady or state is None or old is None or new is None:
                continue
            lost, extra = _differences(state, new), _differences(state, old)
            if lost and extra:
                if (await _state_after(ctx, index, 0))[1] != old:
                    break  # what it shows has changed meanwhile by itself, such as a time of day
                half = f"{_at(state, extra[0])} where there was {_at(old, extra[0])}"
                other = f"{_at(state, lost[0])} where there was to be {_at(new, lost[0])}"
                what = f"{operation.name} was cancelled, and what the module shows now is half of what it did"
                ctx.fault("A9", f"{what}: {half}, {other}", **details)
                return


async def _state_after(ctx: CheckContext, index: int, k: int) -> tuple[_Contents, _Shown | None, Any]:
    """Files and results after one call that is cancelled at its k-th suspension, or after no call if k is 0; and the trial."""
    async with ctx.mount() as mounted:
        trial = await cancel_once(mounted, typical_operations(mounted)[index], k) if k else None
        # Temporary ones and those in the home too, under names without the session id.
        contents = {mounted.without_session(name): text for name, text in files_below(mounted.directory.parent).items()}
        return contents, await _shown(mounted), trial


async def _shown(mounted: MountedModule) -> _Shown | None:
    """What a tool or a hook shows; None for another type, and for one that does not return any more, which another check reports."""
    if mounted.loaded.module_type not in ("tool", "hook"):
        return None
    shown: _Shown = {}
    for number, each in enumerate(typical_operations(mounted)):
        outcome = await mounted.call(each.run, mounted)
        if outcome.kind == "late":
            return None
        value = outcome.value if outcome.returned else type(outcome.error).__name__
        shown |= {path: mounted.without_session(leaf) for path, leaf in _leaves(value, str(number))}
    return shown


@attrs.frozen
class _Files:
    """The files before an undisturbed call, after it, and after another such call in another session."""

    old: _Contents
    new: _Contents
    again: _Contents

    def problem(self, name: str, content: bytes | None) -> str | None:
        """What is wrong with a file after a cancelled call."""
        if content is None or (name in self.old and content == self.old[name]) or _is_database(name, content):
            return None
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


def _is_database(name: str, content: bytes) -> bool:
    """Whether a file belongs to SQLite, which keeps it consistent whatever its bytes."""
    return content.startswith(b"SQLite format 3") or name.endswith(("-journal", "-wal", "-shm"))


def _is_readable(name: str, content: bytes, whole: bytes) -> bool:
    """Whether a file is a JSON text, or has one in every line."""
    if not content.strip():
        # An empty list of lines is readable.
        return name.endswith((".jsonl", ".ndjson", ".log")) or (whole.startswith(b"{") and not name.endswith(".json"))
    with suppress(ValueError):
        json.loads(content)
        return True
    with suppress(ValueError):
        return content.endswith(b"\n") and all(json.loads(line) is not None for line in content.splitlines())
    return False


_STATISTICS = re.compile(
    r"call|request|attempt|start|hit|miss|success|fail|complet|served|finish|stat|time|elapsed|duration|took|second|_ms|since"
)
"""Names of figures about the calls themselves, which may count a call that was started and not completed."""


def _leaves(value: Any, path: str, depth: int = 0) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and depth < 8:
        for key, member in value.items():
            yield from _leaves(member, f"{path}.{key}", depth + 1)
    elif isinstance(value, (list, tuple)) and depth < 8:
        yield f"{path}.length", str(len(value))
        for index, member in enumerate(value):
            yield from _leaves(member, f"{path}[{index}]", depth + 1)
    else:
        yield path, repr(value)


def _differences(one: _Shown, other: _Shown) -> list[str]:
    paths = {path for path in {**one, **other} if one.get(path) != other.get(path)}
    return sorted(path for path in paths if not _STATISTICS.search(path.lower()))


def _at(state: _Shown, path: str) -> str:
    return state.get(path, "nothing")[:60]


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
