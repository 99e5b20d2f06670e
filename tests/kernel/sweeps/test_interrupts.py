"""Real Ctrl-C at random moments of a program, on each backend.

After one: everything is closed, no thread or task is left, the transcript is valid, and the program
gets a plain KeyboardInterrupt. After two: nothing hangs. A small sample runs always, and 150 of each
with the tests marked ``long``.
"""

from __future__ import annotations

import os
import random

import pytest

from tests._support.child_process import run_child

PROGRAM = """
import contextlib, os, random, threading, time
from amplifier.testing import MockProvider

TRIALS, SIGNALS, SEED = map(int, sys.argv[2:5])
opened, reached, done = [], set(), threading.Event()


@contextlib.asynccontextmanager
async def structured(coordinator, config):
    opened.append("structured")
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.sleep_forever)
            yield
            group.cancel_scope.cancel()
    finally:
        opened.remove("structured")


async def seed(coordinator, config):
    async def cleanup():
        await anyio.sleep(0.005)
        opened.remove("seed")

    opened.append("seed")
    return cleanup


async def wait(seconds: float) -> str:
    await anyio.sleep(seconds)
    return "waited"


async def compute(seconds: float) -> str:
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        sum(range(100))
    return "computed"


def calls_without_one_result(messages):
    asked = [call["id"] for m in messages if m["role"] == "assistant" for call in m.get("tool_calls") or ()]
    answered = [m["tool_call_id"] for m in messages if m["role"] == "tool"]
    return asked if sorted(asked) != sorted(answered) else []


async def use(tool):
    provider = MockProvider([[(tool, {"seconds": 0.02}), ("wait", {"seconds": 0.01})], "done"])
    plan = {
        "session": {"orchestrator": "loop-streaming", "context": "context-simple"},
        "providers": [provider],
        "tools": [wait, compute, structured, seed],
    }
    session = AmplifierSession(plan)
    sessions.append(session)
    async with session:
        contexts.append(session.coordinator.get("context"))
        await session.execute("go")
        await anyio.sleep(0.005)


def interrupt(delays):
    for delay in delays:
        if done.wait(delay):
            return
        os.kill(os.getpid(), signal.SIGINT)


# Once undisturbed, so that no signal hits an import.
sessions, contexts = [], []
run_natively(lambda: use("wait"))
chosen = random.Random(SEED)
handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
for trial in range(TRIALS):
    sessions, contexts = [], []
    done.clear()
    tool = "compute" if trial % 3 == 0 else "wait"
    delays = [chosen.uniform(0.0, 0.09) for _ in range(SIGNALS)]
    killer = threading.Thread(target=interrupt, args=(delays,))
    found = []
    try:
        killer.start()
        try:
            run_natively(lambda: use(tool))
        finally:
            done.set()
    except KeyboardInterrupt:
        pass
    except BaseException as error:
        found.append(f"{type(error).__name__} came out: {error}")
    while killer.is_alive():
        with contextlib.suppress(KeyboardInterrupt):
            killer.join()
    if SIGNALS == 1:
        for session in sessions:
            if session.statistics().state not in ("new", "closed"):
                found.append(f"a session is {session.statistics()}")
            found += [f"{failure}" for failure in session.cleanup_failures]
        found += [f"{name} is open" for name in opened]
        for context in contexts:
            messages = anyio.run(context.get_messages)
            reached.update(message["role"] for message in messages)
            found += [f"call {call} has no result" for call in calls_without_one_result(messages)]
    opened.clear()
    found += [f"thread {t.name}" for t in threading.enumerate() if t not in (threading.main_thread(), killer)
              and "asyncio" not in t.name and "AnyIO" not in t.name and "Trio" not in t.name]
    changed = [n for n in handlers if signal.getsignal(n) is not handlers[n]]
    found += [f"the handler of signal {n} has changed" for n in changed]
    for problem in found:
        print_line(f"{trial} ({tool}, {delays}): {problem}")
print_line("over", *sorted(reached))
"""

WHOLE = 150
SAMPLE = 8


def run_trials(backend: str, trials: int, signals: int) -> list[str]:
    seed = int(os.environ.get("INTERRUPT_SEED", "0")) or random.randrange(1, 2**31)
    ended = run_child(PROGRAM, backend, str(trials), str(signals), str(seed))
    problems = [line for line in ended.lines if not line.startswith("over")]
    if not ended.lines or not ended.lines[-1].startswith("over"):
        problems.append(f"it did not end: {ended.errors[-2000:]}")
    elif signals == 1 and ended.lines[-1] != "over assistant tool user":
        problems.append(f"no trial has reached a tool: {ended.lines[-1]}")
    return [f"seed {seed}: {problem}" for problem in problems]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_single_ctrl_c_leaves_nothing_behind(backend: str):
    assert run_trials(backend, SAMPLE, 1) == []


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_double_ctrl_c_hangs_nothing(backend: str):
    assert run_trials(backend, SAMPLE, 2) == []


@pytest.mark.long
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("signals", [1, 2])
def test_ctrl_c_150_times(backend: str, signals: int):
    assert run_trials(backend, WHOLE, signals) == []


LEAVING = """
import contextlib

from amplifier.testing import MockProvider

left = []


@contextlib.asynccontextmanager
async def structured(coordinator, config):
    yield
    signal.raise_signal(signal.SIGINT)
    left.append("structured")


async def main():
    plan = {
        "session": {"orchestrator": "loop-basic", "context": "context-simple"},
        "providers": [MockProvider(["done"])],
        "tools": [structured],
    }
    session = AmplifierSession(plan)
    sessions.append(session)
    async with session:
        await session.execute("go")


sessions = []
try:
    run_natively(main)
except KeyboardInterrupt:
    print_line(*left, *sessions[0].cleanup_failures, sessions[0].statistics().state)
"""


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_ctrl_c_spares_leaving_module(backend: str):
    """A structured module that computes in its cleanup is not interrupted, as a plain cleanup isn't."""
    ended = run_child(LEAVING, backend)
    assert ended.lines == ["structured closed"], ended.errors


SCOPES = """
import trio
from amplifier.testing import MockProvider

MANUAL = ("arm", "close", "_expired")
counted = point = 0


def trace(frame, event, argument):
    code = frame.f_code
    if not code.co_filename.endswith("kernel/runtime/deadlines.py") or code.co_name not in MANUAL:
        return None

    def at_line(frame, event, argument):
        global counted
        counted += event == "line"
        if event == "line" and counted == point:
            sys.settrace(None)
            signal.raise_signal(signal.SIGINT)
        return at_line

    return at_line


async def asks(event, data):
    await anyio.lowlevel.checkpoint()


async def wait() -> str:
    await anyio.lowlevel.checkpoint()
    return "waited"


async def main():
    plan = {
        "session": {"orchestrator": "loop-basic", "context": "context-simple"},
        "providers": [MockProvider([[("wait", {})], "done"])],
        "tools": [wait],
    }
    async with AmplifierSession(plan) as session:
        session.coordinator.hooks.register("tool:pre", asks)
        sys.settrace(trace)
        try:
            await session.execute("go")
        finally:
            sys.settrace(None)


trio.run(main)
points, interrupted = counted, 0
for point in range(1, points + 1):
    counted = 0
    try:
        trio.run(main)
    except KeyboardInterrupt:
        interrupted += 1
print_line(points > 20, interrupted == points)
"""


def test_ctrl_c_while_deadline_changes_its_scope():
    """Trio's scopes have to be left in order, also where the kernel opens and closes them by hand."""
    ended = run_child(SCOPES, "trio")
    assert ended.lines == ["True True"], ended.errors[-2000:]
