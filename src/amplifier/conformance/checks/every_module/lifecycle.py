"""Check the declaration, mounting and cleanup of every module.

Static checks read metadata and syntax trees. If the trees do not show the answer, the clause is
left to the checks that run the module.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import re
import traceback
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio

from amplifier.conformance.checks.every_module.cancellation import (
    CALLS,
    find_growing_file,
    is_of_a_database,
    new_tasks,
    task_ids,
)
from amplifier.conformance.checks.registry import check
from amplifier.conformance.inputs.payloads import several_tools
from amplifier.conformance.oracles.calls import NEVER
from amplifier.conformance.target.calls import (
    call_with_deadline,
    count_mount,
    reraise_own_cancellation,
)
from amplifier.conformance.target.locate import EXPECTED_MOUNT, Target, parsed
from amplifier.conformance.target.mounted import (
    CANARY,
    CANCEL_GRACE,
    CLEANUP_SECONDS,
    DECLINED,
    MOUNT_SECONDS,
    CheckContext,
    Fault,
    MountedModule,
    MountFailed,
    Unexamined,
    fill_placeholders,
    private_directories,
)
from amplifier.conformance.target.process import Resources, files_below
from amplifier.conformance.target.resolver_samples import is_resolver
from amplifier.conformance.target.source import settings_in
from amplifier.conformance.target.use import (
    handling,
    run_typical_operations,
    typical_operations,
)
from amplifier.contracts import CONTRACTS
from amplifier.events import CATALOGUE
from amplifier.kernel.coordinator.ownership import MountTable
from amplifier.plan import is_module_id
from amplifier.testing import TestCoordinator, cancel_at


@check("A1", kind="static")
def declares_an_entry_point(target: Target) -> Iterator[Fault]:
    """Find an entry point in the project's metadata that leads to a valid Python file."""
    if target.project is not None and not target.declared:
        what = "pyproject.toml declares no entry point in the group 'amplifier.modules'"
        yield Fault(clause="A1", what=what, location=target.project.name)
    if target.origin == "folder":
        for module_id, reference in target.declared.items():
            name = reference.partition(":")[0].strip()
            if name != target.import_name and not _exists(target, name):
                what = (
                    f"the entry point {module_id!r} refers to {name!r}, "
                    "and there is no such file in the project"
                )
                yield Fault(clause="A1", what=what, location="pyproject.toml")
    for file in target.sources():
        if parsed(file) is None:
            yield Fault(
                clause="A1",
                what=f"{file.name} cannot be parsed, so it cannot be imported",
                location=file.name,
            )


@check("A2", kind="static")
def is_well_named(target: Target) -> Iterator[Fault]:
    """Compare the names of the entry points with the grammar of module ids."""
    for module_id in target.declared:
        if not is_module_id(module_id):
            what = (
                f"the entry point is called {module_id!r}; expected lower-case letters, digits, "
                "'-' and '_', starting with a letter, at most 64 characters"
            )
            yield Fault(clause="A2", what=what, location="pyproject.toml")


@check("A3", kind="static")
def has_a_mount(target: Target) -> Iterator[Fault]:
    """Read the definition of mount: async or a context manager, taking coordinator and config."""
    _require_tree(target)
    definition = target.definition(target.attribute)
    # Marked functions are mounted directly, without a mount function.
    if definition is None and target.functions():
        return
    if definition is None and not _is_dynamic(target, target.attribute):
        what = (
            f"there is no {target.attribute!r} in {target.import_name}; expected {EXPECTED_MOUNT}"
        )
        yield Fault(clause="A3", what=what, location=target.file.name)
        return
    node = None if definition is None else definition.node
    if definition is None or not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        raise Unexamined(f"{target.file.name} does not show how {target.attribute!r} is defined")
    if not _takes(node, 2):
        what = (
            f"mount takes ({ast.unparse(node.args)}); "
            "expected one that can be called as mount(coordinator, config)"
        )
        yield Fault(clause="A3", what=what, location=definition.location)
    if isinstance(node, ast.FunctionDef):
        # A plain function may return a coroutine or a manager. It is a fault only if it certainly
        # returns neither.
        answers = [
            statement.value
            for statement in ast.walk(node)
            if isinstance(statement, ast.Return) and statement.value is not None
        ]
        local = {
            inner.name
            for inner in ast.walk(node)
            if isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef))
        }
        if node.decorator_list or any(
            not isinstance(value, (ast.Constant, ast.Lambda))
            and getattr(value, "id", "") not in local
            for value in answers
        ):
            raise Unexamined(
                f"{definition.file.name} does not show the result of the plain function mount"
            )
        what = (
            "mount is a plain function; expected async def, or a factory of async context managers"
        )
        yield Fault(clause="A3", what=what, location=definition.location)


