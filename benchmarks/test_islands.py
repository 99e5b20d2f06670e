"""What it costs that a module lives on an asyncio island: a call from trio and back, and a callback into trio."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import amplifier
from benchmarks.duel import Sample, Side, timed_await
from benchmarks.kernels import OURS_ON_TRIO, PLAN

pytestmark = pytest.mark.orientation


def calling(*, on_island: bool, callback: bool) -> Side:
    """Calls of a tool that answers at once, or first calls a function of the application."""

    async def mount(coordinator: Any, config: Any) -> None:
        class Tool:
            name = "answer"
            description = "Answers at once."

            async def execute(self, given: Any) -> Any:
                return await coordinator.get_capability("application")() if callback else given

        await coordinator.mount("tools", Tool())

    module = (
        SimpleNamespace(mount=mount, __amplifier_backends__=("asyncio",)) if on_island else mount
    )

    def side(count: int) -> Sample:
        async def main() -> Sample:
            modules = {**OURS_ON_TRIO.modules(), "tool-bench": module}
            session = amplifier.AmplifierSession(
                PLAN, loader=amplifier.ModuleLoader(modules=modules)
            )
            session.coordinator.register_capability("application", _answer)
            async with session:
                tool = session.coordinator.get("tools")["answer"]
                return await timed_await(lambda: tool.execute({}), count)

        return OURS_ON_TRIO.run(main)

    return side


async def _answer() -> None:
    return None


@pytest.mark.parametrize(
    ("words", "callback"),
    [("call of a tool on an asyncio island", False), ("the same, with a callback into trio", True)],
)
def test_a_call_of_a_tool_on_an_asyncio_island(board, words, callback):
    on_trio, on_island = (calling(on_island=where, callback=callback) for where in (False, True))
    board.multiple(words, on_trio, on_island, rival="the same tool on trio", at_most=None)
