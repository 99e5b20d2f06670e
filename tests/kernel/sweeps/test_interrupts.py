"""Ctrl-C at every point of the kernel's code, once and twice, while sessions are opened, used, streamed, forked and closed.

Whatever is hit: nothing hangs, no backend reports an internal error, KeyboardInterrupt leaves as itself, and every cleanup has run or is named.
`make test` takes a sample of the points; the whole sweep is marked ``long``.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from amplifier import AmplifierSession
from tests._support.forked import run_forked
from tests._support.interrupts import BACKENDS, Hang, Point, Trial, chosen_points, interrupted, scope_points, spread
from tests._support.small_agent import agent

UNPROTECTED = ("AmplifierSession.__aexit__", "TurnStream.__aexit__")
"""On asyncio nothing in Python can keep Ctrl-C from the entry of these: it is as if the block had not been left. At least nothing hangs."""

DEADLINES = {"deadlines": {"mount": 5, "ready": 5, "hook": 5, "cleanup": 1, "teardown": 4}}


class Resources:
    """What modules have opened and not closed."""

    def __init__(self) -> None:
        self.open: list[str] = []
        self.sessions: list[AmplifierSession] = []
        self.states: list[Any] = []

    def seed(self, name: str) -> Any:
        async def mount(coordinator: Any, config: dict[str, Any]) -> Any:
            async def cleanup() -> None:
                await anyio.sleep(0.01)
                self.open.remove(name)

            self.open.append(name)
            coordinator.register_cleanup(cleanup)
            await anyio.sleep(0.01)

        return mount

    def structured(self, name: str) -> Any:
        @asynccontextmanager
        async def mount(coordinator: Any, config: dict[str, Any]) -> AsyncIterator[None]:
            self.open.append(name)
            try:
                async with anyio.create_task_group() as group:
                    group.start_soon(anyio.sleep_forever)
                    await anyio.sleep(0.01)
                    yield
                    group.cancel_scope.cancel()
            finally:
                self.open.remove(name)

        return mount

    def attentive(self) -> Any:
        async def mount(coordinator: Any, config: dict[str, Any]) -> Any:
            async def attend(event: str, data: dict[str, Any]) -> None:
                await anyio.sleep(0.01)

            async def pulse() -> None:
                self.open.append("pulse")
                try:
                    await anyio.sleep_forever()
                finally:
                    self.open.remove("pulse")

            coordinator.start_soon(pulse, name="pulse")
            return coordinator.hooks.register("*", attend, name="attentive")

        return mount

    def agent(self) -> AmplifierSession:
        async def body(turn: Any) -> str:
            await turn.hooks.emit("execution:start", {})
            try:
                await anyio.sleep(0.01)
            finally:
                await turn.hooks.emit("execution:end", {})
            return "done"

        session = agent(
            body,
            tools={"tool-seed": self.seed("seed"), "tool-structured": self.structured("structured")},
            hooks={"hooks-attentive": self.attentive()},
            session=DEADLINES,
        )
        self.sessions.append(session)
        return session

    def let_go(self) -> None:
        """Note the states of the sessions and drop them, so that those that are still open are named."""
        self.states = [session.statistics() for session in self.sessions]
        self.sessions.clear()

    def problems(self, trial: Trial) -> list[str]:
        found = list(trial.problems())
        if trial.hits and trial.hits[-1].function in UNPROTECTED and trial.hits[-1].is_entry:
            return ["it hangs" for _ in "x" if isinstance(trial.error, Hang)]
        found += ["a step of the closing failed" for _ in "x" if trial.names("failed to close in one of its steps")]
        was_dropped = trial.names("was dropped while it was open")
        found += [
            f"{name} was neither closed nor named" for name in self.open if not trial.names(name) and not was_dropped
        ]
        found += [
            f"a session is {state}" for state in self.states if state.state not in ("new", "closed") and not was_dropped
        ]
        found += ["a closing that had begun was given up" for state in self.states if state.state == "closing"]
        found += [f"a session has a turn: {state}" for state in self.states if state.turn_running and not was_dropped]
        return found


async def opened_and_closed(world: Resources) -> None:
    async with world.agent() as session:
        await session.execute("go")


async def streamed(world: Resources) -> None:
    async with world.agent() as session, session.stream("go") as events:
        async for _ in events:
            pass


async def left_early(world: Resources) -> None:
    async with world.agent() as session, session.stream("go") as events:
        async for _ in events:
            break


async def forked(world: Resources) -> None:
    async with world.agent() as session:
        child = session.fork()
        world.sessions.append(child)
        async with child:
            await child.execute("go")


async def by_hand(world: Resources) -> None:
    async def quick(turn: Any) -> str:
        return "done"

    session = agent(quick, tools={"tool-seed": world.seed("seed")}, session=DEADLINES)
    world.sessions.append(session)
    try:
        await session.initialize()
        await session.execute("go")
    finally:
        await session.cleanup()


async def refused(world: Resources) -> None:
    """Opening by hand fails; no one calls ``cleanup`` after that."""

    async def unwilling(coordinator: Any, config: dict[str, Any]) -> None:
        raise ValueError("not today")

    async def quick(turn: Any) -> str:
        return "done"

    tools = {"tool-seed": world.seed("seed"), "tool-unwilling": unwilling}
    session = agent(quick, tools=tools, session={**DEADLINES, "strict": True})
    world.sessions.append(session)
    with pytest.raises(ExceptionGroup, match="tool-unwilling"):
        await session.initialize()


SCENARIOS = [opened_and_closed, streamed, left_early, forked, by_hand, refused]


def run(scenario: Callable[[Resources], Any], backend: str, at: list[int]) -> tuple[Trial, list[str]]:
    world = Resources()
    trial = interrupted(lambda: scenario(world), backend, at, world.let_go)
    return trial, world.problems(trial)


def sweep(scenario: Callable[[Resources], Any], backend: str, *, singles: int, scopes: int, pairs: int) -> None:
    """Interrupt at so many points, at so many where scopes are entered and left, and at so many pairs of points."""
    run(scenario, backend, [])  # what is done once in a process is done
    undisturbed, found = run(scenario, backend, [])
    assert found == []
    assert undisturbed.error is None
    wrong: list[str] = []
    places = chosen_points(undisturbed.points)
    assert len(places) > 200, "the scenario has shrunk"
    for at in {*spread(places, singles), *spread(scope_points(undisturbed.points, places), scopes)}:
        trial, found = run(scenario, backend, [at])
        wrong += [f"{at}: {trial.hits[0]}: {problem}" for problem in found]
    per_first = max(1, round(pairs**0.5))
    for first in spread(places, max(1, pairs // per_first)):
        once, _ = run(scenario, backend, [first])
        for second in spread(chosen_points(once.points, first + 1), per_first):
            trial, found = run(scenario, backend, [first, second])
            wrong += [f"{first}, {second}: {' and '.join(map(str, trial.hits))}: {problem}" for problem in found]
    assert wrong == [], f"{len(wrong)} problems:\n" + "\n".join(wrong[:40])


def problems(scenario: Callable[[Resources], Any], backend: str, places: list[list[int]]) -> list[str]:
    """What goes wrong with Ctrl-C at these places."""
    trials = [(at, *run(scenario, backend, at)) for at in places]
    # Since Python 3.12, code in which a trace function has raised is traced only in part from then on: later places are missed there.
    least = 0.9 if sys.version_info < (3, 12) else 0.1
    assert sum(bool(trial.hits) for _, trial, _ in trials) > least * len(places), "the scenario has changed"
    return [
        f"{at}: {' and '.join(map(str, trial.hits))}: {problem}" for at, trial, found in trials for problem in found
    ]


def points_of(scenario: Callable[[Resources], Any], backend: str, at: list[int]) -> list[Point]:
    run(scenario, backend, at)  # what is done once in a process is done
    return run(scenario, backend, at)[0].points


def first_in(points: list[Point], function: str, start: int = 0) -> int:
    return next(number for number in range(start, len(points)) if points[number].function == function)


@pytest.mark.parametrize(("scenario", "near"), [(by_hand, 1), (by_hand, 2), (refused, 1)])
def test_ctrl_c_twice_within_a_moment_of_a_closing_loses_no_cleanup(scenario, near):
    points = points_of(scenario, "asyncio-bare", [])
    begun = first_in(points, "AmplifierSession._close")
    places = spread(chosen_points(points, begun), 30)
    places += [number for number in range(begun, len(points)) if points[number].function == "TimeBudget.share"]
    assert problems(scenario, "asyncio-bare", [[at, at + near] for at in places]) == []


@pytest.mark.parametrize("near", [1, 2, 3])
def test_ctrl_c_twice_within_a_moment_of_leaving_a_stream_leaves_its_group(near):
    points = points_of(left_early, "asyncio-bare", [])
    begun = first_in(points, "TurnStream.__aexit__") + 1
    places = [at for at in range(begun, begun + 400) if points[at].function.startswith("TurnStream.")]
    assert problems(left_early, "asyncio-bare", [[at, at + near] for at in places[:60]]) == []


def test_ctrl_c_while_a_session_that_was_interrupted_as_it_opened_is_closed_does_not_keep_cleanup_waiting():
    opening = first_in(points_of(by_hand, "asyncio", []), "Opening.run")
    points = points_of(by_hand, "asyncio", [opening])
    closing = first_in(points, "AmplifierSession._close_and_leave", opening)
    places = spread(chosen_points(points, closing), 40)
    assert problems(by_hand, "asyncio", [[opening, at] for at in places]) == []


def test_ctrl_c_while_a_section_wakes_its_caller_leaves_no_error():
    points = points_of(by_hand, "asyncio", [])
    places = [number for number, point in enumerate(points) if point.function == "Section._wake"]
    assert len(places) > (8 if sys.version_info < (3, 12) else 2), "sections no longer wake their callers there"
    assert problems(by_hand, "asyncio", [[at] for at in places]) == []


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_ctrl_c_at_a_sample_of_the_kernels_code_leaves_nothing_behind(scenario, backend):
    scopes = 10_000 if scenario is opened_and_closed else 12
    sweep(scenario, backend, singles=12, scopes=scopes, pairs=4 if backend != "asyncio-bare" else 0)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_ctrl_c_at_every_point_of_the_kernels_code_leaves_nothing_behind(scenario, backend):
    sweep(scenario, backend, singles=10_000, scopes=10_000, pairs=1_500 if backend != "asyncio-bare" else 0)


UNHEARD = """
import asyncio, signal, sys, threading
import anyio
from amplifier import agent
from amplifier.testing import script

