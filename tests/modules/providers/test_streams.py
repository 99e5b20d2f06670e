"""What ``stream()`` returns, read with ``async with`` and as a bare iterator, and when it closes itself."""

from __future__ import annotations

import gc
import threading
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from types import SimpleNamespace
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from amplifier.errors import StreamError
from amplifier.models import ChatRequest, Message, StreamChunk
from amplifier.modules.providers._streams import AnswerStreams
from amplifier.modules.providers.replay import RecordingProvider
from tests.modules.providers.scripted_http_server import EVENT_STREAM, STALL
from tests.modules.providers.services import SERVICES, ask
from tests.modules.providers.test_turns_in_sessions import session_with

SHORT = ["anthropic", "openai-responses", "openai-compatible"]


class Exchange:
    """An answer that notes what happens to it."""

    def __init__(self, *chunks: str, error: Exception | None = None) -> None:
        self.chunks = chunks
        self.error = error
        self.life: list[str] = []
        self.waiting = anyio.Event()

    async def opened(self) -> AsyncGenerator[StreamChunk, None]:
        self.life.append("open")
        try:
            for text in self.chunks:
                if text == "…":
                    self.waiting.set()
                    await anyio.sleep_forever()
                yield StreamChunk(kind="block_delta", text=text)
            if self.error is not None:
                raise self.error
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.lowlevel.checkpoint()
            self.life.append("closed")


class Background:
    """What a coordinator's ``start_soon`` does, in a task group."""

    def __init__(self, group: Any) -> None:
        self.group = group
        self.names: list[str] = []

    def start_soon(self, fn: Any, *args: Any, name: str) -> None:
        self.names.append(name)
        self.group.start_soon(fn, *args)


# ── the helper ───────────────────────────────────────────────────────────────────────────────────


async def test_block_and_exhaustion_close_stream():
    blocked, bare = Exchange("a", "b"), Exchange("a", "b")
    streams = AnswerStreams()

    async with streams.stream(blocked.opened()) as chunks:
        first = await anext(chunks)
        inside = list(blocked.life)
    second = [chunk.text async for chunk in streams.stream(bare.opened())]

    assert first.text == "a"
    assert second == ["a", "b"]
    assert inside == ["open"]
    assert blocked.life == bare.life == ["open", "closed"]


async def test_nothing_happens_before_it_is_read():
    exchange = Exchange("a")
    stream = AnswerStreams().stream(exchange.opened())
    await stream.aclose()
    assert [chunk async for chunk in stream] == []
    assert exchange.life == []


async def test_error_closes_stream_before_reader_sees_it():
    exchange = Exchange("a", error=StreamError("planned"))
    stream = AnswerStreams().stream(exchange.opened())
    assert (await anext(stream)).text == "a"
    with pytest.raises(StreamError, match="planned"):
        await anext(stream)
    assert exchange.life == ["open", "closed"]


async def test_cancellation_closes_stream_before_leaving():
    exchange = Exchange("a", "…")
    stream = AnswerStreams().stream(exchange.opened())

    async def read() -> None:
        with anyio.CancelScope() as scope:
            async for _ in stream:
                group.start_soon(cancel_when_waiting, scope)
        assert exchange.life == ["open", "closed"]

    async def cancel_when_waiting(scope: anyio.CancelScope) -> None:
        await exchange.waiting.wait()
        scope.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(read)

    assert [chunk async for chunk in stream] == []


async def test_abandoned_stream_closes_in_background():
    exchange = Exchange("a", "b")
    async with anyio.create_task_group() as group:
        background = Background(group)
        streams = AnswerStreams(background)

        async def take_one() -> None:
            async for _ in streams.stream(exchange.opened()):
                return

        await take_one()
        gc.collect()  # for interpreters that do not count references
        assert len(background.names) == 1

    assert exchange.life == ["open", "closed"]


@pytest.mark.slow
async def test_abandoned_stream_closes_with_provider():
    exchange, other = Exchange("a", "b"), Exchange("a", "b")

    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError("no task group")

    for streams, one in (
        (AnswerStreams(), exchange),
        (AnswerStreams(SimpleNamespace(start_soon=refuse)), other),
    ):
        async for _ in streams.stream(one.opened()):
            break
        gc.collect()
        left = list(one.life)
        await streams.aclose()
        await streams.aclose()
        assert (left, one.life) == (["open"], ["open", "closed"])


