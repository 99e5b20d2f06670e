"""What every module promises: how it is mounted, what it leaves behind, whom it disturbs."""

from __future__ import annotations

import inspect
from typing import Any

import anyio
import anyio.lowlevel

from amplifier.conformance.harness.cancelled_calls import cancel_at_every_suspension
from amplifier.conformance.harness.check_registry import check
from amplifier.conformance.harness.clause_coverage import DECLINED
from amplifier.conformance.harness.mounted_module import (
    CANARY,
    CLEANUP_SECONDS,
    OWNER,
    CheckContext,
    MountedModule,
    MountFailed,
    configs_to_try,
)
from amplifier.conformance.harness.resource_snapshot import Resources, files_below
from amplifier.conformance.harness.typical_use import typical_operations
from amplifier.conformance.target.source_literals import settings_in
from amplifier.contracts import CONTRACTS
from amplifier.events import ALL_EVENTS

from .both_backends import compare_backends
from .failing_mounts import cancel_mounts, give_bad_settings
from .loop_blocking import look_for_blocking
from .session_isolation import look_for_sharing
from .torn_files import look_for_torn_files

_SETTLING_STEPS = 5
_KERNEL_TASKS = "amplifier.kernel."
"""How the names of the kernel's own tasks begin; they end a moment later."""
_POINT_CLAUSES = {"tool": "T4", "provider": "P2", "orchestrator": "O2", "context": "C2", "hook": "H2"}


# ── mounting ──


@check("A3", "A4", "A21", *_POINT_CLAUSES.values(), kind="structure")
async def mounts(ctx: CheckContext) -> None:
    """Mounts the module in a session without other modules and looks at what it returned and where it stands."""
    async with ctx.mount() as mounted:
        kind, returned = ctx.loaded.module_type, mounted.returned
        contract = CONTRACTS[kind]  # type: ignore[index]  # checked when it was loaded
        is_instance = kind not in ("hook", "resolver") and isinstance(returned, contract.protocol)
        if not (returned is None or callable(returned) or is_instance or mounted.is_structured):
            ctx.fault("A4", f"mount returned {type(returned).__name__}; expected a cleanup, a {kind} or None")
        if isinstance(returned, type):
            ctx.fault("A4", f"mount returned the class {returned.__name__}, not an instance of it")
        if mounted.is_present or kind not in _POINT_CLAUSES:
            return
        if returned is None and not mounted.is_structured and not _mounted_elsewhere(mounted):
            ctx.notes.append(DECLINED)
            return
        elsewhere = _mounted_elsewhere(mounted)
        where = f"; it is at {', '.join(elsewhere)}" if elsewhere else ""
        expected = "no handler is registered" if kind == "hook" else f"nothing stands at {contract.mount_point!r}"
        ctx.fault(_POINT_CLAUSES[kind], f"after mount {expected}{where}")


def _mounted_elsewhere(mounted: MountedModule) -> list[str]:
    return sorted({repr(point) for point, _, _ in mounted.session.coordinator.mounts.mounted_by(OWNER)})


@check("A6", kind="structure")
async def takes_the_coordinator_when_ready(ctx: CheckContext) -> None:
    """Calls on_session_ready, if there is one."""
    ready = getattr(ctx.loaded.module, "on_session_ready", None)
    if ready is None:
        return
    if not inspect.iscoroutinefunction(ready):
        ctx.fault("A6", "on_session_ready is not async, so the kernel does not call it")
        return
    async with ctx.mount(ready=False) as mounted:
        outcome = await mounted.call(ready, mounted.coordinator)
        if outcome.kind == "raised" and isinstance(outcome.error, TypeError) and ctx.location_of(outcome.error) is None:
            ctx.fault("A6", f"on_session_ready cannot be called with the coordinator alone: {outcome.error}")


# ── cleaning up ──


@check("A11", "A12", "A13", "A14", "A15", "H9", kind="hygiene")
async def cleans_up(ctx: CheckContext) -> None:
    """Uses the module, cleans it up twice, and looks for what remains."""
    for config in configs_to_try(ctx):
        await _clean_up(ctx, config)
        if ctx.faults:
            return


async def _clean_up(ctx: CheckContext, config: dict[str, Any]) -> None:
    before = Resources()
    at_first = _task_ids()
    async with ctx.mount(config=config) as mounted:
        tasks = _task_ids()
        given = files_below(mounted.directory)
        for operation in typical_operations(mounted):
            await mounted.call(operation.run, mounted)
        used = files_below(mounted.directory)
        await _clean_up_twice(ctx, mounted)
        for registration in mounted.registrations if mounted.cleanup is not None or mounted.is_structured else ():
            what = f"the handler {registration.name!r} for {registration.event!r} remains after cleanup"
            ctx.fault("A14", what)
            ctx.fault("H9", what)
        await mounted.close()
        for task in await _new_tasks(tasks):
            ctx.fault("A14", f"the task {task!r} remains after cleanup")
        for left in sorted(path.name for path in mounted.temporary.iterdir()):
            ctx.fault("A14", f"the temporary file {left!r} remains after cleanup")
        kept = files_below(mounted.directory)
        for name in given:
            ctx.expect(name in kept, "A15", f"after cleanup the user's file {name!r} is gone")
        ctx.expect(
            kept.get(CANARY) == given[CANARY] or used.get(CANARY) != given[CANARY],
            "A15",
            "cleanup changed a file of the user's",
        )
    for task in await _new_tasks(at_first):
        ctx.fault("A14", f"the task {task!r} remains after cleanup")
    for left in before.leaks_after_patience():
        ctx.fault("A14", f"{left} remains after cleanup")


