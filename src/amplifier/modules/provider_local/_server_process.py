"""The server's process, as the provider sees it: running when asked for, and gone when told to.

It needs neither a task nor a thread here: the process watches our end of its input, and answers are waited for with the
event loop's own means. Starting is under a lock, so that requests that come at the same time share one process.
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
_PATIENCE = 5.0
_CONNECTING = 30.0
_DYING = 0.5
_PASSED_ON = ("PATH", "HOME", "LANG", "TMPDIR", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
_PASSED_ON_PREFIXES = ("LC_", "PYTHON", "GGML_", "LLAMA_", "CUDA_", "HIP_", "ROCR_", "VK_", "OMP_")
"""What the library may need of our environment; keys of other services are not among it."""


@attrs.frozen
class Running:
    """A server that has said where it is.

    Attributes:
        process: It.
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
        """Send JSON; the answer is read inside the context, and leaving it early closes the connection."""
        return self._send("POST", path, json.dumps(body).encode(), idle_timeout)

    def get(self, path: str) -> AbstractAsyncContextManager[httpcore2.Response]:
        """Ask for something small."""
        return self._send("GET", path, None, _PATIENCE)

    def _send(
        self, method: str, path: str, content: bytes | None, idle_timeout: float
    ) -> AbstractAsyncContextManager[httpcore2.Response]:
        headers = [
            ("Authorization", f"Bearer {self._key}"),
            ("Content-Type", "application/json"),
            ("Connection", "close"),  # the server drops kept ones when it likes, sometimes under the next request
        ]
        timeout = {"connect": _CONNECTING, "write": _CONNECTING, "read": idle_timeout}
        return self.pool.stream(
            method, f"{self._address}{path}", headers=headers, content=content, extensions={"timeout": timeout}
        )


class Server:
    """One model's server.

    Args:
        options: Which model, and how.
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
        """The process, if there is one alive."""
        return self._running.process.pid if self._running is not None and self._running.is_alive else None

    async def running(self) -> Running:
        """The running server, which is started if there is none.

        Raises:
            ConfigurationError: The model cannot be loaded.
            LLMTimeoutError: It was not loaded in time.
            ProviderUnavailableError: The session is over, or the process died while it started.
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

    async def notice(self, running: Running) -> None:
        """A connection failed: if the process is dying, wait until that shows, so that the next request starts another."""
        with anyio.move_on_after(_DYING):
            while running.is_alive:  # noqa: ASYNC110 - a process gives no event
                await anyio.sleep(0.005)

    async def aclose(self) -> None:
        """End the process; may be called again."""
        self._is_closed = True
        await self._end()

    async def _end(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            await _ended(running.process)
            with anyio.move_on_after(_PATIENCE, shield=True):
                await running.pool.aclose()

    async def _start(self) -> Running:
        key = secrets.token_urlsafe(24)
        process = _spawn({**_job(self._options), "key": key})  # no await until it is in good hands
        try:
            with anyio.fail_after(self._options.start_timeout):
                address = _address(await _first_line(process), self._options)
        except TimeoutError:
            await _ended(process)
            raise LLMTimeoutError(
                f"the model {self._options.model!r} was not loaded within {self._options.start_timeout:g} s; set "
                "start_timeout or use a smaller one",
                provider="local",
                model=self._options.model,
                retryable=False,
            ) from None
        except BaseException:
            await _ended(process)
            raise
        logger.info("model server %d runs %s", process.pid, self._options.model)
        return Running(
            process, httpcore2.AsyncConnectionPool(max_connections=None, max_keepalive_connections=0), address, key
        )


def _job(options: Options) -> dict[str, Any]:
    return {
        "model_path": str(options.model_path),
        "context_size": options.context_size,
        "parallel": options.parallel,
        "threads": options.threads,
        "gpu_layers": options.gpu_layers,
    }


def _spawn(job: dict[str, Any]) -> subprocess.Popen[bytes]:
    environment = {
        name: value for name, value in os.environ.items() if name in _PASSED_ON or name.startswith(_PASSED_ON_PREFIXES)
    }
    process = subprocess.Popen(
        [sys.executable, "-P", str(_SCRIPT)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,  # Ctrl-C is for us; we tell it when to end
        bufsize=0,
    )
    assert process.stdin is not None  # asked for above
    with contextlib.suppress(OSError):  # it ended already; its silence tells
        process.stdin.write(json.dumps(job).encode() + b"\n")  # far less than a pipe holds
    return process


async def _first_line(process: subprocess.Popen[bytes]) -> bytes:
    """What it says first; empty if it ended without a word."""
    assert process.stdout is not None  # asked for in _spawn
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


async def _ended(process: subprocess.Popen[bytes]) -> None:
    """Kill and reap it; to the end although we are being cancelled, but only so long."""
    if process.poll() is None:
        process.kill()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
    if process.poll() is None:
        # A task of its own: on asyncio a native cancel pierces a shield, but not the wait of a task group.
        async with anyio.create_task_group() as group:
            group.start_soon(_reaped, process)


async def _reaped(process: subprocess.Popen[bytes]) -> None:
    pause = 0.001
    with anyio.move_on_after(_PATIENCE, shield=True):
        while process.poll() is None:  # looking needs no thread, and a killed process is gone at once
            await anyio.sleep(pause)
            pause = min(2 * pause, 0.02)
    if process.poll() is None:
        logger.warning("process %d was killed and is still there; it hangs in a system call", process.pid)
