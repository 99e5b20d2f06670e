"""The provider of a service with an HTTP API; services differ in their wire format, headers and model catalogue.

`mount_provider` builds the client in a worker thread: importing the HTTP library and reading certificates and prices takes a
third of a second.
"""

from __future__ import annotations

import copy
import importlib
import logging
import random
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Protocol, final

import anyio
import anyio.to_thread
import attrs

from amplifier._requirements import unmet_requirements
from amplifier.contracts import Coordinator
from amplifier.errors import InvalidRequestError, LLMError, MissingExtraError, ModuleLoadError, PlanError, StreamError
from amplifier.events import LLM_REQUEST, LLM_RESPONSE, PROVIDER_RETRY, PROVIDER_TOOL_SEQUENCE_REPAIRED
from amplifier.models import ChatRequest, ConfigField, ModelInfo, ProviderInfo, StreamChunk, Usage

from ._conversation import Conversation, read_conversation
from ._error_mapping import ErrorContext, error_from_stream_event
from ._response_reader import ResponseReader, ServiceError, SseEvent, SseParser, TokenCounts
from ._streams import StreamingProvider
from ._wire_format import (
    CallOptions,
    EncodedRequest,
    ModelCatalogue,
    ProviderOptions,
    WireFormat,
    merge_params,
    resolve_call_options,
)

if TYPE_CHECKING:
    from ._http_client import HttpClient, HttpResponse  # needs the HTTP library, which is optional

logger = logging.getLogger("amplifier.modules.provider")

EVENTS = (LLM_REQUEST, LLM_RESPONSE, PROVIDER_RETRY, PROVIDER_TOOL_SEQUENCE_REPAIRED)
"""The events a provider emits."""

_LISTING_SECONDS = 30.0
_COUNTED = frozenset({"model", "messages", "system", "input", "tools", "tool_choice", "thinking"})
"""The members of a request that take tokens; the services refuse others where they count."""


class Client(Protocol):
    """Sends requests to a service; `HttpClient` is one."""

    def open(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None,
        *,
        timeout: float | None,
        idle_timeout: float | None,
        context: ErrorContext,
    ) -> AbstractAsyncContextManager[HttpResponse]:
        """Send a request and wait for the headers of the response."""
        ...

    async def aclose(self) -> None:
        """Close every connection; idempotent."""
        ...


class Prices:
    """Prices of one provider's models, from the data in the package genai-prices; nothing is downloaded.

    Args:
        provider_id: The provider as genai-prices names it; None if only its URL is known.
        api_url: The URL of its API.
    """

    def __init__(self, provider_id: str | None, api_url: str | None = None) -> None:
        self._where = {"provider_id": provider_id} if provider_id else {"provider_api_url": api_url}
        self._library: Any = None

    def load(self) -> None:
        """Import the library and let it read its data; blocks. Without the library no cost is known."""
        try:
            self._library = importlib.import_module("genai_prices")
        except ImportError:
            return
        self.cost("gpt-4o", TokenCounts(input_tokens=1, output_tokens=1))

    def most(self, model: str, input_tokens: int, output_tokens: int) -> Decimal | None:
        """The most that so many tokens may cost in US dollars; None if unknown. Writing input into a cache may cost extra."""
        written = TokenCounts(input_tokens=input_tokens, output_tokens=output_tokens, cache_write_tokens=input_tokens)
        plain = self.cost(model, TokenCounts(input_tokens=input_tokens, output_tokens=output_tokens))
        return None if plain is None else max(plain, self.cost(model, written) or plain)

    def cost(self, model: str, token_counts: TokenCounts) -> Decimal | None:
        """The price in US dollars; None if unknown. Never raises."""
        if self._library is None or not model:
            return None
        counted = {
            "input_tokens": token_counts.input_tokens,
            "output_tokens": token_counts.output_tokens,
            "cache_read_tokens": token_counts.cache_read_tokens,
            "cache_write_tokens": token_counts.cache_write_tokens,
        }
        try:
            usage = self._library.Usage(**{name: count for name, count in counted.items() if count})
            price = self._library.calc_price(usage, model_ref=model, **self._where).total_price
        except LookupError:
            return None
        except Exception:  # third-party code; a missing price must not fail a response
            logger.debug("no price for model %r", model, exc_info=True)
            return None
        return price if isinstance(price, Decimal) else None


