"""What every module promises: how it is mounted, what it leaves behind, whom it disturbs."""

from __future__ import annotations

import inspect
from typing import Any

import anyio
import anyio.lowlevel

from amplifier.conformance.harness.cancelled_calls import sweep
from amplifier.conformance.harness.check_registry import check
from amplifier.conformance.harness.coverage import DECLINED
from amplifier.conformance.harness.mounted_module import (
    CANARY,
    CLEANUP_SECONDS,
    OWNER,
    MountFailed,
    Scene,
    Stage,
    ways_to_mount,
)
from amplifier.conformance.harness.resource_snapshot import Resources, files_below
from amplifier.conformance.harness.typical_use import exercises
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


_MOUNT_CLAUSES = ("A3", "A4", "A21", *_POINT_CLAUSES.values())


@check(*_MOUNT_CLAUSES, kind="structure", without_instance=_MOUNT_CLAUSES)
async def mounts(stage: Stage) -> None:
    """Mounts the module in a session without other modules and looks at what it returned and where it stands."""
    async with stage.scene() as scene:
        kind, returned = stage.loaded.module_type, scene.returned
        contract = CONTRACTS[kind]  # type: ignore[index]  # checked when it was loaded
        is_instance = kind not in ("hook", "resolver") and isinstance(returned, contract.protocol)
        if not (returned is None or callable(returned) or is_instance or scene.is_structured):
            stage.fault("A4", f"mount returned {type(returned).__name__}; expected a cleanup, a {kind} or None")
        if isinstance(returned, type):
            stage.fault("A4", f"mount returned the class {returned.__name__}, not an instance of it")
        if scene.stands or kind not in _POINT_CLAUSES:
            return
        if returned is None and not scene.is_structured and not _mounted_elsewhere(scene):
            stage.notes.append(DECLINED)
            return
        elsewhere = _mounted_elsewhere(scene)
        where = f"; it is at {', '.join(elsewhere)}" if elsewhere else ""
        expected = "no handler is registered" if kind == "hook" else f"nothing stands at {contract.mount_point!r}"
        stage.fault(_POINT_CLAUSES[kind], f"after mount {expected}{where}")


def _mounted_elsewhere(scene: Scene) -> list[str]:
    return sorted({repr(point) for point, _, _ in scene.session.coordinator.mounts.mounted_by(OWNER)})


@check("A6", kind="structure", without_instance=("A6",))
async def takes_the_coordinator_when_ready(stage: Stage) -> None:
    """Calls on_session_ready, if there is one."""
    ready = getattr(stage.loaded.module, "on_session_ready", None)
    if ready is None:
        return
    if not inspect.iscoroutinefunction(ready):
        stage.fault("A6", "on_session_ready is not async, so the kernel does not call it")
        return
    async with stage.scene(ready=False) as scene:
        outcome = await scene.call(ready, scene.coordinator)
        if (
            outcome.kind == "raised"
            and isinstance(outcome.error, TypeError)
            and stage.location_of(outcome.error) is None
        ):
            stage.fault("A6", f"on_session_ready cannot be called with the coordinator alone: {outcome.error}")


# ── cleaning up ──


_CLEANUP_CLAUSES = ("A11", "A12", "A13", "A14", "A15")


@check(*_CLEANUP_CLAUSES, "H9", kind="hygiene", without_instance=_CLEANUP_CLAUSES)
async def cleans_up(stage: Stage) -> None:
    """Uses the module, cleans it up twice, and looks for what remains."""
    for config in ways_to_mount(stage):
        await _clean_up(stage, config)
        if stage.faults:
            return


async def _clean_up(stage: Stage, config: dict[str, Any]) -> None:
    before = Resources()
    at_first = _task_ids()
    async with stage.scene(config=config) as scene:
        tasks = _task_ids()
        given = files_below(scene.directory)
        for exercise in exercises(scene):
            await scene.call(exercise.run, scene)
        used = files_below(scene.directory)
        await _clean_up_twice(stage, scene)
        for registration in scene.registrations if scene.cleanup is not None or scene.is_structured else ():
            what = f"the handler {registration.name!r} for {registration.event!r} remains after cleanup"
            stage.fault("A14", what)
            stage.fault("H9", what)
        await scene.close()
        for task in await _new_tasks(tasks):
            stage.fault("A14", f"the task {task!r} remains after cleanup")
        for left in sorted(path.name for path in scene.temporary.iterdir()):
            stage.fault("A14", f"the temporary file {left!r} remains after cleanup")
        kept = files_below(scene.directory)
        for name in given:
            stage.expect(name in kept, "A15", f"after cleanup the user's file {name!r} is gone")
        stage.expect(
            kept.get(CANARY) == given[CANARY] or used.get(CANARY) != given[CANARY],
            "A15",
            "cleanup changed a file of the user's",
        )
    for task in await _new_tasks(at_first):
        stage.fault("A14", f"the task {task!r} remains after cleanup")
    for left in before.leaks_after_patience():
        stage.fault("A14", f"{left} remains after cleanup")


