"""The task tree of a process, with the session, the module and the current await of every task."""

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

# The tree is read from suspended frames on request or on a signal. Nothing is recorded in advance,
# so it costs sessions nothing. The kernel keeps no list of its tasks. Its objects in the chain of
# awaits of a task describe their calls with `WaitInfo`.

# ── the tree ──

# Version of the JSON form. It changes with every change that readers would notice.
FORMAT = 1

_INDENT = "  "
_VERBS = {"waiting": "waits", "running": "is running", "not started": "has not started"}


TaskState = Literal["waiting", "running", "not started"]


@attrs.frozen(kw_only=True)
class CodeLine:
    """A line of code in which a task or a thread waits or runs.

    Attributes:
        file: Name of the file.
        line: Number of the line.
        function: Qualified name of the function.
        code: Text of the line, empty if the file cannot be read.
        module: Id of the Amplifier module that the line belongs to, or None.
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
        number: Number of the task in this report, from 1.
        parent: Number of the task that started it, or None if it is unknown.
        name: Name of the task.
        state: ``waiting`` in an await, ``running`` at this moment, or ``not started`` yet.
        session_id: Id of the session that the task works for, or None.
        module: Id of the Amplifier module whose code the task is in, or None.
        doing: The operation for which the kernel called that code, or None.
        seconds_left: Seconds until the nearest deadline of the kernel, negative if it has passed,
            or None.
        deadline: The operation to which the deadline applies, or None.
        awaits: The chain of awaits, outermost first, without lines of the event loop. The last one
            is the current line.
        waits_in: The function of the event loop in which the task waits, such as
            ``sleep_forever``, or "an asynchronous generator", whose lines asyncio does not show.
            None if it waits in neither.
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
        """The current line, or None if it is unknown."""
        return self.awaits[-1] if self.awaits else None


@attrs.frozen(kw_only=True)
class ThreadReport:
    """One thread other than that of the event loop.

    Attributes:
        name: Name of the thread.
        stack: The calls of the thread, outermost first, without those of threading itself.
    """

    name: str
    stack: list[CodeLine] = attrs.Factory(list)


@attrs.frozen(kw_only=True)
class TaskTree:
    """All tasks of a process's event loop, and its threads, at one moment.

    `amplifier.models.to_json` and `from_json` write and read it. Its text has a paragraph for every
    task, indented below that of its parent.

    Attributes:
        format: Version of the JSON form.
        pid: Id of the process.
        taken_at: Time of the report, ISO 8601 in UTC.
        backend: ``asyncio`` or ``trio``, or None if no event loop runs in the thread.
        is_blocked: Whether the event loop was running the code of a task instead of waiting for
            events. It is always True in a report that a task requested. In one on a signal, the
            running task blocks all others.
        tasks: All tasks, parents before their children.
        threads: All other threads.
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
    is_named = task.deadline is not None and task.deadline != task.doing
    operation = f" of {task.deadline}" if is_named else ""
    if task.seconds_left < 0:
        return f"the deadline{operation} passed {-task.seconds_left:.1f} s ago"
    return f"{task.seconds_left:.1f} s left{operation}"


def _where(line: CodeLine) -> str:
    module = "" if line.module is None else f" [{line.module}]"
    return f"{_relative_path(line.file)}:{line.line} in {line.function}{module}"


def _relative_path(file: str) -> str:
    """Return a path relative to the current folder if it is inside."""
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
    """Describe all tasks of the event loop in this thread.

    This also works in a signal handler. Without an event loop, the tree has only threads.

    Args:
        frame: Current frame of the loop's thread, as a signal handler receives it. The default is
            the caller's.
    """
    running = frame or sys._getframe(1)
    backend = None
    if running_asyncio_loop() is not None:
        backend = "asyncio"
    elif _trio_root() is not None:
        backend = "trio"
    seen = _running_tasks()
    for task in seen:
        task.read_frames(running)
    _separate_stacks(seen)
    tasks = list(_reports(seen, current_time())) if seen else []
    return TaskTree(
        pid=os.getpid(),
        taken_at=datetime.now(UTC).isoformat(timespec="seconds"),
        backend=backend,
        is_blocked=any(task.state == "running" for task in tasks),
        tasks=tasks,
        threads=list(_threads(running if backend is None else None)),
    )


@attrs.frozen(eq=False)
class _Context:
    """Facts about a frame that follow from the frames around it."""

    coordinator: Any = None
    module: str | None = None
    doing: str | None = None
    until: float = math.inf
    deadline: str | None = None

    def inside(self, call: WaitInfo) -> _Context:
        """Return the context inside a call of the kernel."""
        module, operation = (None, "") if call.label is None else describe_label(call.label)
        doing = operation or self.doing
        context = attrs.evolve(
            self,
            coordinator=call.coordinator or self.coordinator,
            module=call.module or module or self.module,
            doing=doing,
        )
        if call.until is not None and call.until < self.until:
            context = attrs.evolve(context, until=call.until, deadline=doing)
        return context