@attrs.frozen(kw_only=True)
class Service:
    """What differs between the services.

    Attributes:
        module: The id of the provider's module.
        extra: The extra of this project that installs what it needs.
        name: The name that the provider is mounted under.
        variables: The environment variables with the key and the address.
        default_model: The model of requests that name none.
        base_url: Where the service is, unless the configuration sets another address; empty if it has to.
        headers: Sent with every request: the credentials and what the service requires.
        capabilities: Those that not every service has.
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
        """The description of the provider, with its configured model."""
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
                prompt="The model to ask where a request names none",
                required=False,
                default=self.default_model,
            ),
        ]
        return ProviderInfo(
            id=self.name,
            display_name=self.display_name,
            credential_env_vars=[key],
            capabilities=["tools", "streaming", "thinking", "vision", "json_mode", *self.capabilities],
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
        super().__init__(coordinator)
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
        """The name it is mounted under."""
        return self._info.id

    def get_info(self) -> ProviderInfo:
        """Describe the provider without a request to the service."""
        return copy.deepcopy(self._info)

    async def list_models(self) -> list[ModelInfo]:
        """The service's list of models, or the known models if the list cannot be read."""
        path = self._catalogue.path
        if path is None:
            return self._catalogue.known()
        limits: dict[str, Any] = {"timeout": _LISTING_SECONDS, "idle_timeout": None}
        try:
            async with self._client.open("GET", path, None, **limits, context=self._error_context(None)) as response:
                return self._catalogue.read(await response.receive_json())
        except (LLMError, LookupError, TypeError, AttributeError, ValueError) as exc:
            logger.warning("%s: the list of models could not be read (%s); using the known models", self.name, exc)
            return self._catalogue.known()

    def output_limit(self, request: ChatRequest, **kwargs: Any) -> int | None:
        """The most output tokens of a call with these arguments, for budgets."""
        known = self._catalogue.look_up(kwargs.get("model") or request.model or self._options.default_model)
        return resolve_call_options(self._options, request, kwargs, known.max_output_tokens).max_tokens

    def estimate_cost(
        self, request: ChatRequest, *, input_tokens: int, output_tokens: int, **kwargs: Any
    ) -> Decimal | None:
        """The most that a call with so many tokens may cost in US dollars; None if the price is not known."""
        model = kwargs.get("model") or request.model or self._options.default_model
        return self._prices.most(model, input_tokens, output_tokens)

    async def count_tokens(self, request: ChatRequest, **kwargs: Any) -> int | None:
        """What the service counts for a request, without answering it; None if it has no way to ask.

        Raises:
            LLMError: It does not answer.
        """
        path = self._wire_format.count_path
        if path is None:
            return None
        call = self._call_options(request, kwargs)
        encoded = self._encode(read_conversation(request.messages), request, call)
        body = {name: value for name, value in encoded.body.items() if name in _COUNTED}
        limits: dict[str, Any] = {"timeout": _LISTING_SECONDS, "idle_timeout": None}
        async with self._client.open("POST", path, body, **limits, context=self._error_context(call.model)) as response:
            counted = (await response.receive_json())["input_tokens"]
        return int(counted)

    def _call_options(self, request: ChatRequest, kwargs: dict[str, Any]) -> CallOptions:
        known = self._catalogue.look_up(kwargs.get("model") or request.model or self._options.default_model)
        usual_limit = known.max_output_tokens if self._wire_format.always_limits else None
        return resolve_call_options(self._options, request, kwargs, usual_limit)

    def _encode(self, conversation: Conversation, request: ChatRequest, call: CallOptions) -> EncodedRequest:
        try:
            encoded = self._wire_format.encode(conversation, request, call)
        except InvalidRequestError as error:
            problem = f"provider {self.name!r} (model {call.model!r}): {error}"
            raise InvalidRequestError(problem, provider=self.name, model=call.model) from None
        encoded.body = merge_params(encoded.body, self._options.extra_request_params)
        return encoded

    @asynccontextmanager
    async def _exchange(
        self, request: ChatRequest, kwargs: dict[str, Any]
    ) -> AsyncIterator[AsyncIterator[StreamChunk]]:
        call, conversation = self._call_options(request, kwargs), read_conversation(request.messages)
        if conversation.repairs:
            repairs = {"repair_count": len(conversation.repairs), "repairs": conversation.repairs}
            await self._hooks.emit(PROVIDER_TOOL_SEQUENCE_REPAIRED, {"provider": self.name, **repairs})
        encoded = self._encode(conversation, request, call)
        answering = _StreamingCall(self, call, encoded, self._wire_format.reader(conversation.call_ids))
        async with answering.opened(len(request.messages)):
            yield answering

    async def aclose(self) -> None:
        """Close unfinished streams, then the client; idempotent."""
        await super().aclose()
        await self._client.aclose()

    def _error_context(self, model: str | None) -> ErrorContext:
        options = self._options
        return ErrorContext(self.name, model, options.api_key, options.overloaded_delay_multiplier)

    def _usage(self, reader: ResponseReader, call: CallOptions) -> Usage:
        used = reader.token_counts
        cost = self._prices.cost(reader.model or call.model, used) if used.is_reported else None
        return Usage(
            input_tokens=used.input_tokens,
            output_tokens=used.output_tokens,
            total_tokens=used.input_tokens + used.output_tokens,
            reasoning_tokens=used.reasoning_tokens,
            cache_read_tokens=used.cache_read_tokens,
            cache_write_tokens=used.cache_write_tokens,
            cost_usd=cost,
        )


