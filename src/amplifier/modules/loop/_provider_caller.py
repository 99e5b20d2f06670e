"""Calls one provider: sends the request, streams or reads the answer, retries retryable errors.

An answer whose stream was cut is asked for again, and its listeners are told nothing twice: as long as the new answer repeats what
they have been told, it is held back. One that differs is announced with ``content_block:reset`` and told from its beginning.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import anyio

from amplifier._json import copy_json
from amplifier.contracts import Hooks, Provider, contained_failure
from amplifier.errors import (
    BudgetError,
    ContractError,
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
    PROVIDER_ERROR,
    PROVIDER_RETRY,
    THINKING_DELTA,
    THINKING_FINAL,
)
from amplifier.models import (
    ChatRequest,
    ChatResponse,
    ContentBlockUnion,
    StreamChunk,
    TextBlock,
    ThinkingBlock,
    ToolCall,
    to_dict,
)

from ._containment import Contained, Overran, call_within, text_of
from ._heard_events import heard_by, knows_handlers
from ._options import TurnOptions
from ._received_stream import ReceivedStream


def choose_provider(providers: Mapping[str, Provider], wanted: str | None) -> tuple[str, Provider]:
    """The provider to ask.

    Raises:
        ProviderUnavailableError: There is none, or none of that name.
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
        "no provider is mounted; add one to the plan's providers section, or check why it declined (logs)",
        retryable=False,
    )


def capabilities_of(provider: Provider) -> list[str]:
    """What a provider says that it can do; nothing if it fails to."""
    try:
        return provider.get_info().capabilities
    except BaseException as exc:  # noqa: BLE001 — foreign code; it is called later, and its failure reported then
        contained_failure(exc)
        return []


_LOOK = 0.25
"""Seconds between two looks at the token while a retry is waited for: it has no event to wait for."""


TEXT_ONLY = "text_only"
"""The capability of a provider whose models read nothing but text."""


class NotRepeated(Exception):  # no error: the turn ends as it was asked to
    """A model call failed and would be repeated, but a graceful stop was requested, which starts nothing new."""