@attrs.define(eq=False)
class _SeenTask:
    """A task whose report is being built.

    Attributes:
        id: Id of the task.
        parent_id: Id of the task that started it, or None.
        name: Name of the task.
        coroutine: The coroutine of the task.
        state: State of the task.
        frames: The chain of awaits. Every frame has the call of the kernel in it, or None.
        is_ours: Whether the kernel started the task, so that its child tasks belong to the session.
        number: Number in the report.
        trio_task: The task object of trio, or None on asyncio.
        ends_unseen: Whether the last frame iterates an asynchronous generator that is invisible.
        session: Coordinator of the session that the whole task and its child tasks work for.
        final: Context of the innermost frame.
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
    final: _Context = attrs.field(factory=_Context)

    def read_frames(self, running: FrameType) -> None:
        """Read the frames of the task. ``running`` is the current frame of the loop's thread."""
        coroutine, trio_task = self.coroutine, self.trio_task
        # Trio's tasks show even the lines of asynchronous generators.
        if trio_task is None:
            frames = list(await_chain(coroutine))
        else:
            frames = [frame for frame, _ in trio_task.iter_await_frames()]
        if frames and getattr(coroutine, "cr_running", False):
            # A running coroutine does not expose its await, but the stack of the thread has it.
            self.state = "running"
            frames = list(_stack_down_from(frames[0], running)) or frames
        elif _is_created(coroutine):
            self.state = "not started"
        if self.state == "waiting" and trio_task is None:
            self.ends_unseen = ends_in_generator(coroutine)
        first = next((frame for frame in frames if not is_event_loop(frame)), None)
        self.is_ours = first is not None and is_kernel(first)
        self.frames = [(frame, _call_of(frame)) for frame in frames]


def _running_tasks() -> list[_SeenTask]:
    """Return all tasks of the loop in this thread, even in a signal handler outside of tasks."""
    if running_asyncio_loop() is not None:
        infos = asyncio_context().run(anyio.get_running_tasks)
        return [_SeenTask(info.id, info.parent_id, info.name or "", info.coro) for info in infos]
    seen: list[_SeenTask] = []
    pending = [] if (root := _trio_root()) is None else [root]
    while pending:
        task = pending.pop(0)
        parent = None if task.parent_nursery is None else id(task.parent_nursery.parent_task)
        seen.append(_SeenTask(id(task), parent, task.name, task.coro, trio_task=task))
        pending += [child for nursery in task.child_nurseries for child in nursery.child_tasks]
    return seen


def _trio_root() -> Any:
    trio = sys.modules.get("trio")
    try:
        return None if trio is None else trio.lowlevel.current_root_task()
    except RuntimeError:
        return None


def _separate_stacks(tasks: list[_SeenTask]) -> None:
    """Separate the frames of tasks that run on one stack.

    An eager task of asyncio takes its first step inside a step of the task that starts it.
    """
    running = [task for task in tasks if task.state == "running"]
    by_first_frame = {id(task.frames[0][0]): task for task in running}
    for task in running:
        for depth in range(1, len(task.frames)):
            inner = by_first_frame.get(id(task.frames[depth][0]))
            if inner is not None:
                task.frames, task.state = task.frames[:depth], "waiting"
                inner.parent_id = task.id
                break


def _reports(tasks: list[_SeenTask], now: float) -> Iterator[TaskReport]:
    by_id = {task.id: task for task in tasks}
    coordinators: dict[str, ModuleCoordinator] = {}
    for task in tasks:
        for _, call in task.frames:
            if call is not None and isinstance(call.coordinator, ModuleCoordinator):
                coordinators[call.coordinator.session_id] = call.coordinator
    owners = {
        session_id: _owners_of(coordinator) for session_id, coordinator in coordinators.items()
    }
    ordered = list(_parents_first(tasks, by_id))
    for number, task in enumerate(ordered, 1):
        task.number = number
    for task in ordered:
        yield _report(task, by_id, owners, now)


def _parents_first(tasks: list[_SeenTask], by_id: dict[int, _SeenTask]) -> Iterator[_SeenTask]:
    children: dict[int, list[_SeenTask]] = {}
    # They are sorted because asyncio keeps its tasks in a set.
    for task in sorted(tasks, key=lambda task: task.name):
        children.setdefault(task.parent_id if task.parent_id in by_id else 0, []).append(task)
    pending = children.pop(0, [])
    while pending:
        task = pending.pop(0)
        yield task
        pending = [*children.pop(task.id, []), *pending]


