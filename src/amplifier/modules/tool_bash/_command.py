"""Runs one command: starts it, reads its output, and ends every process it started. Blocking; runs in a worker thread.

The thread alone owns the processes. Whatever happens to the task that waits for it, it continues until they are gone, so no
kind of cancellation can leave them behind.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import signal
import time
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from .._shared.process_tree import ProcessTree
from .._shared.started_process import StartedProcess, start
from .._tool_base import Stop, ToolFailure
from ._capture import Capture
from ._output_reader import OutputReader

logger = logging.getLogger("amplifier.modules.tools")

_LINGER = 0.25
"""Seconds in which what the shell left running may finish its output: bash does not wait for ``>(tee log)``."""
_LAST_OUTPUT = 0.05
"""Seconds for a process that has closed its output to be gone; what is on its way out was not left running."""
_KILLING = 2.0
"""Seconds after which a process that does not even die of SIGKILL is given up and named in the log."""
_MOST_GRACE_WHEN_CANCELLED = 0.3
"""A cancelled call has to end within one second, killing included."""
_LOOK, _SHORT_LOOK = 0.02, 0.002
_COUNTING = 0.25
"""Seconds between two counts of its processes."""


@attrs.frozen(kw_only=True)
class Outcome:
    """How a command ended.

    Attributes:
        returncode: Its exit code, negative for a signal; None if its time was up.
        left_running: Processes that were still there when the shell had ended, and were ended.
    """

    returncode: int | None
    stdout: Capture
    stderr: Capture
    left_running: int = 0


class Command:
    """A command to be run once.

    Args:
        arguments: The shell and its arguments.
        directory: Where it runs.
        environment: All it gets to see.
        mark: In the environment, unique to this command.
        confinement: What the supervisor applies to it; None for no supervisor.
        max_processes: More than these at a time end it; None for no limit.
        max_bytes: Kept of each of its two streams.
        grace: Seconds between asking its processes to end and killing them.
        stop: Ends it early.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        directory: str,
        environment: Mapping[str, str],
        mark: str,
        confinement: Mapping[str, Any] | None,
        max_processes: int | None,
        max_bytes: int,
        grace: float,
        stop: Stop,
    ) -> None:
        self._arguments = arguments
        self._directory = directory
        self._environment = environment
        self._mark = mark
        self._confinement = confinement
        self._max_processes = max_processes
        self._grace = grace
        self._stop = stop
        self._captures = (Capture(max_bytes), Capture(max_bytes))

    def run(self, seconds: float) -> Outcome:
        """Run it to its end, but at most so long.

        Raises:
            Stopped: It was ended because a stop was requested.
            ToolFailure: It could not be started.
        """
        self._stop.check()
        shell = self._started()
        tree = ProcessTree(shell.process, self._mark, group=shell.group)
        in_time, left, too_many = False, 0, False
        most = self._max_processes

        next_count = time.monotonic() + _COUNTING

        def is_over() -> bool:
            nonlocal too_many, next_count
            if (
                most is not None and time.monotonic() >= next_count
            ):  # not at every piece of output: it takes milliseconds
                next_count = time.monotonic() + _COUNTING
                too_many = len(tree.members()) > most
            return too_many or shell.has_ended()

        try:
            with contextlib.closing(OutputReader(shell.process, shell.end, self._captures, self._stop)) as reader:
                reader.read_until(seconds, is_over, look=None if most is None else _COUNTING)
                if too_many:  # at once: every moment it starts more
                    raise ToolFailure(
                        "TooManyProcesses", f"more than {most} processes at a time; all of them were ended"
                    )
                in_time = shell.has_ended()
                if in_time:
                    reader.read_until(_LINGER, lambda: reader.is_at_end)
                    reader.read_until(_LAST_OUTPUT, lambda: not tree.members(), look=_SHORT_LOOK)
                left = self._end(tree, reader)
        finally:
            self._kill(tree, shell)
        self._stop.check()
        return Outcome(
            returncode=shell.returncode if in_time else None,
            stdout=self._captures[0],
            stderr=self._captures[1],
            left_running=left if in_time else 0,
        )

    def _started(self) -> StartedProcess:
        try:
            return start(
                self._arguments,
                directory=self._directory,
                environment=self._environment,
                confinement=self._confinement,
            )
        except OSError as error:
            if error.errno == errno.E2BIG:
                raise ToolFailure(
                    "TooLarge", "the command is longer than the system accepts; put it in a file"
                ) from None
            if error.filename == self._directory:
                raise ToolFailure("NotFound", f"{error.filename}: the working directory cannot be entered") from None
            raise
        except UnicodeEncodeError as error:
            raise ToolFailure("InvalidInput", f"command: lone surrogate at character {error.start}") from None

    def _end(self, tree: ProcessTree, reader: OutputReader) -> int:
        """Send SIGTERM to all processes and read their output meanwhile; return how many there were."""
        found = len(tree.send(signal.SIGTERM))
        if found:
            grace = min(self._grace, _MOST_GRACE_WHEN_CANCELLED) if self._stop.requested else self._grace
            reader.read_until(grace, lambda: not tree.members(), look=_LOOK, obey_stop=False)
            # Their last output may not be read yet.
            reader.read_until(_LAST_OUTPUT, lambda: reader.is_at_end, obey_stop=False)
        return found

    def _kill(self, tree: ProcessTree, shell: StartedProcess) -> None:
        """Kill what is left, and wait until it is gone."""
        give_up = time.monotonic() + _KILLING
        while left := tree.send(signal.SIGKILL):
            if time.monotonic() > give_up:
                logger.warning("tool bash: processes %s do not end although they were killed", left[:20])
                break
            time.sleep(_SHORT_LOOK)
        shell.close()
