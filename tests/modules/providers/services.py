"""The services of the providers: how each provider is mounted, and the bytes its service sends."""

from __future__ import annotations

import copy
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import ModuleType
from typing import Any, Self

import attrs
import pytest

from amplifier.errors import LLMError
from amplifier.models import (
    ChatRequest,
    ChatResponse,
    ImageBlock,
    Message,
    RedactedThinkingBlock,
    StreamChunk,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolResultBlock,
    from_json,
    to_json,
)
from amplifier.modules.providers import anthropic as provider_anthropic
from amplifier.modules.providers import openai as provider_openai
from amplifier.modules.providers import openai_compatible as provider_openai_compatible
from amplifier.testing import EventRecorder, TestCoordinator
from tests.modules.providers.scripted_http_server import (
    END,
    EVENT_STREAM,
    ScriptedHttpServer,
    Step,
    event,
    reply,
)

SentCall = tuple[str, str, str]
"""A tool call as the service sends it: id, name, arguments as JSON text."""

KEY = "sk-test-0123456789"


@attrs.frozen
class ServiceCase:
    """A service with the bytes of its responses."""

    module: ModuleType
    name: str
    path: str
    config: dict[str, Any]
    prefix: str = "/v1"

    def pieces(
        self,
        texts: Sequence[str] = (),
        calls: Sequence[SentCall] = (),
        thoughts: Sequence[str] = (),
    ) -> list[bytes]:
        """The events of an answer, one chunk each."""
        return _PIECES[self.path](texts, calls, thoughts)

    def answer(
        self,
        texts: Sequence[str] = (),
        calls: Sequence[SentCall] = (),
        thoughts: Sequence[str] = (),
    ) -> list[Step]:
        """A whole streamed answer."""
        return [EVENT_STREAM, *self.pieces(texts, calls, thoughts), END]

    def error(
        self, status: int, message: str, kind: str = "some_error", **headers: str
    ) -> list[Step]:
        """A response that reports an error."""
        error = {"type": kind, "message": message, "code": None}
        return [reply({"type": "error", "error": error}, status, **headers)]

    def provider_id(self) -> str:
        """The module's id."""
        return f"provider-{self.name}"


