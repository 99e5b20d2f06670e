"""Every task of a process as one tree: who started each, which module it is in, and the await it sits in.

`TaskTree` is plain data with a stable JSON form, which `amplifier.models.to_json` and `from_json` write and read; its text has one paragraph for
each task, indented below the task that started it. Everything is read from suspended frames on request, or when a signal asks for it; nothing is
recorded before, so it costs a session nothing. The kernel keeps no list of its tasks: its objects that are found in the chain of awaits of a task
describe what they are doing (`WaitInfo`).
"""

from __future__ import annotations

import inspect
import linecache
import logging
import math
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import anyio
import attrs

from amplifier._internal.json import visible_text
from amplifier.contracts.cancellation import current_time, running_asyncio_loop
from amplifier.kernel.coordinator.coordinator import ModuleCoordinator
from amplifier.kernel.coordinator.ownership import NAMED_POINTS, SINGLE_POINTS
from amplifier.kernel.runtime.frames import (
    WaitInfo,
    await_chain,
    ends_in_generator,
    is_event_loop,
    is_kernel,
)
from amplifier.kernel.runtime.loop import asyncio_context
from amplifier.kernel.runtime.task_host import describe_label

logger = logging.getLogger("amplifier.tracing")

# ── the tree ──

FORMAT = 1
"""Of the JSON form; a change that readers would notice gets another number."""

_INDENT = "  "
_VERBS = {"waiting": "waits", "running": "is running", "not started": "has not started"}


TaskState = Literal["waiting", "running", "not started"]


@attrs.frozen(kw_only=True)
class CodeLine:
    """A line of code in which something waits or runs.

    Attributes:
        file: As Python knows it.
        line: Its number.
        function: The function's qualified name.
        code: The line itself; empty if its file cannot be read.
        module: The Amplifier module that the line works for; None outside of modules.
    """

    file: str
    line: int
    function: str
    code: str = ""
    module: str | None = None


@attrs.frozen(kw_only=True)
class TaskReport:
    """One task.

    Attributes:
        number: Counts the tasks of this report.
        parent: The number of the task that started it; None if there is none, or it is not known.
        name: As whoever started it named it.
        state: ``waiting`` in an await, ``running`` at this moment, or ``not started`` yet.
        session_id: The session it works for; None if it is the application's.
        module: The Amplifier module whose code it is in; None if it is in none.
        doing: What the kernel called that code for.
        seconds_left: Until its nearest deadline; negative when that is over; None when there is none, or it is not the
            kernel's.
        deadline: What that deadline is for.
        awaits: The chain of awaits, outermost first, without the lines of the event loop itself: the last one is where it sits.
        waits_in: The function of the event loop that it sits in, such as ``sleep_forever``; None when it waits in none. Or "an
            asynchronous generator", whose lines asyncio does not show.
    """

    number: int
    parent: int | None = None
    name: str
    state: TaskState
    session_id: str | None = None
    module: str | None = None
    doing: str | None = None
    seconds_left: float | None = None
    deadline: str | None = None
    awaits: list[CodeLine] = attrs.Factory(list)
    waits_in: str | None = None

    @property
    def at(self) -> CodeLine | None:
        """The line in which it sits."""
        return self.awaits[-1] if self.awaits else None


@attrs.frozen(kw_only=True)
class ThreadReport:
    """One thread besides that of the event loop.

    Attributes:
        stack: Its calls, outermost first, without those of the machinery that runs it.
    """

    name: str
    stack: list[CodeLine] = attrs.Factory(list)


