"""Deadlines of one exchange, in virtual time: what counts as silence, and which limit is named."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import httpx2
import pytest

from amplifier.errors import LLMTimeoutError, StreamError
from amplifier.modules.providers._error_mapping import CallContext
from amplifier.modules.providers._http_client import MAX_BODY_BYTES, HttpClient
from amplifier.modules.providers._wire_format import ProviderOptions, resolve_call_options
from tests.modules.providers.services import ask

pytestmark = pytest.mark.virtual_time


class SlowServer(httpx2.AsyncBaseTransport, httpx2.AsyncByteStream):
    """A server whose response takes its time: seconds before the head, then pairs of seconds and bytes."""

    def __init__(self, head: float, *pieces: tuple[float, bytes]) -> None:
        self._head = head
        self._pieces = pieces
        self.closed = 0

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        await anyio.sleep(self._head)
        return httpx2.Response(200, headers={"content-type": "text/event-stream"}, stream=self)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for seconds, piece in self._pieces:
            await anyio.sleep(seconds)
            if self.closed:
                raise httpx2.ReadError("closed")
            yield piece

    async def aclose(self) -> None:
        self.closed += 1


def client_of(server: SlowServer) -> HttpClient:
    client = HttpClient("http://service", {}, connect_timeout=1)
    client._client._transport = server
    return client


def context(timeout: float | None, idle_timeout: float | None) -> CallContext:
    return CallContext("svc", "model-x", timeout=timeout, idle_timeout=idle_timeout)


async def read(server: SlowServer, *, total: float | None, idle: float | None) -> bytes:
    received = b""
    async with client_of(server).open("POST", "/x", {}, context(total, idle)) as reply:
        while (piece := await reply.receive()) is not None:
            received += piece
    return received


async def test_steady_pieces_have_no_total_limit():
    client = SlowServer(99, *[(99, b"x")] * 50)
    assert await read(client, total=None, idle=100) == b"x" * 50
    assert client.closed == 1


@pytest.mark.parametrize("idle", [None, 100])
async def test_whole_call_has_own_limit(idle):
    client = SlowServer(10, *[(30, b"x")] * 50)
    began = anyio.current_time()
    with pytest.raises(
        LLMTimeoutError, match=r"did not finish within 300 s, still answering \(timeout\)"
    ):
        await read(client, total=300, idle=idle)
    assert anyio.current_time() - began == pytest.approx(300)


async def test_slow_reader_is_not_silent_server():
    client = client_of(SlowServer(0, (1, b"x"), (1, b"y")))
    async with client.open("POST", "/x", {}, context(None, 5)) as reply:
        assert await reply.receive() == b"x"
        await anyio.sleep(1000)
        assert await reply.receive() == b"y"


async def test_cancellation_from_outside_stays_cancellation():
    client = SlowServer(0, (50, b"x"))
    with anyio.move_on_after(10) as scope:
        await read(client, total=100, idle=100)
    assert scope.cancelled_caught
    assert client.closed == 1


async def test_oversized_answer_is_abandoned():
    with pytest.raises(StreamError, match="more than") as caught:
        await read(
            SlowServer(0, *[(0, bytes(2**26))] * (MAX_BODY_BYTES // 2**26 + 1)),
            total=None,
            idle=None,
        )
    assert not caught.value.retryable


def test_deadline_decides_about_call():
    options = ProviderOptions(
        default_model="m", max_tokens=5, temperature=0.1, reasoning_effort="low", timeout=9
    )
    call = resolve_call_options(options, ask(), {}, 100)
    assert (call.model, call.max_tokens, call.temperature, call.reasoning_effort, call.timeout) == (
        "m",
        5,
        0.1,
        "low",
        9,
    )
    request = ask(
        model="n", max_output_tokens=6, temperature=0.0, reasoning_effort="high", timeout=8
    )
    call = resolve_call_options(options, request, {}, 100)
    assert (call.model, call.max_tokens, call.temperature, call.reasoning_effort, call.timeout) == (
        "n",
        6,
        0.0,
        "high",
        8,
    )
    call = resolve_call_options(
        options, request, {"model": "o", "max_tokens": 7, "temperature": 1.0, "timeout": 7}, 100
    )
    assert (call.model, call.max_tokens, call.temperature, call.timeout) == ("o", 7, 1.0, 7)
    assert (
        resolve_call_options(ProviderOptions(default_model="m"), ask(), {}, 100).max_tokens == 100
    )
