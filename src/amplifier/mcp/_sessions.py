"""The sessions of the clients, each open in a task of its own in which its turns run."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import anyio
import anyio.abc
import attrs

from amplifier.events import PROVIDER_REQUEST, TOOL_PRE
from amplifier.kernel import AmplifierSession

logger = logging.getLogger("amplifier.mcp")


@attrs.define(eq=False)
class Question:
    """A question for permission, until it is answered."""

    prompt: str
    options: list[str]
    answer: str | None = None
    answered: anyio.Event = attrs.field(factory=anyio.Event)

    def give(self, answer: str) -> None:
        """Answer it."""
        self.answer = answer
        self.answered.set()


@attrs.define(eq=False)
class Turn:
    """One turn and what has become of it.

    Attributes:
        steps: What happened so far, in words.
        reported: How many of the steps the client knows.
        question: What the client is to be asked now.
        response: The agent's answer.
        error: Why there is none.
    """

    prompt: str
    steps: list[str] = attrs.field(factory=list)
    reported: int = 0
    question: Question | None = None
    response: str | None = None
    error: BaseException | None = None
    is_over: bool = False
    changed: anyio.Event = attrs.field(factory=anyio.Event)

    def note_change(self) -> None:
        """Wake whoever waits for news."""
        changed, self.changed = self.changed, anyio.Event()
        changed.set()


class ServedSession:
    """A session of one client.

    Args:
        session: Not opened yet.
        owner: Whose it is; None if clients cannot be told apart.
    """

    def __init__(self, session: AmplifierSession, owner: str | None) -> None:
        self.session = session
        self.owner = owner
        self.turn: Turn | None = None
        self.last_used = anyio.current_time()
        self._asking = anyio.Lock()
        self._wanted = anyio.Event()
        self._closing = False
        self._is_closed = anyio.Event()
        if session.coordinator.approval_system is None:
            session.coordinator.approval_system = self

    async def hold(self, *, task_status: anyio.abc.TaskStatus[BaseException | None]) -> None:
        """Open the session, run its turns, close it; an error of the opening is reported to the starter alone."""
        try:
            async with self.session as session:
                for event in (PROVIDER_REQUEST, TOOL_PRE):
                    session.coordinator.hooks.register(
                        event, self._note_step, name="mcp-progress", fields=("tool_name",)
                    )
                task_status.started(None)
                while not self._closing:
                    await self._wanted.wait()
                    self._wanted = anyio.Event()
                    if self.turn is not None and not self._closing:
                        await self._run(self.turn)
        except Exception as error:
            if self.turn is None and not self._closing:
                task_status.started(error)
            else:
                logger.exception("session %s failed", self.session.session_id)
        finally:
            self._is_closed.set()

    async def _run(self, turn: Turn) -> None:
        try:
            turn.response = await self.session.execute(turn.prompt)
        except Exception as error:  # noqa: BLE001 - a failed turn is an answer to the client
            turn.error = error
        finally:
            turn.is_over = True
            self.turn = None
            self.last_used = anyio.current_time()
            self.session.coordinator.cancellation.reset()
            turn.note_change()

    def begin(self, prompt: str) -> Turn:
        """Begin a turn; the caller has seen that none is running."""
        self.turn = Turn(prompt)
        self._wanted.set()
        return self.turn

    def stop(self) -> None:
        """Stop the running turn."""
        self.session.coordinator.cancellation.request_immediate(reason="the client cancelled the call")

    async def close(self) -> None:
        """Close the session and wait until it is closed."""
        self._closing = True
        self._wanted.set()
        if self.turn is not None:
            self.stop()
        await self._is_closed.wait()

    def _note_step(self, event: str, data: dict[str, Any]) -> None:
        if self.turn is not None:
            self.turn.steps.append(f"tool {data.get('tool_name')}" if event == TOOL_PRE else "asking the model")
            self.turn.note_change()

    async def request_approval(self, prompt: str, options: list[str], timeout: float, default: str) -> str:
        """Ask the client, one question at a time; this makes it the session's approval system."""
        turn = self.turn
        if turn is None:
            return "Deny"
        async with self._asking:
            question = turn.question = Question(prompt, options)
            turn.note_change()
            try:
                await question.answered.wait()
            finally:
                turn.question = None
        return question.answer or "Deny"


class ServedSessions:
    """The open sessions of a server.

    Args:
        factory: Makes sessions.
        group: In which they are held open.
        most: How many may be open.
    """

    def __init__(self, factory: Callable[[], AmplifierSession], group: anyio.abc.TaskGroup, most: int) -> None:
        self._factory = factory
        self._group = group
        self._most = most
        self._by_id: dict[str, ServedSession] = {}
        self._opening = anyio.Lock()

    def of_owner(self, owner: str | None) -> list[ServedSession]:
        """The sessions of one client; none, if clients cannot be told apart."""
        return [] if owner is None else [each for each in self._by_id.values() if each.owner == owner]

    def by_id(self, session_id: str, owner: str | None) -> ServedSession | None:
        """A session by its id, if it may be the client's."""
        found = self._by_id.get(session_id)
        return found if found is not None and found.owner == owner else None

    async def open(self, owner: str | None) -> ServedSession:
        """Open a session for a client.

        Raises:
            BaseException: What its opening raised.
        """
        async with self._opening:
            if owner is not None and (held := self.of_owner(owner)):
                return held[0]
            await self._make_room()
            served = ServedSession(self._factory(), owner)
            error = await self._group.start(served.hold)
            if error is not None:
                raise error
            self._by_id[served.session.session_id] = served
            return served

    async def _make_room(self) -> None:
        idle = sorted((each for each in self._by_id.values() if each.turn is None), key=lambda each: each.last_used)
        while len(self._by_id) >= self._most and idle:
            oldest = idle.pop(0)
            del self._by_id[oldest.session.session_id]
            await oldest.close()
        if len(self._by_id) >= self._most:
            raise RuntimeError(f"{self._most} sessions are at work; try again later")

    async def close(self) -> None:
        """Close all sessions, side by side."""
        async with anyio.create_task_group() as group:
            for served in self._by_id.values():
                group.start_soon(served.close)