@attrs.frozen(kw_only=True)
class TaskTree:
    """Every task of one process's event loop, and its threads, at one moment.

    Attributes:
        pid: The process.
        taken_at: When, ISO 8601 in UTC.
        backend: ``asyncio`` or ``trio``; None when no event loop runs in the thread that was asked.
        is_blocked: Whether the thread of the event loop was in the middle of a task's code instead of waiting for events. Always
            so in a report that a task asked for itself; in one that a signal asked for, it names the task that holds all others up.
        tasks: Parents before their children.
    """

    format: int = FORMAT
    pid: int
    taken_at: str
    backend: str | None = None
    is_blocked: bool = False
    tasks: list[TaskReport] = attrs.Factory(list)
    threads: list[ThreadReport] = attrs.Factory(list)

    def __str__(self) -> str:
        sessions = {task.session_id for task in self.tasks if task.session_id is not None}
        backend = self.backend or "no event loop"
        counted = f"{_counted(len(self.tasks), 'task')}, {_counted(len(sessions), 'session')}"
        lines = [f"tasks of process {self.pid} at {self.taken_at}: {counted}, {backend}"]
        depths: dict[int, int] = {}
        for task in self.tasks:
            depth = depths[task.number] = 0 if task.parent is None else depths[task.parent] + 1
            lines += [f"{_INDENT * depth}{line}" for line in _task_lines(task)]
        for thread in self.threads:
            lines += _thread_lines(thread)
        return visible_text("\n".join(lines))


def _task_lines(task: TaskReport) -> Iterator[str]:
    yield f"● {task.name}"
    facts = [
        None if task.session_id is None else f"session {task.session_id}",
        None if task.module is None else f"module {task.module}",
        task.doing,
        _deadline(task),
    ]
    known = [fact for fact in facts if fact is not None]
    if known:
        yield f"{_INDENT}{', '.join(known)}"
    for line in task.awaits[:-1]:
        yield f"{_INDENT}{_INDENT}{_where(line)}"
    verb = _VERBS[task.state]
    if task.at is None:
        yield f"{_INDENT}{verb} in {task.waits_in or 'code that cannot be seen'}"
        return
    within = "" if task.waits_in is None else f" ({task.waits_in})"
    yield f"{_INDENT}{verb} at {_where(task.at)}{within}"
    if task.at.code:
        yield f"{_INDENT}{_INDENT}{task.at.code}"


def _thread_lines(thread: ThreadReport) -> Iterator[str]:
    yield f"◦ thread {thread.name}"
    for line in thread.stack[:-1]:
        yield f"{_INDENT}{_INDENT}{_where(line)}"
    for line in thread.stack[-1:]:
        yield f"{_INDENT}is at {_where(line)}"
        if line.code:
            yield f"{_INDENT}{_INDENT}{line.code}"


def _deadline(task: TaskReport) -> str | None:
    if task.seconds_left is None:
        return None
    what = "" if task.deadline is None or task.deadline == task.doing else f" of {task.deadline}"
    if task.seconds_left < 0:
        return f"the deadline{what} passed {-task.seconds_left:.1f} s ago"
    return f"{task.seconds_left:.1f} s left{what}"


def _where(line: CodeLine) -> str:
    module = "" if line.module is None else f" [{line.module}]"
    return f"{_shortened(line.file)}:{line.line} in {line.function}{module}"


def _shortened(file: str) -> str:
    """The path from here, where that is shorter."""
    try:
        return str(Path(file).relative_to(Path.cwd()))
    except (ValueError, OSError):
        return file


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


# ── tasks ──

_STANDARD_ERROR = 2
_GENERATOR = "an asynchronous generator"
_BUILT_IN = re.compile(
    r"amplifier\.modules\.(loop|context|provider|tool|hooks)s?\.([a-z][a-z0-9_]*)"
)
_PUBLISHED = re.compile(r"amplifier_module_([a-z0-9_]+)")
_THREAD_MACHINERY = frozenset({"threading", "concurrent", "asyncio", "anyio", "trio", "outcome"})


def task_tree(frame: FrameType | None = None) -> TaskTree:
    """Describe every task of the event loop that runs in this thread.

    Also works in a signal handler, and when no loop runs: then there are threads only.

    Args:
        frame: What the thread of the loop was doing, as a signal handler receives it; the caller, if left out.
    """
    running = frame or sys._getframe(1)
    backend = (
        "asyncio"
        if running_asyncio_loop() is not None
        else None
        if _trio_root() is None
        else "trio"
    )
    found = _running_tasks()
    for each in found:
        each.look(running)
    _take_apart(found)
    tasks = list(_reports(found, current_time())) if found else []
    return TaskTree(
        pid=os.getpid(),
        taken_at=datetime.now(UTC).isoformat(timespec="seconds"),
        backend=backend,
        is_blocked=any(task.state == "running" for task in tasks),
        tasks=tasks,
        threads=list(_threads(running if backend is None else None)),
    )


