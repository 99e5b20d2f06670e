"""A side of a duel in a process of its own, asked over pipes: strictly in turn, and without each other's imports.

    python -m benchmarks.worker benchmarks.rivals.langgraph:react

The function named is awaited once for every sample and gives the work. Each line of input is a count, each line of output
the sample it took, as JSON.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import subprocess
import sys
from types import TracebackType
from typing import Any, Self

from benchmarks.duel import Sample, tidy, timed_await

READY = "benchmark worker is ready"


class Worker:
    """Starts the process and is called as a `Side`; use it as a context manager."""

    def __init__(self, work: str) -> None:
        self.work = work

    def __enter__(self) -> Self:
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        }
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "benchmarks.worker", self.work],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip
        self._read(READY)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=30)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def __call__(self, count: int) -> Sample:
        assert self._process.stdin is not None
        print(count, file=self._process.stdin, flush=True)
        return Sample(**json.loads(self._read("{")))

    def _read(self, start: str) -> str:
        """The next line that is ours; libraries may print, too."""
        assert self._process.stdout is not None
        while line := self._process.stdout.readline():
            if line.startswith(start):
                return line
        raise RuntimeError(f"{self.work} ended without an answer, exit code {self._process.wait()}")


def main() -> None:
    name, attribute, *arguments = sys.argv[1].split(":")
    prepare: Any = getattr(importlib.import_module(name), attribute)

    async def sample(count: int) -> Sample:
        return await timed_await(await prepare(*map(int, arguments)), count)

    print(READY, flush=True)
    for line in sys.stdin:
        tidy()
        taken = asyncio.run(sample(int(line)))
        print(json.dumps({"cpu": taken.cpu, "wall": taken.wall}), flush=True)


if __name__ == "__main__":
    main()
