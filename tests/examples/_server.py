"""A web server as a program of its own, its words, and a client for it: what the tests of `examples/web_app.py` share."""

from __future__ import annotations

import http.client
import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from tests._support.tree import ROOT

_PATIENCE = 60.0
"""Seconds after which something that should have happened has not; only a failing test waits that long."""

_ADDRESS = re.compile(r"running on http://127\.0\.0\.1:(\d+)", re.IGNORECASE)


class Server:
    """A running server: its port, and what it says line by line."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.said: list[str] = []
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(
            target=self._read, args=(process.stdout,), name="reader of the server"
        )
        self._reader.start()
        self.port = int(self.wait_for(_ADDRESS).group(1))

    def _read(self, stream: IO[str]) -> None:
        with stream:
            for line in stream:
                self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def wait_for(self, wanted: str | re.Pattern[str]) -> re.Match[str]:
        """Read on until the server says this."""
        pattern = re.compile(re.escape(wanted) + "$") if isinstance(wanted, str) else wanted
        while True:
            try:
                line = self._lines.get(timeout=_PATIENCE)
            except queue.Empty:
                line = None
            assert line is not None, f"the server did not say {wanted!r}, but: {self.said}"
            self.said.append(line)
            if match := pattern.search(line):
                return match

    def stop(self, number: signal.Signals) -> int:
        """Send a signal and wait for the end; gives the exit code."""
        self.process.send_signal(number)
        return self.process.wait(_PATIENCE)

    def end(self) -> None:
        """Whatever happened: the process is gone and its words are read."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join()

    # ── a client ──

    def get(self, path: str) -> Any:
        """The JSON of a page."""
        return json.loads(self._request("GET", path, None).read())

    def post(self, path: str, prompt: str) -> http.client.HTTPResponse:
        """Ask, and have the response once its head is there; the body is read piece by piece, or not at all."""
        return self._request("POST", path, prompt)

    def _request(self, method: str, path: str, body: str | None) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_PATIENCE)
        # With this header the socket goes with its response: closing that is what a client does that leaves.
        connection.request(method, path, body, {"Connection": "close"})
        return connection.getresponse()


@contextmanager
def serving(*command: str, cwd: Path) -> Iterator[Server]:
    """Run a server in a directory; its output begins with the address it listens to."""
    keys = ("ANTHROPIC_API_KEY", "OPENAI_API_KEY")
    environment = {name: value for name, value in os.environ.items() if name not in keys}
    environment |= {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        [sys.executable, *command],
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        server = Server(process)
    except BaseException:
        process.kill()
        process.wait()
        raise
    try:
        yield server
    finally:
        server.end()


def events(response: http.client.HTTPResponse) -> Iterator[tuple[str, Any]]:
    """The server-sent events of a response as they come: kind and data."""
    kind = ""
    for raw in response:
        name, _, value = raw.decode().rstrip("\n").partition(": ")
        if name == "event":
            kind = value
        elif name == "data":
            yield kind, json.loads(value)
