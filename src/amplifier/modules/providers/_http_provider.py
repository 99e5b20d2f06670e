"""The provider of a service with an HTTP API.

Services differ in their wire format, headers and model catalogue.
"""

from __future__ import annotations

import copy
import importlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, final

import anyio
import anyio.to_thread
import attrs

from amplifier._internal.json import JSON
from amplifier.contracts import Coordinator
from amplifier.errors import (
    InvalidRequestError,
    LLMError,
    MissingExtraError,
    ModuleLoadError,
    PlanError,
    StreamError,
)
from amplifier.events import LLM_REQUEST, LLM_RESPONSE, PROVIDER_TOOL_SEQUENCE_REPAIRED
from amplifier.models import (
    ChatRequest,
    ChatResponse,
    ConfigField,
    ModelInfo,
    ProviderInfo,
    StreamChunk,
    Usage,
)

from ._conversation import Conversation, read_conversation
from ._error_mapping import CallContext, error_from_stream_event
from ._streams import Chunks, StreamingProvider
from ._wire_format import (
    CallOptions,
    EncodedRequest,
    ModelCatalogue,
    ProviderOptions,
    ResponseReader,
    ServiceError,
    SseParser,
    WireFormat,
    merge_params,
    resolve_call_options,
)

if TYPE_CHECKING:
    # Importing this requires the HTTP library, which is optional.
    from ._http_client import HttpClient, HttpResponse

logger = logging.getLogger("amplifier.modules.provider")

T = TypeVar("T")

EVENTS = (LLM_REQUEST, LLM_RESPONSE, PROVIDER_TOOL_SEQUENCE_REPAIRED)
"""The events that a provider emits."""

_LISTING_SECONDS = 30.0
_PRICED = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")
# Members of a request that consume tokens. A request to count tokens must not contain any others.
_COUNTED = frozenset({"model", "messages", "system", "input", "tools", "tool_choice", "thinking"})


class Client(Protocol):
    """Sends requests to a service, like `HttpClient`."""

    def open(
        self, method: str, path: str, body: dict[str, JSON] | None, context: CallContext
    ) -> AbstractAsyncContextManager[HttpResponse]:
        """Send a request and wait for the headers of the response."""
        ...

    async def aclose(self) -> None:
        """Close every connection. Repeated calls are allowed."""
        ...


class Prices:
    """Prices of one provider's models, from the package genai-prices. Nothing is downloaded.

    Args:
        provider_id: The provider's name in genai-prices, or None if only its URL is known.
        api_url: The URL of its API.
    """

    def __init__(self, provider_id: str | None, api_url: str | None = None) -> None:
        self._where = {"provider_id": provider_id} if provider_id else {"provider_api_url": api_url}
        self._library: Any = None

    def load(self) -> None:
        """Import the library and read its data. This blocks.

        Without the library, all prices are unknown.
        """
        try:
            self._library = importlib.import_module("genai_prices")
        except ImportError:
            return
        self.cost("gpt-4o", {"input_tokens": 1, "output_tokens": 1})

    def max_cost(self, model: str, input_tokens: int, output_tokens: int) -> Decimal | None:
        """Return the maximum cost in US dollars, or None if the price is unknown.

        Writing the input into a cache may cost extra.
        """
        counted = {"input_tokens": input_tokens, "output_tokens": output_tokens}
        plain, written = (
            self.cost(model, counted),
            self.cost(model, {**counted, "cache_write_tokens": input_tokens}),
        )
        return None if plain is None else max(plain, written or plain)

    def cost(self, model: str, counted: Mapping[str, int | None]) -> Decimal | None:
        """Return the cost in US dollars, or None if the price is unknown. This never raises."""
        if self._library is None or not model:
            return None
        try:
            usage = self._library.Usage(
                **{name: counted[name] for name in _PRICED if counted.get(name)}
            )
            price = self._library.calc_price(usage, model_ref=model, **self._where).total_price
        except LookupError:
            return None
        # Third-party code may raise anything, and a response must not fail for lack of a price.
        except Exception:
            logger.debug("no price for model %r", model, exc_info=True)
            return None
        return price if isinstance(price, Decimal) else None


