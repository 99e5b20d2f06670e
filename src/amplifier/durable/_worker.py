"""A worker: runs turns that it was given, listens for stops and answers, and takes over the turns of workers that have died."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from urllib.parse import urlsplit

import anyio
import anyio.to_thread

from amplifier.contracts._cancellation import text_of

from ._database import DatabaseDown
from ._engine import Duty, SessionFactory
from ._errors import EngineClosedError
from ._recorded_steps import AttemptStore
from ._reporting import MOST_TRIES, NOT_TAKEN, post
from ._running_turn import RunningTurn, made, plan_problem
from ._suspects import Admission, Settings
from ._turn_store import TurnStore
from ._values import ClaimedTurn

logger = logging.getLogger("amplifier.durable")

_LOOKS = 4
"""Looks at the others in one lease."""


class LoopWatch:
    """Checks from a thread whether the event loop runs; counts looks and not seconds, so that a suspended process is not stuck.

    Args:
        settings: Of the engine.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._looks = 0

    def note_life(self) -> None:
        """On the event loop, a few times per lease."""
        self._looks = 0

    def is_stuck(self) -> bool:
        """In the thread, `_LOOKS` times per lease: whether the loop has stood still for so long that others get its turns."""
        self._looks += 1
        seconds = self._looks * self._settings.lease / _LOOKS
        if self._looks == _LOOKS + 1:
            logger.warning(
                "the event loop of this worker stands still for %g s: code of a tool or a hook blocks it (run it in a thread); after %g s "
                "its turns go on elsewhere",
                seconds,
                self._settings.stuck,
            )
        return seconds > self._settings.stuck


class TurnRunner:
    """Runs the turns that a worker was given, and hands them over when it leaves.

    Args:
        settings: Of the engine.
        duty: What the worker does.

    Attributes:
        name: Of the worker; no other one ever has it.
    """

    def __init__(self, settings: Settings, duty: Duty) -> None:
        self.name: str = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._settings = settings
        self._duty = duty
        self._running: dict[str, RunningTurn] = {}
        self._admission = Admission(settings, self._is_asking)
        self._is_leaving = False
        self._is_idle = anyio.Event()

    def _is_asking(self, turn_id: str) -> bool:
        return turn_id in self._running and self._running[turn_id].is_asking

    async def run_turn(
        self,
        store: AttemptStore,
        turn: ClaimedTurn,
        make_session: SessionFactory,
        on_start: Callable[[RunningTurn], None] = lambda running: None,
    ) -> bool:
        """Run a turn that was claimed, until it ends or is lost.

        Returns:
            Whether it has ended or is held; False if another worker has it.

        Raises:
            EngineUnavailableError: What happens cannot be recorded any more.
        """
        if turn.turn_id in self._running:  # this worker was taken for dead, and given its own turn
            self._running[turn.turn_id].lose()
        running = self._running[turn.turn_id] = RunningTurn(store, turn, self._settings.attempts, self._duty.limits)
        on_start(running)
        if self._is_leaving:
            running.leave()
        try:
            return await running.run(make_session)
        finally:
            if self._running.get(turn.turn_id) is running:
                del self._running[turn.turn_id]
            if self._is_leaving and not self._running:
                self._is_idle.set()

    async def drain(self) -> None:
        """Begin nothing more, and wait until no turn has a running call."""
        self._is_leaving = True
        for running in list(self._running.values()):
            running.leave()
        if self._running:
            await self._is_idle.wait()

    async def listen(self) -> None:
        """Pass news to the running turns and their events to watchers, for ever."""
        while True:
            await anyio.sleep(self._settings.poll)
            for running in list(self._running.values()):
                await running.flush()
            if self._running:
                await self._ask_for_news()

    async def _ask_for_news(self) -> None:
        """Ask for news, unless they come by themselves."""