@attrs.frozen(eq=False)
class _Known:
    """What is known at one frame, from those outside of it."""

    coordinator: Any = None
    module: str | None = None
    doing: str | None = None
    until: float = math.inf
    deadline: str | None = None

    def inside(self, call: WaitInfo) -> _Known:
        """What is known inside of a call of the kernel."""
        module, words = (None, "") if call.label is None else describe_label(call.label)
        coordinator, module, doing = (
            call.coordinator or self.coordinator,
            call.module or module,
            words or self.doing,
        )
        known = attrs.evolve(
            self, coordinator=coordinator, module=module or self.module, doing=doing
        )
        if call.until is not None and call.until < self.until:
            known = attrs.evolve(known, until=call.until, deadline=doing)
        return known


@attrs.define(eq=False)
class _Found:
    """A task while the report is being made.

    Attributes:
        frames: Its chain of awaits, each frame with what the kernel does there.
        is_ours: Whether the kernel started it, so that whatever it starts is the session's as well.
        trio_task: Trio's own object; None on asyncio.
        ends_unseen: Whether the last frame iterates an asynchronous generator that cannot be seen.
        session: The coordinator of the session for which the task as a whole works; what it starts works for it, too.
        final: What is known at the innermost frame.
    """

    id: int
    parent_id: int | None
    name: str
    coroutine: Any
    state: TaskState = "waiting"
    frames: list[tuple[FrameType, WaitInfo | None]] = attrs.field(factory=list)
    is_ours: bool = False
    number: int = 0
    trio_task: Any = None
    ends_unseen: bool = False
    session: Any = None
    final: _Known = attrs.field(factory=_Known)

    def look(self, running: FrameType) -> None:
        """Read its frames; ``running`` is what the thread of the loop is doing."""
        coroutine = self.coroutine
        # Trio's tasks show the lines of asynchronous generators as well.
        frames = (
            list(await_chain(coroutine))
            if self.trio_task is None
            else [frame for frame, _ in self.trio_task.iter_await_frames()]
        )
        if frames and getattr(coroutine, "cr_running", False):
            # While it runs, a coroutine does not expose what it awaits; the stack of the thread does.
            self.state = "running"
            frames = list(_stack_down_from(frames[0], running)) or frames
        elif (
            inspect.iscoroutine(coroutine)
            and inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED
        ):
            self.state = "not started"
        self.ends_unseen = (
            self.state == "waiting" and self.trio_task is None and ends_in_generator(coroutine)
        )
        first = next((frame for frame in frames if not is_event_loop(frame)), None)
        self.is_ours = first is not None and is_kernel(first)
        self.frames = [(frame, _call_of(frame)) for frame in frames]


def _running_tasks() -> list[_Found]:
    """Every task of the loop that runs in this thread; also in a signal handler, where no task is the current one."""
    if running_asyncio_loop() is not None:
        infos = asyncio_context().run(anyio.get_running_tasks)
        return [_Found(info.id, info.parent_id, info.name or "", info.coro) for info in infos]
    found: list[_Found] = []
    waiting = [] if (root := _trio_root()) is None else [root]
    while waiting:
        task = waiting.pop(0)
        parent = None if task.parent_nursery is None else id(task.parent_nursery.parent_task)
        found.append(_Found(id(task), parent, task.name, task.coro, trio_task=task))
        waiting += [child for nursery in task.child_nurseries for child in nursery.child_tasks]
    return found


def _trio_root() -> Any:
    trio = sys.modules.get("trio")
    try:
        return None if trio is None else trio.lowlevel.current_root_task()
    except RuntimeError:
        return None


