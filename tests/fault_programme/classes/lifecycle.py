"""A random walk over the lifecycle of a session, compared after every step with the model in `test_session_machine`."""

from __future__ import annotations

import logging
import random

import anyio

from amplifier.testing.virtual_time import virtual_backend
from tests.kernel.session.test_session_machine import EVENTS, Interpreter, Operation

from ..parts import BACKENDS, Chunk, Outcome, part_of, ranges

STEPS = 1_000_000
STEPS_PER_SESSION = 40
SESSIONS_PER_CHUNK = 500

NAMES = ("a", "b", "plan")
LEVELS = ("graceful", "immediate")
ANSWERS = ("nothing", "deny", "modify", "fail", "fail closed")
TURNS = (
    "answer",
    "raise",
    "graceful",
    "immediate",
    "immediate at once",
    "immediate and answer",
    "timeout",
)


def operation(chance: random.Random) -> Operation:
    """One step, drawn as the machine's strategies draw it."""
    pick = chance.choice
    match chance.randrange(12):
        case 0 | 1:
            return (
                "register",
                pick((*EVENTS, "*")),
                pick(NAMES),
                chance.randint(-1, 1),
                pick(ANSWERS),
            )
        case 2:
            return (pick(("mount", "unmount")), pick(("tools", "providers")), pick(NAMES))
        case 3:
            return ("unregister", pick(NAMES))
        case 4 | 5:
            return ("emit", pick(EVENTS))
        case 6:
            return (pick(("offer", "clean up")), pick(NAMES))
        case 7:
            return ("contribute", pick(NAMES), pick(("value", "nothing", "fail")))
        case 8:
            return ("cancel", pick(LEVELS))
        case 9:
            return ("execute", pick(TURNS))
        case 10:
            return ("fork", pick(("nobody", "parent", "child")), pick(LEVELS))
        case _:
            return (pick(("open", "close", "collect", "reset")),)


def program(seed: int) -> tuple[list[Operation], list[Operation] | None]:
    """What one session does: by hand, or by hand first and then in a block."""
    chance = random.Random(seed)
    steps = [operation(chance) for _ in range(STEPS_PER_SESSION)]
    if seed % 2:
        return steps, None
    return steps[: STEPS_PER_SESSION // 4], steps[STEPS_PER_SESSION // 4 :]


async def _walk(first: int, count: int, outcome: Outcome) -> None:
    for seed in range(first, first + count):
        steps, block = program(seed)
        try:
            await Interpreter().run(steps, block)
        except Exception as exc:
            kind = "by hand" if block is None else "in a block"
            outcome.fail(f"seed {seed}, {kind}: {exc!r:.300} in {[*steps, *(block or [])]}")
        outcome.cases += STEPS_PER_SESSION


def run(backend: str, first: int, count: int) -> Outcome:
    """Walk with the seeds from ``first``."""
    outcome = Outcome()
    name, options = virtual_backend(backend)
    logging.disable(logging.CRITICAL)  # failing handlers are part of the programs
    try:
        anyio.run(_walk, first, count, outcome, backend=name, backend_options=options)
    finally:
        logging.disable(logging.NOTSET)
    return outcome


def chunks(share: float) -> list[Chunk]:
    """The same seeds on both backends."""
    sessions = part_of(STEPS // STEPS_PER_SESSION // len(BACKENDS), share)

    return [
        chunk
        for backend in BACKENDS
        for chunk in ranges(f"on {backend}", sessions, SESSIONS_PER_CHUNK, backend=backend)
    ]
