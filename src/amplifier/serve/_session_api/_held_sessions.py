"""The sessions of the session API: held open between requests, each with its events, questions and watchers."""

from __future__ import annotations

import logging
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from datetime import UTC, datetime
from typing import Any, Protocol

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from amplifier._live_session import LiveSession
from amplifier.errors import ExecutionCancelled
from amplifier.models import ThinkingDelta, ToolFinished, ToolStarted, TurnEvent

from .._agents import Agents, SessionRequest
from .._problems import Problem, problem_of
from .._tool_output import output_text
from .._turn_text import TurnText
from ._event_log import EventLog
from ._questions import Questions

__all__ = ["HeldSession", "HeldSessions", "SessionStorage"]

logger: logging.Logger = logging.getLogger("amplifier.serve")

_MOST_WATCHERS = 20


class SessionStorage(Protocol):
    """Where the application keeps conversations; called in worker threads."""

    def exists(self, session_id: str) -> bool:
        """Whether there is a conversation of this id."""
        ...

    def delete(self, session_id: str) -> None:
        """Delete it, and its metadata; nothing happens if there is none."""
        ...

    def metadata(self, session_id: str) -> dict[str, Any]:
        """What a client wrote about it; empty if there is nothing."""
        ...

    def write_metadata(self, session_id: str, metadata: dict[str, Any]) -> None:
        """Replace what a client wrote about it."""
        ...


class HeldSession:
    """One session that is held open.

    Attributes:
        metadata: What a client wrote about it.
    """

    def __init__(
        self, session_id: str, agents: Agents, *, is_resumed: bool, metadata: dict[str, Any] | None = None
    ) -> None:
        self.log: EventLog = EventLog()
        self.questions: Questions = Questions(self.log)
        request = SessionRequest(session_id=session_id, approvals=self.questions, is_resumed=is_resumed)
        self.live: LiveSession = LiveSession(agents.make(request))
        self.session_id: str = self.live.session.session_id
        self.metadata: dict[str, Any] = metadata or {}
        self.created: str = datetime.now(UTC).isoformat(timespec="seconds")
        self.used_at: float = anyio.current_time()
        self._agents = agents
        self._watchers = 0
        self._was_watched = False
        self._watchers_changed = anyio.Event()
        self.turn: _Turn | None = None

    def __repr__(self) -> str:
        return f"<HeldSession {self.session_id}: {self._watchers} watchers, {self.live!r}>"

    @property
    def is_in_use(self) -> bool:
        """Whether a turn runs or a client watches."""
        return self.live.is_busy or self._watchers > 0

    def describe(self) -> dict[str, Any]:
        """For clients."""
        return {
            "session_id": self.session_id,
            "status": "running" if self.live.is_busy else "idle",
            "created": self.created,
            "metadata": self.metadata,
            "last_event_id": self.log.last_id,
            "questions": self.questions.waiting(),
        }

    @contextmanager
    def watched(self) -> Iterator[None]:
        """A client watches inside the block.

        Raises:
            Problem: Too many do already.
        """
        if self._watchers >= _MOST_WATCHERS:
            raise Problem(
                429, f"{_MOST_WATCHERS} clients watch this session, which is the limit", code="too_many_watchers"
            )
        self._count_watchers(1)
        try:
            yield
        finally:
            self._count_watchers(-1)

    def _count_watchers(self, change: int) -> None:
        self._watchers += change
        self._was_watched = True
        self.used_at = anyio.current_time()
        changed, self._watchers_changed = self._watchers_changed, anyio.Event()
        changed.set()

    # ── a turn ──

    def begin_turn(self, prompt: str | None) -> _Turn:
        """Claim the session for a turn, which `run_turn` runs.

        Raises:
            Problem: A turn is running, or there are too many.
        """
        with ExitStack() as stack:
            try:
                stack.enter_context(self.live.turn())
            except Exception as error:
                raise problem_of(error) from error
            stack.enter_context(self._agents.turns.admit(self.live.session))
            turn = self.turn = _Turn(prompt, stack.pop_all())
        self._was_watched = self._watchers > 0
        self.log.add("turn_started", turn=turn.turn_id, prompt=prompt)
        return turn

    async def run_turn(self, turn: _Turn) -> None:
        """Run a turn to its end, whatever that is; it is reported as the event ``turn_ended``."""
        try:
            with turn.claims:
                async with anyio.create_task_group() as group:
                    group.start_soon(self._stop_when_abandoned)
                    await self._run(turn)
                    group.cancel_scope.cancel()
        finally:
            self.used_at = anyio.current_time()
            self.log.add("turn_ended", turn=turn.turn_id, **turn.outcome)
            turn.over.set()

    async def _run(self, turn: _Turn) -> None:
        session, text = self.live.session, TurnText()
        try:
            stream = session.stream_resumed_turn() if turn.prompt is None else session.stream(turn.prompt)
            async with stream as events:
                async for event in events:
                    self._show(event, text)
            self._add_text(text.rest(events.result or ""))
            status = "cancelled" if session.status.status == "cancelled" else "success"
            turn.outcome = {"status": status, "result": events.result}
        except ExecutionCancelled:
            turn.outcome = {"status": "cancelled"}
        except Exception as error:  # noqa: BLE001  # a turn runs third-party code
            problem = problem_of(error)
            turn.outcome = {"status": "error", "error": problem.message, "code": problem.code}
        turn.outcome["usage"] = {"input_tokens": text.input_tokens, "output_tokens": text.output_tokens}

    def _show(self, event: TurnEvent, text: TurnText) -> None:
        match event:
            case ThinkingDelta():
                self.log.add("thinking", text=event.text)
            case ToolStarted():
                self.log.add("tool_started", call=event.tool_call_id, name=event.tool_name, input=event.tool_input)
            case ToolFinished():
                output = output_text(event.data)
                called = {"call": event.tool_call_id, "name": event.tool_name}
                self.log.add("tool_finished", **called, success=event.success, output=output)
            case _:
                self._add_text(text.add(event))

    def _add_text(self, text: str) -> None:
        if text:
            self.log.add("text", text=text)

    async def _stop_when_abandoned(self) -> None:
        """Stop the turn when clients have watched it and the last one has been away for a while."""
        while True:
            if self._watchers or not self._was_watched:
                await self._watchers_changed.wait()
                continue
            with anyio.move_on_after(self._agents.limits.abandoned_seconds):
                await self._watchers_changed.wait()
                continue
            self.live.stop("its client has left")
            return


