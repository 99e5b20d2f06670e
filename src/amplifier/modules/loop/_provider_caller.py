"""Call a provider: send the request, stream or read the answer, retry retryable errors."""

from __future__ import annotations

import copy
import itertools
import random
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from decimal import Decimal
from functools import partial
from typing import Any, TypeVar

import anyio

from amplifier._internal.json import JSON, copy_json
from amplifier.contracts import Coordinator, Hooks, Provider, contain_errors, contained_failure
from amplifier.errors import (
    BudgetError,
    ContractError,
    DeadlineExceeded,
    InvalidRequestError,
    LLMError,
    LLMTimeoutError,
    ProviderUnavailableError,
)
from amplifier.events import (
    CONTENT_BLOCK_DELTA,
    CONTENT_BLOCK_END,
    CONTENT_BLOCK_RESET,
    CONTENT_BLOCK_START,
    LLM_STREAM_BLOCK_DELTA,
    LLM_STREAM_BLOCK_START,
    PROVIDER_ERROR,
    PROVIDER_RETRY,
    THINKING_DELTA,
    THINKING_FINAL,
)
from amplifier.models import (
    ChatRequest,
    ChatResponse,
    ContentBlockUnion,
    HookResult,
    StreamChunk,
    TextBlock,
    ThinkingBlock,
    ToolCall,
    ToolCallBlock,
    to_dict,
)

from ._containment import text_of
from ._messages import RequestMessages
from ._options import TurnOptions

CallT = TypeVar("CallT", ToolCall, ToolCallBlock)


def choose_provider(providers: Mapping[str, Provider], wanted: str | None) -> tuple[str, Provider]:
    """Return the wanted provider with its name, or the first one.

    Raises:
        ProviderUnavailableError: There is no provider, or none with that name.
    """
    if wanted is not None:
        if wanted in providers:
            return wanted, providers[wanted]
        raise ProviderUnavailableError(
            f"no provider named {wanted!r} is mounted; mounted: {', '.join(providers) or 'none'}",
            provider=wanted,
            retryable=False,
        )
    for name, provider in providers.items():
        return name, provider
    raise ProviderUnavailableError(
        "no provider is mounted; add one to the providers section of the plan, or read in the log "
        "why it declined",
        retryable=False,
    )


def capabilities_of(provider: Provider) -> list[str]:
    """Return the capabilities that a provider reports, or none if that fails."""
    try:
        return provider.get_info().capabilities
    # The provider is foreign code. A later call to it will report the failure.
    except BaseException as exc:  # noqa: BLE001
        contained_failure(exc)
        return []


_POLL_INTERVAL = 0.25
"""Seconds between two checks of the token during a retry delay. The token can't be awaited."""


TEXT_ONLY = "text_only"
"""The capability of a provider that accepts only text."""


# This isn't an error, because the turn was asked to stop.
class NotRepeated(Exception):
    """A failed model call isn't retried, because a graceful stop starts nothing new."""


# An answer is requested again if its stream broke off. Before the first piece of the new one,
# ``content_block:reset`` announces that the answer starts over.


