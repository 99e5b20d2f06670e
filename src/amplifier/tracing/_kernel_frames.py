"""What the kernel knows about tasks that are found suspended: whose session, whose module, under which deadline.

Nothing here runs in an ordinary turn. The kernel keeps no list of its tasks; when a session hangs, the chain of awaits of each
task is read, and the kernel's objects in it describe what they are doing (see `RunningCall`). `_tasks` makes a report of it.
"""

from __future__ import annotations

import sys
from contextvars import Context
from types import FrameType
from typing import Any

import anyio
import attrs

from amplifier.contracts._containment import running_asyncio_loop
from amplifier.contracts._scopes import loop_clock
from amplifier.kernel.coordinator.coordinator import ModuleCoordinator
from amplifier.kernel.coordinator.ownership import NAMED_POINTS, SINGLE_POINTS
from amplifier.kernel.runtime.backend import RunningCall, asyncio_context, await_chain, is_kernel, is_machinery
from amplifier.kernel.runtime.tasks import describe_label
from amplifier.kernel.session.session import inside_turn_of

__all__ = [
    "Landmark",
    "RunningTask",
    "await_chain",
    "backend_name",
    "clock_now",
    "is_machinery",
    "landmark_of",
    "owners_of",
    "running_tasks",
    "sessions_inside",
]


@attrs.frozen(eq=False)
class RunningTask:
    """One task of the running event loop.

    Attributes:
        context: Its context variables, where the backend shows them: trio always, asyncio since Python 3.12.
    """

    id: int
    parent_id: int | None
    name: str
    coroutine: Any
    context: Context | None


@attrs.frozen(eq=False, kw_only=True)
class Landmark:
    """What a frame of the kernel reveals about the frames below it.

    Attributes:
        coordinator: Of the session they work for.
        module: Whose code they are.
        doing: What they do, in words.
        until: When their deadline is over, by the loop's clock; infinite for "never", None when this frame sets none.
        goes_on_in: The id of the task in which the work goes on while this one waits for it.
    """

    coordinator: ModuleCoordinator | None = None
    module: str | None = None
    doing: str | None = None
    until: float | None = None
    goes_on_in: int | None = None


# ── the loop ─────────────────────────────────────────────────────────────────────────────────────


def backend_name() -> str | None:
    """The backend whose loop runs in this thread; None when there is none."""
    if running_asyncio_loop() is not None:
        return "asyncio"
    return None if _trio_root() is None else "trio"


def clock_now() -> float:
    """The running loop's time."""
    return loop_clock()()


def running_tasks() -> list[RunningTask]:
    """Every task of the loop that runs in this thread; also in a signal handler, where no task is the current one."""
    if running_asyncio_loop() is not None:
        listed = {id(task): task for task in sys.modules["asyncio"].all_tasks()}
        infos = asyncio_context().run(anyio.get_running_tasks)
        return [found for info in infos for found in _with_sections(info, listed.get(info.id))]
    found: list[RunningTask] = []
    waiting = [] if (root := _trio_root()) is None else [root]
    while waiting:
        task = waiting.pop(0)
        parent = None if task.parent_nursery is None else id(task.parent_nursery.parent_task)
        found.append(RunningTask(id(task), parent, task.name, task.coro, task.context))
        waiting += [child for nursery in task.child_nurseries for child in nursery.child_tasks]
    return found


def _with_sections(info: anyio.TaskInfo, task: Any) -> list[RunningTask]:
    """A task of the asyncio loop's list, and the sections that it waits for, which are not in the list."""
    found = [RunningTask(info.id, info.parent_id, info.name or "", info.coro, _context_of(task))]
    while (
        section := getattr(getattr(task, "_fut_waiter", None), "section", None)
    ) is not None and section.task is not None:
        parent, task = task, section.task
        found.append(RunningTask(id(task), id(parent), task.get_name(), task.get_coro(), _context_of(task)))
    return found


def _context_of(asyncio_task: Any) -> Context | None:
    get_context = getattr(asyncio_task, "get_context", None)
    return None if get_context is None else get_context()


def _trio_root() -> Any:
    trio = sys.modules.get("trio")
    try:
        return None if trio is None else trio.lowlevel.current_root_task()
    except RuntimeError:
        return None


# ── sessions and modules ─────────────────────────────────────────────────────────────────────────


def sessions_inside(context: Context) -> list[str]:
    """The sessions in whose turns a task with this context was started, outermost first."""
    return [lifecycle.session_id for lifecycle in context.get(inside_turn_of, ())]


def owners_of(coordinator: ModuleCoordinator) -> dict[int, str]:
    """The module that mounted each object of a session, by the object's id."""
    mounts = coordinator.mounts
    slots = [(point, None, mounts.points.get(point)) for point in SINGLE_POINTS]
    for point in NAMED_POINTS:
        named = mounts.points.get(point)
        slots += [(point, name, mounted) for name, mounted in (named or {}).items()]
    owners = ((id(mounted), mounts.owner_of(point, name)) for point, name, mounted in slots if mounted is not None)
    return {key: owner for key, owner in owners if owner is not None}


# ── frames ───────────────────────────────────────────────────────────────────────────────────────


def landmark_of(frame: FrameType) -> Landmark | None:
    """What the object of the kernel that a frame belongs to is doing, if it is one that waits for something."""
    if not is_kernel(frame):
        return None
    describe = getattr(frame.f_locals.get("self"), "running_call", None)
    call: RunningCall | None = None if describe is None else describe()
    if call is None:
        return None
    module, doing = (None, None) if call.label is None else describe_label(call.label)
    return Landmark(
        coordinator=call.coordinator,
        module=call.module or module,
        doing=doing,
        until=call.until,
        goes_on_in=None if call.goes_on_in is None else id(call.goes_on_in),
    )
