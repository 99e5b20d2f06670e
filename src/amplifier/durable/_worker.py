"""The worker, which runs the turns that DBOS gives it, and takes over turns of dead workers."""

from __future__ import annotations

import contextvars
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, TypeVar
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
import attrs
from anyio.from_thread import BlockingPortal
from dbos import DBOS, SQLAlchemyDatasource
from dbos import error as dbos_error

from amplifier.contracts.cancellation import text_of
from amplifier.errors import AmplifierError, SessionStateError

from ._database import APPLICATION, Database, DatabaseDown
from ._engine import Duty, InterruptedWorker
from ._errors import DurableError, TurnConflictError, TurnLost
from ._reporting import MAX_TRIES, NOT_TAKEN, pause_after, post
from ._running_turn import RunningTurn, call_factory, plan_problem
from ._suspects import Admission, Settings
from ._turn_record import EventWriter, HandedOver, TurnRecord
from ._turns import NOTICE, SCHEDULE, TURN, TURNS, WAITING, WORKERS, Turns, marks_of, session_of
from ._values import PLAN_CHANGED, Schedule, TurnPolicy

try:
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]  # a system without file locks

T = TypeVar("T")

logger = logging.getLogger("amplifier.durable")

_LOOKS = 4
"""Number of checks of the other workers per lease."""
_ENDING_SECONDS = 5.0
_WORKER = "worker?"
"""Precedes the name of a worker in the id of its row."""


# ── entry points for DBOS ─────────────────────────────────────────────────────────────────────────


_worker: Worker | None = None
"""The worker of this process. DBOS has one instance per process."""


def _of_this_process() -> Worker:
    if _worker is None:
        raise HandedOver
    return _worker


@DBOS.workflow(name=TURN, max_recovery_attempts=None)
def _run_turn(session_id: str, prompt: str, details: dict[str, Any]) -> dict[str, Any]:
    return _of_this_process().run_turn(str(DBOS.workflow_id), session_id, details.get("notify"))


@DBOS.workflow(name=SCHEDULE, max_recovery_attempts=None)
def _run_schedule(schedule: dict[str, Any]) -> None:
    _of_this_process().start_due(str(DBOS.workflow_id), Schedule(**schedule))


@DBOS.workflow(name=NOTICE, max_recovery_attempts=None)
def _run_notice(turn_id: str, url: str, tries: int, waits: int) -> None:
    _of_this_process().call_back(turn_id, url, tries, waits)


# ── signs of life ─────────────────────────────────────────────────────────────────────────────────