class _StreamingCall:
    """One call in progress: iterates over its chunks and holds no generator and no cancel scope between them."""

    def __init__(
        self, provider: HttpProvider, call: CallOptions, encoded: EncodedRequest, reader: ResponseReader
    ) -> None:
        self._provider = provider
        self._call = call
        self._encoded = encoded
        self._reader = reader
        self._error_context = provider._error_context(call.model)
        self._response: HttpResponse | None = None
        self._parser = SseParser()
        self._ready: deque[StreamChunk] = deque()
        self._raw: list[Any] = []
        self._began = 0.0
        self._is_over = False
        self._is_complete = False

    def __aiter__(self) -> AsyncIterator[StreamChunk]:
        return self

    @asynccontextmanager
    async def opened(self, message_count: int) -> AsyncIterator[None]:
        """Send the request, retry if allowed, and close the connection at the end."""
        provider, options = self._provider, self._provider._options
        about: dict[str, Any] = {"provider": provider.name, "model": self._call.model, "message_count": message_count}
        if options.raw:
            about["raw"] = self._encoded.body
        await provider._hooks.emit(LLM_REQUEST, about)
        self._began = anyio.current_time()
        attempt = 0
        while True:
            exchange = self._exchange()
            try:
                self._response = await exchange.__aenter__()
                break
            except LLMError as exc:
                attempt += 1
                if not exc.retryable or attempt > options.max_retries:
                    await self._report("error", exc)
                    raise
                await self._wait_for_retry(attempt, exc)
        try:
            yield
            if self._is_complete:
                await self._response.drain()
        finally:
            await exchange.__aexit__(None, None, None)

    def _exchange(self) -> AbstractAsyncContextManager[HttpResponse]:
        return self._provider._client.open(
            "POST",
            self._provider._wire_format.path,
            self._encoded.body,
            timeout=self._call.timeout,
            idle_timeout=self._provider._options.idle_timeout if self._call.stream else None,
            context=self._error_context,
        )

    async def _wait_for_retry(self, attempt: int, exc: LLMError) -> None:
        options = self._provider._options
        delay = min(options.min_retry_delay * 2.0 ** (attempt - 1), options.max_retry_delay)
        delay *= exc.delay_multiplier
        if options.retry_jitter:
            delay *= random.uniform(0.5, 1.5)
        delay = max(delay, exc.retry_after or 0.0)
        details = {"attempt": attempt, "max_retries": options.max_retries, "delay": delay}
        about = {"provider": self._provider.name, "model": self._call.model, "retry_after": exc.retry_after}
        error = {"error_type": type(exc).__name__, "error_message": str(exc)}
        await self._provider._hooks.emit(PROVIDER_RETRY, {**about, **details, **error})
        await anyio.sleep(delay)

    async def __anext__(self) -> StreamChunk:
        while not self._ready:
            if self._is_over:
                raise StopAsyncIteration
            try:
                await self._advance()
            except LLMError as exc:
                self._is_over = True
                await self._report("error", exc)
                raise
        return self._ready.popleft()

    async def _advance(self) -> None:
        """Receive until there are chunks to return, or the response is complete."""
        assert self._response is not None
        if not self._call.stream or not self._response.is_event_stream:
            self._read(self._reader.read_body, await self._response.receive_json())
            await self._finish()
            return
        received = await self._response.receive()
        for event in self._events(received):
            self._read(self._reader.read_event, event)
            if self._reader.is_over:
                break
        if received is None and not self._reader.is_over:
            self._read(lambda _: self._reader.end_of_stream(), None)
        if received is None or self._reader.is_over:
            await self._finish()

    def _events(self, received: bytes | None) -> list[SseEvent]:
        try:
            return self._parser.end() if received is None else self._parser.feed(received)
        except ValueError as exc:
            raise self._malformed(exc) from exc

    def _read(self, read: Any, received: Any) -> None:
        """Pass received data to the reader; a service that violates its format raises a `StreamError`."""
        if self._provider._options.raw:
            self._raw.append(received.data if isinstance(received, SseEvent) else received)
        try:
            self._ready += read(received)
        except ServiceError as exc:
            raise error_from_stream_event(self._error_context, exc.body) from None
        except LLMError as exc:
            self._set_origin(exc)
            raise
        except (LookupError, TypeError, AttributeError, ValueError) as exc:
            raise self._malformed(exc) from exc

    def _malformed(self, exc: Exception) -> LLMError:
        why = self._error_context.clean(f"{type(exc).__name__}: {exc}")
        return self._error_context.error(StreamError, f"sent a malformed response ({why})")

    def _set_origin(self, exc: LLMError) -> None:
        exc.provider = exc.provider or self._error_context.provider
        exc.model = exc.model or self._error_context.model

    async def _finish(self) -> None:
        try:
            usage = self._provider._usage(self._reader, self._call)
            response = self._reader.response(usage, self._encoded.degradation)
        except LLMError as exc:
            self._set_origin(exc)
            raise
        except (LookupError, TypeError, AttributeError, ValueError) as exc:
            raise self._malformed(exc) from exc
        self._is_over = self._is_complete = True
        await self._report("ok", usage=usage)
        self._ready.append(StreamChunk(kind="response", response=response))

    async def _report(self, status: str, exc: LLMError | None = None, usage: Usage | None = None) -> None:
        about: dict[str, Any] = {
            "provider": self._provider.name,
            "model": self._reader.model or self._call.model,
            "duration_ms": round((anyio.current_time() - self._began) * 1000),
            "status": status,
        }
        if usage is not None:
            counted = {
                "input_tokens": usage.input_tokens,
                "output_tokens": usage.output_tokens,
                "cache_read_tokens": usage.cache_read_tokens,
                "cache_write_tokens": usage.cache_write_tokens,
            }
            about["usage"] = {name: count for name, count in counted.items() if count is not None}
            about["usage"]["cost_usd"] = None if usage.cost_usd is None else str(usage.cost_usd)
        if exc is not None:
            about["error"] = {"type": type(exc).__name__, "message": str(exc), "retryable": exc.retryable}
        if self._provider._options.raw:
            about["raw"] = self._raw
        await self._provider._hooks.emit(LLM_RESPONSE, about)


