"""A full agent turn, cancelled at every suspension in every way: the transcript stays valid and nothing is left (L1, L5)."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from amplifier.testing import MODES, MockTool, cancel_everywhere
from tests.modules.test_loops import LOOPS, Agent


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("loop", LOOPS)
def test_a_turn_cancelled_anywhere_leaves_a_valid_transcript(loop, mode):
    def make():
        async def work(given):
            await anyio.sleep(1)
            return given

        async def slow(event, data):
            await anyio.sleep(0.1)

        turns: list[Any] = [[("a", {"n": 1}), ("b", {}), ("nope", {})], ("a", {}), "done"]
        tools = MockTool("a", respond=work), MockTool("b", respond=work)
        agent = Agent(loop, turns, *tools, hooks={"tool:pre": slow, "tool:post": slow, "execution:end": slow})

        def check():
            problems = agent.broken_pairs()
            names = agent.names()
            if names.count("execution:start") != names.count("execution:end"):
                problems.append("execution:start and execution:end do not pair up")
            if agent.session.statistics().handlers:
                problems.append("handlers are left")
            return problems

        return agent.run, check

    report = cancel_everywhere(make, modes=[mode])
    report.raise_if_broken()
    assert report.ok