@check("A6", kind="static")
def is_told_when_ready(target: Target) -> Iterator[Fault]:
    """Read the definition of on_session_ready: async, taking the coordinator alone."""
    _require_tree(target)
    definition = target.definition("on_session_ready")
    if definition is None and not _is_dynamic(target, "on_session_ready"):
        return
    node = None if definition is None else definition.node
    if definition is None or not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        raise Unexamined(f"{target.file.name} does not show whether there is an on_session_ready")
    if not _takes(node, 1):
        what = (
            f"on_session_ready takes ({ast.unparse(node.args)}); "
            "expected on_session_ready(coordinator)"
        )
        yield Fault(clause="A6", what=what, location=definition.location)
    if isinstance(node, ast.FunctionDef):
        if node.decorator_list:
            raise Unexamined(
                f"{definition.file.name} does not show the effect of on_session_ready's decorators"
            )
        what = "on_session_ready is not async, so the kernel does not call it"
        yield Fault(clause="A6", what=what, location=definition.location)


@check("A20", kind="static")
def declares_its_type(target: Target) -> Iterator[Fault]:
    """Read __amplifier_module_type__."""
    _require_tree(target)
    definition = target.definition("__amplifier_module_type__")
    declared = target.constant("__amplifier_module_type__")
    if definition is None and not target.functions():
        what = "the module does not declare its type as __amplifier_module_type__"
        yield Fault(clause="A20", what=what, location=target.file.name)
    elif definition is not None and declared is None:
        raise Unexamined(f"{target.file.name} does not show the value of __amplifier_module_type__")
    elif definition is not None and declared not in CONTRACTS:
        what = f"__amplifier_module_type__ is {declared!r}; expected one of {', '.join(CONTRACTS)}"
        yield Fault(clause="A20", what=what, location=definition.location)


def _require_tree(target: Target) -> None:
    """Check that the module's own file can be parsed.

    Raises:
        Unexamined: The file cannot be parsed.
    """
    if parsed(target.file) is None:
        raise Unexamined(f"{target.file.name} cannot be parsed")


def _exists(target: Target, import_name: str) -> bool:
    base = target.search_path or target.folder
    path = base.joinpath(*import_name.split("."))
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def _takes(node: ast.FunctionDef | ast.AsyncFunctionDef, count: int) -> bool:
    arguments = node.args
    positional = [*arguments.posonlyargs, *arguments.args]
    least = len(positional) - len(arguments.defaults)
    keywords_needed = any(default is None for default in arguments.kw_defaults)
    return (
        least <= count
        and (len(positional) >= count or arguments.vararg is not None)
        and not keywords_needed
    )


def _is_dynamic(target: Target, attribute: str) -> bool:
    """Return whether the file contains a name, or a statement that may define any name.

    The search for definitions does not find such a definition.
    """
    text = target.file.read_text(encoding="utf-8", errors="replace")
    return (
        re.search(
            rf"\b{re.escape(attribute.partition('.')[0])}\b|import \*|__getattr__|globals\(", text
        )
        is not None
    )


# ── mounting ──

_POINT_CLAUSES = {
    "tool": "T4",
    "provider": "P2",
    "orchestrator": "O2",
    "context": "C2",
    "hook": "H2",
}
_EXPECTED = {
    kind: f'coordinator.mount("{CONTRACTS[kind].mount_point}", …)'
    for kind in ("tool", "provider", "orchestrator", "context")
} | {"hook": "coordinator.hooks.register(event, handler)"}
_PATH_WORDS = ("path", "dir", "folder", "file", "root", "workspace", "store", "log")


_MOUNT_CLAUSES = ("A3", "A4", "A21", *_POINT_CLAUSES.values())


@check(*_MOUNT_CLAUSES, kind="structure", without_instance=_MOUNT_CLAUSES)
async def mounts(ctx: CheckContext) -> None:
    """Mount the module in a session without others, and check mount's result and mount points."""
    try:
        await _check_mount(ctx)
    except MountFailed as failed:
        clause = _POINT_CLAUSES.get(ctx.loaded.module_type, "R1")
        error = failed.outcome.error
        # The coordinator may have refused an instance at a mount point.
        frames = () if error is None else traceback.walk_tb(error.__traceback__)
        if not any(frame.f_code is MountTable.mount.__code__ for frame, _ in frames):
            raise
        expected = _EXPECTED.get(ctx.loaded.module_type, "a resolver")
        what = f"mount {failed.outcome}; expected {expected}"
        ctx.fault(clause, what, error=error)


