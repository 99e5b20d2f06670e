"""An HTTP server on a local port that sends exactly the bytes a test scripts, including invalid ones.

It runs in threads of its own, so that it serves any event loop, also the ones a cancellation sweep makes for itself.
"""

from __future__ import annotations

import json
import queue
import socket
import struct
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final

import attrs

_PATIENCE = 20.0
_WORKERS = 10
"""As many connections can be open at once."""

STALL: Final = "stall"
"""Send nothing more until the client disconnects, and record that it did."""

RESET: Final = "reset"
"""Break the connection the hard way."""

CLOSE: Final = "close"
"""Close the connection in the middle of a response."""

Step = bytes | str | Callable[[], None]


@attrs.frozen
class Received:
    """One request."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any


class ScriptedHttpServer:
    """Answers requests with scripted steps, one script per request; the last one is used again and again."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.requests: list[Received] = []
        self.connections = 0
        self._scripts: list[list[Step]] = []
        self._gone: queue.Queue[str] = queue.Queue()
        self._asked: queue.Queue[str] = queue.Queue()
        self._sockets: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._stopping = False
        # All threads start here: a sweep takes every thread that appears during a trial for the trial's own.
        self._threads = [
            threading.Thread(target=self._accept, daemon=True, name="scripted-http-server")
            for _ in range(_WORKERS)
        ]
        for thread in self._threads:
            thread.start()

    def answers(self, *scripts: Iterable[Step]) -> None:
        """Answer the next requests with these scripts."""
        self._scripts = [list(script) for script in scripts]

    def wait_asked(self) -> str:
        """Wait until a request has come."""
        return self._asked.get(timeout=_PATIENCE)

    def wait_gone(self) -> str:
        """Wait until a client has left a stalled answer."""
        return self._gone.get(timeout=_PATIENCE)

    @property
    def last(self) -> Received:
        """The newest request."""
        return self.requests[-1]

    def close(self) -> None:
        """End every connection and thread."""
        self._stopping = True
        for (
            _
        ) in self._threads:  # each waits in accept(), which closing the listener ends on Linux only
            with suppress(OSError):
                socket.create_connection(("127.0.0.1", self.port), 1).close()
        self._listener.close()
        with self._lock:
            waiting = list(self._sockets)
        for connection in waiting:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(_PATIENCE)

    def _accept(self) -> None:
        while not self._stopping:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            if self._stopping:
                connection.close()
                return
            connection.setsockopt(
                socket.IPPROTO_TCP, socket.TCP_NODELAY, 1
            )  # else each piece waits for an acknowledgement
            with self._lock:
                self._sockets.add(connection)
                self.connections += 1
            self._serve(connection)

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection, suppress(OSError), connection.makefile("rb") as lines:
                while self._answer(connection, lines):
                    pass
        finally:
            with self._lock:
                self._sockets.discard(connection)

    def _answer(self, connection: socket.socket, lines: Any) -> bool:
        """Read one request and answer it; False when the connection is over."""
        first = lines.readline()
        if not first:
            return False
        method, path, _ = first.decode().split(" ", 2)
        headers: dict[str, str] = {}
        while (line := lines.readline().strip()) != b"":
            name, _, value = line.decode().partition(":")
            headers[name.lower()] = ", ".join(
                filter(None, (headers.get(name.lower()), value.strip()))
            )  # as HTTP reads two
        text = lines.read(int(headers.get("content-length", 0)))
        self.requests.append(Received(method, path, headers, json.loads(text) if text else None))
        self._asked.put(path)
        with self._lock:
            script = self._scripts.pop(0) if len(self._scripts) > 1 else self._scripts[0]
        for step in script:
            if callable(step):
                step()
            elif isinstance(step, bytes):
                try:
                    connection.sendall(step)
                except OSError:
                    self._gone.put(path)
                    return False
            elif step == RESET:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                return False
            elif step == CLOSE:
                return False
            elif step == STALL:
                with suppress(OSError):
                    connection.recv(1)
                self._gone.put(path)
                return False
        return True


# ── responses ────────────────────────────────────────────────────────────────────────────────────

EVENT_STREAM = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)
END = b"0\r\n\r\n"


def chunk(payload: bytes) -> bytes:
    """One piece of a body in chunked encoding."""
    return b"%x\r\n%s\r\n" % (len(payload), payload)


def event(data: Any, name: str | None = None) -> bytes:
    """One event in a chunk of its own."""
    shown = data if isinstance(data, str) else json.dumps(data)
    return chunk((f"event: {name}\n" if name else "").encode() + f"data: {shown}\n\n".encode())


def reply(body: Any, status: int = 200, **headers: str) -> bytes:
    """A whole response with a JSON body, or with the bytes given."""
    payload = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} Whatever", f"Content-Length: {len(payload)}"]
    headers.setdefault("Content_Type", "application/json")
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + payload
