"""The providers against a third-party mock of their services, over real HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from amplifier import AmplifierSession
from amplifier.errors import (
    LLMError,
    NetworkError,
    ProviderUnavailableError,
    RateLimitError,
    StreamError,
)
from amplifier.models import TextBlock
from amplifier.testing import MockTool, wait_for
from tests._support import node_parts
from tests.modules.providers.aimock import Aimock, running_aimock
from tests.modules.providers.services import ServiceCase, ask, chunks_of, mounted
from tests.modules.providers.test_turns_in_sessions import LOOPS, SCHEMA, messages_of, session_with

pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def aimock() -> Iterator[Aimock]:
    with running_aimock(Path(__file__).parent / "aimock.json") as running:
        yield running


@pytest.fixture
def test_id(request: pytest.FixtureRequest) -> str:
    return "".join(c if c.isalnum() else "-" for c in request.node.name)


def of(test_id: str) -> dict[str, Any]:
    """The config that makes a test's requests its own."""
    return {"extra_headers": {"X-Test-Id": test_id}}


async def test_words_come_in_pieces(service: ServiceCase, aimock: Any, test_id: str):
    async with mounted(service, aimock, **of(test_id)) as opened:
        chunks = await chunks_of(opened.provider, ask("hello"))
    response = chunks[-1].response
    assert response is not None
    assert [b.text for b in response.content if isinstance(b, TextBlock)] == [
        "Hello from the mock, in several pieces."
    ]
    assert sum(chunk.kind == "block_delta" for chunk in chunks) > 1
    usage = response.usage
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (11, 7, 18)


@pytest.mark.parametrize("loop", LOOPS)
async def test_turn_with_two_tools_ends_in_text(
    service: ServiceCase, aimock: Any, test_id: str, loop: str
):
    tool = MockTool("look", respond=lambda given: f"saw {given['path']}", schema=SCHEMA)
    session: AmplifierSession = session_with(service, aimock, loop, tool, **of(test_id))
    async with session:
        assert await session.execute("look around") == "It is all there."
        stored = await messages_of(session)
    assert [m["role"] for m in stored] == [
        "system",
        "user",
        "assistant",
        "tool",
        "tool",
        "assistant",
    ]
    first, second = aimock.requests(test_id)
    assert "saw a" not in str(first)
    for text in ("Be brief.", "saw a", "saw b", "call_001", "call_002"):
        assert text in str(second)


async def test_rate_limit_error_has_retry_delay(service: ServiceCase, aimock: Any, test_id: str):
    aimock.set_chaos(test_id, rateLimitRate=1)
    async with mounted(service, aimock, **of(test_id)) as opened:
        with pytest.raises(RateLimitError) as caught:
            await opened.provider.complete(ask("hello"))
    assert caught.value.retryable
    assert caught.value.retry_after is not None
    assert caught.value.retry_after > 0


@pytest.mark.parametrize(
    ("chaos", "kinds"),
    [
        ("disconnectRate", (NetworkError, StreamError)),
        ("malformedRate", (StreamError, LLMError)),
        ("dropRate", (ProviderUnavailableError,)),
    ],
)
async def test_failures_map_to_own_errors(
    service: ServiceCase, aimock: Any, test_id: str, chaos: str, kinds: Any
):
    aimock.set_chaos(test_id, **{chaos: 1})
    async with mounted(service, aimock, **of(test_id)) as opened:
        with pytest.raises(kinds) as caught:
            await opened.provider.complete(ask("hello"))
    assert caught.value.retryable
    assert caught.value.provider == service.name


async def test_slow_answer_can_be_left_at_once(service: ServiceCase, aimock: Any, test_id: str):
    """The mock sends a chunk a minute; the test does not wait for the second."""
    async with mounted(service, aimock, **of(test_id)) as opened:
        with anyio.fail_after(60):
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as group:

                    async def read() -> None:
                        async with opened.provider.stream(ask("slowly")) as chunks:
                            async for _ in chunks:
                                pass

                    group.start_soon(read)
                    assert await wait_for(lambda: bool(aimock.requests(test_id)), timeout=60)
                    scope.cancel()
            assert scope.cancelled_caught
            assert (await opened.provider.complete(ask("hello"))).content


def test_installed_version_is_not_reinstalled(aimock: Any):
    assert node_parts.install() is False