async def _check_mount(ctx: CheckContext) -> None:
    async with ctx.mount() as mounted:
        _check_mount_is_async(mounted)
        kind, returned = ctx.loaded.module_type, mounted.returned
        # The type was checked when the module was loaded.
        contract = CONTRACTS[kind]  # type: ignore[index]
        if kind == "resolver":
            is_instance = is_resolver(returned)
        else:
            is_instance = kind != "hook" and isinstance(returned, contract.protocol)
        if not (returned is None or callable(returned) or is_instance or mounted.is_structured):
            ctx.fault(
                "A4",
                f"mount returned {type(returned).__name__}; expected a cleanup, a {kind} or None",
            )
        if isinstance(returned, type):
            ctx.fault("A4", f"mount returned the class {returned.__name__}, not an instance of it")
        if mounted.is_present or kind not in _POINT_CLAUSES:
            return
        elsewhere = mounted.mount_points
        if returned is None and not mounted.is_structured and not elsewhere:
            ctx.notes.append(DECLINED)
            return
        where = f"; it is at {', '.join(elsewhere)}" if elsewhere else ""
        missing = (
            "no handler is registered"
            if kind == "hook"
            else f"nothing is mounted at {contract.mount_point!r}"
        )
        ctx.fault(_POINT_CLAUSES[kind], f"after mount {missing}{where}")


def _check_mount_is_async(mounted: MountedModule) -> None:
    """Report a plain function, unless a static check reports it."""
    ctx = mounted.ctx
    with suppress(Unexamined):
        if any(has_a_mount(ctx.loaded.target)):
            return
    if not mounted.is_structured and not mounted.is_awaited:
        what = (
            f"mount is a plain function that returned {type(mounted.returned).__name__}; "
            "expected async def, or a factory of async context managers"
        )
        ctx.fault("A3", what)


@check("A6", kind="structure", without_instance=("A6",))
async def takes_the_coordinator_when_ready(ctx: CheckContext) -> None:
    """Call on_session_ready, if there is one."""
    ready = getattr(ctx.loaded.module, "on_session_ready", None)
    if ready is None:
        return
    if not inspect.iscoroutinefunction(ready):
        ctx.fault("A6", "on_session_ready is not async, so the kernel does not call it")
        return
    async with ctx.mount(ready=False) as mounted:
        error = (
            await mounted.call(
                ctx.loaded.on(ctx.backend).on_session_ready or ready, mounted.coordinator
            )
        ).error
        if isinstance(error, TypeError) and ctx.location_of(error) is None:
            ctx.fault(
                "A6", f"on_session_ready cannot be called with the coordinator alone: {error}"
            )


# ── cleanup ──

_CLEANUP_CLAUSES = ("A11", "A12", "A13", "A14", "A15")


@check(*_CLEANUP_CLAUSES, "A23", "H9", kind="hygiene", without_instance=_CLEANUP_CLAUSES)
async def cleans_up(ctx: CheckContext) -> None:
    """Clean up the module twice, unused and used, and look for leftovers and growing open files."""
    for config in ctx.configs:
        async with ctx.mount(config=config) as unused:
            await _clean_up_twice(unused, "without any use, ")
        if not ctx.has_violations:
            await _clean_up(ctx, config)
        if ctx.has_violations:
            return


async def _clean_up(ctx: CheckContext, config: dict[str, Any]) -> None:
    before, tasks_before = Resources(), task_ids()
    left: list[str] = []
    async with ctx.mount(config=config) as mounted:
        tasks = task_ids()
        given = files_below(mounted.directory)
        for operation in typical_operations(mounted):
            if (grown := await find_growing_file(mounted, operation)) is not None:
                what = (
                    f"{CALLS} equal calls of {operation.name} left {grown} more open until cleanup"
                )
                ctx.fault("A23", what, given=operation.given)
        await _use_for_long(mounted)
        used = files_below(mounted.directory)
        await _clean_up_twice(mounted)
        for registration in (
            mounted.registrations if mounted.cleanup is not None or mounted.is_structured else ()
        ):
            what = (
                f"the handler {registration.name!r} for {registration.event!r} "
                "remains after cleanup"
            )
            ctx.fault("A14", what)
            ctx.fault("H9", what)
        await mounted.close()
        left += await new_tasks(tasks)
        left += [
            f"the temporary file {name!r}"
            for name in sorted(path.name for path in mounted.temporary.iterdir())
        ]
        kept = files_below(mounted.directory)
        for name in (name for name in given if not is_of_a_database(name)):
            ctx.expect(name in kept, "A15", f"after cleanup the user's file {name!r} is gone")
        is_kept = kept.get(CANARY) == given[CANARY] or used.get(CANARY) != given[CANARY]
        ctx.expect(is_kept, "A15", "cleanup changed a file of the user's")
    left += [*await new_tasks(tasks_before), *before.lasting_leaks()]
    stopped = mounted.session.last_stop
    left += (
        []
        if stopped is None
        else [f"{part.what}, which would not stop," for part in stopped.would_not_stop]
    )
    for leftover in left:
        ctx.fault("A14", f"{leftover} remains after cleanup")