class ProviderCaller:
    """Calls one provider on behalf of a turn.

    Args:
        name: The name of the provider.
        provider: The provider.
        hooks: Emits events.
        coordinator: Runs the calls under their deadline.
        options: The options of the turn.
        is_stopping: Returns whether the turn was asked to stop.
        answer_tool: The name of the tool for a typed answer, or None.
    """

    def __init__(
        self,
        name: str,
        provider: Provider,
        hooks: Hooks,
        coordinator: Coordinator,
        options: TurnOptions,
        is_stopping: Callable[[], bool],
        answer_tool: str | None = None,
    ) -> None:
        self.name = name
        self.provider = provider
        self._hooks = hooks
        self._has_handlers = hooks.has_handlers
        self._coordinator = coordinator
        self._options = options
        self._is_stopping = is_stopping
        self._answer_tool = answer_tool
        self._label = f"provider {name!r}"
        self._reported = _Reported()
        self._messages: RequestMessages | None = None
        self._name = "call"
        self._used: set[Any] = set()

    def price_of_input(self, request: ChatRequest, tokens: int) -> Decimal | None:
        """Return the maximum price of ``tokens`` input tokens in US dollars, or None if unknown."""
        # This member of the contract is optional.
        provider: Any = self.provider
        try:
            cost = provider.estimate_cost(request, input_tokens=tokens, output_tokens=0)
        except BaseException as exc:  # noqa: BLE001 — foreign code
            contained_failure(exc, can_wait=False)
            return None
        return cost if isinstance(cost, Decimal) else None

    def require_readable(self, attachments: list[dict[str, Any]]) -> None:
        """Check, before a prompt is stored, that the provider reads its attachments.

        Raises:
            InvalidRequestError: The provider declares that it reads only text.
        """
        if attachments and TEXT_ONLY in capabilities_of(self.provider):
            first = attachments[0]
            title = f" {first['title']!r}" if "title" in first else ""
            model = self._options.model or self.provider.get_info().defaults.get("model")
            raise InvalidRequestError(
                f"prompt[{first['index']}]: provider {self.name!r} (model {model!r}) reads only "
                f"text, got the {first['type']}{title}; choose a provider with models that read "
                "images and documents, or give it as text",
                provider=self.name,
                model=model,
            )

    def expect(self, messages: RequestMessages, name: str) -> None:
        """Set the messages of the next request, and the prefix for ids that its answer lacks."""
        self._messages, self._name = messages, name

    async def ask(self, request: ChatRequest) -> ChatResponse:
        """Get an answer, retrying errors that are marked as retryable.

        Raises:
            LLMError: The error of the provider, unchanged, if it isn't retryable or no retry is
                left.
            NotRepeated: The turn was asked to stop before a retry.
            ContainedError: The provider raised a BaseException such as SystemExit.
        """
        attempt, self._reported = 0, _Reported()
        while True:
            try:
                return await self._ask_once(request)
            except LLMError as exc:
                attempt += 1
                if (
                    not exc.retryable
                    or attempt > self._options.max_retries
                    or self._is_too_long(exc)
                ):
                    await self._emit_error(exc)
                    raise
                delay = self._delay(attempt, exc)
                await self._hooks.emit(
                    PROVIDER_RETRY,
                    {
                        "provider": self.name,
                        "attempt": attempt,
                        "max_retries": self._options.max_retries,
                        "delay": delay,
                        "error_type": type(exc).__name__,
                        "error_message": str(exc),
                    },
                )
                if await self._is_stopped_within(delay):
                    await self._emit_error(exc)
                    raise NotRepeated from exc
            # The provider wasn't called.
            except BudgetError:
                raise
            except Exception as exc:
                await self._emit_error(exc)
                raise

    async def _is_stopped_within(self, seconds: float) -> bool:
        """Wait before a retry. Return True as soon as the turn is asked to stop."""
        until = anyio.current_time() + seconds
        while not self._is_stopping() and (left := until - anyio.current_time()) > 0:  # noqa: ASYNC110
            await anyio.sleep(min(left, _POLL_INTERVAL))
        return self._is_stopping()

    async def calls_of(self, response: ChatResponse) -> tuple[ChatResponse, list[ToolCall]]:
        """Return an answer and copies of its tool calls, each with a unique id.

        Raises:
            ContractError: The provider returned something other than a list of calls.
            ContainedError: The provider raised a BaseException such as SystemExit.
            ModelError: The input of a call is self-referential.
        """
        response = self._with_named_calls(response)
        try:
            with contain_errors(self._label):
                calls: Any = self.provider.parse_tool_calls(response)
            if isinstance(calls, list) and all(isinstance(call, ToolCall) for call in calls):
                return response, self._with_unique_ids([_own(call) for call in calls])
            raise ContractError(
                f"{self._label} parsed {calls!r:.80} as tool calls; expected a list of ToolCall",
                module=self.name,
            )
        except Exception as exc:
            await self._emit_error(exc)
            raise

    def _with_named_calls(self, response: ChatResponse) -> ChatResponse:
        """Return an answer with a unique id for each call. It is a copy if an id was replaced."""
        blocks = [block for block in response.content if isinstance(block, ToolCallBlock)]
        unique, calls = (
            self._with_unique_ids(blocks),
            self._with_unique_ids(response.tool_calls or []),
        )
        if unique == blocks and calls == (response.tool_calls or []):
            return response
        named, rest = copy.copy(response), iter(unique)
        named.content = [
            next(rest) if isinstance(block, ToolCallBlock) else block for block in response.content
        ]
        named.tool_calls = calls or response.tool_calls
        return named

    def _with_unique_ids(self, calls: list[CallT]) -> list[CallT]:
        """Return the calls of an answer, and replace ids that are empty or already in use.

        The same calls always get the same new ids, so that a replayed turn finds its results.
        """
        if calls and self._messages is not None:
            self._used |= self._messages.call_ids()
            self._messages = None
        used, result = set(self._used), []
        for at, call in enumerate(calls, 1):
            call_id, numbers = call.id, itertools.count(at)
            while not call_id.strip() or call_id in used:
                call_id = f"{self._name}_{next(numbers)}"
            used.add(call_id)
            result.append(call if call_id == call.id else copy.copy(call))
            result[-1].id = call_id
        return result

    def _is_too_long(self, exc: LLMError) -> bool:
        return (exc.retry_after or 0.0) > self._options.max_retry_after

    async def _emit_error(self, exc: Exception) -> None:
        details = {
            "provider": self.name,
            "error": {"type": type(exc).__name__, "message": text_of(exc)},
        }
        await self._hooks.emit(PROVIDER_ERROR, details)

    def _delay(self, attempt: int, exc: LLMError) -> float:
        delay = min(self._options.initial_delay * 2.0 ** (attempt - 1), self._options.max_delay)
        if exc.delay_multiplier > 0:
            delay *= exc.delay_multiplier
        delay *= random.uniform(0.5, 1.5)
        return max(delay, exc.retry_after or 0.0)

    async def _ask_once(self, request: ChatRequest) -> ChatResponse:
        seconds = self._options.provider_timeout
        try:
            return await self._coordinator.call_within(seconds, self._label, self._answer, request)
        except DeadlineExceeded as exc:
            # The deadline belongs to a session that the provider runs.
            if exc.operation != self._label:
                raise
            raise LLMTimeoutError(
                f"{self._label} gave no answer within {seconds:g} s", provider=self.name
            ) from None

    async def _answer(self, request: ChatRequest) -> ChatResponse:
        if self._options.streaming and hasattr(self.provider, "stream"):
            return await self._stream(request)
        return await self._complete(request)

    async def _complete(self, request: ChatRequest) -> ChatResponse:
        received = None
        if self._options.streaming:
            received = ReceivedStream(self._hooks, self._reported.begin_attempt, self._take)
        with nullcontext() if received is None else received.receiving():
            response: Any = await self.provider.complete(request)
        if not isinstance(response, ChatResponse):
            raise self._broken_contract("returned", response, "a ChatResponse")
        named = self._with_named_calls(response)
        if received is not None:
            if received.has_text:
                for chunk in received.ends(named):
                    await self._pass_on(chunk)
                return named
            self._reported.begin_attempt()
            if self._reported.is_void:
                await self._announce_reset()
        events = (CONTENT_BLOCK_START, CONTENT_BLOCK_DELTA, CONTENT_BLOCK_END, THINKING_FINAL)
        if any(map(self._has_handlers, events)):
            await self._emit_blocks(named)
        return named

    async def _emit_blocks(self, response: ChatResponse) -> None:
        usage = None if response.usage is None else to_dict(response.usage)
        total = len(response.content)
        for index, block in enumerate(response.content):
            start = {"block_index": index, "block_type": block.type, "total_blocks": total}
            await self._hooks.emit(CONTENT_BLOCK_START, start)
            if isinstance(block, TextBlock) and block.text:
                delta = {
                    "block_index": index,
                    "block_type": "text",
                    "delta": block.text,
                    "total_blocks": total,
                }
                await self._hooks.emit(CONTENT_BLOCK_DELTA, delta)
            details = {
                "block_index": index,
                "block": self._shown(block),
                "total_blocks": total,
                "usage": usage,
            }
            await self._hooks.emit(CONTENT_BLOCK_END, details)
            if isinstance(block, ThinkingBlock):
                await self._hooks.emit(
                    THINKING_FINAL, {"block_index": index, "text": block.thinking}
                )

    def _shown(self, block: ContentBlockUnion) -> dict[str, Any] | None:
        return to_dict(block) if self._has_handlers(CONTENT_BLOCK_END, "block") else None

    async def _stream(self, request: ChatRequest) -> ChatResponse:
        """Emit the pieces as events, and return the answer, which comes last."""
        # This member of the contract is optional.
        stream: Any = self.provider.stream  # type: ignore[attr-defined]
        response: ChatResponse | None = None
        calls: list[ToolCallBlock] = []
        self._reported.begin_attempt()
        opening = stream(request)
        if not hasattr(opening, "__aenter__"):
            raise self._broken_contract(
                "returned", opening, "an async context manager from stream()"
            )
        async with opening as chunks:
            if not hasattr(chunks, "__aiter__"):
                raise self._broken_contract(
                    "opened", chunks, "an async iterator of chunks from stream()"
                )
            # Read past the response to the end. An async generator that is abandoned isn't closed.
            async for chunk in chunks:
                # A provider may use its own class for chunks.
                kind = getattr(chunk, "kind", None)
                if kind is None:
                    raise self._broken_contract("streamed", chunk, "a StreamChunk")
                if kind == "response":
                    response = chunk.response
                    if not isinstance(response, ChatResponse):
                        raise self._broken_contract(
                            "ended its stream with", response, "a ChatResponse"
                        )
                else:
                    if kind == "block_end" and isinstance(chunk.block, ToolCallBlock):
                        calls.append(chunk.block)
                        chunk = StreamChunk(  # noqa: PLW2901
                            kind=kind, index=chunk.index, block=self._with_unique_ids(calls)[-1]
                        )
                    await self._take(chunk)
        if response is not None:
            if self._reported.is_void:
                await self._announce_reset()
            return self._with_named_calls(response)
        raise ContractError(
            f"provider {self.name!r} ended its stream without a response; "
            "expected a last chunk of kind 'response'",
            module=self.name,
        )

    def _broken_contract(self, verb: str, value: object, expected: str) -> ContractError:
        return ContractError(
            f"{self._label} {verb} {type(value).__name__}; expected {expected}", module=self.name
        )

    async def _take(self, chunk: StreamChunk) -> None:
        if self._reported.is_void:
            await self._announce_reset()
        await self._pass_on(chunk)

    async def _announce_reset(self) -> None:
        """Announce that the answer starts over, so that listeners discard its pieces."""
        discarded, self._reported = "".join(self._reported.text), _Reported()
        await self._hooks.emit(CONTENT_BLOCK_RESET, {"provider": self.name, "discarded": discarded})

    async def _pass_on(self, chunk: StreamChunk) -> None:
        reported = self._reported
        reported.note(chunk)
        emit, has_handlers = self._hooks.emit, self._has_handlers
        index, kind = chunk.index, chunk.block_type
        # Most events are pieces, which cost nothing without listeners.
        if chunk.kind == "block_delta":
            details: dict[str, Any] = {
                "block_index": index,
                "block_type": kind,
                "delta": chunk.text,
            }
            result = HookResult()
            if has_handlers(CONTENT_BLOCK_DELTA):
                result = await emit(CONTENT_BLOCK_DELTA, details)
            reported.add_piece(result, details)
            if kind in ("thinking", "reasoning") and has_handlers(THINKING_DELTA):
                await emit(THINKING_DELTA, {"block_index": index, "delta": chunk.text})
        elif chunk.kind == "block_start":
            start: dict[str, Any] = {"block_index": index, "block_type": kind}
            if chunk.tool_name is not None:
                start["metadata"] = {
                    "tool_name": chunk.tool_name,
                    "is_answer": chunk.tool_name == self._answer_tool,
                }
            await emit(CONTENT_BLOCK_START, start)
        elif chunk.kind == "block_end" and chunk.block is not None:
            details = {"block_index": index, "block": self._shown(chunk.block)}
            reported.add_block(await emit(CONTENT_BLOCK_END, details), details)
            if isinstance(chunk.block, ThinkingBlock):
                await emit(THINKING_FINAL, {"block_index": index, "text": chunk.block.thinking})


