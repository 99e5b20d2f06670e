"""The process of the model server: started by the first request, restarted if it died, ended with the session.

A lock serialises starting, so that concurrent requests share one process.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import attrs

from amplifier._programs import absolute_entries, python_command, safe_search_path
from amplifier.contracts import Coordinator
from amplifier.errors import ConfigurationError, LLMTimeoutError, ProviderUnavailableError

from .._shared.message_lines import read_chunk, write_all
from .._shared.processes import ServiceProcess
from .._shared.session import run_shielded
from ._error_mapping import CallContext

if TYPE_CHECKING:
    from ._http_client import HttpClient, HttpResponse  # needs the HTTP library, which is optional

logger = logging.getLogger("amplifier.modules.providers.local")

_SCRIPT = Path(__file__).with_name("_local_server_main.py")
_CONNECT_SECONDS = 30.0
_INHERITED = ("PATH", "HOME", "LANG", "TMPDIR", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
_INHERITED_PREFIXES = ("LC_", "PYTHON", "GGML_", "LLAMA_", "CUDA_", "HIP_", "ROCR_", "VK_", "OMP_")
"""Environment variables that the library may need; API keys of other services are not passed on."""


@attrs.frozen
class _Running:
    process: ServiceProcess
    client: HttpClient


class Server:
    """The server of one model; a client of `HttpProvider`.

    Args:
        coordinator: The session's.
        client_type: Makes the HTTP client.
        model_path: The model's file.
        job: How to run it, see `_local_server_main`.
        start_timeout: Seconds for loading it.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        client_type: type[HttpClient],
        model_path: Path,
        job: dict[str, Any],
        *,
        start_timeout: float,
    ) -> None:
        self._coordinator = coordinator
        self._client_type = client_type
        self._model_path = model_path
        self._job = {**job, "model_path": str(model_path)}
        self._start_timeout = start_timeout
        self._lock = anyio.Lock()
        self._running: _Running | None = None
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<Server of {self._model_path.stem!r}: {f'process {self.pid}' if self.pid else 'not running'}>"

    @property
    def pid(self) -> int | None:
        """The id of the process, if it is alive."""
        running = self._running
        return None if running is None or running.process.has_ended() else running.process.group

    @asynccontextmanager
    async def open(
        self, method: str, path: str, body: dict[str, Any] | None, context: CallContext
    ) -> AsyncIterator[HttpResponse]:
        """Send a request to the server, which is started if it is not running.

        Raises:
            ConfigurationError: The model cannot be loaded.
            LLMTimeoutError: The model was not loaded in time, or the server sends nothing.
            ProviderUnavailableError: The provider is closed, or the process died.
            LLMError: The server refuses.
        """
        running = await self._ready()
        async with running.client.open(method, path, body, context) as response:
            yield response

    async def aclose(self) -> None:
        """End the process; idempotent."""
        self._is_closed = True
        await self._end()

    async def _ready(self) -> _Running:
        async with self._lock:
            if self._is_closed:
                raise ProviderUnavailableError("provider-local is closed", provider="local", retryable=False)
            if self._running is not None and self._running.process.has_ended():
                logger.warning("the model server %s; starting it again", self._running.process.how_it_ended())
                await self._end()
            if self._running is None:
                self._running = await self._start()
            return self._running

    async def _end(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            await self._end_process(running.process)
            await running.client.aclose()

    async def _end_process(self, process: ServiceProcess) -> None:
        await run_shielded(self._coordinator, process.end, name="end of the model server")

    async def _start(self) -> _Running:
        key, name = secrets.token_urlsafe(24), self._model_path.stem
        process = ServiceProcess(python_command(str(_SCRIPT)), directory="/", environment=_environment())
        try:  # no await before it: it ends the process
            with anyio.fail_after(self._start_timeout):
                await process.wait_until_running()
                address = await self._address(process, key)
        except TimeoutError:
            await self._end_process(process)
            raise LLMTimeoutError(
                f"the model {name!r} was not loaded within {self._start_timeout:g} s; set start_timeout or use a smaller one",
                provider="local",
                model=name,
                retryable=False,
            ) from None
        except BaseException:
            await self._end_process(process)
            raise
        logger.info("model server %d runs %s", process.group, name)
        headers = {"Authorization": f"Bearer {key}"}
        return _Running(process, self._client_type(address, headers, connect_timeout=_CONNECT_SECONDS, is_local=True))

    async def _address(self, process: ServiceProcess, key: str) -> str:
        about: dict[str, Any] = {"provider": "local", "model": self._model_path.stem}
        line = b""
        try:
            await write_all(process.stdin, json.dumps({**self._job, "key": key}).encode() + b"\n")
            while not line.endswith(b"\n") and (piece := await read_chunk(process.stdout)):
                line += piece
        except BrokenPipeError:
            pass  # it has ended
        if not line.endswith(b"\n"):
            raise ProviderUnavailableError(
                f"the process that should run {about['model']!r} ended before the model was loaded; is there memory for it?",
                **about,
            )
        answer: dict[str, str] = json.loads(line)
        if "error" in answer:
            raise ConfigurationError(
                f"the model file {str(self._model_path)!r} cannot be run: {answer['error'][:500]}", **about
            )
        return answer["address"]


def _environment() -> dict[str, str]:
    environment = {
        name: value for name, value in os.environ.items() if name in _INHERITED or name.startswith(_INHERITED_PREFIXES)
    }
    for name in ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"):
        if name in environment:
            environment[name] = safe_search_path(environment[name])
    if "PYTHONPATH" in environment:
        environment["PYTHONPATH"] = absolute_entries(environment["PYTHONPATH"])
    return environment
