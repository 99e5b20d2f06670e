"""Calls of one answer start, and ask for permission, in the model's order, on both backends."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amplifier import AmplifierSession, HookResult, ToolResult, on
from amplifier.testing import MockProvider

pytestmark = pytest.mark.virtual_time


class Noting:
    name = "note"
    description = "Notes its input."

    def __init__(self) -> None:
        self.started: list[int] = []

    async def execute(self, input: dict[str, Any]) -> ToolResult:  # noqa: A002
        self.started.append(input["number"])
        await anyio.sleep(1)
        return ToolResult(output=input["number"])


class Person:
    """Allows everything else, and takes a second for each question, or as many as are given."""

    def __init__(self, waits: dict[str, int] | None = None, denied: Collection[str] = ()) -> None:
        self.asked: list[str] = []
        self._waits, self._denied = waits or {}, denied

    async def request_approval(
        self, prompt: str, options: list[str], timeout: float, default: str
    ) -> str:
        self.asked.append(prompt)
        await anyio.sleep(self._waits.get(prompt, 1))
        return "Deny" if prompt in self._denied else "Allow"


def session_of(
    tool: Noting,
    count: int,
    *hooks: Any,
    loop: str = "loop-basic",
    slots: int = 16,
    person: Any = None,
) -> AmplifierSession:
    orchestrator = {"module": loop, "config": {"max_parallel_tools": slots}}
    plan = {
        "session": {"orchestrator": orchestrator, "context": "context-simple", "strict": True},
        "providers": [
            MockProvider([[("note", {"number": number}) for number in range(count)], "Done."])
        ],
        "tools": [tool],
        "hooks": [*hooks],
    }
    return AmplifierSession(plan, approval_system=person)


@settings(max_examples=15)
@given(
    asks=st.lists(st.booleans(), min_size=2, max_size=12),
    waits=st.lists(st.integers(0, 3), min_size=12, max_size=12),
    slots=st.integers(1, 12),
    wraps=st.booleans(),
)
async def test_calls_start_and_ask_in_order(loop, asks, waits, slots, wraps):
    tool, person, seen = Noting(), Person(), []

    @on("tool:pre", gate=True)
    async def judge(event: str, data: dict[str, Any]) -> HookResult:
        number = data["tool_input"]["number"]
        seen.append(number)
        for _ in range(waits[number]):
            await anyio.lowlevel.checkpoint()
        return (
            HookResult(action="ask_user", approval_prompt=str(number))
            if asks[number]
            else HookResult()
        )

    @on("approval:required")
    async def hear(event: str, data: dict[str, Any]) -> None:
        for _ in range(waits[int(data["prompt"])]):
            await anyio.lowlevel.checkpoint()

    async with session_of(
        tool, len(asks), judge, hear, loop=loop, slots=slots, person=person
    ) as session:
        if wraps:

            async def wrap(step, run):
                await anyio.lowlevel.checkpoint()
                return await run()

            session.coordinator.register_step_wrapper(wrap)
        assert await session.execute("go") == "Done."
    assert seen == list(range(len(asks)))
    assert person.asked == [str(number) for number, is_asked in enumerate(asks) if is_asked]
    assert sorted(tool.started) == seen


async def test_calls_without_hooks_start_in_order(loop):
    tool = Noting()
    async with session_of(tool, 8, loop=loop) as session:
        began = anyio.current_time()
        await session.execute("go")
        assert anyio.current_time() - began < 1.5  # at the same time
    assert tool.started == list(range(8))


async def test_call_waiting_for_gate_blocks_no_other():
    tool = Noting()

    @on("tool:pre", gate=True)
    async def judge(event: str, data: dict[str, Any]) -> HookResult:
        await anyio.sleep(100 if data["tool_input"]["number"] == 0 else 0)
        return HookResult()

    async with session_of(tool, 3, judge) as session:
        await session.execute("go")
    assert tool.started[-1] == 0


@settings(max_examples=15)
@given(
    asks=st.lists(st.booleans(), min_size=2, max_size=8),
    waits=st.lists(st.integers(0, 9), min_size=8, max_size=8),
    denied=st.sets(st.integers(0, 7)),
    slots=st.integers(1, 8),
)
async def test_approved_calls_start_in_order(loop, asks, waits, denied, slots):
    tool = Noting()
    person = Person(
        {str(number): wait for number, wait in enumerate(waits)}, {str(number) for number in denied}
    )

    @on("tool:pre", gate=True)
    async def judge(event: str, data: dict[str, Any]) -> HookResult:
        number = data["tool_input"]["number"]
        return (
            HookResult(action="ask_user", approval_prompt=str(number))
            if asks[number]
            else HookResult()
        )

    async with session_of(tool, len(asks), judge, loop=loop, slots=slots, person=person) as session:
        await session.execute("go")
    asked = [number for number, is_asked in enumerate(asks) if is_asked and number not in denied]
    assert [number for number in tool.started if asks[number]] == asked


async def test_question_blocks_no_unquestioned_call():
    tool = Noting()

    @on("tool:pre", gate=True)
    async def judge(event: str, data: dict[str, Any]) -> HookResult:
        is_asked = data["tool_input"]["number"] % 2 == 0
        return HookResult(action="ask_user", approval_prompt="?") if is_asked else HookResult()

    async with session_of(tool, 6, judge, person=Person({"?": 100})) as session:
        await session.execute("go")
    assert tool.started == [1, 3, 5, 0, 2, 4]
