"""The kernel's hot paths against the published kernel: hooks, channels, mounting, sessions, turns.

make bench ARGS="-s -k kernel"
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks.duel import Table
from benchmarks.furniture import modules_for
from benchmarks.kernels import OURS, OURS_ON_TRIO, THEIRS, Kernel
from benchmarks.payloads import chat_request

SMALL = {"tool_name": "look", "tool_call_id": "c1", "tool_input": {"path": "x"}}


@pytest.fixture(scope="module")
def table() -> Iterator[Table]:
    table = Table()
    print(f"\n{'':<52}{'theirs µs':>12}{'ours µs':>12}{'ratio':>10}  quartiles")
    yield table
    table.write()


def duel(table: Table, name: str, prepare: Any, *, target: float, trio: float | None = None) -> None:
    ours = [OURS, *([OURS_ON_TRIO] if trio is not None else [])]
    scores = [
        table.duel(
            name if kernel is OURS else f"{name}, trio",
            THEIRS.timed(lambda: prepare(THEIRS)),
            kernel.timed(lambda kernel=kernel: prepare(kernel)),
            target=target if kernel is OURS else trio,
        )
        for kernel in ours
    ]
    assert all(score.ratio > 1 for score in scores), "slower than the published kernel"


# ── hooks ──


@pytest.mark.parametrize(("handlers", "target"), [(0, 75), (1, 15), (10, 30), (100, 40)])
def test_emitting_a_small_payload(table, handlers, target):
    async def prepare(kernel: Kernel) -> Any:
        hooks = kernel.package.HookRegistry()

        async def handler(event: str, data: dict[str, Any]) -> Any:
            return kernel.package.HookResult(action="continue")

        for number in range(handlers):
            hooks.register("tool:pre", handler, name=f"h{number}")
        return lambda: hooks.emit("tool:pre", SMALL)

    duel(table, f"emit, {handlers} handlers", prepare, target=target)


@pytest.mark.parametrize(("handlers", "target"), [(1, 6), (10, 2.5)])
def test_emitting_a_payload_of_200_kb(table, handlers, target):
    payload = chat_request(messages=180)

    async def prepare(kernel: Kernel) -> Any:
        hooks = kernel.package.HookRegistry()

        async def handler(event: str, data: dict[str, Any]) -> Any:
            return kernel.package.HookResult(action="continue")

        for number in range(handlers):
            hooks.register("provider:request", handler, name=f"h{number}")
        return lambda: hooks.emit("provider:request", payload)

    duel(table, f"emit 200 KB, {handlers} handlers", prepare, target=target)


# ── the coordinator ──


async def opened(kernel: Kernel, **options: Any) -> Any:
    session = kernel.session(modules_for(kernel.package, **options))
    await session.initialize()
    return session


@pytest.mark.parametrize(("contributors", "target"), [(10, 1.5), (100, 3)])
def test_collecting_contributions(table, contributors, target):
    async def prepare(kernel: Kernel) -> Any:
        coordinator = (await opened(kernel)).coordinator
        for number in range(contributors):
            coordinator.register_contributor("channel", f"c{number}", lambda: ["x"])
        return lambda: coordinator.collect_contributions("channel")

    duel(table, f"collect_contributions, {contributors}", prepare, target=target)


def test_mounting_and_unmounting(table):
    class Thing:
        name = "thing"
        description = "A thing."

        async def execute(self, input: Any) -> Any:  # noqa: A002 — the contract's name
            return None

    async def prepare(kernel: Kernel) -> Any:
        coordinator, thing = (await opened(kernel)).coordinator, Thing()

        async def work() -> None:
            await coordinator.mount("tools", thing, name="thing")
            await coordinator.unmount("tools", name="thing")

        return work

    duel(table, "mount and unmount", prepare, target=50)


def test_looking_things_up(table):
    async def prepare(kernel: Kernel) -> Any:
        coordinator = (await opened(kernel)).coordinator
        coordinator.register_capability("x", 1)

        async def work() -> None:
            for _ in range(100):
                coordinator.get("context")
                coordinator.get_capability("x")

        return work

    score = table.duel(
        "get and get_capability, 100 times",
        THEIRS.timed(lambda: prepare(THEIRS)),
        OURS.timed(lambda: prepare(OURS)),
        target=1,
    )
    assert score.ratio > 0.5


@pytest.mark.parametrize(("action", "target"), [("continue", 50), ("inject_context", 20)])
def test_processing_a_result(table, action, target):
    async def prepare(kernel: Kernel) -> Any:
        coordinator = (await opened(kernel)).coordinator
        more = {"context_injection": "Mind the gap.", "context_injection_role": "user"} if action != "continue" else {}
        result = kernel.package.HookResult(action=action, **more)
        context = coordinator.get("context")

        async def work() -> None:
            await coordinator.process_hook_result(result, "tool:post", "bench")
            context.messages.clear()

        return work

    duel(table, f"process_hook_result, {action}", prepare, target=target)


# ── sessions and turns ──


def test_opening_a_trivial_turn_and_closing(table):
    async def prepare(kernel: Kernel) -> Any:
        modules = modules_for(kernel.package)

        class Nothing:
            async def execute(self, prompt: str, **_: Any) -> str:
                return "x"

        async def mount_loop(coordinator: Any, config: Any) -> None:
            await coordinator.mount("orchestrator", Nothing())

        modules["loop-bench"] = mount_loop

        async def work() -> None:
            session = kernel.session(modules)
            if kernel.is_ours:
                async with session:
                    await session.execute("go")
            else:
                await session.initialize()
                await session.execute("go")
                await session.cleanup()

        return work

    duel(table, "open, a trivial turn, close; 5 modules", prepare, target=8, trio=6)


@pytest.mark.parametrize(
    ("name", "options", "target", "trio"),
    [
        ("turn: 2 model calls, 1 tool, 8 events", {}, 15, 12),
        ("turn with 5 handlers on every event", {"handlers": 5}, 25, None),
        ("turn of 6 steps", {"steps": 6}, 12, None),
        ("turn with 8 tools in one step", {"tools": 8}, 4, None),
    ],
)
def test_a_turn(table, name, options, target, trio):
    async def prepare(kernel: Kernel) -> Any:
        session = await opened(kernel, **options)
        return lambda: session.execute("go")

    duel(table, name, prepare, target=target, trio=trio)