def _take_apart(found: list[_Found]) -> None:
    """Give each of several tasks that run on one stack its own frames.

    An eager task of asyncio takes its first step inside a step of the task that starts it.
    """
    running = [each for each in found if each.state == "running"]
    begun = {id(each.frames[0][0]): each for each in running}
    for each in running:
        for depth in range(1, len(each.frames)):
            inner = begun.get(id(each.frames[depth][0]))
            if inner is not None:
                each.frames, each.state = each.frames[:depth], "waiting"
                inner.parent_id = each.id
                break


def _reports(found: list[_Found], now: float) -> Iterator[TaskReport]:
    by_id = {each.id: each for each in found}
    coordinators: dict[str, ModuleCoordinator] = {}
    for each in found:
        for _, call in each.frames:
            if call is not None and isinstance(call.coordinator, ModuleCoordinator):
                coordinators[call.coordinator.session_id] = call.coordinator
    owners = {
        session_id: _owners_of(coordinator) for session_id, coordinator in coordinators.items()
    }
    ordered = list(_parents_first(found, by_id))
    for number, each in enumerate(ordered, 1):
        each.number = number
    for each in ordered:
        yield _report(each, by_id, owners, now)


def _parents_first(found: list[_Found], by_id: dict[int, _Found]) -> Iterator[_Found]:
    children: dict[int, list[_Found]] = {}
    for each in sorted(found, key=lambda each: each.name):  # asyncio keeps them in a set
        children.setdefault(each.parent_id if each.parent_id in by_id else 0, []).append(each)
    waiting = children.pop(0, [])
    while waiting:
        each = waiting.pop(0)
        yield each
        waiting = [*children.pop(each.id, []), *waiting]


def _report(
    each: _Found,
    by_id: dict[int, _Found],
    owners: dict[str, dict[int, str]],
    now: float,
) -> TaskReport:
    parent = by_id.get(each.parent_id or 0)
    known = _inherited(parent)
    each.session = known.coordinator
    awaits: list[CodeLine] = []
    waits_in = None
    for depth, (frame, call) in enumerate(each.frames):
        if call is not None:
            known = known.inside(call)
            if each.is_ours and each.session is None:
                each.session = known.coordinator
        if is_event_loop(frame):
            # The first one below user code; of a task that has no other frames, the one below its outermost.
            waits_in = (
                waits_in if waits_in is not None and len(awaits) + depth != 1 else _entry(frame)
            )
            continue
        waits_in = None
        mine = {} if known.coordinator is None else owners.get(known.coordinator.session_id, {})
        known = attrs.evolve(known, module=_module_of(frame, mine) or known.module)
        awaits.append(_code_line(frame, None if _is_between_modules(frame) else known.module))
    each.final = known
    if each.ends_unseen:
        waits_in = _GENERATOR
    return TaskReport(
        number=each.number,
        parent=None if parent is None else parent.number,
        name=each.name,
        state=each.state,
        session_id=None if known.coordinator is None else known.coordinator.session_id,
        module=known.module,
        doing=known.doing,
        seconds_left=None if known.until == math.inf else round(known.until - now, 3),
        deadline=None if known.until == math.inf else known.deadline,
        awaits=awaits,
        waits_in=waits_in,
    )


def _inherited(parent: _Found | None) -> _Known:
    """What a task is before its own first frame: of its parent's session, if it was started inside of that."""
    if parent is None or parent.session is None:
        return _Known()
    return parent.final if parent.final.coordinator is parent.session else _Known(parent.session)


def _owners_of(coordinator: ModuleCoordinator) -> dict[int, str]:
    """The module that mounted each object of a session, by the object's id."""
    mounts = coordinator.mounts
    slots = [(point, None, mounts.points.get(point)) for point in SINGLE_POINTS]
    for point in NAMED_POINTS:
        named = mounts.points.get(point)
        slots += [(point, name, mounted) for name, mounted in (named or {}).items()]
    owners = (
        (id(mounted), mounts.owner_of(point, name))
        for point, name, mounted in slots
        if mounted is not None
    )
    return {key: owner for key, owner in owners if owner is not None}


# ── frames ──


def _call_of(frame: FrameType) -> WaitInfo | None:
    """What the object of the kernel that a frame belongs to is doing, if it is one that waits for something."""
    describe = getattr(frame.f_locals.get("self"), "wait_info", None) if is_kernel(frame) else None
    return None if describe is None else describe()


