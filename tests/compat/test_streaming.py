"""The published streaming loop, which reads ``provider.stream()`` with a bare ``async for``, beside our streaming providers."""

from __future__ import annotations

import asyncio
import gc
import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from amplifier import AmplifierSession
from amplifier.loading import ModuleLoader
from amplifier.models import StreamChunk
from tests.modules.providers.scripted_http_server import EVENT_STREAM, STALL, ScriptedHttpServer
from tests.modules.providers.services import SERVICES

from .published_agent import write_package
from .published_streaming import LOOP, PROVIDER

KINDS = ["published session", "native session"]


@pytest.fixture
def directory(alias: None, tmp_path: Path) -> Iterator[Path]:
    write_package(tmp_path, "loop-scripted", LOOP)
    write_package(tmp_path, "provider-speaker", PROVIDER)
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("amplifier_module_")]:
        del sys.modules[name]


@pytest.fixture
def server() -> Iterator[ScriptedHttpServer]:
    running = ScriptedHttpServer()
    yield running
    running.close()


def opened(
    kind: str, directory: Path, provider: dict[str, Any], *tools: str, loop: dict[str, Any] | None = None
) -> Any:
    """A session of that kind over the loop; enter it."""
    plan = {
        "session": {
            "orchestrator": {"module": "loop-scripted", "config": loop or {}},
            "context": "context-simple",
        },
        "providers": [provider],
        "tools": [{"module": tool} for tool in tools],
    }
    if kind == "native session":
        return AmplifierSession(plan, loader=ModuleLoader(search_paths=[directory]))
    core = importlib.import_module("amplifier_core")
    for root in directory.glob("amplifier-module-*"):
        sys.path.insert(0, str(root))
    return core.AmplifierSession(plan)


@pytest.fixture(autouse=True)
def _paths_as_they_were() -> Iterator[None]:
    before = list(sys.path)
    yield
    sys.path[:] = before


def mock(*responses: Any, **config: Any) -> dict[str, Any]:
    return {"module": "provider-mock", "config": {"responses": list(responses), **config}}


@pytest.mark.parametrize("kind", KINDS)
async def test_the_loop_reads_text_from_our_stream(directory: Path, kind: str):
    answer = {"thinking": "not to be shown", "text": "Hello there, all of you."}
    async with opened(kind, directory, mock(answer)) as session:
        answer = await session.execute("hi")
        loop = session.coordinator.get("orchestrator")
        messages = await session.coordinator.get("context").get_messages()

    assert (answer, loop.paths) == ("Hello there, all of you.", ["stream"])
    assert [(m["role"], m["content"]) for m in messages] == [("user", "hi"), ("assistant", answer)]


@pytest.mark.parametrize("kind", KINDS)
async def test_where_there_are_tools_the_loop_takes_whole_answers_so_that_no_call_is_lost(directory: Path, kind: str):
    todo = {"todos": [{"content": "x", "status": "pending", "activeForm": "x"}], "action": "create"}
    answers = mock({"tool_calls": [{"name": "todo", "arguments": todo}]}, "done")
    async with opened(kind, directory, answers, "tool-todo") as session:
        answer = await session.execute("hi")
        loop = session.coordinator.get("orchestrator")
        messages = await session.coordinator.get("context").get_messages()

    assert (answer, loop.paths) == ("done", ["complete", "complete"])
    assert [m["role"] for m in messages] == ["user", "assistant", "tool", "assistant"]


@pytest.mark.parametrize("tools", [(), ("tool-todo",)])
async def test_a_provider_of_the_published_shape_is_read_as_published(directory: Path, tools: tuple[str, ...]):
    service = {"module": "provider-speaker", "config": {"words": ["as ", "published"]}}
    async with opened("published session", directory, service, *tools) as session:
        assert await session.execute("hi") == "as published"


@pytest.mark.parametrize("kind", KINDS)
async def test_an_error_of_the_stream_keeps_its_type(directory: Path, kind: str):
    failing = mock({"text": "so far", "error": {"type": "RateLimitError", "message": "slow down", "retryable": False}})
    async with opened(kind, directory, failing) as session:
        with pytest.raises(Exception, match="slow down") as caught:
            await session.execute("hi")
    cause = caught.value if kind == "native session" else caught.value.__cause__
    assert type(cause).__name__ == "RateLimitError"


def _stop_by_token(session: Any, task: asyncio.Task[Any]) -> None:
    session.coordinator.cancellation.request_immediate()


def _stop_by_task(session: Any, task: asyncio.Task[Any]) -> None:
    task.cancel()


@pytest.mark.slow
@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # one of the two ways to stop is asyncio's own Task.cancel
@pytest.mark.parametrize("stop", [_stop_by_token, _stop_by_task])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_stopped_turn_closes_the_connection(
    directory: Path, server: ScriptedHttpServer, kind: str, stop: Callable[..., None]
):
    service = SERVICES["anthropic"]
    server.answers([EVENT_STREAM, *service.pieces(["one", "two"])[:6], STALL])
    config = {"api_key": "sk-test", "base_url": server.url}
    async with opened(kind, directory, {"module": "provider-anthropic", "config": config}) as session:
        heard = anyio.Event()
        session.coordinator.hooks.register("llm:request", lambda event, data: heard.set())
        task = asyncio.create_task(session.execute("hi"))
        await heard.wait()
        await anyio.to_thread.run_sync(server.wait_asked)
        stop(session, task)
        with suppress(BaseException):
            await task
        del task
        gc.collect()
        with anyio.fail_after(60):
            await anyio.to_thread.run_sync(server.wait_gone)


@pytest.mark.slow
async def test_a_loop_that_returns_between_two_pieces_closes_the_connection(
    directory: Path, server: ScriptedHttpServer
):
    """The loop checks the token after each chunk and returns without closing the iterator."""
    service = SERVICES["anthropic"]
    server.answers([EVENT_STREAM, *service.pieces(["one", "two"]), STALL])
    config = {"api_key": "sk-test", "base_url": server.url}
    provider = {"module": "provider-anthropic", "config": config}
    async with opened("published session", directory, provider, loop={"stop_at_first_piece": True}) as session:
        assert await session.execute("hi") == ""
        gc.collect()
        with anyio.fail_after(60):
            await anyio.to_thread.run_sync(server.wait_gone)


def test_a_chunk_is_read_like_a_dict_while_the_alias_is_there(alias: None):
    text: Any = StreamChunk(kind="block_delta", block_type="text", text="word")
    thought: Any = StreamChunk(kind="block_delta", block_type="thinking", text="hm")
    call: Any = StreamChunk(kind="block_delta", block_type="tool_call", text="{")

    assert (text.get("content"), text.get("block_type"), text.get("nothing", 5)) == ("word", "text", 5)
    assert [chunk.get("content", "") for chunk in (thought, call, StreamChunk(kind="response"))] == ["", "", ""]


def test_without_the_alias_a_chunk_is_no_dict():
    assert not hasattr(StreamChunk(kind="response"), "get")