@attrs.frozen(kw_only=True)
class Service:
    """The properties of one service.

    Attributes:
        module: The id of the provider's module.
        extra: The extra of this project that installs its requirements.
        name: The name under which the provider is mounted.
        display_name: The name of the service for people.
        variables: The environment variables with the key and the address.
        default_model: The model for requests that don't specify one.
        base_url: The usual address of the service. Empty if the configuration has to set it.
        headers: The headers of every request, including the credentials.
        capabilities: Capabilities beyond those of every service.
        wire_format: Encodes requests and reads responses.
        catalogue: Describes the service's models.
        prices: The prices of the models.
    """

    module: str
    extra: str
    name: str
    display_name: str
    variables: tuple[str, str]
    default_model: str
    base_url: str = ""
    headers: Mapping[str, str]
    capabilities: tuple[str, ...] = ()
    wire_format: WireFormat
    catalogue: ModelCatalogue
    prices: Prices

    def info(self, options: ProviderOptions) -> ProviderInfo:
        """Return the description of the provider with its configured model."""
        model, (key, url) = self.catalogue.look_up(options.default_model), self.variables
        fields = [
            ConfigField(
                id="api_key",
                display_name="API key",
                field_type="secret",
                prompt="The key to authenticate with",
                env_var=key,
                required=bool(self.base_url),
            ),
            ConfigField(
                id="base_url",
                display_name="Address",
                prompt="The address of the API, if it is not the usual one",
                env_var=url,
                required=not self.base_url,
            ),
            ConfigField(
                id="default_model",
                display_name="Model",
                prompt="The model for requests that name none",
                required=False,
                default=self.default_model,
            ),
        ]
        return ProviderInfo(
            id=self.name,
            display_name=self.display_name,
            credential_env_vars=[key],
            capabilities=[
                "tools",
                "streaming",
                "thinking",
                "vision",
                "json_mode",
                *self.capabilities,
            ],
            defaults={
                "model": options.default_model,
                "context_window": options.context_window or model.context_window,
                "max_output_tokens": options.max_tokens or model.max_output_tokens,
                "temperature": options.temperature,
                "timeout": options.timeout,
                "base_url": options.base_url or self.base_url,
            },
            config_fields=fields,
        )


