"""The work whose instructions are counted: an emit, a turn, a session's life. Needs nothing but this project.

`YARDSTICK` is plain Python that uses nothing of ours. Counts of machine instructions are kept as multiples of it, which
differ little from one build of Python to the next, while the counts themselves do.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel

import amplifier
from benchmarks.handlers import Make, looking, taking_all
from benchmarks.payloads import chat_request
from benchmarks.scripted_modules import modules_for

Work = Callable[[], Awaitable[Any]]

YARDSTICK = "yardstick"
PAYLOAD = {"tool_name": "look", "tool_call_id": "c1", "tool_input": {"path": "x"}}
PLAN = {
    "session": {"orchestrator": "loop-bench", "context": "context-bench"},
    "providers": [{"module": "provider-bench"}],
    "tools": [{"module": "tool-bench"}],
    "hooks": [{"module": "hooks-bench"}],
}


@asynccontextmanager
async def yardstick() -> AsyncIterator[Work]:
    async def step(number: int, words: dict[str, Any]) -> dict[str, Any]:
        return {**words, "number": number, "text": f"step {number}"}

    async def work() -> None:
        kept = [await step(number, PAYLOAD) for number in range(100)]
        kept.sort(key=lambda words: -words["number"])

    yield work


def emitting(handlers: int, messages: int = 0, make: Make = looking) -> Any:
    """An emit; with messages its payload is a request to a language model, about 1 KB for each of them."""

    @asynccontextmanager
    async def prepare() -> AsyncIterator[Work]:
        hooks = amplifier.HookRegistry()
        payload = chat_request(messages=messages) if messages else PAYLOAD
        handler = make(partial(amplifier.HookResult, action="continue"))
        for number in range(handlers):
            hooks.register("tool:pre", handler, name=f"h{number}")
        yield lambda: hooks.emit("tool:pre", payload)

    return prepare


def loader(**options: Any) -> amplifier.ModuleLoader:
    async def gather(calls: list[Awaitable[Any]]) -> list[Any]:
        raise AssertionError("one tool at a time here")

    return amplifier.ModuleLoader(
        modules=modules_for(amplifier, gather=gather, pause=anyio.lowlevel.checkpoint, **options)
    )


def turning(handlers: int) -> Any:
    @asynccontextmanager
    async def prepare() -> AsyncIterator[Work]:
        async with amplifier.AmplifierSession(PLAN, loader=loader(handlers=handlers)) as session:
            yield lambda: session.execute("go")

    return prepare


@asynccontextmanager
async def living() -> AsyncIterator[Work]:
    modules = loader(trivial=True)

    async def work() -> None:
        async with amplifier.AmplifierSession(PLAN, loader=modules) as session:
            await session.execute("go")

    yield work


HOT_PATHS: dict[str, Any] = {
    YARDSTICK: yardstick,
    "emit, 0 handlers": emitting(0),
    "emit, 1 handler": emitting(1),
    "emit, 10 handlers": emitting(10),
    "emit, 10 handlers, 200 KB": emitting(10, 180),
    "emit, 10 handlers with the whole payload, 200 KB": emitting(10, 180, taking_all),
    "turn": turning(0),
    "turn, 5 handlers": turning(5),
    "session": living,
}


def run(main: Callable[[], Awaitable[Any]], backend: str) -> Any:
    """A program in an event loop of its own."""
    return anyio.run(main, backend=backend)
