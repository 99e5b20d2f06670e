"""The process that runs patterns; started by `search` as a script, and never imported.

Only the standard library, and without ``site``, so that it starts in a few hundredths of a second.

It reads one JSON line (pattern, ignore_case, max_line, cpu_seconds, max_memory) and answers ``{}`` or ``{"error": …}``.
Then for each file it reads four bytes of length, four bytes of how many lines are wanted, and the content, and answers
one JSON line: numbers of matching lines from 0, whether there are more, and how many lines were too long to see whole.
"""

from __future__ import annotations

import json
import re
import struct
import sys
from typing import Any, BinaryIO


def restrict(job: dict[str, Any]) -> None:
    """Let the system end this process if nothing else can: the parent may be killed while a pattern backtracks."""
    try:
        import resource  # noqa: PLC0415 - not on every system
    except ImportError:
        return
    for limit, value in (
        (resource.RLIMIT_CPU, job["cpu_seconds"]),
        (resource.RLIMIT_AS, job["max_memory"]),
    ):
        try:
            resource.setrlimit(limit, (value, value))
        except (ValueError, OSError):  # a lower limit is set already
            continue


def find(pattern: re.Pattern[str], data: bytes, most: int, max_line: int) -> dict[str, Any]:
    """Which lines match."""
    numbers: list[int] = []
    too_long = 0
    for number, line in enumerate(data.removesuffix(b"\n").split(b"\n") if data else ()):
        if len(line) > max_line:
            too_long += 1
        if pattern.search(line[:max_line].decode("utf-8", "replace").rstrip("\r")):
            if len(numbers) == most:
                return {"lines": numbers, "more": True, "too_long": too_long}
            numbers.append(number)
    return {"lines": numbers, "more": False, "too_long": too_long}


def main(requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer until there are no more requests."""

    def answer(value: dict[str, Any]) -> None:
        answers.write(json.dumps(value).encode() + b"\n")
        answers.flush()

    job = json.loads(requests.readline())
    restrict(job)
    try:
        pattern = re.compile(job["pattern"], re.IGNORECASE if job["ignore_case"] else 0)
    except (re.error, OverflowError, RecursionError, MemoryError, ValueError) as error:
        answer({"error": str(error) or type(error).__name__})
        return
    answer({})
    while header := requests.read(8):
        size, most = struct.unpack("!II", header)
        answer(find(pattern, requests.read(size), most, job["max_line"]))


if __name__ == "__main__":
    main(sys.stdin.buffer, sys.stdout.buffer)