def _stack_down_from(outermost: FrameType, innermost: FrameType) -> Iterator[FrameType]:
    """The frames of this thread from one to another, outermost first; nothing if the first is not on the stack."""
    stack: list[FrameType] = []
    current: FrameType | None = innermost
    while current is not None:
        stack.append(current)
        if current is outermost:
            yield from reversed(stack)
            return
        current = current.f_back


def _module_of(frame: FrameType, owners: dict[int, str]) -> str | None:
    """The module that a frame belongs to: by the object whose method it is, else by the package it is written in."""
    names = frame.f_code.co_varnames
    if owners and names[:1] == ("self",):
        owner = owners.get(id(frame.f_locals.get("self")))
        if owner is not None:
            return owner
    package = str(frame.f_globals.get("__name__", ""))
    match = _BUILT_IN.match(package) or _PUBLISHED.match(package)
    return None if match is None else "-".join(match.groups()).replace("_", "-")


def _is_between_modules(frame: FrameType) -> bool:
    """Whether a line is the project's own and no module's: the kernel on its way from one module to the next."""
    package = str(frame.f_globals.get("__name__", ""))
    return package.startswith("amplifier.") and not package.startswith("amplifier.modules.")


def _code_line(frame: FrameType, module: str | None) -> CodeLine:
    code = frame.f_code
    line = frame.f_lineno or code.co_firstlineno
    return CodeLine(
        file=code.co_filename,
        line=line,
        function=code.co_qualname,
        code=linecache.getline(code.co_filename, line, frame.f_globals).strip(),
        module=module,
    )


def _entry(frame: FrameType) -> str:
    """The function by which user code entered the event loop's own."""
    package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    return f"{package} {frame.f_code.co_qualname}"


# ── threads ──


def _threads(own: FrameType | None) -> Iterator[ThreadReport]:
    """All threads but this one, which the tasks describe; ``own`` is its frame when there are no tasks."""
    frames = sys._current_frames()
    for thread in threading.enumerate():
        frame = frames.get(thread.ident or 0)
        if thread is threading.current_thread():
            frame = own
        if frame is not None:
            yield ThreadReport(name=thread.name, stack=_thread_stack(frame))


def _thread_stack(frame: FrameType) -> list[CodeLine]:
    stack: list[FrameType] = []
    current: FrameType | None = frame
    while current is not None:
        stack.append(current)
        current = current.f_back
    stack.reverse()
    telling = [each for each in stack if _top_package(each) not in _THREAD_MACHINERY]
    return [_code_line(each, _module_of(each, {})) for each in telling or stack[-1:]]


def _top_package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


# ── on a signal ──
# The handler is Python's own, not one of the event loop: it runs even while a task blocks the loop, and then shows the blocking line.
# Only code that never returns to the interpreter, such as a call into a C library that waits for ever, keeps it from running.


@contextmanager
def tasks_on_signal(
    which: signal.Signals | None = None, show: Callable[[TaskTree], Any] | None = None
) -> Iterator[None]:
    """Answer a signal with the task tree, for as long as the block lasts; in the main thread only.

    Args:
        which: The signal; SIGUSR1 if left out.
        show: Called with the tree, inside the signal handler, so it must not wait. Left out, the tree is written to standard error.
    """
    chosen = signal.SIGUSR1 if which is None else which

    def answer(_number: int, frame: FrameType | None) -> None:
        try:
            (show or _write)(task_tree(frame))
        except (
            Exception
        ):  # raised from here, it would come out of whatever code the signal interrupted
            logger.exception("the task tree could not be shown")

    before = signal.signal(chosen, answer)
    try:
        yield
    finally:
        signal.signal(chosen, signal.SIG_DFL if before is None else before)


def _write(tree: TaskTree) -> None:
    # Not through sys.stderr: the signal may have come in the middle of a write to it.
    data = f"{tree}\n".encode(errors="backslashreplace")
    while data:
        data = data[os.write(_STANDARD_ERROR, data) :]