asleep, waits = threading.Event(), threading.Event()

async def wait() -> None:
    "Waits."
    waits.set()
    await anyio.sleep_forever()

def interrupt() -> None:  # in a thread of its own: the main thread's wait for events is not interrupted
    (waits if {backend!r} == "trio" else asleep).wait()
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)

def select(timeout):
    if waits.is_set():
        asleep.set()  # the other thread goes on when the real one has let go of the interpreter's lock
    return original(timeout)

async def main() -> None:
    global original
    if {backend!r} != "trio":
        selector = asyncio.get_running_loop()._selector
        original, selector.select = selector.select, select
    async with agent(script([("wait", {{}})], "done"), tools=[wait]) as session:
        await session.execute("x")

sys.setswitchinterval(100)
threading.Thread(target=interrupt, daemon=True).start()
if {backend!r} == "asyncio-bare":
    asyncio.new_event_loop().run_until_complete(main())
else:
    anyio.run(main, backend={backend!r})
"""


@pytest.mark.parametrize("backend", BACKENDS)
def test_ctrl_c_that_arrives_as_the_loop_goes_to_sleep_is_heard(backend):
    """asyncio on Unix hears a signal that does not interrupt its wait for events only when something else wakes it."""
    program = [sys.executable, "-c", UNHEARD.format(backend=backend)]
    ended = run_forked(program, text=True, timeout=60)
    assert ended.returncode != 0
    assert "KeyboardInterrupt" in ended.stderr
