"""What a report of a process's tasks consists of: plain data with a stable JSON form.

`amplifier.models.to_json` and `from_json` write and read it.
"""

from __future__ import annotations

from typing import Literal

from attrs import Factory, frozen

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