_MAX_CALLS = {"hook": 200, "tool": 60, "provider": 40}
"""Calls in one session before leftovers are counted, by type."""


async def _use_for_long(mounted: MountedModule) -> None:
    """Use the session as long as a user might, because leftovers may take many calls to show."""
    most = _MAX_CALLS.get(mounted.loaded.module_type, 0)
    if mounted.loaded.starts_processes:
        return
    if mounted.loaded.module_type == "hook":
        operations = [
            operation
            for event, data in several_tools()
            for operation in handling(mounted, event, data)
        ]
    else:
        operations = typical_operations(mounted)
    for operation in itertools.islice(itertools.cycle(operations), most):
        await mounted.call(operation.run, mounted)


async def _clean_up_twice(mounted: MountedModule, when: str = "") -> None:
    ctx = mounted.ctx
    steps: list[tuple[str, Any, bool]] = (
        [] if mounted.cleanup is None else [("cleanup", mounted.cleanup, True)]
    )
    steps += [("a registered cleanup", entry.run, True) for entry in mounted.registered_cleanups]
    if mounted.leave_mount is not None:
        steps.append(("leaving the structured mount", mounted.leave_mount, False))
    mounted.is_cleaned = True
    for name, run, is_repeatable in steps:
        first = await mounted.call(run, seconds=CLEANUP_SECONDS, clause="A12", is_exact=True)
        if not first.returned:
            ctx.fault(
                "A13" if first.kind == "raised" else "A12",
                f"{when}{name} {first}",
                error=first.error,
            )
        elif is_repeatable:
            second = await mounted.call(run, seconds=CLEANUP_SECONDS, clause="A12", is_exact=True)
            if not second.returned:
                ctx.fault("A11", f"{when}run a second time, {name} {second}", error=second.error)


@check("A15", kind="hygiene")
async def keeps_what_was_configured(ctx: CheckContext) -> None:
    """Set every path setting to a folder with a file, and look for both after cleanup."""
    for key in settings_in(ctx.loaded.target):
        if not any(word in key.lower() for word in _PATH_WORDS):
            continue
        for is_folder in (True, False):
            try:
                async with ctx.mount(
                    config={**ctx.loaded.config, key: "{directory}/given"}
                ) as mounted:
                    await _clean_up_configured(mounted, key, is_folder)
            except MountFailed:
                continue


async def _clean_up_configured(mounted: MountedModule, key: str, is_folder: bool) -> None:
    path = mounted.directory / "given"
    file = path / "keep.txt"
    if not path.exists() and is_folder:
        path.mkdir()
        file.write_text("the user's\n", encoding="utf-8")
    await run_typical_operations(mounted)
    existed, file_existed = path.exists(), file.exists()
    await mounted.close()
    what = f"the file or folder of the setting {key!r}"
    if existed and not path.exists():
        mounted.ctx.fault("A15", f"cleanup deleted {what}", given={key: "…/given"})
    elif file_existed and not file.exists():
        mounted.ctx.fault("A15", f"cleanup deleted a user's file in {what}", given={key: "…/given"})


@check("A19", kind="hygiene", on=CheckContext.mount)
async def announces_its_events(mounted: MountedModule) -> None:
    """Compare emitted events outside the catalogue with the events that the module contributes."""
    ctx = mounted.ctx
    await run_typical_operations(mounted)
    announced: set[str] = set()
    for contribution in await mounted.session.coordinator.collect_contributions(
        "observability.events"
    ):
        announced.update(
            contribution if isinstance(contribution, (list, tuple, set)) else [str(contribution)]
        )
    for name in sorted({name for name, _ in mounted.events.events} - set(CATALOGUE) - announced):
        ctx.fault(
            "A19",
            f"it emits {name!r}, which it does not announce on the channel 'observability.events'",
        )


