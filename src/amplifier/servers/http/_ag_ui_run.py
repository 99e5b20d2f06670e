"""Turns of AG-UI, which outlive their run while they wait for an answer, and their events as events of a run."""

from __future__ import annotations

import math
import secrets
from typing import Any, TypeAlias

import anyio
import orjson

from amplifier.errors import SessionStateError
from amplifier.events import PROVIDER_RESPONSE
from amplifier.live import LiveRun, Question, Questions
from amplifier.live._client_tools import WAITING
from amplifier.models import AnswerReset, ThinkingDelta, ToolFinished, ToolStarted, TurnEvent
from amplifier.turns import Ended, TurnRecord

from ._agents import Agents, Ask
from ._event_stream import event
from ._limits import LONGEST_OUTPUT
from ._problems import problem_of

_TOGETHER_SECONDS = 0.05
"""After the first question: calls that run at the same time ask at about the same time, and are answered together."""


# ── turns ──

Item: TypeAlias = tuple[TurnEvent, str] | Question | Ended


class InterruptibleTurn:
    """One turn in a session of its own, which outlives its run while it waits for an answer; it begins when it is made.

    Attributes:
        prompts: How many messages of the user the conversation has, the prompt included.
        asked: The questions with which its latest run has ended; none while a run shows it.
        started_calls: The tool calls that clients know.
        run_id: Of the run that showed it last.
    """

    def __init__(self, agents: Agents, ask: Ask) -> None:
        self._agents = agents
        self._ask = ask
        # Without a buffer: a client that reads slowly holds the turn.
        self._sender, self._receiver = anyio.create_memory_object_stream[Item](0)
        self.prompts: int = (ask.prompt is not None) + sum(message["role"] == "user" for message in ask.history)
        self.record: TurnRecord = TurnRecord()
        self.questions: Questions = Questions(self._sender.send, self._note_closed)
        self.asked: set[str] = set()
        self.started_calls: set[str] = set()
        self.run_id: str | None = None
        self.task: LiveRun[None] = agents.runs.start(self._run, None, stays=None)

    async def _run(self, task: LiveRun[None]) -> None:
        with self._receiver, self._sender:
            await self._sender.send(await self._ended())

    async def _ended(self) -> Ended:
        async def show(turn_event: TurnEvent, text: str) -> None:
            await self._sender.send((turn_event, text))

        try:
            return await self._agents.run_once(self._ask, self.record, show, approvals=self.questions)
        except Exception as error:  # noqa: BLE001  # third-party modules; the run reports it
            return Ended(status="error", error=error)

    async def next(self) -> Item | None:
        """What happens next; None if it was stopped."""
        try:
            return await self._receiver.receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError):
            return None

    def steer(self, message: Any) -> bool:
        """Give it a message, which the model reads with its next request; returns whether it takes it."""
        try:
            if self._ask.session is not None:
                self._ask.session.steer(message)
        except (SessionStateError, ValueError):  # it has its answer already, its loop takes none, or it is no text
            return False
        return self._ask.session is not None

    def _note_closed(self, question: Question, answer: Any) -> None:
        if self.asked:  # too late, and no client would see how it goes on
            self.task.stop()

    def asked_questions(self) -> dict[str, Question]:
        """Those without an answer, by id."""
        return {each.question_id: each for each in self.questions.waiting() if each.question_id in self.asked}

    def is_asking(self) -> bool:
        """Whether it waits for answers about calls that have all been shown, which may take a moment after the question."""
        questions = self.questions.waiting()
        return bool(questions) and all(
            each.tool_call_id is None or each.tool_call_id in self.started_calls for each in questions
        )


class InterruptibleTurns:
    """All turns of AG-UI, and those of them that wait for an answer, by thread."""

    def __init__(self) -> None:
        self._parked: dict[str, InterruptibleTurn] = {}
        self.shown: dict[tuple[str, str | None], InterruptibleTurn] = {}
        """Those that a run shows, by the ids of thread and run."""

    def __repr__(self) -> str:
        return f"<InterruptibleTurns: {len(self._parked)} wait for an answer>"

    def parked(self, thread_id: str) -> InterruptibleTurn | None:
        """The turn of a thread that waits for an answer."""
        turn = self._parked.get(thread_id)
        if turn is not None and (turn.task.over.is_set() or not turn.questions.waiting()):
            del self._parked[thread_id]
            return None
        return turn

    def park(self, thread_id: str, turn: InterruptibleTurn) -> None:
        """Keep a turn that waits; one that waited on the same thread before is stopped."""
        self.stop_parked(thread_id)
        turn.asked = {question.question_id for question in turn.questions.waiting()}
        self._parked[thread_id] = turn

    def unpark(self, thread_id: str, turn: InterruptibleTurn) -> None:
        """A run shows the turn again, or no client knows of it."""
        turn.asked = set()
        if self._parked.get(thread_id) is turn:
            del self._parked[thread_id]

    def stop_parked(self, thread_id: str | None = None) -> None:
        """Stop the turn of a thread that waits, or of all threads."""
        for each in list(self._parked) if thread_id is None else [thread_id]:
            turn = self._parked.pop(each, None)
            if turn is not None:
                turn.task.stop()


# ── a run ──


