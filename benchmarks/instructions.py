"""How many instructions the hot paths take, against a record: a guard that a busy machine cannot disturb.

    python -m benchmarks.instructions            counts, compared with the record
    python -m benchmarks.instructions --record   counts, which become the record of this Python
    python -m benchmarks.instructions --bytecodes --record   the same without callgrind

Two counts. *Bytecodes* are those of Python's own virtual machine, counted with its tracing; always to be had, the same
every time, blind to what happens inside of C. *Callgrind* counts the processor's instructions under valgrind, where that is
installed and this kind of processor has a record; they see everything, take half a minute, and are kept as multiples of a
yardstick (see `hot_paths`). Each Python has a record of its own, because each compiles to other bytecodes.
"""

from __future__ import annotations

import gc
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import FrameType
from typing import Any, Final

import amplifier
from benchmarks.hot_paths import HOT_PATHS, YARDSTICK, run

RECORD: Final = Path(__file__).with_name("instructions.json")
BACKENDS: Final = ("asyncio", "trio")
WARM_UP, TIMES = 20, 10
CALLGRIND: Final = f"callgrind on {platform.machine()}"

OWN_TOLERANCE: Final = 0.03
"""Bytecodes in our own files: nothing but a change of ours moves them."""
TOLERANCE: Final = 0.10
"""All bytecodes, and callgrind's multiples: other releases of AnyIO and trio, or other builds of Python, move these a little."""
UNRECORDED_TOLERANCE: Final = 0.5
"""For a Python without a record of its own, against the newest one that has."""

_HERE: Final = f"{sys.version_info.major}.{sys.version_info.minor}"
_OWN_FOLDER: Final = str(Path(amplifier.__file__).parent)


# ── bytecodes ──


