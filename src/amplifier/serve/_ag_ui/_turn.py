"""A turn that outlives its run: a question ends the run, and the run that brings the answer goes on with the same turn."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias

import anyio
import attrs
from anyio.abc import TaskGroup

from amplifier.models import TurnEvent

from .._agents import Agents
from .._asked_call import asked_call_id
from .._problems import Problem
from .._turn_text import TurnText

__all__ = ["Ended", "InterruptibleTurn", "InterruptibleTurns", "Item", "Question"]

_LONGEST_SHOWN: Final = 365 * 24 * 3600.0
"""Seconds; a question that waits longer has no end that is worth showing."""


@attrs.define(kw_only=True, eq=False)
class Question:
    """A question for permission.

    Attributes:
        interrupt_id: The name by which a client answers it. Cannot be guessed, because thread ids can.
        call_id: The tool call it is about.
        expires_at: ISO 8601.
        is_announced: A client has been told of it.
    """

    prompt: str
    options: list[str]
    call_id: str | None
    expires_at: str | None
    interrupt_id: str = attrs.field(factory=lambda: f"q-{secrets.token_hex(12)}")
    answered: anyio.Event = attrs.field(factory=anyio.Event)
    answer: str = "Deny"
    is_announced: bool = False


@attrs.frozen(kw_only=True)
class Ended:
    """The turn is over.

    Attributes:
        result: Its answer.
        error: Why there is none.
    """

    result: str = ""
    error: Exception | None = None


Item: TypeAlias = TurnEvent | Question | Ended


class InterruptibleTurn:
    """One turn in a session of its own; the approval system of that session.

    Attributes:
        prompts: How many messages of the user the conversation has, the prompt included.
        text: What was written so far, in all runs.
        started_calls: The tool calls that clients have been told of.
        is_parked: No run shows it, and a client has been told what it waits for.
        over: Set when nothing of it is left.
    """

    def __init__(self, agents: Agents, history: list[dict[str, Any]], prompt: str) -> None:
        self._agents = agents
        self._history = history
        self._prompt = prompt
        self._scope = anyio.CancelScope()
        # Without a buffer: a client that reads slowly holds the turn.
        self._sender, self._receiver = anyio.create_memory_object_stream[Item](0)
        self.prompts: int = 1 + sum(message["role"] == "user" for message in history)
        self.text: TurnText = TurnText()
        self.started_calls: set[str] = set()
        self._waiting: dict[str, Question] = {}
        self.is_parked: bool = False
        self.over: anyio.Event = anyio.Event()

    async def run(self) -> None:
        """Run it to its end."""
        try:
            with self._receiver, self._sender, self._scope:
                await self._sender.send(await self._run())
        finally:
            self.over.set()

    async def _run(self) -> Ended:
        try:
            result = await self._agents.run_once(self._history, self._prompt, self._sender.send, approvals=self)
        except Exception as error:  # noqa: BLE001  # a turn runs third-party code; the run reports it
            return Ended(error=error)
        return Ended(result=result)

    async def next(self) -> Item | None:
        """What happens next; None if it was stopped."""
        try:
            return await self._receiver.receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError):
            return None

    def stop(self) -> None:
        """Cancel it."""
        self._scope.cancel()

    async def stop_and_wait(self) -> None:
        """Cancel it and wait until it has unwound, which the deadlines of its session bound."""
        self.stop()
        with anyio.CancelScope(shield=True):
            await self.over.wait()

    async def request_approval(self, prompt: str, options: list[str], timeout: float, default: str) -> str:
        """Ask, and wait until a run brings the answer; the kernel keeps the time limit."""
        expires_at: str | None = None
        if timeout < _LONGEST_SHOWN:
            expires_at = (datetime.now(UTC) + timedelta(seconds=timeout)).isoformat(timespec="milliseconds")
        question = Question(prompt=prompt, options=list(options), call_id=asked_call_id(), expires_at=expires_at)
        self._waiting[question.interrupt_id] = question
        try:
            await self._sender.send(question)
            await question.answered.wait()
        finally:
            del self._waiting[question.interrupt_id]
            if self.is_parked:  # too late, and no client would see how it goes on
                self.stop()
        return question.answer

    def open_questions(self) -> list[Question]:
        """The questions without an answer."""
        return [each for each in self._waiting.values() if not each.answered.is_set()]

    def answer(self, options: Mapping[str, str]) -> None:
        """Answer questions by their ids; the turn goes on."""
        self.is_parked = False
        for interrupt_id, option in options.items():
            question = self._waiting[interrupt_id]
            question.answer = option
            question.answered.set()


class InterruptibleTurns:
    """All turns of AG-UI, and those of them that wait for an answer, by thread."""

    def __init__(self, agents: Agents) -> None:
        self._agents = agents
        self._parked: dict[str, InterruptibleTurn] = {}
        self._group: TaskGroup | None = None

    def __repr__(self) -> str:
        return f"<InterruptibleTurns: {len(self._parked)} wait for an answer>"

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Turns can run inside the block; at its end all are stopped."""
        async with anyio.create_task_group() as group:
            self._group = group
            try:
                yield
            finally:
                self._group = None
                group.cancel_scope.cancel()

    def start(self, history: list[dict[str, Any]], prompt: str) -> InterruptibleTurn:
        """Begin a turn.

        Raises:
            Problem: The application has not been started.
        """
        if self._group is None:
            problem = "the application has not been started: the server, or the application around it, has to run its lifespan"
            raise Problem(503, problem, code="not_started")
        turn = InterruptibleTurn(self._agents, history, prompt)
        self._group.start_soon(turn.run)
        return turn

    def parked(self, thread_id: str) -> InterruptibleTurn | None:
        """The turn of a thread that waits for an answer."""
        turn = self._parked.get(thread_id)
        if turn is not None and (turn.over.is_set() or not turn.open_questions()):
            del self._parked[thread_id]
            return None
        return turn

    def park(self, thread_id: str, turn: InterruptibleTurn) -> None:
        """Keep a turn that waits; one that waited on the same thread before is stopped."""
        self.stop_parked(thread_id)
        turn.is_parked = True
        for question in turn.open_questions():
            question.is_announced = True
        self._parked[thread_id] = turn

    def unpark(self, thread_id: str, turn: InterruptibleTurn) -> None:
        """A run shows the turn again, or no client knows of it."""
        turn.is_parked = False
        if self._parked.get(thread_id) is turn:
            del self._parked[thread_id]

    def stop_parked(self, thread_id: str | None = None) -> None:
        """Stop the turn of a thread that waits, or of all threads."""
        for each in list(self._parked) if thread_id is None else [thread_id]:
            turn = self._parked.pop(each, None)
            if turn is not None:
                turn.stop()
