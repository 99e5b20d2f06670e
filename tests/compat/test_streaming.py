"""A published loop that would read ``provider.stream()``, beside our streaming providers: it asks them for whole answers."""

from __future__ import annotations

import asyncio
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
from tests.modules.providers.scripted_http_server import EVENT_STREAM, STALL, ScriptedHttpServer
from tests.modules.providers.services import SERVICES

from .published_agent import write_package
from .published_streaming import LOOP, PROVIDER

KINDS = pytest.mark.parametrize("kind", ["published session", "native session"])


@pytest.fixture
def directory(alias: None, tmp_path: Path) -> Iterator[Path]:
    write_package(tmp_path, "loop-scripted", LOOP)
    write_package(tmp_path, "provider-speaker", PROVIDER)
    before = list(sys.path)
    yield tmp_path
    sys.path[:] = before


@pytest.fixture
def server() -> Iterator[ScriptedHttpServer]:
    running = ScriptedHttpServer()
    yield running
    running.close()


def opened(kind: str, directory: Path, provider: Any, *tools: str) -> Any:
    """A session of that kind over the loop; enter it."""
    session = {"orchestrator": "loop-scripted", "context": "context-simple"}
    plan = {
        "session": session,
        "providers": [provider],
        "tools": [{"module": tool} for tool in tools],
    }
    if kind == "native session":
        return AmplifierSession(plan, loader=ModuleLoader(search_paths=[directory]))
    sys.path[:0] = [str(root) for root in directory.glob("amplifier-module-*")]
    return importlib.import_module("amplifier_core").AmplifierSession(plan)


@KINDS
async def test_loop_takes_whole_answers(directory: Path, kind: str):
    todo = {"todos": [{"content": "x", "status": "pending", "activeForm": "x"}], "action": "create"}
    responses = [
        {"tool_calls": [{"name": "todo", "arguments": todo}]},
        {"thinking": "not to be shown", "text": "done"},
    ]
    provider = {"module": "provider-mock", "config": {"responses": responses}}
    async with opened(kind, directory, provider, "tool-todo") as session:
        answer = await session.execute("hi")
        loop = session.coordinator.get("orchestrator")
        messages = await session.coordinator.get("context").get_messages()
        assert hasattr(session.coordinator.get("providers")["mock"], "stream")

    assert (answer, loop.paths) == ("done", ["complete", "complete"])
    assert [m["role"] for m in messages] == ["user", "assistant", "tool", "assistant"]


async def test_published_provider_is_read_as_published(directory: Path):
    async with opened("published session", directory, {"module": "provider-speaker"}) as session:
        assert await session.execute("hi") == "as published"


def _stop_by_token(session: Any, task: asyncio.Task[Any]) -> None:
    session.coordinator.cancellation.request_immediate()


def _stop_by_task(session: Any, task: asyncio.Task[Any]) -> None:
    task.cancel()


@pytest.mark.slow
@pytest.mark.parametrize(
    "anyio_backend", ["asyncio"]
)  # one of the two ways to stop is asyncio's own Task.cancel
@pytest.mark.parametrize("stop", [_stop_by_token, _stop_by_task])
@KINDS
async def test_stopped_turn_closes_connection(
    directory: Path, server: ScriptedHttpServer, kind: str, stop: Callable[..., None]
):
    service = SERVICES["anthropic"]
    server.answers([EVENT_STREAM, *service.pieces(["one", "two"])[:6], STALL])
    config = {"api_key": "sk-test", "base_url": server.url}
    async with opened(
        kind, directory, {"module": "provider-anthropic", "config": config}
    ) as session:
        heard = anyio.Event()
        # The handler has the provider stream its answer.
        session.coordinator.hooks.register(
            "llm:stream_block_delta", lambda event, data: heard.set()
        )
        task = asyncio.create_task(session.execute("hi"))
        await heard.wait()
        stop(session, task)
        with suppress(BaseException):
            await task
        with anyio.fail_after(60):
            await anyio.to_thread.run_sync(server.wait_gone)
