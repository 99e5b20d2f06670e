"""A turn with hooks-otel while the application exports nothing: the API alone is installed, or no SDK is set up."""

from __future__ import annotations

import pytest

from benchmarks.duel import Sample, Side, timed_await
from benchmarks.kernels import OURS, OURS_ON_TRIO, PLAN, Kernel

LOOP = {"session": {"orchestrator": "loop-basic", "context": "context-simple"}}
PLAIN = {**PLAN, **LOOP, "hooks": []}


def turning(kernel: Kernel, *hooks: str) -> Side:
    """Turns with a model call, a tool and an answer, of our own loop and context, with these hooks."""
    plan = {**PLAIN, "hooks": [{"module": hook} for hook in hooks]}

    def side(count: int) -> Sample:
        async def main() -> Sample:
            async with kernel.session(kernel.loader(), plan) as session:

                async def work() -> None:
                    await session.coordinator.get("context").clear()
                    await session.execute("go")

                return await timed_await(work, count)

        return kernel.run(main)

    return side


@pytest.mark.orientation
@pytest.mark.parametrize(
    ("kernel", "words"), [(OURS, ""), (OURS_ON_TRIO, ", trio")], ids=["asyncio", "trio"]
)
def test_a_turn_with_traces_that_no_one_takes(board, kernel, words):
    without, with_traces = turning(kernel), turning(kernel, "hooks-otel")
    board.multiple(
        f"turn with hooks-otel, nothing exported{words}",
        without,
        with_traces,
        rival="without it",
        at_most=None,
    )
