"""Whole turns through real sessions: each provider under each loop, with tools, retries, and a stop in mid-stream."""

from __future__ import annotations

import base64
from typing import Any

import anyio
import anyio.to_thread
import pytest

from amplifier import AmplifierSession, ExecutionCancelled, file
from amplifier.errors import InvalidRequestError
from amplifier.models import Prompt, TextDelta, ToolFinished
from amplifier.testing import EventRecorder, MockTool
from tests.modules.providers.scripted_http_server import (
    EVENT_STREAM,
    STALL,
    ScriptedHttpServer,
    reply,
)
from tests.modules.providers.services import KEY, ServiceCase, arguments

LOOPS = ("loop-basic", "loop-streaming")
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}


@pytest.fixture(params=LOOPS)
def loop(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def session_with(
    service: ServiceCase, server: ScriptedHttpServer, loop: str, *tools: Any, **config: Any
) -> AmplifierSession:
    given = {"api_key": KEY, "base_url": server.url + service.prefix, **service.config, **config}
    plan = {
        "session": {
            "orchestrator": {
                "module": loop,
                "config": {"initial_delay": 0, "system_prompt": "Be brief."},
            },
            "context": "context-simple",
        },
        "providers": [{"module": service.provider_id(), "config": given}],
        "tools": [*tools],
    }
    return AmplifierSession(plan)


async def messages_of(session: AmplifierSession) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = await session.coordinator.get("context").get_messages()
    return messages


async def test_turn_with_two_tools_ends_in_text(service, server, loop):
    server.answers(
        service.answer(
            ["I look."],
            [("c1", "look", arguments(path="a")), ("c2", "look", arguments(path="b"))],
            ["hm ", "hm"],
        ),
        service.answer(["It is ", "done."]),
    )
    tool = MockTool("look", respond=lambda given: f"saw {given['path']}", schema=SCHEMA)
    async with session_with(service, server, loop, tool) as session:
        recorder = EventRecorder()
        recorder.listen(session.coordinator.hooks)
        assert await session.execute("look around") == "It is done."
        stored = await messages_of(session)
    assert [m["role"] for m in stored] == [
        "system",
        "user",
        "assistant",
        "tool",
        "tool",
        "assistant",
    ]
    assert [m["content"] for m in stored if m["role"] == "tool"] == ["saw a", "saw b"]
    names = recorder.names()
    assert names.count("llm:request") == names.count("llm:response") == 2
    second = str(server.last.body)
    for text in ("Be brief.", "look around", "I look.", "saw a", "saw b", "c1", "c2"):
        assert text in second
    assert "look" in str(server.requests[0].body["tools"])
    if service.name == "anthropic":
        assert server.last.body["messages"][1]["content"][0]["signature"] == "c2lnbmVk"


async def test_counting_service_decides_before_compaction(service, server, loop):
    counts = {
        "/v1/messages": "/v1/messages/count_tokens",
        "/v1/responses": "/v1/responses/input_tokens",
    }
    counted = counts.get(service.path)
    answer = service.answer(["Done."])
    server.answers(*([[reply({"input_tokens": 9000})]] if counted else []), answer)
    window = {"context_window": 22_000, "max_tokens": 1000}
    async with session_with(
        service, server, loop, MockTool("look", schema=SCHEMA), **window
    ) as session:
        context = session.coordinator.get("context")
        for number in range(50):
            await context.add_message(
                {"role": ("user", "assistant")[number % 2], "content": f"m{number}: {'abc ' * 350}"}
            )
        assert await session.execute("go on") == "Done."
        assert len(context.compactions()) == (0 if counted else 1)
    assert ("m3: abc" in str(server.last.body)) is bool(counted), (
        "half of what we estimate, so nothing was left out"
    )
    if counted:
        asked, sent = server.requests
        assert asked.path == counted
        assert "stream" not in asked.body
        assert "max_tokens" not in asked.body
        assert asked.body["tools"][0]["name"] == sent.body["tools"][0]["name"] == "look"
        assert all(f"m{number}: abc" in str(asked.body) for number in range(50))


async def test_images_and_pdfs_in_service_form(service, server, loop):
    server.answers(service.answer(["A cat."]))
    png, pdf = file(b"\x89PNG\r\n\x1a\n..", name="cat.png"), file(b"%PDF-1.7", name="cat.pdf")
    async with session_with(service, server, loop) as session:
        assert (
            await session.execute(["Compare", png, pdf, file(b"meow", name="cat.txt")]) == "A cat."
        )
    image, document = (
        base64.b64encode(data).decode() for data in (b"\x89PNG\r\n\x1a\n..", b"%PDF-1.7")
    )
    sent = server.last.body.get("messages") or server.last.body["input"]
    first, *media, last = sent[-1]["content"]
    assert (first["text"], last["text"]) == ("Compare", '<file name="cat.txt">\nmeow\n</file>')
    source = {"type": "base64", "media_type": "application/pdf", "data": document}
    image_url, file_data = (
        f"data:image/png;base64,{image}",
        f"data:application/pdf;base64,{document}",
    )
    expected: dict[str, list[Any]] = {
        "/messages": [
            {
                "type": "image",
                "source": {"type": "base64", "media_type": "image/png", "data": image},
            },
            {"type": "document", "source": source, "title": "cat.pdf"},
        ],
        "/responses": [
            {"type": "input_image", "image_url": image_url, "detail": "auto"},
            {"type": "input_file", "filename": "cat.pdf", "file_data": file_data},
        ],
        "/chat/completions": [
            {"type": "image_url", "image_url": {"url": image_url}},
            {"type": "file", "file": {"filename": "cat.pdf", "file_data": file_data}},
        ],
    }
    assert media == next(
        blocks for path, blocks in expected.items() if server.last.path.endswith(path)
    )


async def test_web_document_is_sent_or_refused(service, server):
    server.answers(service.answer(["Read."]), service.answer(["Read."]))
    prompt: Prompt = [
        "Read",
        {"type": "document", "source": {"type": "url", "url": "https://x/y.pdf"}},
    ]
    is_chat = service.path.endswith("/chat/completions")
    async with session_with(service, server, "loop-basic") as session:
        if is_chat:
            with pytest.raises(
                InvalidRequestError, match=rf"provider '{service.name}' \(model .*https://x/y.pdf"
            ):
                await session.execute(prompt)
        else:
            await session.execute(prompt)
        await session.execute("Go on.")
    assert ("https://x/y.pdf" in str(server.last.body)) != is_chat


async def test_embedder_sees_streamed_text(service, server):
    server.answers(
        service.answer([], [("c1", "look", arguments(path="a"))]),
        service.answer(["It ", "is ", "done."]),
    )
    tool = MockTool("look", respond=lambda given: "saw", schema=SCHEMA)
    async with session_with(service, server, "loop-streaming", tool) as session:
        words, finished = [], 0
        async with session.stream("go") as events:
            async for event in events:
                if isinstance(event, TextDelta):
                    words.append(event.text)
                finished += isinstance(event, ToolFinished)
    assert words == ["It ", "is ", "done."]
    assert finished == 1
    assert events.result == "It is done."


@pytest.mark.parametrize("how", ["token", "scope"])
async def test_stop_during_stream_closes_connection(service, server, loop, how):
    pieces = service.pieces(["one", "two"], thoughts=["hm"])
    server.answers([EVENT_STREAM, *pieces[:4], STALL])
    async with session_with(service, server, loop) as session:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:

                async def stop() -> None:
                    await anyio.to_thread.run_sync(server.wait_asked)
                    if how == "token":
                        session.coordinator.cancellation.request_immediate()
                    else:
                        scope.cancel()

                group.start_soon(stop)
                if how == "token":
                    with pytest.raises(ExecutionCancelled):
                        await session.execute("go")
                else:
                    await session.execute("go")
        assert scope.cancelled_caught == (how == "scope")
        assert await anyio.to_thread.run_sync(server.wait_gone) == service.path
        server.answers(service.answer(["still here"]))
        session.coordinator.cancellation.reset()
        assert await session.execute("again") == "still here"