class _Reported:
    """The part of one answer that listeners have received.

    Attributes:
        is_void: True if the answer starts over and listeners haven't been notified yet.
        text: The pieces of its text, as changed by hooks. A reset announces this text.
    """

    __slots__ = ("_has_begun", "_in_pieces", "is_void", "text")

    def __init__(self) -> None:
        self.is_void: bool = False
        self.text: list[str] = []
        self._has_begun = False
        # The indices of the blocks that have sent text as pieces.
        self._in_pieces: set[int] = set()

    def begin_attempt(self) -> None:
        """Record that the answer starts, or starts over."""
        self.is_void = self._has_begun

    def note(self, chunk: StreamChunk) -> None:
        """Record a piece before it is passed on."""
        self._has_begun = True
        if chunk.kind == "block_start":
            self._in_pieces.discard(chunk.index)

    def add_piece(self, result: HookResult, details: dict[str, JSON]) -> None:
        """Add a piece that listeners have received, unless a hook has denied it."""
        if result.action != "deny" and details["block_type"] == "text":
            self._in_pieces.add(details["block_index"])
            self._add((result.data or details).get("delta"))

    def add_block(self, result: HookResult, details: dict[str, JSON]) -> None:
        """Add a block that listeners have received whole."""
        block = (result.data or details).get("block")
        if (
            result.action != "deny"
            and details["block_index"] not in self._in_pieces
            and isinstance(block, dict)
        ):
            self._add(block.get("text") if block.get("type") == "text" else None)

    def _add(self, text: object) -> None:
        if isinstance(text, str) and text:
            self.text.append(text)


