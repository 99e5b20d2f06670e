"""provider-openai-compatible with a real server and a real model: llama.cpp's, see `tests.modules.providers.model_server`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import anyio
import anyio.to_thread
import attrs
import pytest

from amplifier import AmplifierSession
from amplifier.errors import ContextLengthError
from amplifier.models import ChatRequest, Message, TextBlock
from amplifier.modules.providers import openai_compatible
from amplifier.testing import MockTool, wait_for
from tests.modules.providers.model_server import CONTEXT, ModelServer, running_model_server
from tests.modules.providers.services import MountedProvider, check_chunks, check_response

pytestmark = pytest.mark.slow

SYSTEM = Message(role="system", content="Be brief.")


@pytest.fixture(scope="module")
def model_server() -> Iterator[ModelServer]:
    with running_model_server() as running:
        yield running


def config_of(server: ModelServer) -> dict[str, Any]:
    return {"base_url": server.url, "context_window": CONTEXT, "temperature": 0, "seed": 1}


def mounted(server: ModelServer) -> Any:
    return MountedProvider.running(openai_compatible, **config_of(server))


def short(prompt: str = "Tell me a long story.", tokens: int = 8) -> ChatRequest:
    return ChatRequest(
        messages=[SYSTEM, Message(role="user", content=prompt)], max_output_tokens=tokens
    )


def session_with(server: ModelServer, *tools: Any, **loop: Any) -> AmplifierSession:
    return AmplifierSession(
        {
            "session": {
                "orchestrator": {"module": "loop-streaming", "config": loop},
                "context": "context-simple",
                "strict": True,
            },
            "providers": [{"module": "provider-openai-compatible", "config": config_of(server)}],
            "tools": [{"module": tool} for tool in tools],
        }
    )


async def test_text_is_streamed_and_counted(model_server):
    async with mounted(model_server) as opened:
        chunks = await opened.chunks(short())
        response = check_chunks(chunks)
        check_response(opened.provider, response)
        assert isinstance(response.content[0], TextBlock)
        assert [chunk.kind for chunk in chunks].count("block_delta") > 1
        assert response.usage is not None
        assert (response.finish_reason, response.usage.output_tokens) == ("length", 8)
        again = await opened.answer(short())
        assert again.content == response.content
        assert again.usage.cache_read_tokens > 0


async def test_models_are_listed_with_their_context(model_server):
    async with mounted(model_server) as opened:
        (model,) = await opened.provider.list_models()
        assert (model.id.endswith(".gguf"), model.context_window) == (True, CONTEXT)


async def test_turn_with_tool_call_ends_in_text(model_server):
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    tool = MockTool(
        "weather", respond=lambda given: f"It is sunny in {given['city']}.", schema=schema
    )

    async def mount(coordinator: Any, config: Any) -> None:
        await coordinator.mount("tools", tool, name=tool.name)

    async with session_with(model_server, mount) as session:
        answer = await session.execute("Weather in Paris?")
        context = session.coordinator.get("context")
        assert context is not None
        stored = await context.get_messages()
    assert tool.calls == [{"city": "Paris"}]
    assert [message["role"] for message in stored] == ["user", "assistant", "tool", "assistant"]
    assert answer


Size = Literal["small", "large"]


@attrs.frozen
class House:
    size: Size
    is_old: bool


SCHEMA = {
    "type": "object",
    "properties": {"size": {"enum": ["small", "large"]}, "is_deep": {"type": "boolean"}},
    "required": ["size", "is_deep"],
    "additionalProperties": False,
}

KINDS: dict[str, tuple[Any, Any]] = {
    "attrs": (House, lambda value: isinstance(value, House) and value.size in ("small", "large")),
    "literal": (Size, lambda value: value in ("small", "large")),
    "json-schema": (SCHEMA, lambda value: value.keys() == {"size", "is_deep"}),
}
"""Types, and whether a value is one of theirs."""


async def test_server_grammar_keeps_types_and_schemas(model_server):
    async with session_with(model_server, answer_mode="native") as session:
        context = session.coordinator.get("context")
        assert context is not None
        for name, (result_type, fits) in KINDS.items():
            value = await session.execute("Describe one. Be brief.", result_type=result_type)
            assert fits(value), (name, value)
            await context.clear()


@pytest.mark.parametrize("way", ["left", "cancelled"])
async def test_early_ended_stream_leaves_server_usable(model_server, way):
    async def is_idle() -> bool:
        return await anyio.to_thread.run_sync(model_server.is_idle)

    async with mounted(model_server) as opened:
        with anyio.CancelScope() as scope:
            async with opened.provider.stream(short(tokens=1500)) as chunks:
                async for chunk in chunks:
                    if chunk.kind == "block_delta":
                        assert not await is_idle()
                        if way == "left":
                            break
                        scope.cancel()
        assert scope.cancelled_caught == (way == "cancelled")
        assert await wait_for(is_idle, 60)
        assert (await opened.answer(short())).content


async def test_conversation_beyond_context_is_refused(model_server):
    async with mounted(model_server) as opened:
        with pytest.raises(
            ContextLengthError, match="exceeds the available context size"
        ) as caught:
            await opened.answer(short("word " * 3000))
        assert (caught.value.retryable, caught.value.status_code) == (False, 400)
