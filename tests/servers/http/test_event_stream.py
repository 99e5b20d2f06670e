"""A response that takes as long as its work: signs of life, and one write at a time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from starlette.responses import Response

from amplifier.servers.http._event_stream import EventStream, LongResponse
from tests.servers.http._asgi_client import Exchange

ONE, TWO, PING = b"data: 1\n\n", b"data: 2\n\n", b": still here\n\n"

MANY_SECONDS = 600


@asynccontextmanager
async def responding(work: Any, seconds: float = 60) -> AsyncIterator[Exchange]:
    """Run a response to the end of its work, or until its client has left.

    Without a limit, virtual time would continue for ever for a response that never ends.
    """
    exchange = Exchange(None)

    async def respond() -> None:
        await LongResponse(work, seconds)({"type": "http"}, exchange.receive, exchange.send)
        exchange.ended.set()

    try:
        with anyio.fail_after(MANY_SECONDS):
            async with anyio.create_task_group() as group:
                group.start_soon(respond)
                yield exchange
    finally:
        exchange.close()


@pytest.mark.virtual_time
async def test_silent_response_sends_signs_of_life():
    async def work(stream: EventStream) -> None:
        await stream.write(ONE)
        await anyio.sleep(40)
        await stream.write(TWO)
        await anyio.sleep(14)

    async with responding(work) as exchange:
        await exchange.start()
        assert await exchange.rest() == ONE + PING + PING + TWO


@pytest.mark.virtual_time
async def test_response_without_events_stays_unbegun():
    async def work(stream: EventStream) -> Response:
        await anyio.sleep(40)
        return Response(b"whole", status_code=201)

    async with responding(work) as exchange:
        assert (await exchange.start()).status == 201
        assert await exchange.rest() == b"whole"


@pytest.mark.virtual_time
async def test_client_not_taking_signs_of_life_is_refused():
    streams: list[EventStream] = []

    async def work(stream: EventStream) -> None:
        streams.append(stream)
        await stream.write(ONE)
        await anyio.sleep_forever()

    async with responding(work, seconds=5) as exchange:
        await exchange.start()
        began = anyio.current_time()
        exchange.is_taking = anyio.Event()
        await exchange.ended.wait()
        assert anyio.current_time() - began == pytest.approx(20)
    assert streams[0].is_refused


@pytest.mark.virtual_time
@pytest.mark.parametrize("lost", [False, True])
async def test_write_waits_for_another_one(lost: bool):
    writing, most = 0, 0

    async def work(stream: EventStream) -> None:
        await stream.write(ONE)
        await anyio.sleep(16)
        await stream.write(TWO)

    async with responding(work) as exchange:
        send = exchange.send

        async def send_alone(message: Any) -> None:
            nonlocal writing, most
            writing += 1
            most = max(most, writing)
            await anyio.sleep(2)
            await send(message)
            writing -= 1
            if lost and message.get("body") == PING:
                raise OSError

        exchange.send = send_alone  # type: ignore[method-assign]
        await exchange.start()
        if lost:
            await exchange.ended.wait()
        else:
            assert await exchange.rest() == ONE + PING + TWO
    assert most == 1
