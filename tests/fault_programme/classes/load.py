"""Load: many emits, handlers, sessions, turns and children, a day of virtual time; nothing grows that has to stay flat.

Tasks, threads, descriptors, temporary files and child processes are counted before and after; memory is what the process holds
of the system (resident set) and, where it must not grow, what Python has allocated.
"""

from __future__ import annotations

import gc
import math
import os
import tempfile
import time
import tracemalloc
import weakref
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel

from amplifier import AmplifierSession, ChatResponse, ExecutionCancelled, HookRegistry, ModuleLoader
from amplifier.models import TextBlock, ToolCall
from amplifier.modules.context import simple as context_simple
from amplifier.modules.loop import basic as loop_basic
from amplifier.testing import MockTool
from amplifier.testing.virtual_time import virtual_backend
from tests._support.leaks import Resources
from tests._support.small_agent import Turn, agent, mounting

from ..parts import BACKENDS, Chunk, Outcome, part_of
from .foreign_calls import Fault, Provider

EMITS = 1_000_000
HANDLERS = 10_000
SESSIONS = 1_000
TURNS = 10
TOOLS = 3
LIVE_SESSIONS = 10_000
DEPTH = 100
DAY = 86_400.0


def resident_kilobytes() -> float:
    """Memory that the system has given to this process, in kB; not a number where it cannot be read."""
    try:
        return (
            int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1024
        )
    except OSError:
        return math.nan


