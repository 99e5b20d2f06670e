"""What modules ask of the coordinator: contributions, mounting, looking up, results of hooks."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.kernels import OURS, THEIRS, Kernel, Prepare, Work


def both(board: Any, work: str, prepare: Prepare) -> None:
    board.duel(work, THEIRS.timed(prepare), OURS.timed(prepare))


@pytest.mark.parametrize("contributors", [10, 100])
def test_collecting_contributions(board, contributors):
    async def prepare(kernel: Kernel) -> Work:
        coordinator = (await kernel.opened()).coordinator
        for number in range(contributors):
            coordinator.register_contributor("channel", f"c{number}", lambda: ["x"])
        return lambda: coordinator.collect_contributions("channel")

    both(board, f"collect_contributions, {contributors} contributors", prepare)


@pytest.mark.orientation
@pytest.mark.parametrize("contributors", [10, 100])
def test_collecting_contributions_of_async_functions(board, contributors):
    async def contribute() -> list[str]:
        return ["x"]

    async def prepare(kernel: Kernel) -> Work:
        coordinator = (await kernel.opened()).coordinator
        for number in range(contributors):
            coordinator.register_contributor("channel", f"c{number}", contribute)
        return lambda: coordinator.collect_contributions("channel")

    both(board, f"collect_contributions, {contributors} async contributors", prepare)


def test_mounting_and_unmounting(board):
    class Thing:
        name = "thing"
        description = "A thing."

        async def execute(self, input: Any) -> Any:  # noqa: A002 — the contract's name
            return None

    async def prepare(kernel: Kernel) -> Work:
        coordinator, thing = (await kernel.opened()).coordinator, Thing()

        async def work() -> None:
            await coordinator.mount("tools", thing, name="thing")
            await coordinator.unmount("tools", name="thing")

        return work

    both(board, "mount and unmount", prepare)


@pytest.mark.parametrize(("name", "argument"), [("get", "context"), ("get_capability", "x")])
def test_looking_things_up(board, name, argument):
    async def prepare(kernel: Kernel) -> Work:
        coordinator = (await kernel.opened()).coordinator
        coordinator.register_capability("x", 1)
        look = getattr(coordinator, name)

        async def work() -> None:
            for _ in range(100):
                look(argument)

        return work

    both(board, f"{name}, 100 times", prepare)


@pytest.mark.parametrize("action", ["continue", "inject_context"])
def test_processing_a_result(board, action):
    async def prepare(kernel: Kernel) -> Work:
        coordinator = (await kernel.opened()).coordinator
        more = (
            {"context_injection": "Mind the gap.", "context_injection_role": "user"}
            if action != "continue"
            else {}
        )
        result = kernel.package.HookResult(action=action, **more)
        context = coordinator.get("context")

        async def work() -> None:
            await coordinator.process_hook_result(result, "tool:post", "bench")
            context.messages.clear()

        return work

    both(board, f"process_hook_result, {action}", prepare)
