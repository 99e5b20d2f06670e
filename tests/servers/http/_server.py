"""`amplifier serve` as a process, on either backend, with the scripted agent."""

from __future__ import annotations

import http.client
import json
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs

from tests._support.terminal import start

PATIENCE = 60.0
"""Seconds after which something that should have happened has not; only a failing test waits that long."""


@attrs.define
class Server:
    process: subprocess.Popen[str]
    address: str
    token: str
    home: Path
    log: Path

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def kill(self) -> None:
        """End it as a power cut does."""
        self.process.kill()
        self.process.wait(PATIENCE)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)


@contextmanager
def running(
    backend: str, plan: str | Path, home: Path, cwd: Path, *options: str
) -> Iterator[Server]:
    """Start the server; at the end it is stopped, and has to end by itself without a traceback."""
    log = home.parent / "server.log"
    words = ("serve", str(plan), "--backend", backend, "--port", "0", *options)
    with log.open("a") as errors, start(*words, home=home, cwd=cwd, stderr=errors) as process:
        try:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(4)]
            address = re.search(r"Serving on (\S+)", lines[0])
            assert address is not None, log.read_text()
            server = Server(
                process, address[1], lines[3].removeprefix("Token: ").strip(), home, log
            )
            yield server
            if process.poll() is None:
                assert server.stop() == 0
            assert "Traceback" not in log.read_text(), log.read_text()
        finally:
            if process.poll() is None:
                process.kill()


def connect(server: Server) -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)


def ask(server: Server, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    connection = connect(server)
    connection.request(method, path, None if body is None else json.dumps(body), server.headers)
    response = connection.getresponse()
    data = response.read()
    connection.close()
    return response.status, json.loads(data) if data else None