async def emits(outcome: Outcome, backend: str, share: float) -> None:
    """A million emits to one handler that waits."""
    hooks = HookRegistry()
    seen = 0

    async def handler(event: str, data: dict[str, Any]) -> None:
        nonlocal seen
        seen += 1

    hooks.register("x", handler)
    number = part_of(EMITS // len(BACKENDS), share)
    for _ in range(100):  # the first ones import and fill caches
        await hooks.emit("x", {"a": 1})
    seen, began = 0, time.process_time()
    for emit in range(number):
        await hooks.emit("x", {"a": 1})
        if emit % 100 == 0:
            await anyio.lowlevel.checkpoint()
    outcome.figures[f"µs per emit on {backend}"] = (time.process_time() - began) / number * 1e6
    if seen != number:
        outcome.fail(f"{backend}: {number} emits reached the handler {seen} times")
    outcome.cases = number


async def emit_memory(outcome: Outcome, backend: str, share: float) -> None:
    """Two thousand emits keep nothing, once their timers are due: until then trio keeps up to a thousand cancelled ones."""
    hooks = HookRegistry()

    async def handler(event: str, data: dict[str, Any]) -> None:
        await anyio.lowlevel.checkpoint()

    hooks.register("x", handler)

    async def emit_and_measure() -> int:
        for _ in range(2_000):
            await hooks.emit("x", {"a": 1})
        await anyio.sleep(DAY)  # virtual
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start(1)
    before = await emit_and_measure()
    grown = await emit_and_measure() - before
    tracemalloc.stop()
    if grown > 100_000:
        outcome.fail(f"{backend}: memory grew by {grown} bytes over 2,000 emits")
    outcome.cases = 2_000


async def handlers(outcome: Outcome, backend: str, share: float) -> None:
    """Ten thousand handlers of one event, in order."""
    hooks = HookRegistry()
    number = part_of(HANDLERS, share)
    order: list[int] = []

    def noting(place: int) -> Callable[[str, Any], Awaitable[None]]:
        async def handler(event: str, data: Any) -> None:
            order.append(place)

        return handler

    for place in range(number):
        hooks.register("x", noting(place), priority=-place)
    began = time.process_time()
    await hooks.emit("x", {"a": 1})
    outcome.figures[f"µs per handler on {backend}"] = (time.process_time() - began) / number * 1e6
    if order != list(reversed(range(number))):
        outcome.fail(f"{backend}: {len(order)} of {number} handlers ran, or in a wrong order")
    outcome.cases = number


class ThreeTools(Provider):
    """Asks for three tools, then answers."""

    def _answer(self, request: Any) -> ChatResponse:
        if request.messages[-1].role == "tool":
            return ChatResponse(content=[TextBlock(text="done")])
        self._answers += 1
        calls = [
            ToolCall(id=f"{self._answers}.{n}", name=f"tool-{n}", arguments={"n": n})
            for n in range(TOOLS)
        ]
        return ChatResponse(content=[], tool_calls=calls)


def real_agent(loader_modules: dict[str, Any]) -> AmplifierSession:
    """A session of the built-in loop and context with a scripted provider and three tools."""

    async def mount_provider(coordinator: Any, config: dict[str, Any]) -> ThreeTools:
        return ThreeTools(Fault())

    modules = {
        "loop-basic": loop_basic,
        "context-simple": context_simple,
        "provider-load": mount_provider,
        **loader_modules,
    }
    plan: dict[str, Any] = {
        "session": {"orchestrator": "loop-basic", "context": "context-simple"},
        "providers": [{"module": "provider-load"}],
        "tools": [{"module": name} for name in loader_modules],
    }
    return AmplifierSession(plan, loader=ModuleLoader(modules=modules))


async def turns(outcome: Outcome, backend: str, share: float) -> None:
    """A thousand sessions at once, ten turns each, three tools in each turn."""
    number = part_of(SESSIONS, share)
    called = 0
    answered = 0

    async def respond(given: dict[str, Any]) -> Any:
        nonlocal called
        called += 1
        await anyio.lowlevel.checkpoint()
        return given

    tools = {f"tool-{n}": mounting(MockTool(f"tool-{n}", respond=respond)) for n in range(TOOLS)}
    living: weakref.WeakSet[AmplifierSession] = weakref.WeakSet()

    async def live() -> None:
        nonlocal answered
        session = real_agent(tools)
        living.add(session)
        messages: list[Any] = []
        async with session:
            for _ in range(TURNS):
                answer = await session.execute("go")
                answered += answer == "done"
                messages = await session.coordinator.get("context").get_messages()
        calls = [call["id"] for message in messages for call in message.get("tool_calls") or ()]
        if [message["tool_call_id"] for message in messages if message["role"] == "tool"] != calls:
            outcome.fail(f"{backend}: a transcript with calls and results that do not match")

    began = time.process_time()
    async with anyio.create_task_group() as group:
        for _ in range(number):
            group.start_soon(live)
    outcome.figures[f"ms per turn on {backend}"] = (
        (time.process_time() - began) / number / TURNS * 1000
    )
    gc.collect()
    if (answered, called) != (number * TURNS, number * TURNS * TOOLS):
        outcome.fail(
            f"{backend}: {answered} turns answered and {called} tool calls made by {number} sessions"
        )
    if living:
        outcome.fail(f"{backend}: {len(living)} of {number} closed sessions are still referenced")
    outcome.cases = number * TURNS * TOOLS


async def live_sessions(outcome: Outcome, backend: str, share: float) -> None:
    """Ten thousand sessions that are open at the same time; memory per session."""
    number = part_of(LIVE_SESSIONS, share)
    warm = [agent() for _ in range(20)]
    for session in warm:
        await session.initialize()
        await session.execute("hi")
    for session in warm:
        await session.cleanup()
    gc.collect()
    before = resident_kilobytes()
    sessions = [agent() for _ in range(number)]
    for session in sessions:
        await session.initialize()
    gc.collect()
    outcome.figures[f"kB per live session on {backend}"] = (resident_kilobytes() - before) / number
    for session in sessions[:: max(1, number // 100)]:
        if await session.execute("hi") != "hi":
            outcome.fail(f"{backend}: a session among {number} gave another answer")
    living = weakref.WeakSet(sessions)
    for session in sessions:
        await session.cleanup()
    del session
    sessions.clear()
    await anyio.lowlevel.checkpoint()
    gc.collect()
    if living:
        outcome.fail(f"{backend}: {len(living)} of {number} closed sessions are still referenced")
    outcome.cases = number


async def open_blocks(outcome: Outcome, backend: str, share: float) -> None:
    """The same in ``async with``, each with a task group of its own."""
    number = part_of(LIVE_SESSIONS, share)
    opened = 0
    all_open, over = anyio.Event(), anyio.Event()

    async def live() -> None:
        nonlocal opened
        async with agent():
            opened += 1
            if opened == number:
                all_open.set()
            await over.wait()

    async with agent() as session:
        await session.execute("hi")
    del session
    gc.collect()
    before = resident_kilobytes()
    async with anyio.create_task_group() as group:
        for _ in range(number):
            group.start_soon(live)
        await all_open.wait()
        gc.collect()
        outcome.figures[f"kB per session in a block with its task on {backend}"] = (
            resident_kilobytes() - before
        ) / number
        over.set()
    outcome.cases = number


async def fork_tree(outcome: Outcome, backend: str, share: float) -> None:
    """Sessions forked from each other a hundred deep, all at work, stopped at once through the first one."""
    depth = max(5, part_of(DEPTH, share))
    unwound: list[int] = []
    at_the_end = anyio.Event()

    async def descend(turn: Turn) -> str:
        level = int(turn.prompt)
        try:
            if level == depth:
                at_the_end.set()
                await anyio.sleep_forever()
            async with turn.coordinator.session.fork() as child:
                return await child.execute(str(level + 1))
        finally:
            unwound.append(level)

    # In virtual time, so that a stop that does not reach the end of the tree costs no time.
    async with agent(descend) as session, anyio.create_task_group() as group:

        async def stop() -> None:
            await at_the_end.wait()
            session.coordinator.request_cancel(immediate=True)

        group.start_soon(stop)
        try:
            with anyio.fail_after(60):
                await session.execute("1")
            outcome.fail(f"{backend}: the first session answered")
        except ExecutionCancelled:
            pass
    if unwound != list(range(depth, 0, -1)):
        outcome.fail(f"{backend}: levels unwound in the order {unwound}")
    outcome.cases = depth


async def a_day(outcome: Outcome, backend: str, share: float) -> None:
    """A session with a task in the background and a turn every ten seconds, for 24 hours of virtual time."""
    hours = max(600.0, DAY * share)
    ticks = 0

    async def mount(coordinator: Any, config: dict[str, Any]) -> None:
        async def tick() -> None:
            nonlocal ticks
            while True:
                await anyio.sleep(60)
                ticks += 1
                await coordinator.hooks.emit("world:tick", {"n": ticks})

        async def slow(event: str, data: dict[str, Any]) -> None:
            await anyio.sleep(0.5)

        coordinator.hooks.register("*", slow, name="slow")
        coordinator.start_soon(tick)

    began = anyio.current_time()
    answers = 0
    sizes: list[int] = []
    tracemalloc.start(1)
    async with agent(hooks={"hooks-day": mount}) as session:
        while anyio.current_time() - began < hours:
            if await session.execute("hi", timeout=60) == "hi":
                answers += 1
            await anyio.sleep(10)
            if answers in (10, 50) or answers % 1000 == 0:
                gc.collect()
                sizes.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    grown = (sizes[-1] - sizes[1]) / 1000
    outcome.figures[f"kB more after a day of virtual time on {backend}"] = grown
    if grown > 300:
        outcome.fail(f"{backend}: Python's memory grew by {grown:.0f} kB over {answers} turns")
    if ticks < hours / 70:
        outcome.fail(f"{backend}: the task in the background ran {ticks} times in {hours:g} s")
    outcome.cases = answers


KINDS: dict[str, Callable[[Outcome, str, float], Awaitable[None]]] = {
    "emits": emits,
    "memory of emits": emit_memory,
    "handlers": handlers,
    "turns": turns,
    "live sessions": live_sessions,
    "sessions in blocks": open_blocks,
    "fork tree": fork_tree,
    "a day": a_day,
}


VIRTUAL = ("memory of emits", "fork tree", "a day")


def _temporary_files() -> set[str]:
    return set(os.listdir(tempfile.gettempdir()))


async def _flat(kind: str, outcome: Outcome, backend: str, share: float) -> None:
    tasks = len(anyio.get_running_tasks())
    await KINDS[kind](outcome, backend, share)
    for _ in range(5):  # turns of the loop that a finished task may take to disappear
        await anyio.lowlevel.checkpoint()
    if (now := len(anyio.get_running_tasks())) != tasks:
        outcome.fail(f"{backend}, {kind}: {now - tasks} tasks are left")


def run(kind: str, backend: str, share: float) -> Outcome:
    """One kind of load on one backend."""
    outcome = Outcome()
    name, options = virtual_backend(backend) if kind in VIRTUAL else (backend, {})
    anyio.run(
        _flat, "handlers", Outcome(), backend, 0.001, backend=backend
    )  # what a first run leaves stays
    with tempfile.TemporaryDirectory() as folder:
        tempfile.tempdir = folder
        resources, files = Resources(), _temporary_files()
        anyio.run(_flat, kind, outcome, backend, share, backend=name, backend_options=options)
        left = [*resources.leaks_after_patience(), *(_temporary_files() - files)]
        tempfile.tempdir = None
    if left:
        outcome.fail(f"{backend}, {kind}: left behind: {left}")
    return outcome


def chunks(share: float) -> list[Chunk]:
    """Every kind on both backends."""
    return [
        Chunk(f"{kind} on {backend}", {"kind": kind, "backend": backend, "share": share})
        for kind in KINDS
        for backend in BACKENDS
    ]