_MAX_SETTINGS = 12
_SETTINGS_CALLS = 2_000
_BAD_VALUES: tuple[Any, ...] = (None, "text", -1, [], {"unknown": True})
"""Values that a user may write into a plan by mistake."""

# The mounts are made to fail: they are cancelled at each suspension, or get settings that they
# refuse. The kernel undoes everything that a failed module has registered, cleanups included. The
# check does the same before it looks for leftovers.


@asynccontextmanager
async def _failing_mount(
    ctx: CheckContext, config: dict[str, Any], what: str
) -> AsyncIterator[tuple[Callable[[], Coroutine[Any, Any, None]], list[str]]]:
    """Provide a call to mount with a separate coordinator, and a list for its leftovers.

    The call is undone after the body. Then the list gets the leftovers.
    """
    before, coordinator, left = Resources(), TestCoordinator(), list[str]()
    cleanups: list[Any] = [coordinator.cleanup]
    count_mount()
    async with anyio.create_task_group() as group:
        tasks = task_ids()
        with private_directories() as (directory, _):

            async def mount() -> None:
                answer = ctx.loaded.on(ctx.backend).mount(
                    coordinator, fill_placeholders(config, directory)
                )
                if hasattr(type(answer), "__aenter__"):
                    async with answer:
                        pass
                elif inspect.isawaitable(answer):
                    cleanups.insert(0, await answer)

            with ctx.watchdog(MOUNT_SECONDS + CANCEL_GRACE, "A8", what):
                yield mount, left
            # Other checks report the effects and the time of a cleanup.
            for cleanup in filter(callable, cleanups):
                await call_with_deadline(cleanup)
            left += await new_tasks(tasks)
        group.cancel_scope.cancel()
    left += before.lasting_leaks()


@check("A5", "A7", kind="cancellation", without_instance=("A5", "A7"))
async def fails_without_traces(ctx: CheckContext) -> None:
    """Cancel mount at each suspension, and mount with wrong settings, then look for leftovers."""
    await _cancel_mounts(ctx)
    await _mount_with_bad_settings(ctx)


async def _cancel_mounts(ctx: CheckContext) -> None:
    suspensions = await _cancel_mount(ctx, NEVER, native=False)
    for k in range(1, min(suspensions or 0, ctx.points) + 1):
        for native in ctx.cancel_modes:
            if await _cancel_mount(ctx, k, native=native) is None:
                return


async def _cancel_mount(ctx: CheckContext, k: int, *, native: bool) -> int | None:
    """Mount and cancel at the k-th suspension, and return the number of suspensions.

    Return None if no further call can show anything new.
    """
    async with _failing_mount(ctx, ctx.loaded.config, "a cancelled mount") as (mount, remaining):
        try:
            trial = await cancel_at(k, mount, native=native)
        # An error of foreign code in place of the cancellation is the fault to be found.
        except BaseException as error:  # noqa: BLE001
            reraise_own_cancellation(error)
            if k != NEVER:
                what = f"mount was cancelled and raised {type(error).__name__}: {str(error)[:200]}"
                ctx.fault("A7", what, error=error)
            return None
        if trial.swallowed:
            ctx.fault(
                "A7", "mount was cancelled and returned all the same", cancelled_at=trial.where
            )
            return None
    # Other checks report the leftovers of a successful mount.
    if not trial.fired or trial.returned:
        return trial.suspensions
    for left in remaining[:1]:
        ctx.fault(
            "A5", f"mount was cancelled, and {left} was left behind", cancelled_at=trial.where
        )
        return None
    return trial.suspensions


async def _mount_with_bad_settings(ctx: CheckContext) -> None:
    """Set each setting to wrong values, and report the leftovers of a mount that raises."""
    budget = ctx.budget(_SETTINGS_CALLS)
    for key in settings_in(ctx.loaded.target)[:_MAX_SETTINGS]:
        for value in _BAD_VALUES:
            if budget.is_spent():
                return
            config = {**ctx.loaded.config, key: value}
            async with _failing_mount(ctx, config, "a mount with wrong settings") as (mount, left):
                outcome = await call_with_deadline(mount, seconds=MOUNT_SECONDS)
            if left and not outcome.returned:
                ctx.fault(
                    "A5",
                    f"mount failed, and {left[0]} was left behind",
                    given={"config": {key: value}},
                )
                return
