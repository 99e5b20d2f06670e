"""A turn, cancelled at every suspension: every call has its result, the story has its end, nothing runs on."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.lowlevel
import pytest

from amplifier import HookResult
from amplifier.errors import ExecutionTimeout, LLMError, SessionBusyError
from amplifier.kernel.session.stream import MAX_BUFFERED
from tests._support.world_modules import (
    SlowApprovals,
    a_moment,
    at_work,
    hook,
    hooks_on_everything,
    loop,
    tool,
)
from tests._support.worlds import World, sweep, swept


@swept(points=40)
async def test_three_tools_with_hooks_on_everything(world: World) -> None:
    session = at_work(world, "a", "b", "c")
    async with world.opened(session):
        assert await world.execute(session) == "done"


@swept(points=32)
async def test_failing_tool_beside_others(world: World) -> None:
    async def fail() -> None:
        await a_moment()
        raise OSError("disk")

    session = at_work(world, "a", "bad", bad=fail)
    async with world.opened(session):
        await world.execute(session)


def test_approvals_by_slow_user() -> None:
    async def scenario(world: World) -> None:
        ask = hook(
            world, "tool:pre", lambda: HookResult(action="ask_user", approval_prompt="May I?")
        )
        session = world.agent(
            loop=loop(world, ["a", "b"]),
            tools={"tool-a": tool(world, "a"), "tool-b": tool(world, "b")},
            hooks={"hooks-ask": ask},
            approval_system=SlowApprovals(),
        )
        async with world.opened(session):
            await world.execute(session)
            assert [event for _, event, _ in world.heard].count("approval:granted") == 2

    def answered(world: World) -> list[str]:
        events = [event for _, event, _ in world.heard]
        asked, decided = events.count("approval:required"), events.count("approval:granted")
        return [f"{decided} of {asked} approvals were granted"] if decided > asked else []

    sweep(scenario, points=25, also=answered)


@swept(points=18)
async def test_unanswered_approval_ends_at_deadline(world: World) -> None:
    class Nobody:
        async def request_approval(
            self, prompt: str, options: list[str], timeout: float, default: str
        ) -> str:
            await anyio.sleep_forever()
            return "Allow"

    ask = hook(
        world,
        "tool:pre",
        lambda: HookResult(action="ask_user", approval_prompt="?", approval_timeout=5),
    )
    session = world.agent(
        loop=loop(world, ["a"]),
        tools={"tool-a": tool(world, "a")},
        hooks={"hooks-ask": ask},
        approval_system=Nobody(),
    )
    async with world.opened(session):
        await world.execute(session)
        assert [event for _, event, _ in world.heard].count("approval:denied") == 1


@swept(points=22)
async def test_hooks_injecting_into_context(world: World) -> None:
    inject = hook(
        world, "tool:post", lambda: HookResult(action="inject_context", context_injection="look")
    )
    session = world.agent(
        loop=loop(world, ["a", "b"]),
        tools={"tool-a": tool(world, "a"), "tool-b": tool(world, "b")},
        hooks={"hooks-inject": inject},
    )
    async with world.opened(session):
        await world.execute(session)
        stored = await session.coordinator.get("context").get_messages()
        assert ["look" in str(message["content"]) for message in stored].count(True) == 2


@swept(points=14)
async def test_overrunning_gate_denies(world: World) -> None:
    async def register(coordinator: Any, config: dict[str, Any]) -> None:
        async def hang(event: str, data: dict[str, Any]) -> None:
            await anyio.sleep_forever()

        coordinator.hooks.register("tool:pre", hang, timeout=5, on_failure="deny")

    session = world.agent(
        loop=loop(world, ["a"]), tools={"tool-a": tool(world, "a")}, hooks={"hooks-gate": register}
    )
    async with world.opened(session):
        await world.execute(session)
        assert world.transcripts[0][2]["content"] == "refused"


@swept(points=24)
async def test_raising_turn_keeps_error(world: World) -> None:
    async def fail() -> None:
        await a_moment()
        raise LLMError("the model is gone")

    session = world.agent(
        loop=loop(world, ["a"], ending=fail),
        tools={"tool-a": tool(world, "a")},
        hooks={"hooks-all": hooks_on_everything(world)},
    )
    async with world.opened(session):
        with pytest.raises(LLMError):
            await world.execute(session)


@swept(points=30)
async def test_turn_with_own_timeout(world: World) -> None:
    session = at_work(world, "a", "b", b=anyio.sleep_forever)
    async with world.opened(session):
        with pytest.raises(ExecutionTimeout):
            await world.execute(session, timeout=5)


@swept(points=10)
async def test_turn_swallowing_its_timeout(world: World) -> None:
    async def hold_on() -> None:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(10)

    session = world.agent(loop=loop(world, ending=hold_on))
    async with world.opened(session):
        with pytest.raises(ExecutionTimeout):
            await world.execute(session, timeout=5)


@swept(points=18)
async def test_second_turn_is_refused(world: World) -> None:
    session = at_work(world, "a", attentive=False)
    async with world.opened(session), anyio.create_task_group() as group:
        group.start_soon(world.execute, session)
        while not session.statistics().turn_running:
            await anyio.lowlevel.checkpoint()
        with pytest.raises(SessionBusyError):
            await session.execute("me, too")


@swept(points=18)
async def test_abandoned_stream_ends_turn(world: World) -> None:
    session = at_work(world, "a", attentive=False, a=anyio.sleep_forever)
    async with world.opened(session), session.stream("go") as events:
        async for event in events:
            if event.name == "tool:pre":
                break


@swept(points=10)
async def test_exhausted_stream(world: World) -> None:
    session = at_work(world, "a", "b", attentive=False)
    async with world.opened(session), session.stream("go") as events:
        names = [event.name async for event in events]
    assert (names.count("tool:pre"), events.result) == (2, "done")


@swept(points=10)
async def test_exhausted_text(world: World) -> None:
    session = at_work(world, "a", attentive=False)
    async with world.opened(session), session.stream_text("go") as pieces:
        assert "".join([piece async for piece in pieces]) == "done"


@swept(points=10)
async def test_turn_waiting_for_slow_reader(world: World) -> None:
    async def emit() -> None:
        for number in range(MAX_BUFFERED + 2):
            await session.coordinator.hooks.emit("custom:event", {"number": number})

    session = at_work(world, "a", attentive=False, a=emit)
    async with world.opened(session), session.stream("go") as events:
        await anyio.sleep(1)
        numbers = [event.data["number"] async for event in events if event.name == "custom:event"]
    assert numbers == list(range(MAX_BUFFERED + 2))