def _own(call: ToolCall) -> ToolCall:
    own = copy.copy(call)
    own.arguments = copy_json(call.arguments)
    return own


_receiving: ContextVar[ReceivedStream | None] = ContextVar(
    "amplifier_received_stream", default=None
)
_OURS = {"tool_use": "tool_call"}


class ReceivedStream:
    """Turns the events of a provider without ``stream`` into the chunks of one answer.

    While their ``complete`` runs, published providers emit ``llm:stream_block_start``,
    ``llm:stream_block_delta`` and ``llm:stream_block_end``. A provider that retries emits the new
    answer under a new ``request_id``. Events of other calls, such as those of a hook, are ignored.

    Args:
        hooks: The registry to which the provider emits.
        begin: Called when an answer starts.
        take: Called with each chunk.
    """

    def __init__(
        self,
        hooks: Hooks,
        begin: Callable[[], None],
        take: Callable[[StreamChunk], Awaitable[None]],
    ) -> None:
        self._hooks = hooks
        self._begin = begin
        self._take = take
        self._request: object = None
        # The types of the blocks that have started.
        self._blocks: dict[int, str] = {}

    @contextmanager
    def receiving(self) -> Iterator[None]:
        """Listen during a call."""
        handlers = {LLM_STREAM_BLOCK_START: self._start, LLM_STREAM_BLOCK_DELTA: self._delta}
        # This hook runs last, so that it receives each piece as changed by the other hooks.
        register = partial(self._hooks.register, priority=sys.maxsize, name="live text")
        removers = [register(event, handler) for event, handler in handlers.items()]
        outer = _receiving.set(self)
        try:
            yield
        finally:
            _receiving.reset(outer)
            for remove in removers:
                remove()

    async def _start(self, _: str, data: dict[str, Any]) -> None:
        index, kind = data.get("block_index"), str(data.get("block_type"))
        if _receiving.get() is not self or not isinstance(index, int):
            return
        if data.get("request_id") != self._request or not self._blocks:
            self._request = data.get("request_id")
            self._blocks.clear()
            self._begin()
        self._blocks[index] = kind = _OURS.get(kind, kind)
        name = data.get("name")
        await self._take(
            StreamChunk(
                kind="block_start",
                index=index,
                block_type=kind,
                tool_name=name if isinstance(name, str) else None,
            )
        )

    async def _delta(self, _: str, data: dict[str, Any]) -> None:
        index, text = data.get("block_index"), data.get("text")
        if _receiving.get() is self and index in self._blocks and isinstance(text, str):
            await self._take(
                StreamChunk(
                    kind="block_delta", index=index, block_type=self._blocks[index], text=text
                )
            )

    def ends(self, response: ChatResponse) -> list[StreamChunk]:
        """Return the chunks that end the blocks. Only the response contains whole blocks.

        A block that wasn't streamed becomes one piece.
        """
        open_blocks = sorted(self._blocks.items())
        free = max(self._blocks, default=-1) + 1
        chunks = []
        for block in response.content:
            known = next((item for item in open_blocks if item[1] == block.type), None)
            if known is not None:
                open_blocks.remove(known)
                index = known[0]
            else:
                index, free = free, free + 1
                chunks.append(StreamChunk(kind="block_start", index=index, block_type=block.type))
                if isinstance(block, TextBlock) and block.text:
                    chunks.append(
                        StreamChunk(
                            kind="block_delta", index=index, block_type="text", text=block.text
                        )
                    )
            chunks.append(
                StreamChunk(kind="block_end", index=index, block_type=block.type, block=block)
            )
        return chunks

    @property
    def has_text(self) -> bool:
        """True if a block was streamed."""
        return bool(self._blocks)
