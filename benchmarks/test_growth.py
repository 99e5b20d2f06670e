"""How cost grows: the slope of a straight line through the logarithms of size and time. One is linear, two is a square.

A slope is fitted to the fastest of several samples of every size; sizes are visited in turn, so that a busy moment of the
machine does not fall on one of them.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

import amplifier
from amplifier.modules.context import simple as context_simple
from amplifier.modules.context.simple import SimpleContext
from amplifier.modules.loop import basic as loop_basic
from benchmarks.duel import QUICK, Stopwatch, tidy
from benchmarks.fit import slope
from benchmarks.handlers import KINDS, Make, fields_of, looking, nothing_to_say, taking_all
from benchmarks.kernels import OURS, Kernel
from benchmarks.payloads import chat_request
from benchmarks.scripted_modules import Provider, Script

Work = Callable[[], Awaitable[Any]]

SIZES = (100, 300, 1000) if QUICK else (100, 300, 1000, 3000, 10_000)
SAMPLES = 3 if QUICK else 5
LINEAR = 1.15
"""What counts as linear: processor caches alone make a walk over ten thousand dicts slower per dict than over a hundred."""
CONSTANT = 0.1
"""What counts as independent of the size."""


def grown(
    kernel: Kernel,
    sizes: tuple[int, ...],
    prepare: Callable[[int], Awaitable[Work]],
    times: int | None = None,
) -> dict[int, float]:
    """The fastest processor time of one time, by size; a sample is so many times, by default fewer for larger sizes."""
    fastest = dict.fromkeys(sizes, math.inf)

    async def once(size: int) -> float:
        work = await prepare(size)
        await work()
        count = times or max(1, min(200, sizes[-1] // size))
        with Stopwatch() as watch:
            for _ in range(count):
                await work()
        return watch.sample.cpu / count

    for _ in range(SAMPLES):
        for size in sizes:
            tidy()
            fastest[size] = min(fastest[size], kernel.run(partial(once, size)))
    return fastest


def report(board: Any, what: str, times: dict[int, float], limit: float = LINEAR) -> None:
    largest = max(times)
    board.figure(
        f"growth: {what}",
        slope(times),
        "slope",
        target=limit,
        sense="at most",
        ours=f"{times[largest] * 1e3:.1f} ms",
        note=f"sizes {min(times)} to {largest:,}; the time is that of the largest",
    )


def test_emitting_to_many_handlers(board):
    handler = looking(nothing_to_say)

    async def prepare(size: int) -> Work:
        hooks = amplifier.HookRegistry()
        for number in range(size):
            hooks.register("tool:pre", handler, priority=number % 10, name=f"h{number}")
        return lambda: hooks.emit("tool:pre", {"tool_name": "look"})

    report(board, f"emit with {SIZES[-1]:,} handlers", grown(OURS, SIZES, prepare))


def emitting(handlers: int, messages: int, make: Make) -> Work:
    hooks, handler = amplifier.HookRegistry(), make(nothing_to_say)
    for number in range(handlers):
        hooks.register("provider:request", handler, name=f"h{number}", fields=fields_of(make))
    payload = chat_request(messages=messages)
    return lambda: hooks.emit("provider:request", payload)


@pytest.mark.parametrize(
    ("handlers", "make", "limit"),
    [
        *((handlers, looking, CONSTANT) for handlers in (0, 1, 5, 50)),
        *((handlers, taking_all, LINEAR) for handlers in (1, 5)),
    ],
)
def test_emitting_larger_payloads(board, handlers, make, limit):
    """Handlers that look at a few fields cost the same at every size; those that take everything cost a copy each."""

    async def prepare(size: int) -> Work:
        return emitting(handlers, size, make)

    words = f"emit of {SIZES[-1]:,} messages to {handlers} handlers{_kind(make)}"
    times = grown(OURS, SIZES, prepare, times=200 if limit == CONSTANT else None)
    report(board, words, times, limit)


@pytest.mark.parametrize("make", [looking, taking_all])
def test_emitting_a_large_payload_to_more_handlers(board, make):
    async def prepare(size: int) -> Work:
        return emitting(size, 180, make)

    times = grown(OURS, (1, 5, 10, 20, 50), prepare, times=20)
    report(board, f"emit of 200 KB to 50 handlers{_kind(make)}", times)


def _kind(make: Make) -> str:
    return next(words for words, each in KINDS.items() if each is make)


def test_registering_many_handlers(board):
    async def handler(event: str, data: dict[str, Any]) -> None:
        return None

    async def prepare(size: int) -> Work:
        async def work() -> None:
            hooks = amplifier.HookRegistry()
            undo = [
                hooks.register("tool:pre", handler, name=f"h{number}") for number in range(size)
            ]
            await hooks.emit("tool:pre", {})
            for unregister in undo:
                unregister()

        return work

    report(
        board, f"registering and unregistering {SIZES[-1]:,} handlers", grown(OURS, SIZES, prepare)
    )


def test_collecting_from_many_contributors(board):
    async def prepare(size: int) -> Work:
        coordinator = (await OURS.opened()).coordinator
        for number in range(size):
            coordinator.register_contributor("channel", f"c{number}", lambda: ["x"])
        return lambda: coordinator.collect_contributions("channel")

    report(board, f"collecting from {SIZES[-1]:,} contributors", grown(OURS, SIZES, prepare))


def transcript(size: int) -> list[dict[str, Any]]:
    """A conversation in which every call has its result."""
    kinds = chat_request(messages=8)["messages"]
    return [kinds[number % 8] for number in range(size)]


def test_filling_a_long_transcript(board):
    async def prepare(size: int) -> Work:
        messages = transcript(size)

        async def work() -> None:
            context = SimpleContext()
            for message in messages:
                await context.add_message(message)

        return work

    report(board, f"storing {SIZES[-1]:,} messages one by one", grown(OURS, SIZES, prepare))


@pytest.mark.parametrize("fits", [True, False], ids=["whole", "compacted"])
def test_asking_a_long_transcript(board, fits):
    budget = 10**12 if fits else 20_000

    async def prepare(size: int) -> Work:
        context = SimpleContext()
        await context.set_messages(transcript(size))
        return lambda: context.get_messages_for_request(token_budget=budget)

    words = f"a request {'with' if fits else 'compacted from'} {SIZES[-1]:,} messages"
    report(board, words, grown(OURS, SIZES, prepare))


def test_writing_and_reading_a_long_transcript(board):
    async def prepare(size: int) -> Work:
        request = amplifier.from_dict(amplifier.ChatRequest, {"messages": transcript(size)})

        async def work() -> None:
            amplifier.from_json(amplifier.ChatRequest, amplifier.to_json(request))

        return work

    report(board, f"JSON of {SIZES[-1]:,} messages and back", grown(OURS, SIZES, prepare))


def test_a_turn_on_a_long_transcript(board):
    """With the loop and the context that come with us: a whole turn of two model calls and a tool."""

    async def prepare(size: int) -> Work:
        session = await built_in()
        context = session.coordinator.get("context")
        messages = transcript(size)

        async def work() -> None:
            await context.set_messages(messages)
            await session.execute("go")

        return work

    report(board, f"a turn after {SIZES[-1]:,} messages", grown(OURS, SIZES, prepare))


async def built_in() -> Any:
    """A session with our loop-basic and context-simple, whose window never ends."""
    script = Script(gather=_unused, pause=_unused)

    async def mount_provider(coordinator: Any, config: Any) -> None:
        await coordinator.mount("providers", Provider(amplifier, amplifier, script), name="bench")

    plan = {
        "session": {
            "orchestrator": "loop-basic",
            "context": {"module": "context-simple", "config": {"max_tokens": 10**9}},
        },
        "providers": [{"module": "provider-bench"}],
        "tools": [{"module": "tool-bench"}],
    }
    modules = {"loop-basic": loop_basic.mount, "context-simple": context_simple.mount}
    loader = amplifier.ModuleLoader(
        modules={**OURS.modules(), "provider-bench": mount_provider, **modules}
    )
    session = amplifier.AmplifierSession(plan, loader=loader)
    await session.initialize()
    return session


async def _unused(*_: Any) -> Any:
    raise AssertionError("one tool at a time here")


def test_a_deep_chain_of_forks(board):
    """Fork, open and close a chain of sessions, and stop it from the top: to the last child."""

    async def prepare(size: int) -> Work:
        loader = OURS.loader(trivial=True)

        async def work() -> None:
            chain = [OURS.session(loader)]
            await chain[0].initialize()
            for _ in range(size):
                chain.append(chain[-1].fork())
                await chain[-1].initialize()
            chain[0].coordinator.cancellation.request_graceful()
            assert chain[-1].coordinator.cancellation.is_cancelled
            for session in reversed(chain):
                await session.cleanup()

        return work

    report(board, "a chain of 100 forks", grown(OURS, (6, 12, 25, 50, 100), prepare))
