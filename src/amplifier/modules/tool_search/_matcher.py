"""Runs a regular expression in a process of its own.

Python's ``re`` can take for ever on a line of twenty letters, and holds the interpreter's lock meanwhile: in a thread
it would block the event loop. A process can be killed. It sees content only; files are opened on this side.
"""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path
from typing import Any

import attrs

from .._tool_base import Stop, ToolFailure, shown
from ._child_process import Child

_SCRIPT = Path(__file__).with_name("_matcher_process.py")
_MEMORY = 2 << 30


@attrs.frozen
class Hits:
    """What was found in one file.

    Attributes:
        lines: Numbers of matching lines, from 0.
        more: Whether there are more than were asked for.
        too_long: Lines of which only the beginning was looked at.
    """

    lines: tuple[int, ...]
    more: bool
    too_long: int


class Matcher:
    """A pattern, ready to be used on one file after another.

    Args:
        pattern: A regular expression of Python's.
        ignore_case: Whether case matters not.
        max_line: Bytes of a line that are looked at.
        seconds: Processor time after which the system ends the process.
        stop: Ends it earlier.

    Raises:
        ToolFailure: The pattern is wrong.
    """

    def __init__(self, pattern: str, *, ignore_case: bool, max_line: int, seconds: float, stop: Stop) -> None:
        self._stop = stop
        self._child = Child([sys.executable, "-I", "-S", "-X", "utf8", str(_SCRIPT)], stop)
        job = {
            "pattern": pattern,
            "ignore_case": ignore_case,
            "max_line": max_line,
            "cpu_seconds": int(seconds) + 5,
            "max_memory": _MEMORY,
        }
        try:
            answer = self._ask(json.dumps(job).encode() + b"\n")
            if "error" in answer:
                raise ToolFailure("InvalidPattern", f"{shown(ascii(pattern))}: {shown(answer['error'])}")
        except BaseException:
            self.close()
            raise

    def find(self, data: bytes, most: int) -> Hits:
        """Find matching lines, at most so many.

        Raises:
            ToolFailure: The process ended, most likely for lack of memory.
            Stopped: The call was cancelled.
        """
        answer = self._ask(struct.pack("!II", len(data), most) + data)
        return Hits(tuple(answer["lines"]), answer["more"], answer["too_long"])

    def close(self) -> None:
        """End the process."""
        self._child.close()

    def _ask(self, request: bytes) -> dict[str, Any]:
        self._stop.check()
        try:
            self._child.stdin.write(request)
            self._child.stdin.flush()
            answer = self._child.stdout.readline()
        except OSError:  # a broken pipe: it has ended
            answer = b""
        self._stop.check()
        if not answer:
            raise ToolFailure("PatternTooCostly", "the pattern needed more memory or time than it may have")
        parsed: dict[str, Any] = json.loads(answer)
        return parsed