async def mount_provider(
    coordinator: Coordinator, service: Service, options: ProviderOptions
) -> Callable[[], Awaitable[None]] | None:
    """Build the client and mount the provider, or log why it is not mounted.

    Returns:
        The cleanup, which closes open streams and the client; None if there is no key or, where it is needed, no address.

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
    headers = {
        name.lower(): value
        for source in (service.headers, options.extra_headers)  # of two that differ in case only, the latter
        for name, value in source.items()
    }
    wrong = [
        ascii(name) for name, value in headers.items() if not f"{name}{value}".isascii() or not value.isprintable()
    ]
    if wrong:
        problem = f"a header holds only printable ASCII characters, but {', '.join(wrong)} has others; was the key copied whole and alone?"
        raise PlanError([("$", problem)], subject=f"invalid config of {service.module}")
    return client(options.base_url or service.base_url, headers, connect_timeout=options.connect_timeout)


def import_client(module: str, extra: str) -> type[HttpClient]:
    """Import the HTTP library; blocks, so call it in a worker thread.

    Raises:
        MissingExtraError: It is not installed.
        ModuleLoadError: It is installed in a version that this package does not know.
    """
    if unmet := unmet_requirements("amplifier", extra):
        message = f"{module}: {'; '.join(unmet)}; install the right one with: pip install 'amplifier[{extra}]'"
        raise ModuleLoadError(message, module_id=module, reason_code="validation_failed")
    try:
        from ._http_client import HttpClient  # noqa: PLC0415 — optional, and slow to import
    except ImportError as exc:
        raise MissingExtraError(module, extra=extra, missing=exc.name or "httpx2") from exc
    return HttpClient
