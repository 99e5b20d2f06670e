"""A signal that makes a process print what its tasks are doing, also one that seems to hang.

The handler is Python's own, not one of the event loop: it runs even while a task blocks the loop, and then shows the blocking line.
Only code that never returns to the interpreter, such as a call into a C library that waits for ever, keeps it from running.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from ._task_tree import TaskTree
from ._tasks import task_tree

logger = logging.getLogger("amplifier.observability")

_STANDARD_ERROR = 2


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
        except Exception:  # raised from here, it would come out of whatever code the signal interrupted
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
