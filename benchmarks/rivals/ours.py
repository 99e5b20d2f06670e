"""The scripted turn on our kernel, alone in its process: the published one is not imported here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio.lowlevel

import amplifier
from amplifier.modules.context import simple as context_simple
from amplifier.modules.loop import basic as loop_basic
from benchmarks.long_conversation import one_call_after
from benchmarks.scripted_modules import modules_for

PLAN = {
    "session": {"orchestrator": "loop-bench", "context": "context-bench"},
    "providers": [{"module": "provider-bench"}],
    "tools": [{"module": "tool-bench"}],
    "hooks": [{"module": "hooks-bench"}],
}


async def prepare() -> Callable[[], Awaitable[Any]]:
    return await _turning()


async def prepare_built_in() -> Callable[[], Awaitable[Any]]:
    """The same with the loop and the context that come with us, which do all the contracts ask for."""
    return await _turning(**{"loop-bench": loop_basic.mount, "context-bench": context_simple.mount})


async def _turning(**others: Any) -> Callable[[], Awaitable[Any]]:
    modules = modules_for(amplifier, gather=_none, pause=anyio.lowlevel.checkpoint) | others
    session = amplifier.AmplifierSession(PLAN, loader=amplifier.ModuleLoader(modules=modules))
    await session.initialize()
    context = session.coordinator.get("context")

    async def work() -> None:
        answer = await session.execute("go")
        assert answer == "Done."
        await context.clear()

    return work


async def prepare_long(size: int) -> Callable[[], Awaitable[Any]]:
    """One model call after so many messages, with our loop-basic and context-simple."""
    return await one_call_after(size)


async def _none(calls: list[Awaitable[Any]]) -> list[Any]:
    raise AssertionError("one tool at a time here")
