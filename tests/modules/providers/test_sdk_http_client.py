"""Deadlines of one exchange, in virtual time: what counts as silence, and which limit is named."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anyio
import httpx2
import openai
import pytest

from amplifier.errors import LLMTimeoutError, StreamError
from amplifier.modules._llm_provider import ProviderOptions
from amplifier.modules._llm_provider.error_mapping import ErrorContext
from amplifier.modules._llm_provider.sdk_http_client import MAX_BODY_BYTES, Deadlines, Sdk, SdkHttpClient
from amplifier.modules._llm_provider.wire_format import resolve_call_options
from tests.modules.providers.services import ask

pytestmark = pytest.mark.virtual_time

CONTEXT = ErrorContext("svc", "model-x")


class SlowClient:
    """A client whose response takes its time: seconds before the head, then pairs of seconds and bytes."""

    def __init__(self, head: float, *pieces: tuple[float, bytes]) -> None:
        self._head = head
        self._pieces = pieces
        self.headers = {"content-type": "text/event-stream"}
        self.closed = 0

    async def post(self, path: str, **options: Any) -> SlowClient:
        await anyio.sleep(self._head)
        return self

    async def aiter_bytes(self) -> AsyncIterator[bytes]:
        for seconds, piece in self._pieces:
            await anyio.sleep(seconds)
            if self.closed:
                raise httpx2.ReadError("closed")
            yield piece

    async def aclose(self) -> None:
        self.closed += 1


async def read(client: SlowClient, *, total: float | None, idle: float | None) -> bytes:
    wire = SdkHttpClient(Sdk(openai, httpx2), client)
    received = b""
    async with wire.open("post", "/x", {}, Deadlines(total, idle, CONTEXT), CONTEXT) as reply:
        while (piece := await reply.receive()) is not None:
            received += piece
    return received


async def test_pieces_that_keep_coming_may_take_any_time():
    client = SlowClient(99, *[(99, b"x")] * 50)
    assert await read(client, total=None, idle=100) == b"x" * 50
    assert client.closed == 1


async def test_silence_between_pieces_ends_the_call_and_names_the_limit():
    client = SlowClient(0, (1, b"x"), (101, b"y"))
    began = anyio.current_time()
    with pytest.raises(LLMTimeoutError, match=r"svc sent nothing for 100 s while answering \(idle_timeout\)"):
        await read(client, total=1000, idle=100)
    assert anyio.current_time() - began == pytest.approx(101)
    assert client.closed == 1


async def test_silence_before_the_head_ends_the_call():
    with pytest.raises(LLMTimeoutError, match="waiting for an answer"):
        await read(SlowClient(101), total=None, idle=100)


@pytest.mark.parametrize("idle", [None, 100])
async def test_the_whole_call_has_a_limit_of_its_own(idle):
    client = SlowClient(10, *[(30, b"x")] * 50)
    began = anyio.current_time()
    with pytest.raises(LLMTimeoutError, match=r"did not finish within 300 s, still answering \(timeout\)"):
        await read(client, total=300, idle=idle)
    assert anyio.current_time() - began == pytest.approx(300)


async def test_a_slow_reader_is_not_a_silent_server():
    wire = SdkHttpClient(Sdk(openai, httpx2), SlowClient(0, (1, b"x"), (1, b"y")))
    async with wire.open("post", "/x", {}, Deadlines(None, 5, CONTEXT), CONTEXT) as reply:
        assert await reply.receive() == b"x"
        await anyio.sleep(1000)
        assert await reply.receive() == b"y"


async def test_cancellation_from_outside_stays_cancellation():
    client = SlowClient(0, (50, b"x"))
    with anyio.move_on_after(10) as scope:
        await read(client, total=100, idle=100)
    assert scope.cancelled_caught
    assert client.closed == 1


async def test_an_answer_beyond_all_measure_is_given_up():
    with pytest.raises(StreamError, match="more than") as caught:
        await read(SlowClient(0, *[(0, bytes(2**26))] * (MAX_BODY_BYTES // 2**26 + 1)), total=None, idle=None)
    assert not caught.value.retryable


def test_who_decides_about_a_call():
    options = ProviderOptions(default_model="m", max_tokens=5, temperature=0.1, reasoning_effort="low", timeout=9)
    call = resolve_call_options(options, ask(), {}, 100)
    assert (call.model, call.max_tokens, call.temperature, call.reasoning_effort, call.timeout) == (
        "m",
        5,
        0.1,
        "low",
        9,
    )
    request = ask(model="n", max_output_tokens=6, temperature=0.0, reasoning_effort="high", timeout=8)
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
    assert resolve_call_options(ProviderOptions(default_model="m"), ask(), {}, 100).max_tokens == 100
