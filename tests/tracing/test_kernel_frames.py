"""What the kernel's own frames reveal about the tasks they are found in. Whole trees: `tests/tracing`."""

from __future__ import annotations

import anyio

from amplifier import ToolResult
from amplifier.tracing._kernel_frames import await_chain, landmark_of, owners_of, running_tasks
from tests._support.small_agent import Echo, Memory, Turn, agent, mounting


async def test_what_a_session_has_mounted_is_known_by_the_module_that_mounted_it():
    memory, echo = Memory(), Echo()
    session = agent(context=mounting(memory), tools={"tool-echo": mounting(echo)})
    async with session:
        owners = owners_of(session.coordinator)
        assert (owners[id(memory)], owners[id(echo)]) == ("context-small", "tool-echo")
        assert sorted(owners.values()) == ["context-small", "loop-small", "tool-echo"]
        other = Echo("other")
        await session.coordinator.mount("tools", other)
        assert id(other) not in owners_of(session.coordinator)  # the application's own


async def test_the_frames_of_a_turn_name_its_session_and_its_deadline():
    async def turn(turn: Turn) -> str:
        await anyio.sleep_forever()
        return "never"

    async with agent(turn) as session, anyio.create_task_group() as group:
        group.start_soon(lambda: session.execute("go", timeout=60))
        await anyio.wait_all_tasks_blocked()
        now = anyio.current_time()
        landmarks = [landmark_of(frame) for task in running_tasks() for frame in await_chain(task.coroutine)]
        group.cancel_scope.cancel()
    turns = [mark for mark in landmarks if mark is not None and mark.doing == "a turn"]
    assert {mark.coordinator for mark in turns} == {session.coordinator}
    (until,) = {mark.until for mark in turns if mark.until is not None}
    assert now < until <= now + 60


async def test_tasks_have_their_names_and_their_parents():
    async def wait() -> None:
        await anyio.sleep_forever()

    async with anyio.create_task_group() as group:
        group.start_soon(wait, name="first")
        await anyio.wait_all_tasks_blocked()
        by_id = {task.id: task for task in running_tasks()}
        (first,) = [task for task in by_id.values() if task.name == "first"]
        assert first.parent_id in by_id
        group.cancel_scope.cancel()


def test_without_a_loop_there_are_no_tasks():
    assert running_tasks() == []


def test_a_third_party_frame_reveals_nothing():
    async def handler() -> ToolResult:
        return ToolResult()

    coroutine = handler()
    assert [landmark_of(frame) for frame in await_chain(coroutine)] == [None]
    coroutine.close()