class ProviderCaller:
    """Calls one provider on behalf of a turn.

    Args:
        name: The provider's.
        provider: The provider.
        hooks: For events.
        options: Those of the turn.
        is_stopping: Whether the turn was asked to stop.
        answer_tool: The tool that the model gives a typed answer with.
    """

    def __init__(
        self,
        name: str,
        provider: Provider,
        hooks: Hooks,
        options: TurnOptions,
        is_stopping: Callable[[], bool],
        answer_tool: str | None = None,
    ) -> None:
        self.name = name
        self.provider = provider
        self._hooks = hooks
        self._is_heard = heard_by(hooks)
        self._options = options
        self._is_stopping = is_stopping
        self._answer_tool = answer_tool
        self._who = f"provider {name!r}"
        self._told = _Told()

    def require_readable(self, attachments: list[dict[str, Any]]) -> None:
        """Refuse a prompt before it is stored, if the provider declares that it reads text only.

        Raises:
            InvalidRequestError: It does, and the prompt has more.
        """
        if attachments and TEXT_ONLY in capabilities_of(self.provider):
            first = attachments[0]
            title = f" {first['title']!r}" if "title" in first else ""
            model = self._options.model or self.provider.get_info().defaults.get("model")
            raise InvalidRequestError(
                f"prompt[{first['index']}]: provider {self.name!r} (model {model!r}) reads text only, got the {first['type']}{title}; "
                "choose a provider whose models read images and documents, or give it as text",
                provider=self.name,
                model=model,
            )

    async def ask(self, request: ChatRequest) -> ChatResponse:
        """Get an answer, retrying errors that are marked as retryable.

        Raises:
            LLMError: What the provider raised, unchanged, when retries are used up or pointless.
            NotRepeated: The turn was asked to stop before a retry.
            ContainedError: It raised something that is no ``Exception``.
        """
        attempt, self._told = 0, _Told()
        while True:
            try:
                return await self._ask_once(request)
            except LLMError as exc:
                attempt += 1
                if not exc.retryable or attempt > self._options.max_retries or self._is_too_long(exc):
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
            except BudgetError:  # the provider was not called
                raise
            except Exception as exc:
                await self._emit_error(exc)
                raise

    async def _is_stopped_within(self, seconds: float) -> bool:
        """Wait before a retry; True as soon as the turn is asked to stop."""
        until = anyio.current_time() + seconds
        while not self._is_stopping() and (left := until - anyio.current_time()) > 0:  # noqa: ASYNC110 — see _LOOK
            await anyio.sleep(min(left, _LOOK))
        return self._is_stopping()

    async def calls_of(self, response: ChatResponse) -> list[ToolCall]:
        """The tool calls of an answer, as they are now: what the provider does with its own has no effect.

        Raises:
            ContractError: The provider parsed something else.
            ContainedError: It raised something that is no ``Exception``.
            ModelError: The input of a call contains itself.
        """
        try:
            with Contained(self._who):
                calls: Any = self.provider.parse_tool_calls(response)
            if isinstance(calls, list) and all(isinstance(call, ToolCall) for call in calls):
                return [_own(call) for call in calls]
            raise ContractError(
                f"{self._who} parsed {calls!r:.80} as tool calls; expected a list of ToolCall", module=self.name
            )
        except Exception as exc:
            await self._emit_error(exc)
            raise

    def _is_too_long(self, exc: LLMError) -> bool:
        return (exc.retry_after or 0.0) > self._options.max_retry_after

    async def _emit_error(self, exc: Exception) -> None:
        details = {"provider": self.name, "error": {"type": type(exc).__name__, "message": text_of(exc)}}
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
            response: ChatResponse = await call_within(seconds, self._who, self._answer, request)
        except Overran as exc:
            raise LLMTimeoutError(
                f"{self._who} gave no answer within {seconds:g} s", provider=self.name
            ) from exc.__cause__
        return response

    async def _answer(self, request: ChatRequest) -> ChatResponse:
        if self._options.streaming and hasattr(self.provider, "stream"):
            return await self._stream(request)
        return await self._complete(request)

    async def _complete(self, request: ChatRequest) -> ChatResponse:
        received = None
        if self._options.streaming and knows_handlers(self._hooks):
            received = ReceivedStream(self._hooks, self._told.begin_attempt, self._take)
        with nullcontext() if received is None else received.receiving():
            response: Any = await self.provider.complete(request)
        if not isinstance(response, ChatResponse):
            raise self._broken_contract("returned", response, "a ChatResponse")
        if received is not None:
            if not received.has_text:
                self._told.begin_attempt()
            await self._tell(*self._told.rest())
            if received.has_text:
                for chunk in received.ends(response):
                    await self._pass_on(chunk)
                return response
        heard = (CONTENT_BLOCK_START, CONTENT_BLOCK_DELTA, CONTENT_BLOCK_END, THINKING_FINAL)
        if any(map(self._is_heard, heard)):
            await self._emit_blocks(response)
        return response

    async def _emit_blocks(self, response: ChatResponse) -> None:
        usage = None if response.usage is None else to_dict(response.usage)
        total = len(response.content)
        for index, block in enumerate(response.content):
            start = {"block_index": index, "block_type": block.type, "total_blocks": total}
            await self._hooks.emit(CONTENT_BLOCK_START, start)
            if isinstance(block, TextBlock) and block.text and self._is_heard(CONTENT_BLOCK_DELTA):
                delta = {"block_index": index, "block_type": "text", "delta": block.text, "total_blocks": total}
                await self._hooks.emit(CONTENT_BLOCK_DELTA, delta)
            details = {"block_index": index, "block": self._shown(block), "total_blocks": total, "usage": usage}
            await self._hooks.emit(CONTENT_BLOCK_END, details)
            if isinstance(block, ThinkingBlock):
                await self._hooks.emit(THINKING_FINAL, {"block_index": index, "text": block.thinking})

    def _shown(self, block: ContentBlockUnion) -> dict[str, Any] | None:
        return to_dict(block) if self._is_heard(CONTENT_BLOCK_END, "block") else None

    async def _stream(self, request: ChatRequest) -> ChatResponse:
        """Pass the pieces on as events; the answer itself comes last."""
        stream: Any = self.provider.stream  # type: ignore[attr-defined]  # optional member of the contract
        response: ChatResponse | None = None
        self._told.begin_attempt()
        opening = stream(request)
        if not hasattr(opening, "__aenter__"):
            raise self._broken_contract("returned", opening, "an async context manager from stream()")
        async with opening as chunks:
            if not hasattr(chunks, "__aiter__"):
                raise self._broken_contract("opened", chunks, "an async iterator of chunks from stream()")
            # To the very end, past the response: no one closes an async generator that is left half-way.
            async for chunk in chunks:
                kind = getattr(chunk, "kind", None)  # a provider may have a chunk class of its own
                if kind is None:
                    raise self._broken_contract("streamed", chunk, "a StreamChunk")
                if kind == "response":
                    response = chunk.response
                    if not isinstance(response, ChatResponse):
                        raise self._broken_contract("ended its stream with", response, "a ChatResponse")
                else:
                    await self._take(chunk)
        if response is not None:
            await self._tell(*self._told.rest())
            return response
        raise ContractError(
            f"provider {self.name!r} ended its stream without a response; expected a last chunk of kind 'response'",
            module=self.name,
        )

    def _broken_contract(self, did: str, found: object, expected: str) -> ContractError:
        return ContractError(f"{self._who} {did} {type(found).__name__}; expected {expected}", module=self.name)

    async def _take(self, chunk: StreamChunk) -> None:
        await self._tell(*self._told.news(chunk))

    async def _tell(self, discarded: str | None, chunks: list[StreamChunk]) -> None:
        if discarded is not None:
            await self._hooks.emit(CONTENT_BLOCK_RESET, {"provider": self.name, "discarded": discarded})
        for chunk in chunks:
            await self._pass_on(chunk)

    async def _pass_on(self, chunk: StreamChunk) -> None:
        emit, is_heard = self._hooks.emit, self._is_heard
        if chunk.kind == "block_start" and is_heard(CONTENT_BLOCK_START):
            start: dict[str, Any] = {"block_index": chunk.index, "block_type": chunk.block_type}
            if chunk.tool_name is not None:
                start["metadata"] = {"tool_name": chunk.tool_name, "is_answer": chunk.tool_name == self._answer_tool}
            await emit(CONTENT_BLOCK_START, start)
        elif chunk.kind == "block_delta":
            if is_heard(CONTENT_BLOCK_DELTA):
                details = {"block_index": chunk.index, "block_type": chunk.block_type, "delta": chunk.text}
                await emit(CONTENT_BLOCK_DELTA, details)
            if chunk.block_type in ("thinking", "reasoning"):
                await emit(THINKING_DELTA, {"block_index": chunk.index, "delta": chunk.text})
        elif chunk.kind == "block_end" and chunk.block is not None:
            if is_heard(CONTENT_BLOCK_END):
                await emit(CONTENT_BLOCK_END, {"block_index": chunk.index, "block": self._shown(chunk.block)})
            if isinstance(chunk.block, ThinkingBlock):
                await emit(THINKING_FINAL, {"block_index": chunk.index, "text": chunk.block.thinking})


