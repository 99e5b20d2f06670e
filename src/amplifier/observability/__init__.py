"""What is going on: every task of a process that seems to hang, with its session, its module and the await it sits in."""

from ._on_signal import tasks_on_signal
from ._report import CodeLine, TaskReport, ThreadReport
from ._task_tree import TaskTree
from ._tasks import task_tree

__all__ = ["CodeLine", "TaskReport", "TaskTree", "ThreadReport", "task_tree", "tasks_on_signal"]