class Run:
    """One run; a message is open while its text is being streamed."""

    def __init__(self, stream: LiveRun[Any], ids: dict[str, str]) -> None:
        self._stream = stream
        self._ids = ids
        self._record = TurnRecord()
        self._is_over = False
        self._message: str | None = None
        self._reasoning: str | None = None
        self._answer: str | None = None  # the latest message, until a tool has a result: its calls belong to it

    async def show_until_asked(self, turn: InterruptibleTurn) -> bool:
        """Show a turn to its end, or until it waits for an answer; returns whether it does.

        Raises:
            Exception: The turn failed before anything was shown.
        """
        self._record = turn.record
        before = (self._record.input_tokens, self._record.output_tokens)
        asked_at = math.inf
        while True:
            asked_at = min(asked_at, anyio.current_time()) if turn.is_asking() else math.inf
            with anyio.CancelScope(deadline=asked_at + _TOGETHER_SECONDS) as scope:
                item = await turn.next()
            if scope.cancelled_caught:
                if turn.is_asking():  # unless their time is over just now
                    return True
                continue
            if item is None:
                await self.cancelled()
                return False
            if isinstance(item, Ended):
                await self._end(item, before)
                return False
            if not isinstance(item, Question):
                await self._show(*item, turn)

    async def _end(self, ended: Ended, before: tuple[int, int]) -> None:
        if ended.status == "cancelled" and ended.error is not None and self._stream.has_begun:
            await self.cancelled()
            return
        if ended.error is not None:
            if not self._stream.has_begun:
                raise ended.error
            await self._close()
            problem, self._is_over = problem_of(ended.error), True
            await self._send("RUN_ERROR", message=problem.message, code=problem.code)
            return
        await self._say(self._record.rest(ended.result))
        given, made = self._record.input_tokens - before[0], self._record.output_tokens - before[1]
        usage = {"inputTokens": given, "outputTokens": made, "totalTokens": given + made}
        await self._finish({"type": "success"}, usage=[usage])

    async def steered(self) -> None:
        """End the run: its message is read, and answered, in the run that it steers."""
        await self._finish({"type": "success"}, result={"steered": True})

    async def interrupted(self, interrupts: list[dict[str, Any]]) -> None:
        """End the run with questions to answer."""
        with anyio.CancelScope(shield=True):  # bounded by the stream; a client that has got them may leave at once
            await self._finish({"type": "interrupt", "interrupts": interrupts})

    async def cancelled(self) -> None:
        """End the run without a result, unless it has ended: it was stopped."""
        if not self._is_over:
            await self._finish({"type": "cancelled"})

    async def _finish(self, outcome: dict[str, Any], **fields: Any) -> None:
        await self._close()
        await self._begin()
        self._is_over = True
        await self._send("RUN_FINISHED", **self._ids, outcome=outcome, **fields)

    async def _send(self, kind: str, **fields: Any) -> None:
        await self._stream.write(event({"type": kind, **fields}))

    async def _begin(self) -> None:
        if not self._stream.has_begun:
            await self._send("RUN_STARTED", **self._ids)

    async def _show(self, turn_event: TurnEvent, text: str, turn: InterruptibleTurn) -> None:
        await self._begin()
        match turn_event:
            case ThinkingDelta():
                await self._think(turn_event.text)
            case AnswerReset():  # a message cannot be taken back: the answer that replaces it is another one
                if self._message is not None:
                    await self._say(text.rstrip("\n"))
                await self._close()
            case ToolStarted():
                await self._call(turn_event, turn_event.tool_input)
                turn.started_calls.add(turn_event.tool_call_id)
            case ToolFinished():
                use = turn.record.tools[turn_event.tool_call_id]
                if turn_event.tool_call_id not in turn.started_calls:  # rejected before it began: an unknown tool
                    await self._call(turn_event, use.arguments)
                if use.output == WAITING:  # the client carries it out, and brings the result with its next run
                    return
                self._answer = None
                await self._send(
                    "TOOL_CALL_RESULT",
                    messageId=_new_id(),
                    toolCallId=turn_event.tool_call_id,
                    content=use.shown(LONGEST_OUTPUT),
                    role="tool",
                )
            case _:
                await self._say(text.lstrip("\n") if self._message is None else text)
                if turn_event.name == PROVIDER_RESPONSE:
                    await self._close()

    async def _say(self, text: str) -> None:
        if not text:
            return
        if self._message is None:
            await self._close()
            self._message = self._answer = _new_id()
            await self._send("TEXT_MESSAGE_START", messageId=self._message, role="assistant")
        await self._send("TEXT_MESSAGE_CONTENT", messageId=self._message, delta=text)

    async def _think(self, text: str) -> None:
        if not text:
            return
        if self._reasoning is None:
            await self._close()
            self._reasoning = _new_id()
            await self._send("REASONING_START", messageId=self._reasoning)
            await self._send("REASONING_MESSAGE_START", messageId=self._reasoning, role="reasoning")
        await self._send("REASONING_MESSAGE_CONTENT", messageId=self._reasoning, delta=text)

    async def _call(self, called: ToolStarted | ToolFinished, given: Any) -> None:
        call_id, self._answer = called.tool_call_id, self._answer or _new_id()
        await self._close()
        name, parent = called.tool_name, self._answer
        await self._send("TOOL_CALL_START", toolCallId=call_id, toolCallName=name, parentMessageId=parent)
        arguments = orjson.dumps(given, default=str).decode()
        await self._send("TOOL_CALL_ARGS", toolCallId=call_id, delta=arguments)
        await self._send("TOOL_CALL_END", toolCallId=call_id)

    async def _close(self) -> None:
        """End the message that is open."""
        message, self._message = self._message, None
        reasoning, self._reasoning = self._reasoning, None
        if message is not None:
            await self._send("TEXT_MESSAGE_END", messageId=message)
        if reasoning is not None:
            await self._send("REASONING_MESSAGE_END", messageId=reasoning)
            await self._send("REASONING_END", messageId=reasoning)


def _new_id() -> str:
    return secrets.token_hex(12)