@final
class HttpProvider(StreamingProvider):
    """A language model behind an HTTP API.

    Args:
        coordinator: Receives events.
        info: The provider's description.
        options: Its configuration.
        client: Sends the requests.
        wire_format: Encodes requests and reads responses.
        catalogue: Describes the service's models.
        prices: The prices of the models.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        info: ProviderInfo,
        options: ProviderOptions,
        *,
        client: Client,
        wire_format: WireFormat,
        catalogue: ModelCatalogue,
        prices: Prices,
    ) -> None:
        super().__init__(coordinator, raw=options.raw)
        self._info = info
        self._options = options
        self._client = client
        self._wire_format = wire_format
        self._catalogue = catalogue
        self._prices = prices
        self.priority = options.priority

    def __repr__(self) -> str:
        return f"<HttpProvider {self.name!r} for {self._options.default_model!r}>"

    @property
    def name(self) -> str:
        """The name under which the provider is mounted."""
        return self._info.id

    def get_info(self) -> ProviderInfo:
        """Describe the provider without a request to the service."""
        return copy.deepcopy(self._info)

    async def list_models(self) -> list[ModelInfo]:
        """Return the service's models, or only the configured one if the list cannot be read."""
        configured = [self._catalogue.look_up(self._options.default_model)]
        context = self._context(None, _LISTING_SECONDS)
        try:
            async with self._client.open("GET", self._catalogue.path, None, context) as response:
                return self._catalogue.read(await response.receive_json())
        except (LLMError, LookupError, TypeError, AttributeError, ValueError) as exc:
            logger.warning(
                "%s: the list of models could not be read (%s), so it has only the configured one",
                self.name,
                exc,
            )
            return configured

    def output_limit(self, request: ChatRequest, **kwargs: Any) -> int | None:
        """Return the maximum number of output tokens of a call, for budgets."""
        model = self._catalogue.look_up(
            kwargs.get("model") or request.model or self._options.default_model
        )
        return resolve_call_options(
            self._options, request, kwargs, model.max_output_tokens
        ).max_tokens

    def estimate_cost(
        self, request: ChatRequest, *, input_tokens: int, output_tokens: int, **kwargs: Any
    ) -> Decimal | None:
        """Return the maximum cost of a call in US dollars, or None if the price is unknown."""
        model = kwargs.get("model") or request.model or self._options.default_model
        return self._prices.max_cost(model, input_tokens, output_tokens)

    async def count_tokens(self, request: ChatRequest, **kwargs: Any) -> int | None:
        """Let the service count the tokens of a request, without a response from the model.

        Returns:
            The number of tokens, or None if the service cannot count them.

        Raises:
            LLMError: The call failed.
        """
        path = self._wire_format.count_path
        if path is None:
            return None
        call = self._call_options(request, kwargs)
        encoded = self._encode(read_conversation(request.messages), request, call)
        body = {name: value for name, value in encoded.body.items() if name in _COUNTED}
        context = self._context(call.model, _LISTING_SECONDS)
        async with self._client.open("POST", path, body, context) as response:
            return _checked(context, _input_tokens, await response.receive_json())

    def _call_options(self, request: ChatRequest, kwargs: dict[str, JSON]) -> CallOptions:
        model = self._catalogue.look_up(
            kwargs.get("model") or request.model or self._options.default_model
        )
        usual_limit = model.max_output_tokens if self._wire_format.always_limits else None
        return resolve_call_options(self._options, request, kwargs, usual_limit)

    def _encode(
        self, conversation: Conversation, request: ChatRequest, call: CallOptions
    ) -> EncodedRequest:
        try:
            encoded = self._wire_format.encode(conversation, request, call)
        except InvalidRequestError as error:
            problem = f"provider {self.name!r} (model {call.model!r}): {error}"
            raise InvalidRequestError(problem, provider=self.name, model=call.model) from None
        encoded.body = merge_params(encoded.body, self._options.extra_request_params)
        return encoded

    async def _chunks(self, request: ChatRequest, kwargs: dict[str, JSON]) -> Chunks:
        call, conversation = (
            self._call_options(request, kwargs),
            read_conversation(request.messages),
        )
        if conversation.repairs:
            repairs = {"repair_count": len(conversation.repairs), "repairs": conversation.repairs}
            await self._hooks.emit(
                PROVIDER_TOOL_SEQUENCE_REPAIRED, {"provider": self.name, **repairs}
            )
        encoded = self._encode(conversation, request, call)
        context = self._context(call.model, call.timeout, self._options.idle_timeout)
        reader = self._wire_format.reader(conversation.call_ids)
        received: list[JSON] = []
        await self._emit_request(call.model, request, lambda: encoded.body)
        began = anyio.current_time()
        try:
            async with self._client.open(
                "POST", self._wire_format.path, encoded.body, context
            ) as http:
                if http.is_event_stream:
                    parser = SseParser()
                    data: bytes | None = b""
                    while data is not None:
                        data = await http.receive()
                        events = (
                            _checked(context, parser.end)
                            if data is None
                            else _checked(context, parser.feed, data)
                        )
                        for event in events:
                            if self._raw:
                                received.append(event.data)
                            for chunk in _checked(context, reader.read_event, event):
                                yield chunk
                            if reader.is_over:
                                break
                        if reader.is_over:
                            break
                    last = [] if reader.is_over else _checked(context, reader.end_of_stream)
                else:
                    received = [await http.receive_json()]
                    last = _checked(context, reader.read_body, *received)
                for chunk in last:
                    yield chunk
                response = _checked(context, self._response, reader, call, encoded)
                await http.drain()
        except LLMError as exc:
            await self._emit_response(reader.model or call.model, began, received, error=exc)
            raise
        await self._emit_response(reader.model or call.model, began, received, usage=response.usage)
        yield StreamChunk(kind="response", response=response)

    async def aclose(self) -> None:
        """Close unfinished streams, and then the client. Repeated calls are allowed."""
        await super().aclose()
        await self._client.aclose()

    def _context(
        self, model: str | None, timeout: float | None, idle_timeout: float | None = None
    ) -> CallContext:
        return CallContext(self.name, model, self._options.api_key, timeout, idle_timeout)

    def _response(
        self, reader: ResponseReader, call: CallOptions, encoded: EncodedRequest
    ) -> ChatResponse:
        used: dict[str, JSON] = {"input_tokens": 0, "output_tokens": 0, **reader.counted}
        cost = self._prices.cost(reader.model or call.model, used) if reader.counted else None
        usage = Usage(
            **used, total_tokens=used["input_tokens"] + used["output_tokens"], cost_usd=cost
        )
        return reader.response(usage, encoded.degradation)