async def _clean_up_twice(ctx: CheckContext, mounted: MountedModule) -> None:
    steps: list[tuple[str, Any]] = [] if mounted.cleanup is None else [("cleanup", mounted.cleanup)]
    cleanups = mounted.session.coordinator.cleanups
    steps += [
        ("a registered cleanup", entry.run)
        for entry in cleanups.entries
        if entry.owner == OWNER and entry.what == "cleanup"
    ]
    mounted.is_cleaned = True
    for name, run in steps:
        first = await mounted.call(run, seconds=CLEANUP_SECONDS)
        if first.kind == "raised":
            ctx.fault("A13", f"{name} {first}", error=first.error)
            continue
        if first.kind == "late":
            ctx.fault("A12", f"{name} {first}")
            continue
        second = await mounted.call(run, seconds=CLEANUP_SECONDS)
        if not second.returned:
            ctx.fault("A11", f"run a second time, {name} {second}", error=second.error)
    if mounted.is_structured and mounted._leave is not None:
        left = await mounted.call(mounted._leave, seconds=CLEANUP_SECONDS)
        if left.kind == "raised":
            ctx.fault("A13", f"leaving the structured mount {left}", error=left.error)
        elif left.kind == "late":
            ctx.fault("A12", f"leaving the structured mount {left}")


def _task_ids() -> set[int]:
    return {task.id for task in anyio.get_running_tasks()}


async def _new_tasks(before: set[int]) -> list[str]:
    left: list[str] = []
    for _ in range(_SETTLING_STEPS):
        left = [task.name or "?" for task in anyio.get_running_tasks() if task.id not in before]
        left = [name for name in left if not name.startswith(_KERNEL_TASKS)]
        if not left:
            break
        await anyio.lowlevel.checkpoint()
    return left


@check("A15", kind="hygiene")
async def keeps_what_was_configured(ctx: CheckContext) -> None:
    """Gives every setting that looks like a place a folder with a file in it, and looks for both after cleanup."""
    for key in _settings_read(ctx, ("path", "dir", "folder", "file", "root", "workspace", "store", "log")):
        for is_folder in (True, False):
            try:
                async with ctx.mount(config={**ctx.loaded.config, key: "{directory}/given"}) as mounted:
                    await _clean_up_configured(ctx, mounted, key, is_folder)
            except MountFailed:
                continue


async def _clean_up_configured(ctx: CheckContext, mounted: MountedModule, key: str, is_folder: bool) -> None:
    place = mounted.directory / "given"
    was_there = place.exists()
    if not was_there and is_folder:
        place.mkdir()
        (place / "keep.txt").write_text("the user's\n", encoding="utf-8")
    for operation in typical_operations(mounted):
        await mounted.call(operation.run, mounted)
    exists, kept = place.exists(), (place / "keep.txt").exists()
    await mounted.close()
    if exists and not place.exists():
        ctx.fault("A15", f"cleanup deleted what the setting {key!r} names", given={key: "…/given"})
    elif kept and not (place / "keep.txt").exists():
        ctx.fault("A15", f"cleanup deleted a user's file in what the setting {key!r} names", given={key: "…/given"})


def _settings_read(ctx: CheckContext, words: tuple[str, ...]) -> list[str]:
    """The names of settings that the module reads, as far as its syntax trees show them, which contain a word."""
    return [key for key in settings_in(ctx.loaded.subject) if any(word in key.lower() for word in words)]


# ── failing ──


@check("A5", "A7", kind="cancellation")
async def fails_without_traces(ctx: CheckContext) -> None:
    """Cancels mount at each of its suspensions, and gives it settings that it may refuse, looking for what is left."""
    await cancel_mounts(ctx)
    await give_bad_settings(ctx)


# ── cancelling ──


@check("A7", "A8", "A9", "A14", kind="cancellation")
async def survives_cancellation(ctx: CheckContext) -> None:
    """Cancels ordinary calls at each suspension, many times over, uses the module again, and looks for what remains."""
    await cancel_at_every_suspension(ctx)


@check("A10", kind="cancellation")
async def tears_no_file(ctx: CheckContext) -> None:
    """Cancels calls that write files at each suspension; a file holds what it held before, or what it was to hold."""
    await look_for_torn_files(ctx)


# ── neighbours ──


@check("A16", kind="hygiene")
async def shares_nothing(ctx: CheckContext) -> None:
    """Does the same in two sessions at once; the second must see what a first one in a new process would see."""
    for config in configs_to_try(ctx):
        await look_for_sharing(ctx, config)
        if ctx.faults:
            return


@check("A17", kind="hygiene")
async def blocks_nothing(ctx: CheckContext) -> None:
    """Uses the module three times while a clock in the loop and a thread beside it watch for standstills."""
    await look_for_blocking(ctx)


@check("A18", kind="hygiene")
async def runs_on_both_backends(ctx: CheckContext) -> None:
    """Compares ordinary use on this backend with ordinary use on the other."""
    await compare_backends(ctx)


@check("A19", kind="hygiene")
async def announces_its_events(ctx: CheckContext) -> None:
    """Listens to ordinary use and compares events that are not in the catalogue with what the module contributes."""
    async with ctx.mount() as mounted:
        for operation in typical_operations(mounted):
            await mounted.call(operation.run, mounted)
        said: set[str] = set()
        for contribution in await mounted.session.coordinator.collect_contributions("observability.events"):
            said.update(contribution if isinstance(contribution, (list, tuple, set)) else [str(contribution)])
        unknown = {name for name, _ in mounted.events.events} - set(ALL_EVENTS) - said
        for name in sorted(unknown):
            ctx.fault("A19", f"it emits {name!r}, which it does not announce on the channel 'observability.events'")
