"""A real process is killed (SIGKILL) at random moments of a turn, and another one goes on with the turn, on both backends.

Nothing acknowledged is lost or repeated, no result is at the wrong call, and a tool that is declared as not repeatable runs at most once.
``AMPLIFIER_TEST_SEED`` gives other moments.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests._support.tree import ROOT
from tests.modules import durable_agent as agent

SEED = int(os.environ.get("AMPLIFIER_TEST_SEED", "0"))

RUNNER = """
import os, sys
from pathlib import Path
import anyio, trio
import anyio._backends._trio, anyio._backends._asyncio
from amplifier.modules.loop import basic as loop_basic
from amplifier.modules.context import persistent as context_persistent
from tests.modules.durable_agent import run_turn

while line := sys.stdin.readline():  # one child per line, forked: starting an interpreter for each would take minutes
    backend, root = line.rstrip("\\n").split(" ", 1)
    child = os.fork()
    if child == 0:
        try:
            answer = anyio.run(run_turn, Path(root), backend=backend)
            os.write(1, f"answer {answer}\\n".encode())
            os._exit(0)
        except BaseException as error:
            os.write(1, f"failed {error!r}\\n".encode())
            os._exit(1)
    os.write(1, b"child %d\\n" % child)
    sys.stdin.readline()  # until then a child that has ended keeps its process id
    os.waitpid(child, 0)
    os.write(1, b"dead\\n")
"""


@pytest.fixture
def runner() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", RUNNER],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        yield process
        process.stdin.close()
        process.wait(timeout=60)


def run_once(
    runner: subprocess.Popen[str], backend: str, root: Path, wait: float | None
) -> str | None:
    """Let a process work on the turn and kill it after a while; returns its answer, None if it was killed before."""
    assert runner.stdin is not None
    assert runner.stdout is not None
    runner.stdin.write(f"{backend} {root}\n")
    runner.stdin.flush()
    answer = None
    for line in runner.stdout:
        word, _, rest = line.strip().partition(" ")
        if word == "child":
            if wait is not None:
                time.sleep(wait)  # a moment that no line of output marks; nothing waits for it
                os.kill(int(rest), signal.SIGKILL)
            runner.stdin.write("reap\n")
            runner.stdin.flush()
        elif word == "answer":
            answer = rest
        elif word == "dead":
            return answer
        elif word == "failed":
            pytest.fail(rest)
    raise AssertionError("the runner has ended")


def typical_seconds(runner: subprocess.Popen[str], backend: str, root: Path) -> float:
    """How long a turn takes here that is not killed; the first one waits for the runner to start."""
    assert run_once(runner, backend, root / "first", None) == "All done."
    began = time.monotonic()
    assert run_once(runner, backend, root / "second", None) == "All done."
    return time.monotonic() - began


def kill_and_resume(
    runner: subprocess.Popen[str], backend: str, tmp_path: Path, kills: int
) -> Counter[str]:
    chance = random.Random(f"{SEED} {backend}")
    counted: Counter[str] = Counter()
    longest = typical_seconds(runner, backend, tmp_path / "undisturbed")
    turn = 0
    while counted["kills"] < kills:
        root = tmp_path / str(turn)
        turn += 1
        root.mkdir()
        answer = None
        acknowledged: dict[str, str] = {}
        while answer is None:
            before = len(agent.effects(root))
            wait = chance.uniform(0, longest) if counted["kills"] < kills else None
            answer = run_once(runner, backend, root, wait)
            counted["kills"] += answer is None
            repeated = {call for call, _ in agent.effects(root)[before:]} & acknowledged.keys()
            assert repeated == set(), f"acknowledged calls ran again: {repeated}"
            now = agent.acknowledged(root)
            lost = {
                call: text for call, text in acknowledged.items() if now.get(call, text) != text
            }
            assert lost == {}, "acknowledged results have changed"
            assert (
                agent.transcript_problems(agent.messages_in(root), is_whole=answer is not None)
                == []
            )
            acknowledged |= now
        check_turn(root, acknowledged, counted)
    return counted


def check_turn(root: Path, acknowledged: dict[str, str], counted: Counter[str]) -> None:
    messages = agent.messages_in(root)
    results = {m["tool_call_id"]: m["content"] for m in messages if m["role"] == "tool"}
    assert len(results) == agent.ANSWERS * len(agent.TOOLS)
    assert {call: results[call] for call in acknowledged} == acknowledged
    assert [m["content"] for m in messages if m["role"] == "user"] == ["go"]
    assert messages[-1]["content"] == "All done."
    by_call = Counter(call for call, _ in agent.effects(root))
    written = {line for _, line in agent.effects(root)}
    for call, text in results.items():
        name = agent.TOOLS[int(call.partition(".")[2])]
        assert text in written or "interrupted" in text, "a result without its effect"
        if name == "again":
            assert "interrupted" not in text
        else:  # not repeatable, or no one could be asked
            assert by_call[call] <= 1, f"{call} ran {by_call[call]} times"
        counted["interrupted"] += "interrupted" in text
        counted["repeated"] += max(0, by_call[call] - 1)
        counted["effects"] += by_call[call]
    assert agent.steps_in(root) == []


@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(6, marks=pytest.mark.slow),
        pytest.param(100, marks=[pytest.mark.long, pytest.mark.timeout(900)]),
    ],
)
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_killed_turn_continues(runner, tmp_path, backend, kills, capsys):
    counted = kill_and_resume(runner, backend, tmp_path, kills)
    assert counted["kills"] == kills
    with capsys.disabled():
        print(f"\n{backend}: {dict(counted)}")