def _input_tokens(body: JSON) -> int:
    return int(body["input_tokens"])


def _checked(context: CallContext, read: Callable[..., T], *received: Any) -> T:
    """Read received data, and raise a `StreamError` if it violates the service's format."""
    try:
        return read(*received)
    except ServiceError as exc:
        raise error_from_stream_event(context, exc.body) from None
    except LLMError as exc:
        exc.provider = exc.provider or context.provider
        exc.model = exc.model or context.model
        raise
    except (LookupError, TypeError, AttributeError, ValueError) as exc:
        reason = context.clean(f"{type(exc).__name__}: {exc}")
        raise context.error(StreamError, f"sent a malformed response ({reason})") from exc


async def mount_provider(
    coordinator: Coordinator, service: Service, options: ProviderOptions
) -> Callable[[], Awaitable[None]] | None:
    """Build the client and mount the provider, or log the reason for not mounting it.

    Returns:
        The cleanup, which closes open streams and the client. None if the key is missing, or the
        address of a service that needs one.

    Raises:
        MissingExtraError: The HTTP library is not installed.
        ModuleLoadError: The key or the address is missing, and the session is strict.
    """
    (key, url), missing = service.variables, ""
    if service.base_url and not options.api_key:
        missing = f"no API key; set it with: export {key}=... (or as api_key in the plan)"
    elif not (service.base_url or options.base_url):
        missing = f"no address; set it with: export {url}=http://127.0.0.1:8080/v1 (or as base_url)"
    if missing:
        if (coordinator.config.get("session") or {}).get("strict") is True:
            message = f"{service.module} has {missing.replace('; ', ': ', 1)}"
            raise ModuleLoadError(message, module_id=service.module, reason_code="not_configured")
        logger.warning("%s is not mounted: %s", service.module, missing)
        return None
    # Importing the HTTP library and reading certificates and prices takes a third of a second, so
    # this happens in a worker thread.
    provider = HttpProvider(
        coordinator,
        service.info(options),
        options,
        client=await anyio.to_thread.run_sync(_build_client, service, options),
        wire_format=service.wire_format,
        catalogue=service.catalogue,
        prices=service.prices,
    )
    await coordinator.mount("providers", provider, name=provider.name)
    coordinator.register_contributor("observability.events", service.module, lambda: list(EVENTS))
    return provider.aclose


def _build_client(service: Service, options: ProviderOptions) -> HttpClient:
    client = import_client(service.module, service.extra)
    service.prices.load()
    # Configured headers replace the service's own. Their names may differ in case.
    headers = {
        name.lower(): value
        for source in (service.headers, options.extra_headers)
        for name, value in source.items()
    }
    invalid = [
        ascii(name)
        for name, value in headers.items()
        if not f"{name}{value}".isascii() or not value.isprintable()
    ]
    if invalid:
        problem = (
            f"headers may have only printable ASCII characters, but {', '.join(invalid)} has "
            "others; check that exactly the key was copied"
        )
        raise PlanError([("$", problem)], subject=f"invalid config of {service.module}")
    address = options.base_url or service.base_url
    # llama.cpp's server closes a connection right after a stream without announcing this, so the
    # next request on the same connection would be lost. A new connection is cheap without TLS.
    keep_connections = bool(service.base_url) or address.startswith("https:")
    return client(
        address, headers, connect_timeout=options.connect_timeout, keep_connections=keep_connections
    )


def import_client(module: str, extra: str) -> type[HttpClient]:
    """Import the HTTP library. This blocks, so it should run in a worker thread.

    Raises:
        MissingExtraError: The library is not installed.
    """
    try:
        from ._http_client import HttpClient  # noqa: PLC0415 — optional, and slow to import
    except ImportError as exc:
        raise MissingExtraError(module, extra=extra, missing=exc.name or "httpx2") from exc
    return HttpClient