class _Counter:
    """Counts bytecodes while it is the trace function."""

    def __init__(self) -> None:
        self.own = self.all = 0
        self._is_own: dict[str, bool] = {}

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        frame.f_trace_lines = False
        frame.f_trace_opcodes = True
        name = frame.f_code.co_filename
        if name not in self._is_own:
            # attrs writes methods into files that do not exist, named after our classes.
            self._is_own[name] = name.startswith(_OWN_FOLDER) or (name.startswith("<") and "amplifier." in name)
        return self._count_own if self._is_own[name] else self._count

    def _count_own(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "opcode":
            self.own += 1
            self.all += 1
        return self._count_own

    def _count(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "opcode":
            self.all += 1
        return self._count


def count_bytecodes(backend: str) -> dict[str, dict[str, int]]:
    """By hot path: bytecodes of ours, and all, for one time."""
    counts: dict[str, dict[str, int]] = {}
    for name, prepare in HOT_PATHS.items():

        async def main(prepare: Any = prepare) -> _Counter:
            async with prepare() as work:
                await _repeat(work, WARM_UP)
                gc.disable()  # finalisers would run wherever the collector happens to
                counter = _Counter()
                before = sys.gettrace()
                sys.settrace(counter)
                try:
                    await _repeat(work, TIMES)
                finally:
                    sys.settrace(before)
                    gc.enable()
            return counter

        counter = run(main, backend)
        if name != YARDSTICK:
            counts[name] = {"own": round(counter.own / TIMES), "all": round(counter.all / TIMES)}
    return counts


async def _repeat(work: Callable[[], Awaitable[Any]], times: int) -> None:
    for _ in range(times):
        await work()


# ── callgrind ──


WATCHED: Final = (YARDSTICK, "emit, 0 handlers", "emit, 1 handler", "emit, 10 handlers", "turn")


def has_callgrind() -> bool:
    return shutil.which("valgrind") is not None


def count_with_callgrind() -> dict[str, float]:
    """By hot path: machine instructions for one time on asyncio, as a multiple of the yardstick's.

    One run for all: `getppid`, which nothing else calls, marks where one hot path ends and the next begins, and callgrind
    writes its counters and clears them there.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = ["valgrind", "--tool=callgrind", "--dump-before=getppid", f"--callgrind-out-file={folder}/out"]
        subprocess.run(
            [*command, sys.executable, "-m", "benchmarks.instructions", "--marked"],
            check=True,
            capture_output=True,
            env={**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
        totals = [_total(Path(folder, f"out.{number}")) for number in range(1, 2 * len(WATCHED) + 1)]
    # Dumps alternate: what led to a hot path, the hot path itself.
    taken = dict(zip(WATCHED, totals[1::2], strict=True))
    return {name: round(count / taken[YARDSTICK], 4) for name, count in taken.items() if name != YARDSTICK}


def _total(path: Path) -> int:
    match = re.search(r"^(?:totals|summary): (\d+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    if match is None:
        raise ValueError(f"{path.name} has no total; expected a file of callgrind")
    return int(match[1])


def run_marked() -> None:
    """What callgrind watches: hot paths, warm, between two marks."""
    for name in WATCHED:

        async def main(prepare: Any = HOT_PATHS[name]) -> None:
            async with prepare() as work:
                await _repeat(work, WARM_UP)
                gc.collect()
                gc.disable()
                os.getppid()
                await _repeat(work, TIMES)
                os.getppid()
                gc.enable()

        run(main, "asyncio")


# ── the record ──


def read_record() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
    return content


def complaints(counts: dict[str, Any], record: dict[str, Any], version: str = _HERE) -> list[str]:
    """What grew beyond its tolerance, one sentence each.

    Args:
        counts: As `count_all` gives them.
        record: By version of Python, what `count_all` gave when it was recorded.
        version: Whose part of the record holds.
    """
    known = record.get(version)
    is_unrecorded = known is None
    if known is None:
        known = record[max(record, key=lambda name: [int(part) for part in name.split(".")])]
    found = []
    for kind, backends in counts.items():
        for backend, paths in backends.items():
            for path, count in paths.items():
                figures = count if isinstance(count, dict) else {"multiple": count}
                before = known.get(kind, {}).get(backend, {}).get(path, {})
                recorded = before if isinstance(before, dict) else {"multiple": before}
                for figure, value in figures.items():
                    tolerance = OWN_TOLERANCE if figure == "own" else TOLERANCE
                    tolerance = UNRECORDED_TOLERANCE if is_unrecorded else tolerance
                    limit = recorded.get(figure, float("inf")) * (1 + tolerance)
                    if value > limit:
                        found.append(
                            f"{path} on {backend}, {kind} ({figure}): {value:,} instead of {recorded[figure]:,}, "
                            f"{value / recorded[figure] - 1:+.1%}; allowed {tolerance:+.0%}"
                        )
    return found


def count_all(*, callgrind: bool) -> dict[str, Any]:
    """Every count that can be had here."""
    counts: dict[str, Any] = {"bytecodes": {backend: count_bytecodes(backend) for backend in BACKENDS}}
    if callgrind:
        counts[CALLGRIND] = {"asyncio": count_with_callgrind()}
    return counts


def main(arguments: list[str]) -> int:
    if "--marked" in arguments:
        run_marked()
        return 0
    record, is_recording = read_record(), "--record" in arguments
    wanted = "--bytecodes" not in arguments and (is_recording or CALLGRIND in record.get(_HERE, {}))
    counts = count_all(callgrind=wanted and has_callgrind())
    if "--json" in arguments:
        print(json.dumps(counts))
        return 0
    for kind, backends in counts.items():
        for backend, paths in backends.items():
            for path, count in paths.items():
                before = record.get(_HERE, {}).get(kind, {}).get(backend, {}).get(path, "nothing")
                print(f"{kind:<22} {backend:<8} {path:<20} {count!s:<32} recorded: {before}")
    if is_recording:
        record[_HERE] = {**record.get(_HERE, {}), **counts}
        RECORD.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        return 0
    grown = complaints(counts, record)
    print(*grown, sep="\n")
    return 1 if grown else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