def _anthropic(
    texts: Sequence[str], calls: Sequence[SentCall], thoughts: Sequence[str]
) -> list[bytes]:
    usage = {
        "input_tokens": 10,
        "cache_read_input_tokens": 5,
        "cache_creation_input_tokens": 2,
        "output_tokens": 1,
    }
    message: dict[str, Any] = {
        "id": "msg_1",
        "model": "claude-sonnet-5",
        "content": [],
        "usage": usage,
        "stop_reason": None,
    }
    events: list[dict[str, Any]] = [{"type": "message_start", "message": message}, {"type": "ping"}]
    blocks: list[tuple[dict[str, Any], list[dict[str, Any]]]] = []
    if thoughts:
        pieces = [{"type": "thinking_delta", "thinking": text} for text in thoughts]
        signed = {"type": "signature_delta", "signature": "c2lnbmVk"}
        blocks.append(({"type": "thinking", "thinking": "", "signature": ""}, [*pieces, signed]))
    if texts:
        pieces = [{"type": "text_delta", "text": text} for text in texts]
        blocks.append(({"type": "text", "text": ""}, pieces))
    for call_id, name, arguments in calls:
        start = {"type": "tool_use", "id": call_id, "name": name, "input": {}}
        halves = arguments[: len(arguments) // 2], arguments[len(arguments) // 2 :]
        blocks.append(
            (start, [{"type": "input_json_delta", "partial_json": half} for half in halves])
        )
    for index, (start, deltas) in enumerate(blocks):
        events.append({"type": "content_block_start", "index": index, "content_block": start})
        events += [
            {"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas
        ]
        events.append({"type": "content_block_stop", "index": index})
    delta = {"stop_reason": "tool_use" if calls else "end_turn", "stop_sequence": None}
    events.append({"type": "message_delta", "delta": delta, "usage": {"output_tokens": 7}})
    events.append({"type": "message_stop"})
    return [event(item, item["type"]) for item in events]


def _chat(texts: Sequence[str], calls: Sequence[SentCall], thoughts: Sequence[str]) -> list[bytes]:
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"reasoning_content": text} for text in thoughts]
    deltas += [{"content": text} for text in texts]
    for index, (call_id, name, arguments) in enumerate(calls):
        halves = arguments[: len(arguments) // 2], arguments[len(arguments) // 2 :]
        first = {
            "index": index,
            "id": call_id,
            "type": "function",
            "function": {"name": name, "arguments": halves[0]},
        }
        deltas.append({"tool_calls": [first]})
        deltas.append({"tool_calls": [{"index": index, "function": {"arguments": halves[1]}}]})
    base = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "gpt-5.6-sol"}
    events: list[Any] = [
        {**base, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
        for delta in deltas
    ]
    reason = "tool_calls" if calls else "stop"
    events.append({**base, "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
    usage = {"prompt_tokens": 17, "completion_tokens": 7, "total_tokens": 24}
    details = {
        "prompt_tokens_details": {"cached_tokens": 5},
        "completion_tokens_details": {"reasoning_tokens": 3},
    }
    events.append({**base, "choices": [], "usage": {**usage, **details}})
    return [*(event(item) for item in events), event("[DONE]")]


def _responses(
    texts: Sequence[str], calls: Sequence[SentCall], thoughts: Sequence[str]
) -> list[bytes]:
    events: list[dict[str, Any]] = [{"type": "response.created", "response": {"id": "resp_1"}}]
    items: list[tuple[dict[str, Any], list[dict[str, Any]]]] = []
    if thoughts:
        summary = [{"type": "summary_text", "text": "".join(thoughts)}]
        item = {
            "type": "reasoning",
            "id": "rs_1",
            "summary": summary,
            "encrypted_content": "c2VhbGVk",
        }
        kind = "response.reasoning_summary_text.delta"
        items.append(
            (item, [{"type": kind, "summary_index": 0, "delta": text} for text in thoughts])
        )
    if texts:
        content = [{"type": "output_text", "text": "".join(texts), "annotations": []}]
        item = {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "content": content,
        }
        items.append(
            (
                item,
                [
                    {"type": "response.output_text.delta", "content_index": 0, "delta": t}
                    for t in texts
                ],
            )
        )
    for call_id, name, arguments in calls:
        item = {"type": "function_call", "id": f"fc_{call_id}", "call_id": call_id, "name": name}
        piece = {"type": "response.function_call_arguments.delta", "delta": arguments}
        items.append(({**item, "arguments": arguments, "status": "completed"}, [piece]))
    for index, (item, deltas) in enumerate(items):
        begun = {
            **item,
            **({"content": []} if "content" in item else {}),
            **({"arguments": ""} if "arguments" in item else {}),
        }
        events.append({"type": "response.output_item.added", "output_index": index, "item": begun})
        events += [{**delta, "output_index": index, "item_id": item["id"]} for delta in deltas]
        events.append({"type": "response.output_item.done", "output_index": index, "item": item})
    usage = {
        "input_tokens": 17,
        "output_tokens": 7,
        "total_tokens": 24,
        "input_tokens_details": {"cached_tokens": 5},
    }
    usage["output_tokens_details"] = {"reasoning_tokens": 3}
    response = {"id": "resp_1", "model": "gpt-5.6-sol", "status": "completed", "usage": usage}
    events.append({"type": "response.completed", "response": response})
    return [event(item, item["type"]) for item in events]


_PIECES = {"/v1/messages": _anthropic, "/v1/chat/completions": _chat, "/v1/responses": _responses}

SERVICES = {
    "anthropic": ServiceCase(provider_anthropic, "anthropic", "/v1/messages", {}, prefix=""),
    "openai-responses": ServiceCase(provider_openai, "openai", "/v1/responses", {}),
    "openai-chat": ServiceCase(provider_openai, "openai", "/v1/chat/completions", {"api": "chat"}),
    "openai-compatible": ServiceCase(
        provider_openai_compatible, "openai-compatible", "/v1/chat/completions", {}
    ),
}


class MountedProvider:
    """A mounted provider, and the events it emitted."""

    def __init__(
        self, provider: Any, coordinator: TestCoordinator, recorder: EventRecorder
    ) -> None:
        self.provider = provider
        self.coordinator = coordinator
        self.recorder = recorder

    @classmethod
    async def open(cls, module: ModuleType, **config: Any) -> MountedProvider:
        coordinator, recorder = TestCoordinator(), EventRecorder()
        coordinator.hooks.register("*", recorder, name="recorder")
        await module.mount(coordinator, config)
        (provider,) = coordinator.get("providers").values()
        return cls(provider, coordinator, recorder)

    @classmethod
    @asynccontextmanager
    async def running(cls, module: ModuleType, **config: Any) -> AsyncIterator[Self]:
        """In the end it is cleaned up, twice, which may happen."""
        coordinator, recorder = TestCoordinator(), EventRecorder()
        coordinator.hooks.register("*", recorder, name="recorder")
        cleanup = await module.mount(coordinator, config)
        assert cleanup is not None
        try:
            (provider,) = coordinator.get("providers").values()
            yield cls(provider, coordinator, recorder)
        finally:
            await cleanup()
            await cleanup()

    async def ask(self, prompt: str = "hello", **options: Any) -> Any:
        return await self.answer(
            ChatRequest(messages=[Message(role="user", content=prompt)], **options)
        )

    async def answer(self, request: ChatRequest) -> Any:
        """Ask, and check what holds for every answer of every provider."""
        before = copy.deepcopy(request)
        response = await self.provider.complete(request, unknown_keyword=1)
        assert request == before
        check_response(self.provider, response)
        return response

    async def chunks(self, request: ChatRequest) -> list[StreamChunk]:
        async with self.provider.stream(request) as chunks:
            return [chunk async for chunk in chunks]

    def payloads(self, event: str) -> list[dict[str, Any]]:
        return [data for name, data in self.recorder.get_events() if name == event]


EVERY_BLOCK: list[Any] = [
    TextBlock(text="words"),
    ThinkingBlock(thinking="hm", signature="seal"),
    RedactedThinkingBlock(data="xyz"),
    ToolCallBlock(id="c1", name="t", input={"a": 1}),
    ToolResultBlock(tool_call_id="c1", output={"b": 2}),
    ImageBlock(source={"type": "base64", "media_type": "image/png", "data": "aGk="}),
]


def check_chunks(chunks: list[StreamChunk]) -> ChatResponse:
    """The pieces of every block join to the block, in order, and the last chunk is the whole."""
    *recorded, last = chunks
    assert last.kind == "response"
    assert last.response is not None
    assert [chunk.kind for chunk in recorded].count("response") == 0
    for index, block in enumerate(last.response.content):
        kinds = [chunk.kind for chunk in recorded if chunk.index == index]
        assert kinds[0] == "block_start"
        assert kinds[-1] == "block_end"
        assert set(kinds[1:-1]) <= {"block_delta"}
        text = "".join(chunk.text or "" for chunk in recorded if chunk.index == index)
        if isinstance(block, TextBlock):
            assert text == block.text
        ends = [
            chunk.block for chunk in recorded if chunk.index == index and chunk.kind == "block_end"
        ]
        assert ends == [block]
    assert [chunk.index for chunk in recorded] == sorted(chunk.index for chunk in recorded)
    return last.response


def check_response(provider: Any, response: Any) -> None:
    assert isinstance(response, ChatResponse)
    assert from_json(ChatResponse, to_json(response)) == response
    assert response.usage is not None
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens
    calls = provider.parse_tool_calls(response)
    blocks = [block for block in response.content if isinstance(block, ToolCallBlock)]
    assert [(c.id, c.name, c.arguments) for c in calls] == [(b.id, b.name, b.input) for b in blocks]
    assert all(call.id for call in calls)
    assert len({call.id for call in calls}) == len(calls)


def mounted(
    service: ServiceCase, server: ScriptedHttpServer, **config: Any
) -> AbstractAsyncContextManager[MountedProvider]:
    """The provider of a service, mounted and in the end cleaned up."""
    given = {"api_key": KEY, "base_url": server.url + service.prefix, **service.config, **config}
    return MountedProvider.running(service.module, **given)


def ask(text: str = "hello", **options: Any) -> ChatRequest:
    """A request of one message."""
    return ChatRequest(messages=[Message(role="user", content=text)], **options)


async def response_of(
    service: ServiceCase,
    server: ScriptedHttpServer,
    script: Sequence[Step],
    request: Any = None,
    **config: Any,
) -> Any:
    """What the provider makes of an answer that the service sends in these steps."""
    server.answers(script)
    async with mounted(service, server, **config) as opened:
        return await opened.provider.complete(request or ask())


async def error_of(
    kind: type[LLMError],
    service: ServiceCase,
    server: ScriptedHttpServer,
    *script: Step,
    **config: Any,
) -> Any:
    """The error of a call that the service answers in these steps."""
    with pytest.raises(kind) as caught:
        await response_of(service, server, script, **config)
    return caught.value


async def chunks_of(provider: Any, request: ChatRequest, **keywords: Any) -> list[StreamChunk]:
    """Every chunk of a streamed answer."""
    async with provider.stream(request, **keywords) as chunks:
        return [item async for item in chunks]


def arguments(**given: Any) -> str:
    """A call's arguments as a service sends them."""
    return json.dumps(given)