class _Told:
    """What listeners have been told of one answer, over all attempts to get it.

    What is to be told comes with the text that it replaces, if it is an answer of its own, else with None.
    """

    def __init__(self) -> None:
        self._chunks: list[StreamChunk] = []  # of the running attempt
        self._known: list[StreamChunk] = []  # of the attempt that listeners know, while the running one repeats it
        self._known_text = self._repeated_text = ""

    def begin_attempt(self) -> None:
        """The answer comes from its beginning."""
        if not self._known:  # otherwise the latest attempt was cut while it repeated what is known
            self._known, self._known_text = self._chunks, "".join(map(_spelled, self._chunks))
        self._chunks, self._repeated_text = [], ""

    def news(self, chunk: StreamChunk) -> tuple[str | None, list[StreamChunk]]:
        """Take the next piece; returns what listeners do not know of it."""
        self._chunks.append(chunk)
        if not self._known:
            return None, [chunk]
        self._repeated_text += _spelled(chunk)
        if not self._repeated_text.startswith(self._known_text):
            return (None, []) if self._known_text.startswith(self._repeated_text) else self.rest()
        self._known, new = [], self._repeated_text[len(self._known_text) :]
        delta = StreamChunk(kind="block_delta", index=chunk.index, block_type=chunk.block_type, text=new)
        return None, [delta] if new else []

    def rest(self) -> tuple[str | None, list[StreamChunk]]:
        """The answer differs from what is known, or is complete before it has repeated all of it."""
        known, self._known = self._known, []
        text = "".join(each.text or "" for each in known if each.block_type == "text")
        return (text, list(self._chunks)) if known else (None, [])


def _spelled(chunk: StreamChunk) -> str:
    """A chunk as part of a text, in which pieces that are cut at other places are the same."""
    if chunk.kind == "block_delta":
        return chunk.text or ""
    return f"\0{chunk.kind} {chunk.index} {chunk.block_type} {chunk.tool_name}\0"


def _own(call: ToolCall) -> ToolCall:
    own = copy.copy(call)
    own.arguments = copy_json(call.arguments)
    return own
