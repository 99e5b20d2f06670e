"""Worlds for cancellation sweeps over whole sessions: what an application does, and everything that must hold afterwards.

`sweep` cancels a scenario at each of its suspension points in every mode. A scenario is application code that is itself
correct: it opens sessions with ``async with`` (or closes them in a ``finally``) and lets cancellation pass. The modules it
is made of are in `world_modules`.
"""

from __future__ import annotations

import logging
import os
import random
import sys
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import anyio
import attrs

from amplifier import AmplifierSession, ModuleLoader
from amplifier.errors import ExecutionCancelled, ExecutionTimeout
from amplifier.testing import MODES, SweepReport, cancel_everywhere

from . import world_modules
from .profiles import SEED

LISTENER = "listener of the application"

Scenario = Callable[["World"], Awaitable[object]]

WHOLE = bool(os.environ.get("WHOLE_SWEEPS"))
"""Whether the second of two cancellations comes after each of the usual numbers of steps, or after one and three.

`make test-all` sets it.
"""

SAMPLE = 0 if WHOLE else int(os.environ.get("SWEPT_POINTS", "8"))
"""How many suspension points of each scenario and mode are tried, newly drawn in each run; zero means all of them."""

TRIALS: list[int] = []
"""How often each scenario that was swept in this process was run; reported at the end of `tests/kernel/sweeps`."""


class Ledger:
    """Everything that was opened, and how often it was closed."""

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()
        self._wrong: list[str] = []
        self.closed: list[str] = []

    def open(self, what: str) -> None:
        self._open[what] += 1
        if self._open[what] > 1:
            self._wrong.append(f"{what} was opened while it was open")

    def close(self, what: str) -> None:
        self.closed.append(what)
        if self._open[what] < 1:
            self._wrong.append(f"{what} was closed although it was not open")
        self._open[what] -= 1

    def problems(self) -> Iterator[str]:
        yield from self._wrong
        for what, count in self._open.items():
            if count > 0:
                yield f"{what} was never closed"


@attrs.define(eq=False)
class TurnRecord:
    """One call of ``execute`` as the application saw it, with the events heard meanwhile."""

    session_id: str
    events: list[tuple[str, dict[str, Any]]] = attrs.field(factory=list)
    outcome: str = "unfinished"

    def count(self, event: str) -> int:
        return sum(name == event for name, _ in self.events)

    def reported_status(self) -> str | None:
        """The status in the last ``execution:end``."""
        statuses = [data.get("status") for name, data in self.events if name == "execution:end"]
        return statuses[-1] if statuses else None