async def test_collection_in_other_thread_starts_no_task():
    exchange = Exchange("a", "b")
    started: list[str] = []
    streams = AnswerStreams(
        SimpleNamespace(start_soon=lambda *_, **__: started.append(threading.current_thread().name))
    )
    holder = [streams.stream(exchange.opened())]
    await anext(holder[0])

    await anyio.to_thread.run_sync(holder.clear)
    await streams.aclose()

    assert started == []
    assert exchange.life == ["open", "closed"]


async def test_manual_close_is_idempotent():
    exchange = Exchange("a", "b")
    async with aclosing(AnswerStreams().stream(exchange.opened())) as stream:
        await anext(stream)
    await stream.aclose()
    assert exchange.life == ["open", "closed"]


async def test_manual_close_wakes_reading_task():
    exchange, errors = Exchange("a", "…"), list[Exception]()
    stream = AnswerStreams().stream(exchange.opened())

    async def read() -> None:
        try:
            async for _ in stream:
                pass
        except StreamError as exc:
            errors.append(exc)

    async with anyio.create_task_group() as group:
        group.start_soon(read)
        await exchange.waiting.wait()
        await stream.aclose()
        assert exchange.life == ["open", "closed"]
    assert "closed while it was being read" in str(errors[0])


async def test_interrupted_reading_is_not_whole_answer():
    exchange = Exchange("a", "…", "b")
    async with AnswerStreams().stream(exchange.opened()) as chunks:
        with anyio.CancelScope() as scope:
            await anext(chunks)
            scope.cancel()
            await anext(chunks)
        with pytest.raises(StreamError, match="ended early, because a read of it was cancelled"):
            await anext(chunks)


class Grouped:
    """A provider whose stream holds a task group for as long as its block."""

    name = "grouped"

    @asynccontextmanager
    async def stream(self, request: ChatRequest, **_: Any) -> AsyncGenerator[Any, None]:
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.sleep_forever)

            async def chunks() -> AsyncGenerator[StreamChunk, None]:
                for text in "ab":
                    yield StreamChunk(kind="block_delta", text=text)

            async with aclosing(chunks()) as given:
                yield given
            group.cancel_scope.cancel()


@pytest.mark.parametrize("is_left", [True, False])
async def test_recorded_stream_keeps_inner_block_state(is_left, monkeypatch):
    recording: Any = RecordingProvider.__new__(RecordingProvider)
    recording.inner, recording._streams = Grouped(), AnswerStreams()
    exchange = SimpleNamespace(finish=None, fail=None)
    monkeypatch.setattr(recording, "_begin", lambda request: (exchange, None))
    request = ChatRequest(messages=[Message(role="user", content="x")])
    with anyio.CancelScope() as scope:
        async with recording._stream(request) as chunks:
            with anyio.fail_after(60):  # a deadline for one chunk, entered after the stream
                assert (await anext(chunks)).text == "a"
            if not is_left:
                scope.cancel()
                await anyio.lowlevel.checkpoint()
    assert scope.cancelled_caught is not is_left


async def test_stream_is_read_once():
    exchange = Exchange("a")
    stream = AnswerStreams().stream(exchange.opened())
    assert [chunk.text async for chunk in stream] == ["a"]
    assert [chunk.text async for chunk in stream] == []
    with pytest.raises(RuntimeError, match="read once"):
        async with stream:
            pass


async def test_stream_inside_block_is_readable_by_name():
    exchange = Exchange("a", "b")
    async with AnswerStreams().stream(exchange.opened()) as _:
        pass
    stream = AnswerStreams().stream(exchange.opened())
    async with stream:
        assert [chunk.text async for chunk in stream] == ["a", "b"]
    assert exchange.life == ["open", "closed"]  # nothing was read of the first


# ── the providers ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", SHORT)
async def test_abandoned_connection_closes_during_session(server, name):
    service = SERVICES[name]
    server.answers([EVENT_STREAM, *service.pieces(["one", "two"])[:6], STALL])

    async with session_with(service, server, "loop-basic") as session:
        provider = session.coordinator.get("providers", service.name)
        async for chunk in provider.stream(ask()):
            if chunk.kind == "block_delta":
                break
        del chunk
        gc.collect()
        with anyio.fail_after(60):
            await anyio.to_thread.run_sync(server.wait_gone)