async def _clean_up_twice(stage: Stage, scene: Scene) -> None:
    steps: list[tuple[str, Any]] = [] if scene.cleanup is None else [("cleanup", scene.cleanup)]
    cleanups = scene.session.coordinator.cleanups
    steps += [
        ("a registered cleanup", entry.run)
        for entry in cleanups.entries
        if entry.owner == OWNER and entry.what == "cleanup"
    ]
    scene.is_cleaned = True
    for name, run in steps:
        first = await scene.call(run, seconds=CLEANUP_SECONDS)
        if first.kind == "raised":
            stage.fault("A13", f"{name} {first}", error=first.error)
            continue
        if first.kind == "late":
            stage.fault("A12", f"{name} {first}")
            continue
        second = await scene.call(run, seconds=CLEANUP_SECONDS)
        if not second.returned:
            stage.fault("A11", f"run a second time, {name} {second}", error=second.error)
    if scene.is_structured and scene._leave is not None:
        left = await scene.call(scene._leave, seconds=CLEANUP_SECONDS)
        if left.kind == "raised":
            stage.fault("A13", f"leaving the structured mount {left}", error=left.error)
        elif left.kind == "late":
            stage.fault("A12", f"leaving the structured mount {left}")


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
async def keeps_what_was_configured(stage: Stage) -> None:
    """Gives every setting that looks like a place a folder with a file in it, and looks for both after cleanup."""
    for key in _settings_read(stage, ("path", "dir", "folder", "file", "root", "workspace", "store", "log")):
        for is_folder in (True, False):
            try:
                async with stage.scene(config={**stage.loaded.config, key: "{directory}/given"}) as scene:
                    await _clean_up_configured(stage, scene, key, is_folder)
            except MountFailed:
                continue


async def _clean_up_configured(stage: Stage, scene: Scene, key: str, is_folder: bool) -> None:
    place = scene.directory / "given"
    was_there = place.exists()
    if not was_there and is_folder:
        place.mkdir()
        (place / "keep.txt").write_text("the user's\n", encoding="utf-8")
    for exercise in exercises(scene):
        await scene.call(exercise.run, scene)
    exists, kept = place.exists(), (place / "keep.txt").exists()
    await scene.close()
    if exists and not place.exists():
        stage.fault("A15", f"cleanup deleted what the setting {key!r} names", given={key: "…/given"})
    elif kept and not (place / "keep.txt").exists():
        stage.fault("A15", f"cleanup deleted a user's file in what the setting {key!r} names", given={key: "…/given"})


def _settings_read(stage: Stage, words: tuple[str, ...]) -> list[str]:
    """The names of settings that the module reads, as far as its syntax trees show them, which contain a word."""
    return [key for key in settings_in(stage.loaded.target) if any(word in key.lower() for word in words)]


# ── failing ──


@check("A5", "A7", kind="cancellation", without_instance=("A5", "A7"))
async def fails_without_traces(stage: Stage) -> None:
    """Cancels mount at each of its suspensions, and gives it settings that it may refuse, looking for what is left."""
    await cancel_mounts(stage)
    await give_bad_settings(stage)


# ── cancelling ──


@check("A7", "A8", "A9", "A14", kind="cancellation")
async def survives_cancellation(stage: Stage) -> None:
    """Cancels ordinary calls at each suspension, many times over, uses the module again, and looks for what remains."""
    await sweep(stage)


@check("A10", kind="cancellation")
async def tears_no_file(stage: Stage) -> None:
    """Cancels calls that write files at each suspension; a file holds what it held before, or what it was to hold."""
    await look_for_torn_files(stage)


# ── neighbours ──


@check("A16", kind="hygiene")
async def shares_nothing(stage: Stage) -> None:
    """Does the same in two sessions at once; the second must see what a first one in a new process would see."""
    for config in ways_to_mount(stage):
        await look_for_sharing(stage, config)
        if stage.faults:
            return


@check("A17", kind="hygiene")
async def blocks_nothing(stage: Stage) -> None:
    """Uses the module three times while a clock in the loop and a thread beside it watch for standstills."""
    await look_for_blocking(stage)


@check("A18", kind="hygiene")
async def runs_on_both_backends(stage: Stage) -> None:
    """Compares ordinary use on this backend with ordinary use on the other."""
    await compare_backends(stage)


@check("A19", kind="hygiene")
async def announces_its_events(stage: Stage) -> None:
    """Listens to ordinary use and compares events that are not in the catalogue with what the module contributes."""
    async with stage.scene() as scene:
        for exercise in exercises(scene):
            await scene.call(exercise.run, scene)
        said: set[str] = set()
        for contribution in await scene.session.coordinator.collect_contributions("observability.events"):
            said.update(contribution if isinstance(contribution, (list, tuple, set)) else [str(contribution)])
        unknown = {name for name, _ in scene.events.events} - set(ALL_EVENTS) - said
        for name in sorted(unknown):
            stage.fault("A19", f"it emits {name!r}, which it does not announce on the channel 'observability.events'")
