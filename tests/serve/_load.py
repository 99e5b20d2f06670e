"""Many clients at once on `amplifier serve`, a tenth of which leaves early: how fast it is, and what it still has afterwards.

    make load                                     200 clients for a minute on each backend, as a table
    python -m tests.serve._load CLIENTS SECONDS   the same with other numbers

The server is the command, as a process; the clients are another process. The model is scripted: an answer has 20 pieces, one every
tenth of a second, so that two seconds of every turn are the model's.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from amplifier.cli.sessions.home_folder import running_folder
from amplifier.cli.sessions.running_commands import find_running, request_tasks
from tests._support.tree import ROOT
from tests.cli._scripted_agent import write_plan
from tests.serve._server import PATIENCE, Server, ask, running

BACKENDS = {"asyncio": "asyncio, uvicorn", "trio": "trio, hypercorn"}


def held(server: Server) -> dict[str, int]:
    """What the server has at this moment."""
    process = Path("/proc") / str(server.process.pid)
    folder = running_folder(server.home)
    tree = request_tasks(folder, find_running(folder, str(server.process.pid)))
    links = [link.readlink().name for link in process.joinpath("fd").iterdir() if link.is_symlink()]
    return {
        "tasks": len(tree.tasks),
        "sockets": sum(name.startswith("socket:") for name in links),
        "sessions": len(ask(server, "GET", "/api/sessions")[1]["sessions"]),
    }


def megabytes(server: Server) -> float:
    """The memory of the server that is in use."""
    status = Path("/proc").joinpath(str(server.process.pid), "status").read_text()
    resident = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    return int(resident.split()[1]) / 1024


def run_clients(server: Server, clients: int, seconds: float) -> Any:
    given = {"address": server.address, "headers": server.headers, "clients": clients, "seconds": seconds}
    finished = subprocess.run(
        [sys.executable, "-m", "tests.serve._load_clients"],
        input=json.dumps({**given, "prompt": "pace 0.1 20"}),
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        timeout=seconds + 10 * PATIENCE,
        check=True,
    )
    return json.loads(finished.stdout)


def measure(backend: str, clients: int, seconds: float) -> dict[str, Any]:
    """Run the clients against a server; ``left_behind`` is what the server has more than before."""
    with tempfile.TemporaryDirectory(prefix="load-") as name:
        folder = Path(name)
        (folder / "work").mkdir()
        limits = ["--max-turns", str(clients), "--max-sessions", str(clients)]
        with running(backend, write_plan(folder), folder / "home", folder / "work", *limits) as server:
            run_clients(server, 10, 0.1)  # imports everything
            before, memory = held(server), megabytes(server)
            found = run_clients(server, clients, seconds)
            give_up = time.monotonic() + PATIENCE
            while (after := held(server)) != before and time.monotonic() < give_up:
                pass  # turns of the clients that left last are being stopped
            left_behind = {key: after[key] - before[key] for key in before}
            return {**found, "left_behind": left_behind, "memory": [memory, megabytes(server)]}


def table(clients: int, seconds: float) -> str:
    """The results of both backends as a table in Markdown."""
    rows = [
        "| | turns | turns/s | left early | first piece: median, p95, p99 | whole answer: median, p95, p99 | memory before, after |",
        "|---|---|---|---|---|---|---|",
    ]
    for backend, name in BACKENDS.items():
        found = measure(backend, clients, seconds)
        if found["failures"] or any(found["left_behind"].values()):
            raise SystemExit(f"{name}: failures {found['failures']}, left behind {found['left_behind']}")
        times = [
            ", ".join(f"{found[each][key]:.2f} s" for key in ("median", "p95", "p99")) for each in ("first", "whole")
        ]
        memory = ", ".join(f"{each:.0f} MB" for each in found["memory"])
        counts = f"{found['turns']:,} | {found['per_second']:.0f} | {found['left']:,}"
        rows.append(f"| {name} | {counts} | {times[0]} | {times[1]} | {memory} |")
    return "\n".join(rows)


if __name__ == "__main__":
    clients, seconds = (float(each) for each in sys.argv[1:3]) if sys.argv[1:] else (200.0, 60.0)
    print(table(int(clients), seconds))
