"""Starts, restarts and ends the process of the model server.

It needs neither a task nor a thread in this process: the server process watches its standard input, and the event loop waits
for its output. A lock serialises starting, so that concurrent requests share one process.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import subprocess
import sys
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import anyio
import attrs
import httpcore2

from amplifier.errors import ConfigurationError, LLMTimeoutError, ProviderUnavailableError

from ._options import Options

logger = logging.getLogger("amplifier.modules.provider_local")

_SCRIPT = Path(__file__).with_name("_server_main.py")
_CLOSING_SECONDS = 5.0
_CONNECT_SECONDS = 30.0
_DYING_SECONDS = 0.5
_INHERITED = ("PATH", "HOME", "LANG", "TMPDIR", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
_INHERITED_PREFIXES = ("LC_", "PYTHON", "GGML_", "LLAMA_", "CUDA_", "HIP_", "ROCR_", "VK_", "OMP_")
"""Environment variables that the library may need; API keys of other services are not passed on."""


@attrs.frozen
class Running:
    """A server process that has reported its address.

    Attributes:
        process: The process.
        pool: Connections to it.
    """

    process: subprocess.Popen[bytes]
    pool: httpcore2.AsyncConnectionPool
    _address: str
    _key: str = attrs.field(repr=False)

    @property
    def is_alive(self) -> bool:
        """Whether the process has not ended."""
        return self.process.poll() is None

    def post(self, path: str, body: Any, *, idle_timeout: float) -> AbstractAsyncContextManager[httpcore2.Response]:
        """Send JSON; the caller reads the response inside the context, and leaving it early closes the connection."""
        return self._send("POST", path, json.dumps(body).encode(), idle_timeout)

    def get(self, path: str) -> AbstractAsyncContextManager[httpcore2.Response]:
        """Send a GET request with a short timeout."""
        return self._send("GET", path, None, _CLOSING_SECONDS)

    def _send(
        self, method: str, path: str, content: bytes | None, idle_timeout: float
    ) -> AbstractAsyncContextManager[httpcore2.Response]:
        headers = [
            ("Authorization", f"Bearer {self._key}"),
            ("Content-Type", "application/json"),
            ("Connection", "close"),  # the server may close a kept connection while the next request is sent
        ]
        timeout = {"connect": _CONNECT_SECONDS, "write": _CONNECT_SECONDS, "read": idle_timeout}
        return self.pool.stream(
            method, f"{self._address}{path}", headers=headers, content=content, extensions={"timeout": timeout}
        )


class Server:
    """The server of one model.

    Args:
        options: The configuration.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._lock = anyio.Lock()
        self._running: Running | None = None
        self._is_closed = False

    def __repr__(self) -> str:
        state = "not running" if self._running is None else f"process {self._running.process.pid}"
        return f"<Server of {self._options.model!r}: {state}>"

    @property
    def pid(self) -> int | None:
        """The id of the process, if it is alive."""
        return self._running.process.pid if self._running is not None and self._running.is_alive else None

    async def running(self) -> Running:
        """The running server; starts one if there is none.

        Raises:
            ConfigurationError: The model cannot be loaded.
            LLMTimeoutError: The model was not loaded in time.
            ProviderUnavailableError: The provider is closed, or the process died while starting.
        """
        async with self._lock:
            if self._is_closed:
                raise ProviderUnavailableError("provider-local is closed", provider="local", retryable=False)
            if self._running is not None and not self._running.is_alive:
                logger.warning("the model server ended with %s; starting it again", self._running.process.returncode)
                await self._end()
            if self._running is None:
                self._running = await self._start()
            return self._running

    async def wait_if_dying(self, running: Running) -> None:
        """After a failed connection, wait for a dying process to end, so that the next request starts another."""
        with anyio.move_on_after(_DYING_SECONDS):
            while running.is_alive:  # noqa: ASYNC110 - there is no event to wait for
                await anyio.sleep(0.005)

    async def aclose(self) -> None:
        """End the process; idempotent."""
        self._is_closed = True
        await self._end()

    async def _end(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            await _kill(running.process)
            with anyio.move_on_after(_CLOSING_SECONDS, shield=True):
                await running.pool.aclose()

    async def _start(self) -> Running:
        key = secrets.token_urlsafe(24)
        job = {
            "model_path": str(self._options.model_path),
            "context_size": self._options.context_size,
            "parallel": self._options.parallel,
            "threads": self._options.threads,
            "gpu_layers": self._options.gpu_layers,
            "key": key,
        }
        process = _spawn(job)  # no await before the try block, which ends the process
        try:
            with anyio.fail_after(self._options.start_timeout):
                address = _address(await _first_line(process), self._options)
        except TimeoutError:
            await _kill(process)
            raise LLMTimeoutError(
                f"the model {self._options.model!r} was not loaded within {self._options.start_timeout:g} s; set "
                "start_timeout or use a smaller one",
                provider="local",
                model=self._options.model,
                retryable=False,
            ) from None
        except BaseException:
            await _kill(process)
            raise
        logger.info("model server %d runs %s", process.pid, self._options.model)
        return Running(
            process, httpcore2.AsyncConnectionPool(max_connections=None, max_keepalive_connections=0), address, key
        )


def _spawn(job: dict[str, Any]) -> subprocess.Popen[bytes]:
    environment = {
        name: value for name, value in os.environ.items() if name in _INHERITED or name.startswith(_INHERITED_PREFIXES)
    }
    process = subprocess.Popen(
        [sys.executable, "-P", str(_SCRIPT)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,  # Ctrl-C must not reach the server: this process ends it
        bufsize=0,
    )
    assert process.stdin is not None  # a pipe, see above
    with contextlib.suppress(OSError):  # it ended already; its empty output shows that
        process.stdin.write(json.dumps(job).encode() + b"\n")  # far less than a pipe's capacity
    return process


async def _first_line(process: subprocess.Popen[bytes]) -> bytes:
    """The first line of its output; empty if it ended without one."""
    assert process.stdout is not None  # a pipe, see _spawn
    pipe = process.stdout.fileno()
    os.set_blocking(pipe, False)
    line = b""
    while not line.endswith(b"\n"):
        await anyio.wait_readable(pipe)
        piece = os.read(pipe, 4096)
        if not piece:
            return b""
        line += piece
    return line


def _address(line: bytes, options: Options) -> str:
    if not line:
        raise ProviderUnavailableError(
            f"the process that should run {options.model!r} ended before the model was loaded; is there memory for it?",
            provider="local",
            model=options.model,
        )
    answer: dict[str, str] = json.loads(line)
    if "error" in answer:
        raise ConfigurationError(
            f"the model file {str(options.model_path)!r} cannot be run: {answer['error'][:500]}",
            provider="local",
            model=options.model,
        )
    return answer["address"]


async def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill and reap a process; shielded from cancellation and bounded."""
    if process.poll() is None:
        process.kill()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
    if process.poll() is None:
        # In a task group: on asyncio a native cancellation interrupts a shielded scope, but not the wait of a task group.
        async with anyio.create_task_group() as group:
            group.start_soon(_reap, process)


async def _reap(process: subprocess.Popen[bytes]) -> None:
    pause = 0.001
    with anyio.move_on_after(_CLOSING_SECONDS, shield=True):
        while process.poll() is None:  # polling needs no thread, and a killed process ends at once
            await anyio.sleep(pause)
            pause = min(2 * pause, 0.02)
    if process.poll() is None:
        logger.warning("process %d was killed and is still there; it hangs in a system call", process.pid)
