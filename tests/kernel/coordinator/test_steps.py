"""Step wrappers: order, nesting, groups, deadlines, failures, and who may remove them."""

from __future__ import annotations

from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from amplifier import AmplifierSession, ModuleLoader, SessionStateError
from amplifier.contracts import CurrentCall, Step, ordered_steps
from amplifier.errors import ContainedError, DeadlineExceeded
from amplifier.testing import TestCoordinator


def step(call_id: str = "a") -> Step:
    call = CurrentCall(
        kind="tool", session_id="s", turn_number=3, iteration=2, call_id=call_id, tool_name="look"
    )
    return Step(call=call, arguments={"n": 1})


async def answer(value: Any = "ran") -> Any:
    return value


async def not_reached() -> Any:
    raise AssertionError


async def passing(one: Step, run: Any) -> Any:
    """A wrapper that only makes the call."""
    return await run()


async def test_refusal_replaces_call() -> None:
    log: list[str] = []
    coordinator = TestCoordinator()

    async def wrapper(one: Step, run: Any) -> Any:
        async def note() -> None:
            log.append("started")

        one.before_start(note)
        return await run()

    async def run() -> str:
        log.append("ran")
        return "ran"

    coordinator.register_step_wrapper(wrapper)
    assert await coordinator.run_step(step(), run, admit=partial(answer, "refused")) == "refused"
    assert log == []
    assert await coordinator.run_step(step(), run, admit=partial(answer, None)) == "ran"
    assert log == ["started", "ran"]


async def test_wrappers_nest_in_registration_order() -> None:
    log: list[str] = []
    coordinator = TestCoordinator()
    one = step()

    def wrapper(name: str) -> Any:
        async def wrap(given: Step, run: Any) -> Any:
            assert given is one
            log.append(f"{name} in")
            result = await run()
            log.append(f"{name} out")
            return f"{name}({result})"

        return wrap

    coordinator.register_step_wrapper(wrapper("first"))
    remove = coordinator.register_step_wrapper(wrapper("second"))
    assert await coordinator.run_step(one, answer) == "first(second(ran))"
    assert log == ["first in", "second in", "second out", "first out"]
    remove()
    remove()
    assert await coordinator.run_step(one, answer) == "first(ran)"
    assert (one.kind, one.key) == ("tool", "3/2/a")


async def test_kept_result_replaces_call() -> None:
    coordinator = TestCoordinator()

    async def wrapper(one: Step, run: Any) -> Any:
        return "kept"

    coordinator.register_step_wrapper(wrapper)
    assert await coordinator.run_step(step(), not_reached) == "kept"


async def test_failing_start_prevents_call() -> None:
    coordinator = TestCoordinator()

    async def wrapper(one: Step, run: Any) -> Any:
        async def fail() -> None:
            raise OSError("disk full")

        one.before_start(fail)
        return await run()

    coordinator.register_step_wrapper(wrapper)
    with pytest.raises(OSError, match="disk full"):
        await coordinator.run_step(step(), not_reached)


@pytest.mark.parametrize("size", [1, 2, 7])
async def test_group_enters_in_order_before_calls(size: int) -> None:
    log: list[str] = []
    coordinator = TestCoordinator()

    async def wrapper(one: Step, run: Any) -> Any:
        log.append(f"enter {one.call.call_id}")
        await anyio.lowlevel.checkpoint()
        result = await run()
        log.append(f"leave {one.call.call_id}")
        return result

    async def run() -> str:
        log.append("run")
        return "ran"

    coordinator.register_step_wrapper(wrapper)
    steps = ordered_steps(step(str(number)) for number in range(size))
    limiter = anyio.CapacityLimiter(1)
    async with anyio.create_task_group() as group:
        for one in reversed(steps):
            group.start_soon(partial(coordinator.run_step, one, run, limiter=limiter))
    assert log[:size] == [f"enter {number}" for number in range(size)]
    assert sorted(log[size:]) == sorted(
        ["run"] * size + [f"leave {number}" for number in range(size)]
    )