class Worker(TurnRunner):
    """A worker of an engine that has tables.

    Args:
        store: Where turns are.
        settings: Of the engine.
        duty: What it does.
        look_after: Called in a thread after each look at the others, for what else an engine has to do.
    """

    def __init__(
        self,
        store: TurnStore,
        settings: Settings,
        duty: Duty,
        look_after: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(settings, duty)
        self._store = store
        self._look_after = look_after
        self._watch = LoopWatch(settings)
        self._seen: dict[str, tuple[int, int]] = {}
        self._looked = time.monotonic()
        self._is_over = threading.Event()
        self._unfit: dict[str, int] = {}
        self._adopted: set[str] = set()

    async def take(self, turn_id: str) -> bool:
        """Claim a turn that waits, and run it until it ends or is lost. A suspect runs alone.

        Returns:
            Whether it has ended or is held, or another worker had claimed it; False if another worker has it now.

        Raises:
            EngineUnavailableError: What happens cannot be recorded any more.
        """
        if self._is_leaving:
            return False
        adopts = turn_id in self._adopted
        self._adopted.discard(turn_id)
        async with self._admission.admit(turn_id, 0, 0.0):
            turn = await self._store.claim(turn_id, self.name, adopts=adopts, but_not=self._settings.suspect)
            if turn is not None:
                return await self.run_turn(self._store, turn, self._duty.make_session)
        waiting = await self._store.queued(turn_id)
        if waiting is None:
            return True
        deaths, due = waiting
        pause = min(due - time.time(), self._settings.pause_after(deaths))

        async def still_waits() -> bool:
            return await self._store.queued(turn_id) is not None

        async with self._admission.admit(turn_id, deaths, pause, still_waits):
            turn = await self._store.claim(turn_id, self.name, adopts=adopts)
            return turn is None or await self.run_turn(self._store, turn, self._duty.make_session)

    async def adopt(self, begin: Callable[[str], Awaitable[object]]) -> None:
        """Look for turns that are held and began with the plan of this worker, for ever.

        Args:
            begin: Gets each of them; it has to come to `take`.
        """
        while True:
            held = await self._store.held()
            self._unfit = {turn_id: attempt for turn_id, attempt, *_ in held if self._unfit.get(turn_id) == attempt}
            for turn_id, attempt, session_id, plan in held:
                if turn_id not in self._unfit and not self._is_leaving:
                    self._unfit[turn_id] = attempt
                    try:
                        problem = plan_problem(made(self._duty.make_session, session_id), plan)
                    except Exception as error:  # noqa: BLE001 — the application's code; the turn stays as it is
                        problem = text_of(error)
                    if problem is None:
                        self._adopted.add(turn_id)
                        await begin(turn_id)
            await anyio.sleep(self._settings.lease / _LOOKS)

    async def notify(self) -> None:
        """Call back those who asked for it when turns have ended, for ever."""
        while True:
            async with anyio.create_task_group() as group:
                for turn_id, url, tries in await self._store.due_notices():
                    group.start_soon(self._notify, turn_id, url, tries)
            await anyio.sleep(self._settings.lease / _LOOKS)

    async def _notify(self, turn_id: str, url: str, tries: int) -> None:
        status = await self._store.take_notice(turn_id, tries)
        if status is None:
            return
        try:
            await post(url, status)
        except NOT_TAKEN as error:
            logger.info("the end of turn %s was not taken by %s: %s", turn_id, urlsplit(url).netloc, text_of(error))
            if tries + 1 < MOST_TRIES:
                return
            logger.warning("the end of turn %s is not reported any more, after %d tries", turn_id, MOST_TRIES)
        await self._store.end_notice(turn_id)

    async def _ask_for_news(self) -> None:
        running = dict(self._running)
        asking = [turn_id for turn_id, each in running.items() if each.is_asking]
        attempts, answers = await self._store.news(self.name, asking)
        for turn_id, each in running.items():
            attempt, stop = attempts.get(turn_id, (None, None))
            if attempt != each.turn.attempt:
                if self._running.get(turn_id) is each:  # else it has just ended
                    each.lose()
            elif stop is not None and stop != each.turn.stop:
                each.stop(stop)
        for (turn_id, question_id), option in answers.items():
            running[turn_id].answer(question_id, option)

    # ── among others ──

    async def register(self) -> None:
        """Show that this worker lives, before it gets turns."""
        await self._store.register(self.name)

    async def beat(self) -> None:
        """Show that this worker lives and look after the others, until cancelled; from a thread, since a tool may block the loop."""
        async with anyio.create_task_group() as group:
            in_thread = partial(anyio.to_thread.run_sync, self._beat_in_thread, limiter=anyio.CapacityLimiter(1))
            group.start_soon(in_thread)
            try:
                while True:
                    self._watch.note_life()
                    await anyio.sleep(self._settings.lease / _LOOKS)
            finally:
                self._is_over.set()

    def _beat_in_thread(self) -> None:
        failing_since: float | None = None
        while not self._is_over.is_set():
            try:
                if not self._watch.is_stuck():
                    self._look_at_others()
                failing_since = None
            except DatabaseDown as error:
                failing_since = failing_since or time.monotonic()
                self._store.check_patience(error, failing_since)
            except Exception:
                if self._is_over.is_set():  # what it uses is being closed
                    return
                raise
            self._is_over.wait(self._settings.lease / _LOOKS)

    def _look_at_others(self) -> None:
        """Beat, and take over what dead workers have left.

        A worker has died if it did not beat over as many looks as a lease has. Looks and no seconds: a worker that was suspended
        itself makes none meanwhile. It begins anew and gives the others the time of a lease.
        """
        beats = self._store.beat(self.name)
        now = time.monotonic()
        if now - self._looked > self._settings.lease:
            self._seen = {}
        self._looked = now
        self._seen = {
            name: (count, self._seen[name][1] + 1 if self._seen.get(name, (None, 0))[0] == count else 0)
            for name, count in beats.items()
            if name != self.name
        }
        for name, (count, looks) in self._seen.items():
            if looks >= _LOOKS and self._store.forget_worker(name, count):
                logger.info("worker %s has died; its turns go on here or elsewhere", name)
        self._store.requeue_orphans(self._settings.pause_after)
        self._store.start_due()
        self._look_after()

    async def leave(self) -> None:
        """Let others take over at once."""
        with anyio.move_on_after(5.0, shield=True), suppress(EngineClosedError):  # then others notice after their lease
            await self._store.leave(self.name, patience=1.0)
