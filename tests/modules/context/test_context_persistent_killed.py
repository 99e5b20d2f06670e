"""A real writer, killed (SIGKILL) at random moments and resumed: acknowledged messages lost 0, messages invented 0.

``AMPLIFIER_TEST_KILLS`` raises the number of kills, ``AMPLIFIER_TEST_SEED`` gives other moments.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from amplifier.testing import MockProvider
from tests._support.tree import ROOT
from tests.modules.context.test_context_persistent import opened, stored

KILLS = int(os.environ.get("AMPLIFIER_TEST_KILLS", "60"))
SEED = int(os.environ.get("AMPLIFIER_TEST_SEED", "0"))
KILLS_PER_CONVERSATION = 10

WRITER = """
import os, sys
import anyio
import trio
import anyio._backends._trio, anyio._backends._asyncio
from amplifier.modules.context.persistent import PersistentContext
from amplifier.modules.context.persistent import read_persistent_options
from tests.modules.context.test_context_persistent_killed import STEPS

async def write(root, seed, kind):
    context = PersistentContext(read_persistent_options("s", {"path": root, "resume_policy": "replace"}))
    await context.open()
    os.write(1, b"opened\\n")
    for number, (step, argument) in enumerate(STEPS[kind](seed)):
        await getattr(context, step)(*argument)
        os.write(1, b"%d\\n" % number)

for line in sys.stdin:  # one child per line, forked: starting an interpreter for each would take minutes
    backend, kind, seed, root = line.rstrip("\\n").split(" ", 3)
    child = os.fork()
    if child == 0:
        try:
            anyio.run(write, root, int(seed), kind, backend=backend)
        except BaseException as error:
            os.write(1, f"failed: {error!r}\\n".encode())
        os._exit(1)
    os.write(1, b"child %d\\n" % child)
    os.waitpid(child, 0)
    os.write(1, b"dead\\n")
"""


Steps = Iterator[tuple[str, tuple[Any, ...]]]


def mixed_steps(seed: int) -> Steps:
    """What a writer does, for ever: messages short and long, now and then a new conversation."""
    chance = random.Random(seed)
    for number in range(1_000_000):
        size = chance.choice([1, 30, 500, 5_000, 300_000])
        message = {"role": "user", "content": f"{seed}:{number} " + "x" * chance.randint(0, size)}
        match chance.randrange(12):
            case 0:
                yield "set_messages", ([message, message],)
            case 1:
                yield "clear", ()
            case _:
                yield "add_message", (message,)


def alternating_steps(seed: int) -> Steps:
    """Every other step forgets the conversation; the others begin a new one."""
    for step, argument in mixed_steps(seed):
        if step == "add_message":
            yield step, argument
            yield "clear", ()


def compacting_steps(seed: int) -> Steps:
    """A conversation that is compacted again and again, with summaries, and now and then a compaction is asked for or undone."""
    chance = random.Random(seed)
    provider = MockProvider(lambda request: "They spoke of x.")
    for number in range(1_000_000):
        yield (
            "add_message",
            ({"role": "user", "content": f"{seed}:{number} " + "x" * chance.randint(0, 4000)},),
        )
        yield "get_messages_for_request", (4000, provider)
        match chance.randrange(8):
            case 0:
                yield "compact", (provider,)
            case 1 | 2:
                yield "uncompact", ()


STEPS = {"mixed": mixed_steps, "alternating": alternating_steps, "compacting": compacting_steps}


def states(before: list[Any], kind: str, seed: int) -> Iterator[list[Any]]:
    """What must be stored after each step."""
    now = list(before)
    for step, argument in STEPS[kind](seed):
        if step in ("add_message", "set_messages", "clear"):
            now = {"set_messages": [*argument[0]] if argument else [], "clear": []}.get(
                step, [*now, *argument]
            )
        yield now


@contextmanager
def open_writers() -> Iterator[subprocess.Popen[str]]:
    """A process that starts a writer for each line it reads."""
    with subprocess.Popen(
        [sys.executable, "-c", WRITER],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        yield process
        process.stdin.close()
        process.wait(timeout=60)


@pytest.fixture
def writers() -> Iterator[subprocess.Popen[str]]:
    with open_writers() as process:
        yield process


def kill_once(
    writers: subprocess.Popen[str], backend: str, kind: str, seed: int, root: Path
) -> int | None:
    """Let a writer write and kill it; returns the last step it acknowledged, None if it did not even open."""
    assert writers.stdin is not None
    assert writers.stdout is not None
    chance = random.Random(seed)
    wanted = chance.choice([0, 1, 2, 5, 20])
    writers.stdin.write(f"{backend} {kind} {seed} {root}\n")
    writers.stdin.flush()
    acknowledged: int | None = None
    killed = False
    child = 0
    for line in writers.stdout:
        match line.split():
            case ["child", pid]:
                child = int(pid)
            case ["opened"]:
                acknowledged = -1
            case ["dead"]:
                break
            case [number] if number.isdigit():
                acknowledged = int(number)
            case _:
                pytest.fail(line)
        if (
            child
            and not killed
            and (wanted == 0 or (acknowledged is not None and acknowledged >= wanted))
        ):
            # A moment that no line of output marks; the only sleep here, and nothing waits for it.
            time.sleep(chance.random() * (0.03 if wanted == 0 else 0.004))
            os.kill(child, signal.SIGKILL)
            killed = True
    return acknowledged


async def check_view(root: Path, messages: list[Any]) -> int:
    """The journal of compactions that a killed writer left is one that the conversation was compacted by."""
    async with opened(root) as context:
        view = await context.get_messages_for_request(1_000_000)
        live = [made for made in context.compactions() if not made.is_undone]
        if not (live and live[-1].is_asked):
            assert view == messages, "with room for everything, everything is shown"
        assert all(made.start < len(messages) for made in live)
        if live and messages:
            again = context._conversation.after(live[-1])
            assert [entry.message for entry in again] == [
                entry.message for entry in context._conversation.view
            ]
            assert again[-1].message == messages[-1]
        return len(live)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "kills"),
    [
        pytest.param("mixed", KILLS, id="mixed"),
        pytest.param("alternating", 20, id="alternating"),
        pytest.param("compacting", 20, id="compacting"),
        pytest.param("alternating", 300, id="alternating, many", marks=pytest.mark.long),
    ],
)
def test_killed_writer_stores_exactly_acknowledged(writers, tmp_path, capsys, kind, kills):
    before: list[Any] = []
    acknowledged_in_all = in_flight = compactions = 0
    for kill in range(kills):
        root = tmp_path / str(kill // KILLS_PER_CONVERSATION)
        if kill % KILLS_PER_CONVERSATION == 0:
            before = []
        seed = SEED * 1_000_003 + kill
        last = kill_once(writers, ("asyncio", "trio")[kill % 2], kind, seed, root)
        found = stored(root)
        compactions += anyio.run(check_view, root, found)
        expected = states(before, kind, seed)
        acknowledged = before
        for _ in range((last if last is not None else -1) + 1):
            acknowledged = next(expected)
        assert found in (acknowledged, next(expected)), (
            f"kill {kill}, seed {SEED}: step {last} was acknowledged"
        )
        acknowledged_in_all += 0 if last is None else last + 1
        in_flight += found != acknowledged
        before = found
    assert acknowledged_in_all > kills
    assert (compactions > 0) is (kind == "compacting")
    with capsys.disabled():
        print(
            f"\n{kills} kills: {acknowledged_in_all} acknowledged, 0 lost, 0 invented, {in_flight} stored in flight"
        )