class World:
    """One trial of a sweep."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._sessions: list[AmplifierSession] = []
        self._references: list[weakref.ref[AmplifierSession]] = []
        self._opened: list[str] = []
        self._found: list[str] = []
        self._requests: Counter[str] = Counter()
        self._path = list(sys.path)
        self.ledger = Ledger()
        self.turns: list[TurnRecord] = []
        self.heard: list[tuple[str, str, dict[str, Any]]] = []
        self.transcripts: list[list[dict[str, Any]]] = []

    async def scenario(self) -> None:
        try:
            await self._scenario(self)
        finally:
            # The last step of the trial, without an await: the sessions are looked at and let go.
            for session in self._sessions:
                self._found += what_is_left_in(session)
                self._references.append(weakref.ref(session))
            self._sessions.clear()

    # ── what an application does ──

    def agent(
        self,
        *,
        loop: Any = None,
        context: Any = None,
        providers: Mapping[str, Any] | None = None,
        tools: Mapping[str, Any] | None = None,
        hooks: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
        search_paths: Sequence[Any] = (),
        **options: Any,
    ) -> AmplifierSession:
        """A session, not opened yet, of these mount functions by module id; None means that the module is found on disk.

        Without a loop or a context it has those of `world_modules`.
        """
        modules = {
            "loop-world": loop or world_modules.loop(self),
            "context-world": context or world_modules.context(self),
        }
        plan: dict[str, Any] = {
            "session": {
                "orchestrator": "loop-world",
                "context": "context-world",
                **(settings or {}),
            }
        }
        for section, given in (("providers", providers), ("tools", tools), ("hooks", hooks)):
            plan[section] = [{"module": module_id} for module_id in given or ()]
            modules.update(
                {
                    module_id: mount
                    for module_id, mount in (given or {}).items()
                    if mount is not None
                }
            )
        loader = ModuleLoader(search_paths=search_paths, modules=modules)
        return self.adopt(
            AmplifierSession(
                plan, loader=loader, session_id=f"session-{len(self._sessions)}", **options
            )
        )

    def adopt(self, session: AmplifierSession) -> AmplifierSession:
        """Listen to a session and look at it when the scenario is over."""
        session_id = session.session_id

        def listen(event: str, data: dict[str, Any]) -> None:
            self.heard.append((session_id, event, data))
            for turn in reversed(self.turns):
                if turn.session_id == session_id and turn.outcome == "unfinished":
                    turn.events.append((event, data))
                    break

        session.coordinator.hooks.register("*", listen, priority=-1000, name=LISTENER)
        self._sessions.append(session)
        return session

    @asynccontextmanager
    async def opened(self, session: AmplifierSession) -> AsyncIterator[AmplifierSession]:
        async with session:
            self.has_opened(session)
            yield session

    def has_opened(self, session: AmplifierSession) -> None:
        """From here on ``session:end`` is owed."""
        self._opened.append(session.session_id)

    def was_opened(self, session: AmplifierSession) -> bool:
        return session.session_id in self._opened

    async def execute(self, session: AmplifierSession, prompt: str = "go", **options: Any) -> str:
        turn = TurnRecord(session.session_id)
        self.turns.append(turn)
        try:
            answer = await session.execute(prompt, **options)
        except (ExecutionCancelled, ExecutionTimeout, anyio.get_cancelled_exc_class()) as exc:
            # The turn failed by itself before its caller was cancelled natively.
            turn.outcome = "cancelled" if exc.__cause__ is None else "failed"
            raise
        except BaseException:
            turn.outcome = "failed"
            raise
        turn.outcome = "answered"
        return answer

    def stop(
        self, session: AmplifierSession, *, immediate: bool, grace: float | None = None
    ) -> None:
        """Ask a session to stop; ``cancel:requested`` is owed for it."""
        token = session.coordinator.cancellation
        changed = token.request_immediate() if immediate else token.request_graceful(grace)
        self._requests[session.session_id] += changed

    # ── what must hold ──

    def check(self) -> list[str]:
        return [
            *self._found,
            *self.ledger.problems(),
            *self._broken_transcripts(),
            *self._broken_stories(),
            *(problem for turn in self.turns for problem in what_is_wrong_with(turn)),
            *(f"sys.path has changed: {sys.path!r}" for _ in "x" if sys.path != self._path),
            *(f"{ref()!r} is still referenced" for ref in self._references if ref() is not None),
        ]

    def _broken_transcripts(self) -> Iterator[str]:
        for messages in self.transcripts:
            calls = [call for message in messages for call in message.get("tool_calls", ())]
            results = [message["tool_call_id"] for message in messages if message["role"] == "tool"]
            if results != calls:
                yield f"tool calls {calls} were answered by results for {results}"

    def _broken_stories(self) -> Iterator[str]:
        ids = dict.fromkeys([session_id for session_id, _, _ in self.heard] + self._opened)
        for session_id in ids:
            events = [event for heard_from, event, _ in self.heard if heard_from == session_id]
            owed = self._opened.count(session_id)
            if events.count("session:end") != owed:
                yield f"{session_id} was opened {owed} times and emitted session:end {events.count('session:end')} times"
            started, ended = events.count("execution:start"), events.count("execution:end")
            if started != ended:
                yield f"{session_id} emitted {started} execution:start and {ended} execution:end"
            requested = events.count("cancel:requested")
            if not self._requests[session_id] <= requested <= 2:
                yield f"{session_id} was asked to stop {self._requests[session_id]} times and announced {requested}"
            yield from self._broken_ending(session_id)

    def _broken_ending(self, session_id: str) -> Iterator[str]:
        """The status in ``session:end`` is that of the last turn."""
        turns = [
            turn
            for turn in self.turns
            if turn.session_id == session_id and turn.count("execution:start")
        ]
        statuses = [
            data.get("status")
            for of, event, data in self.heard
            if (of, event) == (session_id, "session:end")
        ]
        if not turns or not statuses:
            return
        last = turns[-1]
        expected = {
            "answered": ("completed", "cancelled"),
            "failed": ("failed", "cancelled"),
            # A native cancel may hit the caller when the turn itself has just come to its end.
            "cancelled": ("cancelled",)
            if last.reported_status() != "completed"
            else ("completed", "cancelled"),
        }
        if statuses[-1] not in expected.get(last.outcome, ()):
            yield f"session:end reports {statuses[-1]!r} although the last turn {last.outcome}"


def what_is_wrong_with(turn: TurnRecord) -> Iterator[str]:
    completed = turn.count("cancel:completed")
    if completed > 1:
        yield f"cancel:completed was emitted {completed} times in one turn"
    if (
        turn.count("execution:start")
        and not completed
        and turn.outcome == "cancelled"
        and turn.reported_status() != "completed"
    ):
        yield "a turn was cancelled and cancel:completed was not emitted"
    if turn.outcome == "unfinished":
        yield "a turn neither returned nor raised"


def what_is_left_in(session: AmplifierSession) -> Iterator[str]:
    """Whatever a closed session still holds of its modules."""
    name = session.session_id
    now = session.statistics()
    coordinator = session.coordinator
    points = coordinator.mount_points
    handlers = [
        h
        for handlers in coordinator.hooks.list_handlers().values()
        for h in handlers
        if h != LISTENER
    ]
    left = {
        "is a session that is": now.state if now.state not in ("closed", "new") else None,
        "has a turn that is": "running" if now.turn_running else None,
        "has the status": session.status.status
        if now.state == "closed" and session.status.status == "running"
        else None,
        "still has cleanups:": coordinator.cleanups.entries,
        "still has handlers:": handlers,
        "still has modules:": [
            p for p in ("orchestrator", "context", "providers", "tools") if points[p]
        ],
        "still has capabilities:": coordinator.to_dict()["capabilities"],
        "still has contributors:": coordinator.channels,
        "still has a task group:": coordinator.hosting.group,
        "still stops children:": coordinator.cancellation._children,
        "still has a timer:": coordinator.watch._stop_timer or coordinator.cancellation._stop_grace,
    }
    for words, what in left.items():
        if what:
            yield f"{name} {words} {what}"


@contextmanager
def _silence() -> Iterator[None]:
    """No log records: those that pytest keeps hold tracebacks, and those hold sessions."""
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def sweep(
    scenario: Scenario,
    *,
    points: int,
    modes: Sequence[str] = MODES,
    also: Callable[[World], Sequence[str]] | None = None,
    has_threads: bool = False,
    **options: Any,
) -> SweepReport:
    """Cancel a scenario everywhere and fail on any violation.

    Args:
        scenario: The application's code.
        points: The least number of suspension points it must have, so that it does not shrink to nothing unnoticed.
        modes: How to cancel.
        also: More that must hold afterwards.
        has_threads: Part of it runs in threads, whose answers come in another order each time.
        options: Passed on to `cancel_everywhere`.
    """

    def make() -> tuple[Callable[[], Awaitable[object]], Callable[[], list[str]]]:
        world = World(scenario)
        return world.scenario, lambda: [*world.check(), *(also(world) if also else ())]

    if not WHOLE:
        options.setdefault("second_after", (1, 3))
    if SAMPLE:
        options |= {
            "max_points": SAMPLE,
            "seed": random.Random(f"{SEED} {scenario.__name__}").randrange(2**32),
        }
    with _silence():
        report = cancel_everywhere(make, modes=modes, **options)
    report.raise_if_broken()
    TRIALS.append(report.total_trials)
    known = ("max_points", "not deterministic") if has_threads else ("max_points",)
    assert [note for note in report.notes if not any(words in note for words in known)] == [], str(
        report
    )
    assert min(report.points.values()) >= points, str(report)
    return report


def swept(**options: Any) -> Callable[[Scenario], Callable[[], None]]:
    """Make a test of a scenario: `sweep` with these options."""

    def made(scenario: Scenario) -> Callable[[], None]:
        def test() -> None:
            sweep(scenario, **options)

        test.__doc__, test.__module__ = scenario.__doc__, scenario.__module__
        return test

    return made
