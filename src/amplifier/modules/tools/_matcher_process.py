"""The process in which tool-search runs a pattern. It is a script and is never imported."""

from __future__ import annotations

import json
import re
import struct
import sys
from typing import Any, BinaryIO

# The script imports only the standard library and runs without ``site``, so that it starts within a
# few hundredths of a second. It reads one JSON line (pattern, ignore_case, max_line, cpu_seconds,
# max_memory) and writes ``{}`` or ``{"error": …}``. Then it reads files: four bytes of length, four
# bytes with the maximum number of lines, and the content. For each file it writes one JSON line:
# the numbers of the matching lines, counted from 0, whether there are more, and the number of lines
# that were searched only in part.


def restrict(job: dict[str, Any]) -> None:
    """Set limits at which the system ends this process.

    If the parent is killed while a pattern backtracks, nothing else would end this process.
    """
    try:
        import resource  # noqa: PLC0415 — not on every system
    except ImportError:
        return
    for limit, value in (
        (resource.RLIMIT_CPU, job["cpu_seconds"]),
        (resource.RLIMIT_AS, job["max_memory"]),
    ):
        try:
            resource.setrlimit(limit, (value, value))
        except (ValueError, OSError):
            # A lower limit is already set.
            continue


def find(pattern: re.Pattern[str], data: bytes, limit: int, max_line: int) -> dict[str, Any]:
    """Return the lines that match."""
    numbers: list[int] = []
    too_long = 0
    for number, line in enumerate(data.removesuffix(b"\n").split(b"\n") if data else ()):
        if len(line) > max_line:
            too_long += 1
        if pattern.search(line[:max_line].decode("utf-8", "replace").rstrip("\r")):
            if len(numbers) == limit:
                return {"lines": numbers, "more": True, "too_long": too_long}
            numbers.append(number)
    return {"lines": numbers, "more": False, "too_long": too_long}


def main(requests: BinaryIO, replies: BinaryIO) -> None:
    """Reply to requests until there are no more."""

    def reply(value: dict[str, Any]) -> None:
        replies.write(json.dumps(value).encode() + b"\n")
        replies.flush()

    job = json.loads(requests.readline())
    restrict(job)
    try:
        pattern = re.compile(job["pattern"], re.IGNORECASE if job["ignore_case"] else 0)
    except (re.error, OverflowError, RecursionError, MemoryError, ValueError) as error:
        reply({"error": str(error) or type(error).__name__})
        return
    reply({})
    while header := requests.read(8):
        size, limit = struct.unpack("!II", header)
        reply(find(pattern, requests.read(size), limit, job["max_line"]))


if __name__ == "__main__":
    main(sys.stdin.buffer, sys.stdout.buffer)
