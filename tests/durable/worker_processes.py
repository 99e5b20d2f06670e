"""Real worker processes to be killed; forked from one that has imported everything, because starting an interpreter takes a second."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from amplifier.cli.commands.turns import work_until_signal
from tests._support.tree import ROOT
from tests.durable.agents import asking_agent, effect_agent, open_engine, parent_agent, quick_agent
from tests.durable.halting_agents import (
    blocking_agent,
    halting_agent,
    paying_agent,
    poisonous_agent,
)

FORKING = """
import os, signal, sys
import anyio, trio
import anyio._backends._trio, anyio._backends._asyncio
from amplifier.modules.loop import basic as loop_basic
from amplifier.modules.context import simple as context_simple
from tests.durable.worker_processes import work

signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # what has ended does not have to be waited for
while line := sys.stdin.readline():
    backend, *what = line.rstrip("\\n").split("\\t")
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        try:
            anyio.run(work, *what, backend=backend)
        except BaseException as error:
            os.write(2, f"worker failed: {error!r}\\n".encode())
        finally:
            os._exit(1)
    os.write(1, b"%d\\n" % child)
"""


LEASE = 2.0
"""Seconds until a killed worker is noticed; a living one that is slower than that on a busy machine is taken for dead, which has to do no harm."""


AGENTS = {
    "effects": effect_agent,
    "children": parent_agent,
    "quick": quick_agent,
    "asks": asking_agent,
    "halts": halting_agent,
    "blocks": blocking_agent,
    "kills": poisonous_agent,
    "pays": paying_agent,
}


async def work(kind: str, place: str, folder: str, agent: str, options: str) -> None:
    """What each process runs. Its clock is ahead by what the file ``seconds later`` says, as after a suspension."""
    clock, later = time.monotonic, Path(folder, "seconds later")
    time.monotonic = lambda: clock() + (float(later.read_text() or 0) if later.exists() else 0.0)
    async with open_engine(
        kind, place, **{"lease": LEASE, "patience": 120.0, **json.loads(options)}
    ) as engine:
        await work_until_signal(engine, AGENTS[agent](Path(folder)), concurrency=4, drain=60.0)


class WorkerProcesses:
    """Starts, suspends and kills workers."""

    def __init__(self, server: subprocess.Popen[str], *request: str) -> None:
        self._server = server
        self._request = "\t".join(request) + "\n"
        self._is_alone = request[1] == "sqlite"
        self._folder = Path(request[2])
        self.living: list[int] = []
        self.leaving: list[int] = []

    def start(self) -> int:
        """Start one more; returns its id."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(self._request)
        self._server.stdin.flush()
        self.living.append(int(self._server.stdout.readline()))
        return self.living[-1]

    def kill(self, process: int) -> None:
        """Kill one, with no chance to do anything."""
        self.living.remove(process)
        os.kill(process, signal.SIGKILL)
        self.wait_until_gone(process)

    def drain(self, process: int) -> None:
        """Ask one to end (SIGTERM): it lets running calls end and hands its turns over."""
        self.living.remove(process)
        self.leaving.append(process)
        os.kill(process, signal.SIGTERM)
        if self._is_alone:
            self.wait_until_gone(process)

    @staticmethod
    def wait_until_gone(process: int) -> None:
        """Wait until one has ended. A file has one worker, and the next one is refused before."""
        until = time.monotonic() + 100
        while Path(f"/proc/{process}").exists() and time.monotonic() < until:
            time.sleep(0.005)

    @staticmethod
    def is_there(process: int) -> bool:
        """Return whether a process has not ended by itself."""
        return Path(f"/proc/{process}").exists()

    def suspend(self, process: int) -> None:
        """Suspend one, as a closed lid does; returns when it has stopped.

        A file stays locked by a process that is suspended in a write, which DBOS makes with each look
        at its queue. Such a process is woken and suspended again, because nothing can be done about it.
        """
        while True:
            os.kill(process, signal.SIGSTOP)
            while Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "T":
                time.sleep(0.001)
            if not self._is_alone or _is_writable(self._folder / "turns.db"):
                return
            self.wake(process)
            time.sleep(0.001)

    @staticmethod
    def wake(process: int) -> None:
        """Let a suspended one go on."""
        os.kill(process, signal.SIGCONT)


def _is_writable(file: Path) -> bool:
    """Return whether no process holds the lock of a file of SQLite for a write."""
    with closing(sqlite3.connect(file, timeout=0.0, isolation_level=None)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
        except sqlite3.OperationalError:
            return False
    return True


@contextmanager
def worker_processes(
    kind: str, backend: str, place: str, folder: Path, agent: str = "effects", **options: Any
) -> Iterator[WorkerProcesses]:
    """Workers of one engine with one of `AGENTS`, none at the beginning; those that live at the end are killed.

    ``options`` are those of the engine.
    """
    with subprocess.Popen(
        [sys.executable, "-c", FORKING],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdin is not None
        workers = WorkerProcesses(
            server, backend, kind, place, str(folder), agent, json.dumps(options)
        )
        try:
            yield workers
        finally:
            for process in workers.living + workers.leaving:
                with suppress(
                    ProcessLookupError
                ):  # it gave up by itself, and wrote why, or has left
                    os.kill(process, signal.SIGKILL)
            server.kill()  # it only forks