class _Turn:
    """A turn that has been claimed.

    Attributes:
        prompt: None to go on with the turn that was cut off.
        claims: On the session, and on one of the places for turns.
        outcome: How it ended.
    """

    def __init__(self, prompt: str | None, claims: ExitStack) -> None:
        self.turn_id: str = secrets.token_hex(8)
        self.prompt = prompt
        self.claims = claims
        self.over: anyio.Event = anyio.Event()
        self.outcome: dict[str, Any] = {"status": "cancelled"}


class HeldSessions:
    """All sessions that are held open."""

    def __init__(self, agents: Agents, storage: SessionStorage | None) -> None:
        self._agents = agents
        self._storage = storage
        self._held: dict[str, HeldSession] = {}
        self._opening: set[str] = set()
        self._group: TaskGroup | None = None
        self._is_closing = False

    def __repr__(self) -> str:
        return f"<HeldSessions: {len(self._held)} open>"

    def __len__(self) -> int:
        return len(self._held)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Sessions can be opened inside the block; at its end all are closed."""
        async with anyio.create_task_group() as group:
            self._group = group
            group.start_soon(self._close_idle)
            try:
                yield
            finally:
                self._group = None
                group.cancel_scope.cancel()

    async def create(self, session_id: str | None, metadata: dict[str, Any] | None = None) -> HeldSession:
        """Open a session: a new one, or a stored one of this id.

        Args:
            session_id: Its id; None for a new one.
            metadata: What the client wants to keep with it; None to leave what is kept.

        Raises:
            Problem: There are too many, it is open already, or it cannot be opened.
        """
        if self._is_closing:
            raise Problem(503, "the server is being stopped", code="stopping", headers={"Retry-After": "5"})
        wanted = session_id or secrets.token_hex(8)
        if wanted in self._held or wanted in self._opening:
            raise Problem(409, f"session {wanted!r} is open already, or being opened or deleted", code="session_open")
        if len(self._held) + len(self._opening) >= self._agents.limits.sessions:
            message = f"{self._agents.limits.sessions} sessions are open, which is the limit; delete one"
            raise Problem(429, message, code="too_many_sessions", headers={"Retry-After": "5"})
        self._opening.add(wanted)
        try:
            return await self._open(wanted, metadata, named=session_id is not None)
        except Exception as error:  # third-party modules; the client gets the reason
            raise problem_of(error) from error
        finally:
            self._opening.discard(wanted)

    async def _open(self, wanted: str, metadata: dict[str, Any] | None, *, named: bool) -> HeldSession:
        storage, is_stored = self._storage, False
        if named and storage is not None:
            is_stored = await anyio.to_thread.run_sync(storage.exists, wanted)
            if metadata is None:
                metadata = await anyio.to_thread.run_sync(storage.metadata, wanted)
        held = HeldSession(wanted, self._agents, is_resumed=is_stored, metadata=metadata)
        await self._running_group().start(self._hold, held)
        try:
            self._agents.check(held.live.session)
            if metadata and storage is not None:
                await anyio.to_thread.run_sync(storage.write_metadata, wanted, metadata)
        except BaseException:
            with anyio.CancelScope(shield=True):  # bounded by the session's own deadlines
                await held.live.close()
            raise
        self._held[held.session_id] = held
        return held

    def _running_group(self) -> TaskGroup:
        if self._group is None:
            problem = "the application has not been started: the server, or the application around it, has to run its lifespan"
            raise Problem(503, problem, code="not_started")
        return self._group

    async def _hold(self, held: HeldSession, *, task_status: Any) -> None:
        try:
            await held.live.run(task_status=task_status)
        finally:
            if self._held.get(held.session_id) is held:
                del self._held[held.session_id]
            held.log.add("session_closed")
            held.log.close()

    def find(self, session_id: str) -> HeldSession:
        """The open session of this id.

        Raises:
            Problem: There is none.
        """
        held = self._held.get(session_id)
        if held is None:
            message = f"no session {session_id!r:.80} is open; POST /api/sessions opens one"
            raise Problem(404, message, code="session_not_found")
        held.used_at = anyio.current_time()
        return held

    def all(self) -> list[HeldSession]:
        """All open sessions, the oldest first."""
        return list(self._held.values())

    def start_turn(self, held: HeldSession, prompt: str | None) -> _Turn:
        """Begin a turn, or go on with the one that was cut off; it goes on when the request that began it is over.

        Raises:
            Problem: It cannot begin.
        """
        group = self._running_group()
        turn = held.begin_turn(prompt)
        group.start_soon(held.run_turn, turn)
        return turn

    async def delete(self, session_id: str) -> None:
        """Stop its turn, close it, and delete its conversation."""
        held = self.find(session_id)
        del self._held[session_id]  # a second request does not find it
        self._opening.add(session_id)  # and none opens it before its files are gone
        try:
            await held.live.close()
            if self._storage is not None:
                await anyio.to_thread.run_sync(self._storage.delete, session_id)
        finally:
            self._opening.discard(session_id)

    async def close_all(self) -> None:
        """Open no more sessions and close those that are open, which ends the responses of their watchers."""
        self._is_closing = True
        async with anyio.create_task_group() as group:
            for held in self.all():
                group.start_soon(held.live.close)

    async def _close_idle(self) -> None:
        limit = self._agents.limits.idle_seconds
        while True:
            await anyio.sleep(limit / 10)
            for held in self.all():
                if not held.is_in_use and anyio.current_time() - held.used_at >= limit:
                    logger.info("session %r has not been used for %g s and is closed", held.session_id, limit)
                    await held.live.close()