class LoopWatch:
    """Checks from a thread whether the event loop runs.

    It counts checks instead of seconds, so that a suspended process doesn't count as stuck.

    Args:
        settings: The settings of the engine.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._looks = 0

    def note_life(self) -> None:
        """Record that the loop is running. It calls this a few times per lease."""
        self._looks = 0

    def is_stuck(self) -> bool:
        """Return whether the loop has been blocked for so long that the worker loses its turns.

        The thread calls this `_LOOKS` times per lease.
        """
        self._looks += 1
        seconds = self._looks * self._settings.lease / _LOOKS
        if self._looks == _LOOKS + 1:
            logger.warning(
                "the event loop of this worker stands still for %g s: code of a tool or a hook "
                "blocks it (run it in a thread); after %g s its turns go on elsewhere",
                seconds,
                self._settings.stuck,
            )
        return seconds > self._settings.stuck


# Each worker is a row of DBOS that waits on a queue without workers. A count in that row is its
# sign of life. A worker counts as dead if its count doesn't change over the number of checks in a
# lease. Checks are better than seconds, because a suspended worker makes no checks.


class OtherWorkers:
    """The other workers of a database.

    It records for them that this worker is alive, and takes over the turns of dead workers.
    """

    def __init__(self, turns: Turns, name: str, lease: float) -> None:
        self._turns = turns
        self._name = name
        self._lease = lease
        self._beats = 0
        self._seen: dict[str, tuple[int, int]] = {}
        self._looked = time.monotonic()

    def enlist(self) -> None:
        """Record that this worker is alive, before it receives turns."""
        self._turns.client.enqueue(
            {
                "queue_name": WORKERS,
                "workflow_name": "amplifier-worker",
                "workflow_id": _WORKER + self._name,
                "attributes": {"beats": self._beats},
            }
        )

    def look(self) -> None:
        """Record that this worker is alive, and take over the turns of dead workers."""
        client = self._turns.client
        self._beats += 1
        client.update_workflow_attributes(_WORKER + self._name, {"beats": self._beats})
        rows = client.list_workflows(
            queue_name=WORKERS, status="ENQUEUED", load_input=False, load_output=False
        )
        beats = {
            row.workflow_id.removeprefix(_WORKER): int(row.attributes["beats"]) for row in rows
        }
        if self._name not in beats:
            # Other workers have treated this one as dead.
            self.enlist()
        now = time.monotonic()
        if now - self._looked > self._lease:
            # This worker was suspended. Start counting again, so that the others have a full lease.
            self._seen = {}
        self._looked = now
        self._seen = {
            name: (
                count,
                self._seen[name][1] + 1 if self._seen.get(name, (None, 0))[0] == count else 0,
            )
            for name, count in beats.items()
            if name != self._name
        }
        dead = {name for name, (_, looks) in self._seen.items() if looks >= _LOOKS}
        living = {self._name, *beats} - dead
        if min(living) != self._name:
            # It is enough if one living worker does this. Two would do no harm, since DBOS refuses
            # stale updates.
            return
        for name in dead:
            logger.info("worker %s has died; its turns go on here or elsewhere", name)
        take_over(self._turns, living)
        if dead:
            client.delete_workflows([_WORKER + name for name in dead])

    def leave(self) -> None:
        """Remove the row of this worker."""
        self._turns.client.delete_workflows([_WORKER + self._name])


def take_over(turns: Turns, living: set[str]) -> None:
    """Make the turns of dead workers available to others."""
    rows = turns.client.list_workflows(
        name=[TURN, SCHEDULE, NOTICE], status="PENDING", load_input=False, load_output=False
    )
    orphans = [row for row in rows if row.executor_id not in living]
    for row in orphans:
        marks = marks_of(row)
        if row.name == TURN and marks.worker is not None:
            turns.mark(
                row.workflow_id,
                worker=None,
                deaths=marks.deaths + (marks.worker == row.executor_id),
            )
    if orphans:
        turns.client.resume_workflows([row.workflow_id for row in orphans], queue_name=TURNS)


@asynccontextmanager
async def only_worker(database: Database, name: str) -> AsyncIterator[None]:
    """Hold the lock that limits a file to one worker.

    Raises:
        SessionStateError: Another worker holds the lock. The message names that worker.
    """
    if fcntl is None:
        raise AmplifierError(
            "a worker of a file needs file locks (flock), which this system does not have"
        )
    file = database.file.with_name(f"{database.file.name}.worker")
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            other = os.pread(descriptor, 1000, 0).decode(errors="replace")
            raise SessionStateError(
                f"the file {database.file} already has a worker, {other}: an SQLite file allows "
                "one worker process. Raise its concurrency, or use postgresql://… for more"
            ) from None
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, name.encode(), 0)
        yield
    finally:
        os.close(descriptor)


# ── the worker ────────────────────────────────────────────────────────────────────────────────────


class Worker:
    """Runs turns until it is cancelled or asked to exit.

    Args:
        turns: The turns of the database.
        settings: The settings of the engine.
        duty: The task of the worker.

    Attributes:
        name: The unique name of the worker.
    """

    def __init__(self, turns: Turns, settings: Settings, duty: Duty) -> None:
        self.name: str = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._turns = turns
        self._database = turns.database
        self._settings = settings
        self._duty = duty
        self._others = OtherWorkers(turns, self.name, settings.lease)
        self._watch = LoopWatch(settings)
        self._running: dict[str, tuple[RunningTurn, TurnRecord]] = {}
        self._taking = 0
        self._admission = Admission(settings, self._is_asking)
        self._is_leaving = False
        self._is_idle = anyio.Event()
        self._handed_over: set[str] = set()
        self._unfit: dict[str, int] = {}
        self._recording: set[anyio.CancelScope] = set()
        self._failures: list[Exception] = []
        self._is_over = threading.Event()

    async def work(self) -> None:
        """Run turns.

        Raises:
            SessionStateError: The process already has a worker or uses DBOS itself, or the file
                already has a worker.
            EngineUnavailableError: The database is no longer reachable.
        """
        if _worker is not None:
            raise _in_use("with a worker of amplifier")
        async with self._enlisted(), anyio.create_task_group() as group, BlockingPortal() as portal:
            self._group, self._portal = group, portal
            try:
                async with self._launched():
                    group.start_soon(self._or_fail, self._listen)
                    group.start_soon(self._or_fail, self._adopt)
                    if not self._database.is_sqlite:
                        group.start_soon(self._or_fail, self._beat)
                    self._duty.on_start()
                    await self._duty.leaving.wait()
                    await self._drain()
                    group.cancel_scope.cancel()
            finally:
                await portal.stop(cancel_remaining=True)
        for error in self._failures:
            raise error

    @asynccontextmanager
    async def _enlisted(self) -> AsyncIterator[None]:
        """Announce this worker to the others, and hand over its turns at the end."""
        if self._database.is_sqlite:
            async with only_worker(self._database, self.name):
                await self._database(lambda: take_over(self._turns, {self.name}))
                async with self._leaving():
                    yield
        else:
            await self._database(self._others.enlist)
            async with self._leaving():
                yield

    @asynccontextmanager
    async def _leaving(self) -> AsyncIterator[None]:
        self._database.begin_use()
        try:
            yield
        finally:
            # Otherwise the other workers would notice only after a lease.
            with (
                anyio.move_on_after(_ENDING_SECONDS, shield=True),
                suppress(DurableError, DatabaseDown),
            ):
                await anyio.to_thread.run_sync(
                    self._database.run, self._leave, abandon_on_cancel=True
                )
            self._database.end_use()

    def _leave(self) -> None:
        if not self._database.is_sqlite:
            self._others.leave()
        self._hand_over()

    def _hand_over(self) -> None:
        mine = self._turns.client.list_workflows(
            name=[TURN, SCHEDULE, NOTICE],
            status="PENDING",
            executor_id=self.name,
            load_input=False,
            load_output=False,
        )
        for row in mine:
            if marks_of(row).worker is not None:
                self._turns.mark(row.workflow_id, worker=None)
        if mine:
            self._turns.client.resume_workflows([row.workflow_id for row in mine], queue_name=TURNS)

    @asynccontextmanager
    async def _launched(self) -> AsyncIterator[None]:
        """Run DBOS in this process. It dispatches turns to this worker."""
        # DBOS has one instance per process, and calls functions of this module.
        global _worker  # noqa: PLW0603
        if _worker is not None:
            raise _in_use("with a worker of amplifier")
        _worker = self
        try:
            await anyio.to_thread.run_sync(self._launch)
            try:
                yield
            finally:
                # This wait is bounded, and so is DBOS's own: 10 seconds for each thread.
                with anyio.CancelScope(shield=True):
                    await anyio.to_thread.run_sync(self._end)
        finally:
            _worker = None

    def _launch(self) -> None:
        try:
            DBOS.list_queues()
        except dbos_error.DBOSException:
            pass
        else:
            raise _in_use("for the application itself")
        DBOS(
            config={
                "name": APPLICATION,
                "system_database_url": self._database.url,
                "system_database_engine": self._database.engine,
                "executor_id": self.name,
                "application_version": self._settings.version or "amplifier",
                "serializer": self._database.serializer,
                "log_level": "ERROR",
                "run_migrations": False,
                # The listener would keep a connection open, and nothing here waits for messages.
                "use_listen_notify": False,
                # The listener's thread sleeps this long before it ends.
                "notification_listener_polling_interval_sec": 0.5,
            }
        )
        if DBOS.executor_id != self.name:
            # The application has its own DBOS instance, not launched yet.
            raise _in_use("for the application itself")
        try:
            self._launch_instance()
        except BaseException:
            # Otherwise this process couldn't start another worker.
            DBOS.destroy()
            raise

    def _launch_instance(self) -> None:
        self._datasource = SQLAlchemyDatasource.create(
            self._database.url, engine=self._database.engine, serializer=self._database.serializer
        )
        DBOS.listen_queues([TURNS])
        # The queue has to exist before the launch, since DBOS checks for new queues only once a
        # second.
        self._turns.client.register_queue(
            TURNS,
            worker_concurrency=self._duty.concurrency,
            polling_interval_sec=self._settings.pickup,
        )
        DBOS.launch()
        if self._database.is_sqlite:
            # DBOS gives new turns to the version that was registered last. SQLite before 3.42
            # stores these times in whole seconds, so after a rollback another version may count as
            # the latest. A file has only one worker, so set its version explicitly.
            DBOS.set_latest_application_version(DBOS.application_version)

    def _end(self) -> None:
        """Give DBOS time to record the ends of turns, then shut it down.

        The running turns are being cancelled at this point.
        """
        deadline = time.monotonic() + _ENDING_SECONDS
        with suppress(DatabaseDown, DurableError):
            while time.monotonic() < deadline and self._database.run(self._has_ending_turns):
                time.sleep(0.01)
        DBOS.destroy()

    def _has_ending_turns(self) -> bool:
        mine = self._turns.client.list_workflows(
            name=TURN, status="PENDING", executor_id=self.name, load_input=False, load_output=False
        )
        return any(
            row.workflow_id not in self._handed_over and marks_of(row).worker is not None
            for row in mine
        )

    # ── in the threads of DBOS ──

    def run_turn(self, turn_id: str, session_id: str, notify: str | None) -> dict[str, Any]:
        """Run a turn and return its end. Meanwhile this thread writes the events."""
        self._handed_over.discard(turn_id)
        # Reserve the writer's place in the order of steps before other threads reserve theirs.
        writer = EventWriter(self._database, self._portal, DBOS.reserve_step())
        record = TurnRecord(
            turns=self._turns,
            turn_id=turn_id,
            worker=self.name,
            context=contextvars.copy_context(),
            datasource=self._datasource,
            writer=writer,
            recording=self._recording,
        )
        try:
            attempt = self._portal.start_task_soon(self._take, record)
            attempt.add_done_callback(lambda _: writer.finish())
            writer.serve()
            attempt.result()
        except BaseException as error:
            self._handed_over.add(turn_id)
            raise HandedOver from error
        if record.outcome is None:
            self._handed_over.add(turn_id)
            raise HandedOver

        def end() -> None:
            if notify is not None:
                self._turns.enqueue_notice(turn_id, notify)
            self._turns.begin_next(session_id, turn_id)

        self._with_patience(end)
        return record.outcome

    def _with_patience(self, work: Callable[[], T]) -> T:
        """Run a function on a database that may be unreachable for a while.

        If that fails, the next worker repeats the function.
        """
        try:
            return self._portal.call(self._database, work)
        except BaseException as error:
            raise HandedOver from error

    def start_due(self, workflow_id: str, schedule: Schedule) -> None:
        """Start the turn of a schedule, and queue the schedule for the next one.

        A single turn replaces all missed turns.
        """

        def start() -> None:
            if not self._turns.client.list_workflows(workflow_ids=[workflow_id], load_input=False):
                return
            with suppress(TurnConflictError):
                # This raises if the application has used the id for another turn.
                self._turns.start(
                    schedule.session_id, schedule.prompt, schedule.turn_id, True, TurnPolicy()
                )
            missed = max((time.time() - schedule.next_at) // schedule.every, 0.0)
            following = schedule.next_at + schedule.every * (missed + 1)
            self._turns.prolong_schedule(workflow_id, attrs.evolve(schedule, next_at=following))

        self._with_patience(start)

    def call_back(self, turn_id: str, url: str, tries: int, waits: int) -> None:
        """Report the end of a turn to its address.

        The report is retried later if it fails, or if the turn hasn't ended yet.
        """

        def again(tries: int, waits: int, seconds: float) -> None:
            self._with_patience(
                lambda: self._turns.enqueue_notice(turn_id, url, tries, waits, seconds)
            )

        row = self._with_patience(lambda: self._turns.find_row(turn_id))
        if row is None:
            return
        status = self._turns.status_of(row)
        if not status.is_final:
            again(tries, waits + 1, 0.1)
            return
        try:
            self._portal.call(post, url, status)
        except NOT_TAKEN as error:
            logger.info(
                "the end of turn %s was not taken by %s: %s",
                turn_id,
                urlsplit(url).netloc,
                text_of(error),
            )
            if tries + 1 < MAX_TRIES:
                again(tries + 1, waits, pause_after(tries))
            else:
                logger.warning(
                    "the end of turn %s is no longer reported, after %d tries",
                    turn_id,
                    MAX_TRIES,
                )
        except BaseException as error:
            # The worker is exiting.
            raise HandedOver from error

    # ── on the event loop ──

    def _is_asking(self, turn_id: str) -> bool:
        return turn_id in self._running and self._running[turn_id][0].is_asking

    async def _take(self, record: TurnRecord) -> None:
        """Run a turn that DBOS gave to this worker, until it ends, is held or is lost."""
        self._taking += 1
        try:
            await self._take_in_order(record)
        except TurnLost:
            pass
        except KeyboardInterrupt:
            # If it were raised here, it would end the event loop, and AnyIO's threads would remain.
            self._failures.append(InterruptedWorker())
            self._fail()
        except Exception as error:
            # While this worker lives, DBOS considers the workflow running. So the worker has to
            # end.
            self._failures.append(error)
            self._fail()
            raise
        finally:
            self._taking -= 1
            if self._is_leaving and not self._running:
                self._is_idle.set()

    async def _or_fail(self, task: Callable[[], Awaitable[None]]) -> None:
        """Run a task of the worker. Its failure ends the worker, even while that waits for DBOS."""
        try:
            await task()
        except Exception:
            self._fail()
            raise

    def _fail(self) -> None:
        for scope in list(self._recording):
            scope.cancel()
        self._group.cancel_scope.cancel()

    async def _take_in_order(self, record: TurnRecord) -> None:
        """Run a turn once it is admitted. A suspect runs alone."""
        row = await self._database(
            lambda: self._turns.row(record.turn_id, load_input=False, load_output=False)
        )
        deaths = marks_of(row).deaths

        async def still_waits() -> bool:
            now = await self._database(
                lambda: self._turns.row(record.turn_id, load_input=False, load_output=False)
            )
            return bool(now.status == "PENDING" and now.executor_id == self.name)

        async with self._admission.admit(
            record.turn_id, deaths, self._settings.pause_after(deaths), still_waits
        ):
            turn = None if self._is_leaving else await record.claim()
            if turn is None:
                return
            if record.turn_id in self._running:
                # Others treated this worker as dead, and DBOS gave it back its own turn.
                self._running[record.turn_id][0].lose()
            running = RunningTurn(record, turn, self._settings.attempts, self._duty.limits)
            self._running[record.turn_id] = running, record
            if self._is_leaving:
                running.leave()
            try:
                await running.run(self._duty.make_session)
            finally:
                if self._running.get(record.turn_id) == (running, record):
                    del self._running[record.turn_id]

    async def _drain(self) -> None:
        """Start nothing more, and wait until no turn has a running call."""
        self._is_leaving = True
        for running, _ in list(self._running.values()):
            running.leave()
        if self._running:
            await self._is_idle.wait()

    async def _listen(self) -> None:
        """Deliver stops and answers to turns, and their events to watchers, until cancelled."""
        while True:
            await anyio.sleep(self._settings.poll)
            for running, _ in list(self._running.values()):
                await running.flush()
            if self._running:
                await self._ask_for_news()

    async def _ask_for_news(self) -> None:
        running = dict(self._running)
        asking = {
            turn_id: turn.waiting_for for turn_id, (turn, _) in running.items() if turn.is_asking
        }

        def read() -> tuple[dict[str, Any], dict[str, dict[str, str]]]:
            rows = self._turns.client.list_workflows(
                workflow_ids=list(running), load_input=False, load_output=False
            )
            answers = {
                turn_id: running[turn_id][1].read_answers(names)
                for turn_id, names in asking.items()
            }
            return {row.workflow_id: row for row in rows}, answers

        rows, answers = await self._database(read)
        for turn_id, (turn, record) in running.items():
            row = rows.get(turn_id)
            marks = None if row is None else marks_of(row)
            if record.outcome is not None:
                continue
            is_mine = row is not None and row.status == "PENDING" and row.executor_id == self.name
            if (
                marks is None
                or not is_mine
                or marks.attempt != turn.turn.attempt
                or marks.worker != self.name
            ):
                if self._running.get(turn_id) == (turn, record) and not turn.is_ending:
                    turn.lose()
            elif (stop := self._turns.stop_of(marks)) is not None and stop != turn.turn.stop:
                turn.stop(stop)
        for turn_id, options in answers.items():
            for name, option in options.items():
                running[turn_id][0].answer(name, option)

    async def _adopt(self) -> None:
        """Requeue held turns that started with this worker's plan, and turns that need not wait.

        The search repeats until cancelled.
        """
        while True:
            waiting = await self._database(self._waiting)
            held = [row for row in waiting if marks_of(row).held is not None]
            names = {row.workflow_id for row in held}
            self._unfit = {
                turn_id: attempt for turn_id, attempt in self._unfit.items() if turn_id in names
            }
            for row in held:
                await self._adopt_one(row)
            for session_id in {
                row.authenticated_user for row in waiting if marks_of(row).held is None
            }:
                await self._database(partial(self._turns.begin_next, session_id))
            await anyio.sleep(self._settings.lease / _LOOKS)

    async def _adopt_one(self, row: Any) -> None:
        marks = marks_of(row)
        reason = self._turns.unseal(marks.held)
        if self._unfit.get(row.workflow_id) == marks.attempt or self._is_leaving:
            return
        if marks.plan is None or reason["error_type"] != PLAN_CHANGED:
            return
        self._unfit[row.workflow_id] = marks.attempt
        try:
            session = call_factory(self._duty.make_session, session_of(row))
            problem = plan_problem(session, marks.plan)
        except Exception as error:  # noqa: BLE001 — the application's code
            # The turn stays held.
            problem = text_of(error)
        if problem is None:
            await self._database(partial(self._turns.requeue, row))

    def _waiting(self) -> list[Any]:
        rows: list[Any] = self._turns.client.list_workflows(
            name=TURN, queue_name=WAITING, status="ENQUEUED", load_input=False, load_output=False
        )
        return rows

    async def _beat(self) -> None:
        """Record that this worker is alive, and check the others, until cancelled.

        This runs in a thread, since a tool may block the loop.
        """
        async with anyio.create_task_group() as group:
            group.start_soon(
                partial(
                    anyio.to_thread.run_sync, self._beat_in_thread, limiter=anyio.CapacityLimiter(1)
                )
            )
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
                    self._database.run(self._others.look)
                failing_since = None
            except DatabaseDown as error:
                failing_since = failing_since or time.monotonic()
                self._database.check_patience(error, failing_since)
            except Exception:
                if self._is_over.is_set():
                    # The connections are being closed.
                    return
                raise
            self._is_over.wait(self._settings.lease / _LOOKS)


def _in_use(how: str) -> SessionStateError:
    return SessionStateError(
        f"DBOS already runs in this process, {how}, and it has one instance per process; run this "
        "worker in a separate process"
    )


async def work(turns: Turns, settings: Settings, duty: Duty) -> None:
    """Run turns until cancelled."""
    await Worker(turns, settings, duty).work()
