"""Every task of a process as one tree: plain data with a stable JSON form, and its text.

`amplifier.models.to_json` and `from_json` write and read it. The text has one paragraph for each task, indented below the task that
started it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from attrs import Factory, frozen

from amplifier._json import visible_text

FORMAT = 1
"""Of the JSON form; a change that readers would notice gets another number."""

_INDENT = "  "
_VERBS = {"waiting": "waits", "running": "is running", "not started": "has not started"}


TaskState = Literal["waiting", "running", "not started"]


@frozen(kw_only=True)
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


@frozen(kw_only=True)
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
        waits_in: The function of the event loop that it sits in, such as ``sleep_forever``; None when it waits in none.
        waits_for: The number of the task in which its work goes on; on asyncio a turn has a task of its own.
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
    awaits: list[CodeLine] = Factory(list)
    waits_in: str | None = None
    waits_for: int | None = None

    @property
    def at(self) -> CodeLine | None:
        """The line in which it sits."""
        return self.awaits[-1] if self.awaits else None


@frozen(kw_only=True)
class ThreadReport:
    """One thread besides that of the event loop.

    Attributes:
        stack: Its calls, outermost first, without those of the machinery that runs it.
    """

    name: str
    stack: list[CodeLine] = Factory(list)


@frozen(kw_only=True)
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
    tasks: list[TaskReport] = Factory(list)
    threads: list[ThreadReport] = Factory(list)

    def __str__(self) -> str:
        sessions = {task.session_id for task in self.tasks if task.session_id is not None}
        backend = self.backend or "no event loop"
        counted = f"{_counted(len(self.tasks), 'task')}, {_counted(len(sessions), 'session')}"
        lines = [f"tasks of process {self.pid} at {self.taken_at}: {counted}, {backend}"]
        depths: dict[int, int] = {}
        names = {task.number: task.name for task in self.tasks}
        for task in self.tasks:
            depth = depths[task.number] = 0 if task.parent is None else depths[task.parent] + 1
            lines += [f"{_INDENT * depth}{line}" for line in _task_lines(task, names)]
        for thread in self.threads:
            lines += _thread_lines(thread)
        return visible_text("\n".join(lines))


def _task_lines(task: TaskReport, names: dict[int, str]) -> Iterator[str]:
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
    if task.waits_for is not None:
        within = f", for the task {names.get(task.waits_for, task.waits_for)}"
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
