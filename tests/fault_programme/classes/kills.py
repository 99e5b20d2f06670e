"""A writer of the persistent context is killed (SIGKILL) at random moments; what reloads is the state before or after each acknowledged call.

The writer and the moments are those of `tests/modules/context/test_context_persistent_killed.py`.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from tests.modules.context.test_context_persistent import stored
from tests.modules.context.test_context_persistent_killed import (
    KILLS_PER_CONVERSATION,
    STEPS,
    kill_once,
    open_writers,
    states,
)

from ..parts import Chunk, Outcome, part_of, ranges

KILLS = 1_000
KILLS_PER_CHUNK = 100


def run(kind: str, first: int, count: int) -> Outcome:
    """Kill with the seeds from ``first``; the backends take turns."""
    outcome = Outcome()
    before: list[Any] = []
    with tempfile.TemporaryDirectory() as folder, open_writers() as writers:
        for kill in range(first, first + count):
            root = Path(folder) / str(kill // KILLS_PER_CONVERSATION)
            if kill % KILLS_PER_CONVERSATION == 0:
                before = []
            last = kill_once(writers, ("asyncio", "trio")[kill % 2], kind, kill, root)
            found = stored(root)
            expected = states(before, kind, kill)
            acknowledged = before
            for _ in range((last if last is not None else -1) + 1):
                acknowledged = next(expected)
            if found not in (acknowledged, next(expected)):
                outcome.fail(
                    f"{kind}, kill {kill}: step {last} was acknowledged, and {len(found)} messages were found"
                )
            outcome.cases += 1
            outcome.count("acknowledged calls", 0 if last is None else last + 1)
            outcome.count("calls in flight that were stored", found != acknowledged)
            before = found
    return outcome


def chunks(share: float) -> list[Chunk]:
    """As many kills of each kind of steps."""
    kills = part_of(-(-KILLS // len(STEPS)), share)
    return [chunk for kind in STEPS for chunk in ranges(kind, kills, KILLS_PER_CHUNK, kind=kind)]
