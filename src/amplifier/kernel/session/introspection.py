"""What the kernel knows about tasks that somebody finds suspended: whose session, whose module, under which deadline.

Nothing here runs in an ordinary turn. The kernel keeps no list of its tasks; when a session hangs, the chain of awaits of each
task is read, and where a frame of the kernel stands in it, that frame says what it is doing. `amplifier.observability` stands above
and makes a report of it; everything else of the kernel stands below.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextvars import Context
from types import FrameType
from typing import Any

import anyio
import attrs

from amplifier.contracts._containment import running_asyncio_loop

from ..coordinator.coordinator import ModuleCoordinator, _who
from ..coordinator.mounts import NAMED_POINTS, SINGLE_POINTS
from ..hooks.dispatch import Dispatch
from ..runtime.await_location import await_chain, is_machinery
from ..runtime.backend import (
    _asyncio_context,
    _shielded_on_asyncio,
    loop_clock,
    run_guarded,
    start_timer,
)
from ..runtime.deadlines import DeadlineGroup
from ..runtime.task_host import TaskHost, _Host
from .opening import Opening
from .session import AmplifierSession, _inside_turn_of
from .turn import TurnRunner

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
    """What a frame of the kernel says about the frames below it.

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
        infos = _asyncio_context().run(anyio.get_running_tasks)
        contexts = {id(task): _context_of(task) for task in sys.modules["asyncio"].all_tasks()}
        return [
            RunningTask(info.id, info.parent_id, info.name or "", info.coro, contexts.get(info.id)) for info in infos
        ]
    found: list[RunningTask] = []
    waiting = [] if (root := _trio_root()) is None else [root]
    while waiting:
        task = waiting.pop(0)
        parent = None if task.parent_nursery is None else id(task.parent_nursery.parent_task)
        found.append(RunningTask(id(task), parent, task.name, task.coro, task.context))
        waiting += [child for nursery in task.child_nurseries for child in nursery.child_tasks]
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
    return [lifecycle.session_id for lifecycle in context.get(_inside_turn_of, ())]


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
    """What one frame says, if it is a telling one of the kernel's."""
    code = frame.f_code
    read = _READERS.get((str(frame.f_globals.get("__name__")), code.co_qualname))
    if read is None:
        return None
    try:
        return read(frame.f_locals)
    except (KeyError, AttributeError):  # at its very first or last step, a frame may not have all its variables
        return None


def _session(doing: str | None = None) -> Callable[[dict[str, Any]], Landmark]:
    return lambda found: Landmark(coordinator=found["self"].coordinator, doing=doing)


def _turn(found: dict[str, Any]) -> Landmark:
    turns: TurnRunner = found["self"]
    until = None if turns.scope is None else turns.scope.deadline
    return Landmark(coordinator=turns._coordinator, doing="a turn", until=until)


def _series_of(series: DeadlineGroup) -> Landmark:
    if series.awaited is None:
        return Landmark()
    module, doing = _who(series.label)
    return Landmark(module=module, doing=doing, until=series.until)


def _mount(found: dict[str, Any]) -> Landmark:
    owner: str = found["owner"]
    return Landmark(module=owner, doing=f"mount of module {owner!r}")


def _ready(found: dict[str, Any]) -> Landmark:
    return Landmark(module=found["spec"].module)


def _host(found: dict[str, Any]) -> Landmark:
    host: _Host = found["self"]
    coordinator = _coordinator_of(getattr(host._crashed, "__self__", None))
    return Landmark(coordinator=coordinator, module=host._owner, doing=f"structured mount of {host._name!r}")


def _background(found: dict[str, Any]) -> Landmark:
    name, owner = found["name"], found["owner"]
    return Landmark(coordinator=_coordinator_of(found["self"]), module=owner, doing=f"background task {name!r}")


def _section(found: dict[str, Any]) -> Landmark:
    return Landmark(goes_on_in=id(found["task"]))


def _coordinator_of(hosting: Any) -> ModuleCoordinator | None:
    found = getattr(getattr(hosting, "_report_crash", None), "__self__", None)
    return found if isinstance(found, ModuleCoordinator) else None


def _key(function: Any) -> tuple[str, str]:
    return function.__module__, function.__qualname__


_READERS: dict[tuple[str, str], Callable[[dict[str, Any]], Landmark]] = {
    _key(AmplifierSession.__aenter__): _session("opening"),
    _key(AmplifierSession.initialize): _session("opening"),
    _key(AmplifierSession._mount_plan): _session("opening"),
    _key(AmplifierSession.execute): _session("a turn"),
    _key(AmplifierSession.__aexit__): _session("closing"),
    _key(AmplifierSession.cleanup): _session("closing"),
    _key(AmplifierSession._close): _session("closing"),
    _key(TurnRunner.run): _turn,
    _key(Opening._mount): _mount,
    _key(Opening._make_ready): _ready,
    _key(DeadlineGroup.run): lambda found: _series_of(found["self"]),
    _key(Dispatch.run): lambda found: _series_of(found["self"]._series),
    _key(_Host.run): _host,
    (TaskHost.__module__, f"{TaskHost.start_soon.__qualname__}.<locals>.run"): _background,
    _key(run_guarded): _section,
    _key(_shielded_on_asyncio): _section,
    (start_timer.__module__, f"{start_timer.__qualname__}.<locals>.wait"): lambda _: Landmark(
        doing="a timer of the kernel"
    ),
}
"""The frames that tell something, and how they are read. By name: no frame is touched until somebody asks."""
