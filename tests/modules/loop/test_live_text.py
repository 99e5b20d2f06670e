"""Live text in the published events ``llm:stream_*``: taken from providers without a stream, and emitted by ours."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from amplifier import AmplifierSession, on
from amplifier.errors import ProviderUnavailableError
from amplifier.models import (
    ChatRequest,
    ChatResponse,
    Message,
    ProviderInfo,
    TextBlock,
    TextDelta,
    ThinkingBlock,
    ThinkingDelta,
    ToolCallBlock,
    to_dict,
)
from amplifier.models.turns import BEGINS_AGAIN, TurnText

STREAMED = (
    "llm:stream_block_start",
    "llm:stream_block_delta",
    "llm:stream_block_end",
    "llm:stream_aborted",
)


class PublishedProvider:
    """Streams as published providers do: by events, while ``complete`` runs."""

    name = "published"

    def __init__(self, *attempts: Any) -> None:
        self.attempts = list(attempts)
        self.hooks: Any = None
        self.number = 0

    def get_info(self) -> ProviderInfo:
        return ProviderInfo(id="published", display_name="Published")

    async def list_models(self) -> list[Any]:
        return []

    def parse_tool_calls(self, response: ChatResponse) -> list[Any]:
        return []

    async def emit(self, event: str, **data: Any) -> None:
        await self.hooks.emit(f"llm:stream_{event}", {"request_id": str(self.number), **data})

    async def block(self, index: int, kind: str, *pieces: str, **data: Any) -> None:
        await self.emit("block_start", block_index=index, block_type=kind, **data)
        for sequence, text in enumerate(pieces):
            await self.emit(
                "block_delta", block_index=index, block_type=kind, sequence=sequence, text=text
            )

    async def complete(self, request: ChatRequest, **_: Any) -> ChatResponse:
        self.number += 1
        answer: ChatResponse = await self.attempts.pop(0)(self)
        return answer


def plan_of(
    provider: PublishedProvider, *hooks: Any, loop: str = "loop-streaming"
) -> dict[str, Any]:
    async def mount(coordinator: Any, config: Any = None) -> None:
        provider.hooks = coordinator.hooks
        await coordinator.mount("providers", provider, name=provider.name)

    return {
        "session": {"orchestrator": {"module": loop}, "context": {"module": "context-simple"}},
        "providers": [provider_module(mount)],
        "hooks": list(hooks),
    }


def provider_module(mount: Any) -> Any:
    class Module:
        __amplifier_module_type__ = "provider"

    module: Any = Module()
    module.mount = mount
    return module


async def streamed(plan: dict[str, Any]) -> tuple[list[Any], Any]:
    """The events of a turn, and its result."""
    async with AmplifierSession(plan) as session, session.stream("hi") as events:
        seen = [event async for event in events]
    return seen, events.result


def spoken_by_mock(response: Any, *hooks: Any, loop: str = "loop-streaming") -> dict[str, Any]:
    """A plan whose model is provider-mock."""
    plan = plan_of(PublishedProvider(), *hooks, loop=loop)
    return {**plan, "providers": [{"module": "provider-mock", "config": {"responses": [response]}}]}


async def whole(provider: PublishedProvider) -> ChatResponse:
    await provider.block(0, "thinking", "hm")
    await provider.block(1, "text", "Good ", "day")
    await provider.emit("block_end", block_index=1, block_type="text")
    return ChatResponse(content=[ThinkingBlock(thinking="hm"), TextBlock(text="Good day")])


async def test_published_provider_text_arrives_live():
    may_go_on = anyio.Event()

    async def slow(provider: PublishedProvider) -> ChatResponse:
        await provider.block(0, "text", "Good ")
        await may_go_on.wait()
        await provider.emit("block_delta", block_index=0, block_type="text", sequence=1, text="day")
        return ChatResponse(content=[TextBlock(text="Good day")])

    said = []
    async with (
        AmplifierSession(plan_of(PublishedProvider(slow))) as session,
        session.stream("hi") as events,
    ):
        async for event in events:
            if isinstance(event, TextDelta):
                said.append(event.text)
                may_go_on.set()
    assert said == ["Good ", "day"]


async def test_blocks_begin_end_and_never_repeat():
    events, result = await streamed(plan_of(PublishedProvider(whole)))
    text = TurnText()
    assert "".join(map(text.add, events)) == result == "Good day"
    blocks = [event for event in events if event.name.startswith(("content_block:", "thinking:"))]
    starts = [
        ("content_block:start", 0),
        ("content_block:delta", 0),
        ("thinking:delta", 0),
        ("content_block:start", 1),
    ]
    deltas = [("content_block:delta", 1)] * 2
    ends = [("content_block:end", 0), ("thinking:final", 0), ("content_block:end", 1)]
    assert [(event.name, event.data["block_index"]) for event in blocks] == starts + deltas + ends


async def test_repeated_answer_begins_anew():
    async def twice(provider: PublishedProvider) -> ChatResponse:
        await provider.block(0, "text", "Good ")
        await provider.emit("aborted", error={"type": "StreamError", "msg": "cut"})
        provider.number += 1
        await provider.block(0, "text", "Go", "od day")
        return ChatResponse(content=[TextBlock(text="Good day")])

    async def broken(provider: PublishedProvider) -> ChatResponse:
        await provider.block(0, "text", "Well")
        raise ProviderUnavailableError("cut", retryable=True, retry_after=0)

    async def plain(provider: PublishedProvider) -> ChatResponse:
        return ChatResponse(content=[TextBlock(text="Good day")])

    for provider, expected in [
        (PublishedProvider(twice), ["Good ", "content_block:reset", "Go", "od day"]),
        (PublishedProvider(broken, plain), ["Well", "content_block:reset", "Good day"]),
    ]:
        plan = plan_of(provider)
        plan["session"]["orchestrator"]["config"] = {"initial_delay": 0.0}
        events, _ = await streamed(plan)
        told = [
            event
            for event in events
            if isinstance(event, TextDelta) or event.name == "content_block:reset"
        ]
        assert [
            event.text if isinstance(event, TextDelta) else event.name for event in told
        ] == expected


async def test_provider_call_beside_turn_is_not_answer():
    provider = PublishedProvider(whole, whole)
    started, asked = anyio.Event(), anyio.Event()

    async def patient(self: PublishedProvider) -> ChatResponse:
        await self.block(0, "text", "mine")
        started.set()
        await asked.wait()
        return ChatResponse(content=[TextBlock(text="mine")])

    provider.attempts[0] = patient
    said = []
    async with AmplifierSession(plan_of(provider)) as session, anyio.create_task_group() as tasks:

        async def name_the_session() -> None:
            await started.wait()
            await provider.complete(
                ChatRequest(messages=[Message(role="user", content="a title, please")])
            )
            asked.set()

        tasks.start_soon(name_the_session)
        async with session.stream("hi") as events:
            async for event in events:
                said += [event.text] if isinstance(event, TextDelta) else []
    assert said == ["mine"]


async def test_unstreamed_block_is_one_piece():
    async def half(provider: PublishedProvider) -> ChatResponse:
        await provider.block(0, "tool_use", name="look")
        call = ToolCallBlock(id="1", name="look", input={})
        return ChatResponse(content=[call, TextBlock(text="So.")])

    events, _ = await streamed(plan_of(PublishedProvider(half)))
    seen = [
        (event.name, event.data["block_index"])
        for event in events
        if event.name.startswith("content_block:")
    ]
    kinds = [("start", 0), ("end", 0), ("start", 1), ("delta", 1), ("end", 1)]
    assert seen == [(f"content_block:{kind}", index) for kind, index in kinds]


@pytest.mark.parametrize("loop", ["loop-basic", "loop-streaming"])
async def test_providers_emit_published_events_for_listeners(loop: str):
    heard: list[tuple[str, dict[str, Any]]] = []

    @on(*STREAMED)
    async def listen(event: str, data: dict[str, Any]) -> None:
        heard.append(
            (
                event,
                {
                    key: value
                    for key, value in data.items()
                    if key not in ("session_id", "timestamp")
                },
            )
        )

    async with AmplifierSession(spoken_by_mock("Good day", listen, loop=loop)) as session:
        await session.execute("hi")
    assert len({data["request_id"] for _, data in heard}) == 1
    assert [event for event, _ in heard] == [
        STREAMED[0],
        *[STREAMED[1]] * (len(heard) - 2),
        STREAMED[2],
    ]
    deltas = [data for event, data in heard if event == STREAMED[1]]
    assert "".join(data["text"] for data in deltas) == "Good day"
    assert [data["sequence"] for data in deltas] == list(range(len(deltas)))
    assert {(data["block_index"], data["block_type"]) for _, data in heard} == {(0, "text")}


async def test_broken_stream_is_announced_as_aborted():
    heard: list[Any] = []

    @on(*STREAMED)
    async def listen(event: str, data: dict[str, Any]) -> None:
        heard.append((event, data.get("error")))

    cut = {
        "text": "Good day",
        "error": {"type": "StreamError", "message": "cut", "retryable": False},
    }
    async with AmplifierSession(spoken_by_mock(cut, listen)) as session:
        with pytest.raises(Exception, match="cut"):
            await session.execute("hi")
    assert heard[-1] == (STREAMED[3], {"type": "StreamError", "msg": "cut"})


# ── loops of others, which report whole blocks, or nothing ──


class PublishedLoop:
    """Asks its provider for whole answers, as published loops do."""

    def __init__(self, *, reports: bool = True, calls: int = 1) -> None:
        self.reports = reports
        self.calls = calls

    async def execute(
        self, prompt: str, context: Any, providers: Any, tools: Any, hooks: Any, **_: Any
    ) -> str:
        answer = ""
        for iteration in range(self.calls):
            if self.reports:
                await hooks.emit("provider:request", {"iteration": iteration})
            response = await next(iter(providers.values())).complete(ChatRequest(messages=[]))
            for index, block in enumerate(response.content if self.reports else []):
                await hooks.emit(
                    "content_block:start", {"block_index": index, "block_type": block.type}
                )
                await hooks.emit(
                    "content_block:end", {"block_index": index, "block": to_dict(block)}
                )
            answer = "".join(block.text for block in response.content if block.type == "text")
        return answer


async def read(plan: dict[str, Any], loop: Any) -> list[str]:
    plan["session"]["orchestrator"] = loop
    async with AmplifierSession(plan) as session:
        return [piece async for piece in session.stream_text("hi")]


@pytest.mark.parametrize(
    "loop", [PublishedLoop(), PublishedLoop(reports=False), "loop-basic", "loop-streaming"]
)
async def test_published_pieces_are_shown_once(loop: Any):
    assert await read(plan_of(PublishedProvider(whole)), loop) == ["Good ", "day"]


async def test_published_thinking_arrives_in_foreign_loops():
    plan = plan_of(PublishedProvider(whole))
    plan["session"]["orchestrator"] = PublishedLoop()
    events, _ = await streamed(plan)
    assert [event.text for event in events if isinstance(event, ThinkingDelta)] == ["hm"]


@pytest.mark.parametrize("reports", [True, False])
async def test_provider_pieces_arrive_in_foreign_loops(reports: bool):
    pieces = await read(spoken_by_mock("Good day to all of you"), PublishedLoop(reports=reports))
    assert ("".join(pieces), len(pieces) > 1) == ("Good day to all of you", True)


async def test_interrupted_answer_is_retracted():
    """Each answer of a turn is shown once."""

    async def cut(provider: PublishedProvider) -> ChatResponse:
        await provider.block(0, "text", "Well")
        await provider.emit("aborted", error={"type": "StreamError", "msg": "cut"})
        provider.number += 1
        return await whole(provider)

    async def not_streamed(_: PublishedProvider) -> ChatResponse:
        return ChatResponse(content=[TextBlock(text="Good"), TextBlock(text="bye")])

    provider = PublishedProvider(whole, cut, not_streamed)
    pieces = await read(plan_of(provider), PublishedLoop(calls=3))
    assert pieces == ["Good ", "day", "\n\nWell", BEGINS_AGAIN, "Good ", "day", "\n\nGood", "bye"]


@pytest.mark.parametrize("name", ["loop-basic", "loop-streaming"])
async def test_unfinished_answer_is_retracted_on_retry(name: str):
    async def broken(provider: PublishedProvider) -> ChatResponse:
        await provider.block(0, "text", "Well")
        raise ProviderUnavailableError("cut", retryable=True, retry_after=0)

    plan = plan_of(PublishedProvider(broken, whole))
    loop = {"module": name, "config": {"initial_delay": 0.0}}
    assert await read(plan, loop) == ["Well", BEGINS_AGAIN, "Good ", "day"]


async def test_call_beside_loop_is_hidden():
    async def disturbed(provider: PublishedProvider) -> ChatResponse:
        await provider.block(0, "text", "Good ")
        provider.number = 100
        await provider.block(0, "text", "a title")
        provider.number = 1
        await provider.emit("block_delta", block_index=0, block_type="text", sequence=1, text="day")
        provider.number = 100  # a call that ends after the answer was reported
        return ChatResponse(content=[TextBlock(text="Good day"), TextBlock(text=", all")])

    assert await read(plan_of(PublishedProvider(disturbed)), PublishedLoop()) == [
        "Good ",
        "day",
        ", all",
    ]