def _report(
    task: _SeenTask,
    by_id: dict[int, _SeenTask],
    owners: dict[str, dict[int, str]],
    now: float,
) -> TaskReport:
    parent = by_id.get(task.parent_id or 0)
    context = _inherited(parent)
    task.session = context.coordinator
    awaits: list[CodeLine] = []
    waits_in = None
    for depth, (frame, call) in enumerate(task.frames):
        if call is not None:
            context = context.inside(call)
            if task.is_ours and task.session is None:
                task.session = context.coordinator
        if is_event_loop(frame):
            # This is the first frame below user code, or the second frame of a task without user
            # code.
            if waits_in is None or len(awaits) + depth == 1:
                waits_in = _entry(frame)
            continue
        waits_in = None
        coordinator = context.coordinator
        own = {} if coordinator is None else owners.get(coordinator.session_id, {})
        context = attrs.evolve(context, module=_module_of(frame, own) or context.module)
        awaits.append(_code_line(frame, None if _is_between_modules(frame) else context.module))
    task.final = context
    if task.ends_unseen:
        waits_in = _GENERATOR
    has_deadline = context.until != math.inf
    return TaskReport(
        number=task.number,
        parent=None if parent is None else parent.number,
        name=task.name,
        state=task.state,
        session_id=None if context.coordinator is None else context.coordinator.session_id,
        module=context.module,
        doing=context.doing,
        seconds_left=round(context.until - now, 3) if has_deadline else None,
        deadline=context.deadline if has_deadline else None,
        awaits=awaits,
        waits_in=waits_in,
    )


def _inherited(parent: _SeenTask | None) -> _Context:
    """Return the context of a task before its first frame.

    A task that was started inside a session of its parent belongs to the session.
    """
    if parent is None or parent.session is None:
        return _Context()
    return parent.final if parent.final.coordinator is parent.session else _Context(parent.session)


def _owners_of(coordinator: ModuleCoordinator) -> dict[int, str]:
    """Return the modules that mounted the objects of a session, by the ids of the objects."""
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


def _is_created(coroutine: object) -> bool:
    if not inspect.iscoroutine(coroutine):
        return False
    return inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED


def _call_of(frame: FrameType) -> WaitInfo | None:
    """Return the call of the kernel's object that a frame belongs to, or None."""
    describe = getattr(frame.f_locals.get("self"), "wait_info", None) if is_kernel(frame) else None
    return None if describe is None else describe()


def _stack_down_from(outermost: FrameType, innermost: FrameType) -> Iterator[FrameType]:
    """Yield the frames of this thread between two frames, outermost first.

    Nothing is yielded if the outermost frame is not on the stack.
    """
    stack: list[FrameType] = []
    current: FrameType | None = innermost
    while current is not None:
        stack.append(current)
        if current is outermost:
            yield from reversed(stack)
            return
        current = current.f_back


def _module_of(frame: FrameType, owners: dict[int, str]) -> str | None:
    """Return the module of a frame, by the object of the method or by its package."""
    names = frame.f_code.co_varnames
    if owners and names[:1] == ("self",):
        owner = owners.get(id(frame.f_locals.get("self")))
        if owner is not None:
            return owner
    package = str(frame.f_globals.get("__name__", ""))
    match = _BUILT_IN.match(package) or _PUBLISHED.match(package)
    return None if match is None else "-".join(match.groups()).replace("_", "-")


def _is_between_modules(frame: FrameType) -> bool:
    """Return whether a frame belongs to this project, but not to one of its modules."""
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
    """Describe the function of the event loop that user code called."""
    package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    return f"{package} {frame.f_code.co_qualname}"


# ── threads ──


def _threads(own: FrameType | None) -> Iterator[ThreadReport]:
    """Yield all other threads, and this one if ``own``, its frame, is passed."""
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
    relevant = [frame for frame in stack if _top_package(frame) not in _THREAD_MACHINERY]
    return [_code_line(frame, _module_of(frame, {})) for frame in relevant or stack[-1:]]


def _top_package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


# ── on a signal ──
# The handler is Python's own, not one of the event loop, so that it runs even while a task blocks
# the loop, and shows the blocking line. Only code that never returns to the interpreter, such as a
# C library that waits indefinitely, keeps it from running.


@contextmanager
def tasks_on_signal(
    which: signal.Signals | None = None, show: Callable[[TaskTree], Any] | None = None
) -> Iterator[None]:
    """Show the task tree on a signal inside the block, in the main thread only.

    Args:
        which: The signal. The default is SIGUSR1.
        show: Function that shows the tree. It runs inside the signal handler, so it must not wait.
            The default writes to standard error.
    """
    chosen = signal.SIGUSR1 if which is None else which

    def answer(_number: int, frame: FrameType | None) -> None:
        try:
            (show or _write)(task_tree(frame))
        # An exception from here would be raised in the code that the signal interrupted.
        except Exception:
            logger.exception("the task tree could not be shown")

    before = signal.signal(chosen, answer)
    try:
        yield
    finally:
        signal.signal(chosen, signal.SIG_DFL if before is None else before)


def _write(tree: TaskTree) -> None:
    # Don't use sys.stderr, because the signal may have interrupted a write to it.
    data = f"{tree}\n".encode(errors="backslashreplace")
    while data:
        data = data[os.write(_STANDARD_ERROR, data) :]
