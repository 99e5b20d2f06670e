"""Many clients at once on `amplifier serve`, a tenth of which leaves early: how fast it is, and what it still has afterwards.

    python -m tests.servers.http._load            200 clients for a minute on each backend, as a table
    python -m tests.servers.http._load CLIENTS SECONDS   the same with other numbers

The server is the command, as a process; the clients are another process. The model is scripted: an answer has 20 pieces, one every
tenth of a second, so that two seconds of every turn are the model's.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from amplifier.cli.commands.doctor import find_running
from amplifier.tracing.running_commands import request_tasks
from tests._support.tree import ROOT
from tests.cli._scripted_agent import write_plan
from tests.servers.http._server import PATIENCE, Server, ask, running

BACKENDS = {"asyncio": "asyncio, uvicorn", "trio": "trio, hypercorn"}


def tasks_of(server: Server) -> int:
    """The tasks of the server's event loop."""
    folder = server.home / "running"
    return len(request_tasks(folder, find_running(folder, str(server.process.pid))).tasks)


def settled_tasks_of(server: Server) -> int:
    """The same once the tasks of closed connections have ended: when twenty looks in a row find no fewer."""
    fewest, looks = tasks_of(server), 0
    while looks < 20:
        found, looks = tasks_of(server), looks + 1
        if found < fewest:
            fewest, looks = found, 0
    return fewest


def connections_of(server: Server) -> int:
    """The connections that the server has not closed, also those that their client has closed."""
    process = Path("/proc") / str(server.process.pid)
    lines = [line.split() for line in process.joinpath("net", "tcp").read_text().splitlines()[1:]]
    port, listens = f":{server.port:04X}", "0A"
    inodes = {line[9] for line in lines if line[1].endswith(port) and line[3] != listens}
    links = []
    for link in process.joinpath("fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            links.append(link.readlink().name)
    return sum(name.removeprefix("socket:[").removesuffix("]") in inodes for name in links)


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for something that happens in the server, for a bounded time."""
    give_up = time.monotonic() + PATIENCE
    while not condition() and time.monotonic() < give_up:
        time.sleep(0.1)


def megabytes(server: Server) -> float:
    """The memory of the server that is in use."""
    status = Path("/proc").joinpath(str(server.process.pid), "status").read_text()
    resident = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    return int(resident.split()[1]) / 1024


def run_clients(server: Server, clients: int, seconds: float) -> Any:
    given = {
        "address": server.address,
        "headers": server.headers,
        "clients": clients,
        "seconds": seconds,
    }
    finished = subprocess.run(
        [sys.executable, "-m", "tests.servers.http._load_clients"],
        input=json.dumps({**given, "prompt": "pace 0.1 20"}),
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        timeout=seconds + 10 * PATIENCE,
        check=True,
    )
    return json.loads(finished.stdout)


def measure(backend: str, clients: int, seconds: float) -> dict[str, Any]:
    """Run the clients against a server; ``left_behind`` is what the server has afterwards and did not have before."""
    with tempfile.TemporaryDirectory(prefix="load-") as name:
        folder = Path(name)
        (folder / "work").mkdir()
        # Twice as many: the turn of a client that left may still be unwinding when its next one comes.
        limits = ["--max-turns", str(2 * clients), "--max-sessions", str(clients)]
        with running(
            backend, write_plan(folder), folder / "home", folder / "work", *limits
        ) as server:
            run_clients(server, 10, 0.1)  # imports everything
            wait_until(lambda: connections_of(server) == 0)
            before, memory = settled_tasks_of(server), megabytes(server)
            found = run_clients(server, clients, seconds)
            wait_until(lambda: connections_of(server) == 0 and tasks_of(server) <= before)
            left_behind = {
                "tasks": max(0, tasks_of(server) - before),
                "connections": connections_of(server),
            }
            left_behind["sessions"] = len(ask(server, "GET", "/api/sessions")[1]["sessions"])
            return {**found, "left_behind": left_behind, "memory": [memory, megabytes(server)]}


def table(clients: int, seconds: float) -> Iterator[str]:
    """The results of both backends as the lines of a table in Markdown."""
    yield "| | turns | turns/s | left early | first piece: median, p95, p99 | whole answer: median, p95, p99 | memory before, after |"
    yield "|---|---|---|---|---|---|---|"
    for backend, name in BACKENDS.items():
        found = measure(backend, clients, seconds)
        if found["failures"] or any(found["left_behind"].values()):
            raise SystemExit(
                f"{name}: failures {found['failures']}, left behind {found['left_behind']}"
            )
        times = [
            ", ".join(f"{found[each][key]:.2f} s" for key in ("median", "p95", "p99"))
            for each in ("first", "whole")
        ]
        memory = ", ".join(f"{each:.0f} MB" for each in found["memory"])
        counts = f"{found['turns']:,} | {found['per_second']:.0f} | {found['left']:,}"
        yield f"| {name} | {counts} | {times[0]} | {times[1]} | {memory} |"


if __name__ == "__main__":
    clients, seconds = (float(each) for each in sys.argv[1:3]) if sys.argv[1:] else (200.0, 60.0)
    for line in table(int(clients), seconds):
        print(line, flush=True)
