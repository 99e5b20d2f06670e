"""The kernel as a guest of its host: visible tasks, untouched signal handlers."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator

import trio

from tests._support.small_agent import agent


def task_names(anyio_backend_name: str) -> set[str]:
    """Return the names of all tasks that a debugger of the backend shows."""
    if anyio_backend_name == "asyncio":
        return {task.get_name() for task in asyncio.all_tasks()}
    root = trio.lowlevel.current_root_task()
    assert root is not None
    return {task.name for task in _below(root)}


def _below(task: trio.lowlevel.Task) -> Iterator[trio.lowlevel.Task]:
    yield task
    for nursery in task.child_nurseries:
        for child in nursery.child_tasks:
            yield from _below(child)


def handlers() -> dict[int, object]:
    return {number: signal.getsignal(number) for number in signal.valid_signals()}


async def test_running_turn_is_ordinary_task(anyio_backend_name):
    names: dict[str, set[str]] = {}

    async def body(turn):
        names["turn"] = task_names(anyio_backend_name)
        return "done"

    async def mount(coordinator, config):
        names["opening"] = task_names(anyio_backend_name)

        async def cleanup():
            names["closing"] = task_names(anyio_backend_name)

        return cleanup

    before, signals = task_names(anyio_backend_name), handlers()
    async with agent(body, tools={"tool-a": mount}) as session:
        await session.execute("hi")
        assert handlers() == signals
    expected = {
        "opening": f"amplifier open {session.session_id}",
        "turn": f"amplifier turn {session.session_id}",
        "closing": f"amplifier close {session.session_id}",
    }
    for what, name in expected.items():
        assert name in names[what], what
    assert task_names(anyio_backend_name) == before
    assert handlers() == signals