async def test_kept_result_and_failure_release_group() -> None:
    coordinator = TestCoordinator()
    results: dict[str, Any] = {}

    async def wrapper(one: Step, run: Any) -> Any:
        if one.call.call_id == "0":
            return "kept"
        if one.call.call_id == "1":
            raise RuntimeError("broken")
        return await run()

    async def run_one(one: Step) -> None:
        try:
            results[one.call.call_id] = await coordinator.run_step(one, answer)
        except RuntimeError as error:
            results[one.call.call_id] = str(error)

    coordinator.register_step_wrapper(wrapper)
    async with anyio.create_task_group() as group:
        for one in ordered_steps(step(str(number)) for number in range(4)):
            group.start_soon(run_one, one)
    assert results == {"0": "kept", "1": "broken", "2": "ran", "3": "ran"}


async def test_cancelled_group_leaves_nothing_waiting() -> None:
    coordinator = TestCoordinator()
    entered: list[str] = []
    left: list[str] = []

    async def wrapper(one: Step, run: Any) -> Any:
        entered.append(one.call.call_id)
        try:
            if one.call.call_id == "1":
                await anyio.sleep_forever()
            return await run()
        finally:
            left.append(one.call.call_id)

    coordinator.register_step_wrapper(wrapper)
    coordinator.deadlines = coordinator.deadlines.__class__(hook=None)
    async with anyio.create_task_group() as group:
        for one in ordered_steps(step(str(number)) for number in range(3)):
            group.start_soon(coordinator.run_step, one, answer)
        await anyio.wait_all_tasks_blocked()
        group.cancel_scope.cancel()
    assert entered == ["0", "1"]  # the third waits for its turn
    assert sorted(left) == entered


@pytest.mark.virtual_time
@pytest.mark.parametrize("when", ["entering", "starting", "leaving"])
async def test_hanging_wrapper_is_named_at_deadline(when: str) -> None:
    coordinator = TestCoordinator()

    async def hanging(one: Step, run: Any) -> Any:
        if when == "entering":
            await anyio.sleep_forever()
        if when == "starting":
            one.before_start(anyio.sleep_forever)
        await run()
        await anyio.sleep_forever()

    coordinator.view_for("hooks-slow").register_step_wrapper(hanging)
    began = anyio.current_time()
    with pytest.raises(DeadlineExceeded, match=r"hanging.*of module 'hooks-slow'.*within 300 s"):
        await coordinator.run_step(step(), answer)
    assert anyio.current_time() - began == pytest.approx(300, abs=1)


@pytest.mark.virtual_time
async def test_wrapper_deadline_excludes_call() -> None:
    coordinator = TestCoordinator()

    async def run() -> str:
        await anyio.sleep(5000)
        return "ran"

    coordinator.register_step_wrapper(passing)
    assert await coordinator.run_step(step(), run) == "ran"


async def test_exit_in_wrapper_is_named_failure() -> None:
    coordinator = TestCoordinator()

    async def leaving(one: Step, run: Any) -> Any:
        raise SystemExit(3)

    coordinator.view_for("hooks-x").register_step_wrapper(leaving)
    with pytest.raises(
        ContainedError, match=r"step wrapper .*leaving.* of module 'hooks-x' raised SystemExit"
    ):
        await coordinator.run_step(step(), answer)


async def test_wrappers_leave_with_module_and_session() -> None:
    async def wrapper(one: Step, run: Any) -> Any:
        return f"wrapped {await run()}"

    async def mount_failing(coordinator: Any, config: dict[str, Any]) -> None:
        coordinator.register_step_wrapper(wrapper)
        raise RuntimeError("no")

    views: list[Any] = []

    async def mount_hook(coordinator: Any, config: dict[str, Any]) -> None:
        views.append(coordinator)
        coordinator.register_step_wrapper(wrapper)

    plan = {
        "session": {"orchestrator": "loop-basic", "context": "context-simple"},
        "hooks": ["hooks-f", "hooks-w"],
    }
    loader = ModuleLoader(modules={"hooks-f": mount_failing, "hooks-w": mount_hook})
    session = AmplifierSession(plan, loader)
    async with session:
        assert await session.coordinator.run_step(step(), answer) == "wrapped ran"
    assert await session.coordinator.run_step(step(), answer) == "ran"
    with pytest.raises(
        SessionStateError, match="a step wrapper of module 'hooks-w' comes too late"
    ):
        views[0].register_step_wrapper(wrapper)
