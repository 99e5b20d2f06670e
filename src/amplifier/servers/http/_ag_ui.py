"""The Agent-User Interaction protocol (AG-UI 1.0): a run is a POST, its events are server-sent events.

A question ends a run; the run that brings the answer goes on with the same turn. A run whose ``parentRunId`` is a run that is not over
steers that one. A client that sends ``Last-Event-ID`` may lose its connection and come back: the same run goes on after that event.
"""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, TypeAlias

import anyio
import attrs
import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from amplifier._internal.reading import (
    Kind,
    any_text,
    anything,
    list_each,
    mapping,
    option,
    optional,
    record,
    text,
)
from amplifier.errors import SessionStateError
from amplifier.events import PROVIDER_RESPONSE
from amplifier.models import AnswerReset, ThinkingDelta, ToolFinished, ToolStarted, TurnEvent
from amplifier.models.turns import Ended, TurnRecord
from amplifier.shared_sessions import (
    ClientLeft,
    ClientTool,
    ClientTools,
    LiveRun,
    Question,
    Questions,
)
from amplifier.shared_sessions.client_tools import WAITING
from amplifier.shared_sessions.questions import DENY, allowing

from ._agents import Agents, Ask
from ._event_stream import (
    LAST_SECONDS,
    EventStream,
    LongResponse,
    NumberedEvents,
    event,
    event_number,
    follow_run,
)
from ._history import read_messages, split_conversation
from ._openai import frontend_tools
from .requests import LONGEST_OUTPUT, Problem, problem_of, read_body, read_json

logger: logging.Logger = logging.getLogger("amplifier.servers.http")

# A run whose client can come back is kept in a log, and all others are written at once.
_Written: TypeAlias = LiveRun[Any] | NumberedEvents

# ── answers ──

_text = attrs.evolve(text, expected="a text")


@attrs.frozen(kw_only=True)
class Resume:
    """One answer; ``cancelled`` if the person does not want to answer, which denies."""

    interrupt_id: str = option(_text, key="interruptId")
    status: str = option(
        Kind("resolved or cancelled", lambda value: value in ("resolved", "cancelled"))
    )
    payload: Any = option(anything, None)

    @property
    def is_cancelled(self) -> bool:
        return self.status == "cancelled"


def _interrupt(question: Question) -> dict[str, Any]:
    """A question as clients get it."""
    described: dict[str, Any] = {
        "id": question.question_id,
        "reason": "confirmation" if question.tool_call_id is None else "tool_call",
        "message": question.prompt,
        "toolCallId": question.tool_call_id,
        "expiresAt": question.expires_at,
        "responseSchema": {
            "type": "object",
            "properties": {
                "approved": {"type": "boolean"},
                "option": {"type": "string", "enum": list(question.options)},
            },
            "required": ["approved"],
        },
    }
    return {name: value for name, value in described.items() if value is not None}


def _chosen_option(question: Question, answer: Resume) -> str:
    """The option of a question that an answer chooses."""
    if answer.is_cancelled:
        return DENY
    payload = answer.payload if isinstance(answer.payload, Mapping) else {}
    approved, option = payload.get("approved"), payload.get("option")
    where = f"the answer to {question.question_id}"
    if not isinstance(approved, bool):
        expected = 'expected a payload such as {"approved": true} or {"approved": false}'
        raise Problem(
            400, f"{where}: {expected}, got {answer.payload!r:.80}", code="invalid_option"
        )
    allowed = allowing(question.options)
    if option is None:
        if not approved:
            return DENY
        option = next((each for each in allowed if each.lower() != "allow always"), None)
    names = ", ".join(map(repr, question.options))
    if option not in question.options:
        raise Problem(
            400,
            f"{where}: expected option to be one of {names}, got {option!r:.80}",
            code="invalid_option",
        )
    if approved is not (option in allowed):
        raise Problem(
            400, f"{where}: approved is {approved}, but option is {option!r}", code="invalid_option"
        )
    return str(option)


# ── runs ──


def ag_ui_routes(agents: Agents) -> list[Route]:
    """``/ag-ui``; DELETE cancels a run whose client may be away."""
    turns = InterruptibleTurns()
    agents.at_end.append(
        turns.stop_parked
    )  # their answers would come to a server that is not there

    async def run(request: Request) -> Response:
        body = await read_json(request, agents.limits)
        asked = _read(body)
        last, name = request.headers.get("last-event-id"), _name(asked.thread_id, asked.run_id)
        after = event_number(last, "Last-Event-ID")
        found = None if last is None else agents.runs.find(name)
        if found is None and after:
            raise Problem(
                404,
                f"no run {asked.run_id!r:.80} of this thread is known (any more)",
                code="run_not_found",
            )
        if found is not None and not after and found.about != body:
            message = f"runId: {asked.run_id!r:.80} is the run of another request on this thread; send a new one"
            raise Problem(409, message, code="run_exists", param="runId")
        # Read now, so that what is wrong with it has a status; a run that goes on with a turn may come without a new prompt.
        conversation = (
            None if found or (asked.answers and not asked.has_prompt) else _conversation(asked)
        )

        async def begin(run: LiveRun[Any]) -> None:
            await _run(agents, asked, conversation, turns, run)

        async def work(stream: EventStream) -> None:
            if last is None:
                await _run(agents, asked, conversation, turns, NumberedEvents(stream))
                await stream.begin()
                return
            stays = agents.limits.abandoned_seconds
            run = found or agents.runs.start(begin, body, stays=stays, name=name)
            await follow_run(run, after, stream)

        return LongResponse(work, agents.limits.send_seconds)

    async def cancel(request: Request) -> Response:
        given = request.query_params
        run = agents.runs.find(_name(given.get("threadId", ""), given.get("runId", "")))
        if run is None:
            message = "threadId, runId: expected those of a run that was begun with Last-Event-ID"
            raise Problem(404, message, code="run_not_found")
        await run.cancel()
        waiting = turns.parked(given["threadId"])
        if (
            waiting is not None and waiting.run_id == given["runId"]
        ):  # the run is over, its question is not
            turns.unpark(given["threadId"], waiting)
            await waiting.task.cancel()
        return Response(status_code=204)

    return [Route("/ag-ui", run, methods=["POST"]), Route("/ag-ui", cancel, methods=["DELETE"])]


def _name(thread_id: str, run_id: str) -> str:
    return orjson.dumps([thread_id, run_id]).decode()


async def _run(
    agents: Agents,
    asked: _Asked,
    conversation: Ask | None,
    turns: InterruptibleTurns,
    run: _Written,
) -> None:
    try:
        turn = await _resumed(asked, turns)
    except Problem as problem:  # the protocol wants an event for what is wrong with the answers
        await run.write(
            event({"type": "RUN_ERROR", "message": problem.message, "code": problem.code})
        )
        return
    if turn is None:
        if conversation is None:
            await Run(run, asked.ids).cancelled()  # what it waited for has been given up
            return
        steered = turns.shown.get((asked.thread_id, asked.parent_run_id))
        if steered is not None and steered.steer(conversation.prompt):
            await Run(run, asked.ids).steered()
            return
        turn = InterruptibleTurn(agents, conversation)
    await _follow(turn, asked, turns, run)


@attrs.frozen(kw_only=True)
class _Context:
    description: str = option(_text)
    value: str = option(attrs.evolve(any_text, expected="a text"))


@attrs.frozen(kw_only=True)
class _Asked:
    """The input of a run."""

    thread_id: str = option(_text, key="threadId")
    run_id: str = option(_text, key="runId")
    parent_run_id: str | None = option(_text, None, key="parentRunId")
    messages: Any = option(anything, None)
    tools: tuple[ClientTool, ...] = option(frontend_tools, ())
    context: tuple[_Context, ...] = option(
        optional(list_each("objects", record(_Context, is_open=True))), ()
    )
    state: Any = option(anything, None)
    forwarded: dict[str, Any] = option(optional(mapping), attrs.Factory(dict), key="forwardedProps")
    answers: tuple[Resume, ...] = option(
        optional(list_each("answers", record(Resume, is_open=True))), (), key="resume"
    )

    @property
    def ids(self) -> dict[str, str]:
        return {"threadId": self.thread_id, "runId": self.run_id}

    @property
    def notes(self) -> str:
        """What the application of the client says of itself, for the model."""
        said = [f"{each.description}: {each.value}" for each in self.context]
        if self.state:
            said.append(f"Its state, as JSON: {orjson.dumps(self.state).decode()}")
        return "\n".join(["The user's application says:", *said]) if said else ""

    @property
    def _roles(self) -> list[Any]:
        messages = self.messages if isinstance(self.messages, list) else []
        return [each.get("role") for each in messages if isinstance(each, Mapping)]

    @property
    def prompts(self) -> int:
        """How many of the messages are the user's."""
        return self._roles.count("user")

    @property
    def has_prompt(self) -> bool:
        """The last message is the user's."""
        return self._roles[-1:] == ["user"]


def _read(body: dict[str, Any]) -> _Asked:
    asked = read_body(
        _Asked, {name: value for name, value in body.items() if value is not None}, is_open=True
    )
    answered: set[str] = set()
    for index, answer in enumerate(asked.answers):
        if answer.interrupt_id in answered:
            problem = f"resume[{index}].interruptId: {answer.interrupt_id!r:.80} is answered twice"
            raise Problem(400, problem, code="invalid_request")
        answered.add(answer.interrupt_id)
    return asked


def _conversation(asked: _Asked) -> Ask:
    # A client that stopped a run, or gave up a question, has calls without a result in its conversation.
    history, prompt = split_conversation(read_messages(asked.messages), complete=True)
    settings = {"metadata": asked.forwarded} if asked.forwarded else {}
    return Ask(
        history=history,
        prompt=prompt,
        settings=settings,
        tools=ClientTools(asked.tools),
        notes=asked.notes,
    )


async def _resumed(asked: _Asked, turns: InterruptibleTurns) -> InterruptibleTurn | None:
    """The turn that the answers are for, now going on; None if the run begins a new one."""
    turn = turns.parked(asked.thread_id)
    questions = {} if turn is None else turn.asked_questions()
    answers = {answer.interrupt_id: answer for answer in asked.answers}
    if unknown := answers.keys() - questions.keys():
        names = ", ".join(sorted(unknown))[:200]
        if turn is None and not all(answer.is_cancelled for answer in asked.answers):
            message = f"resume: {names} does not wait for an answer (any more); cancel it to go on with the thread"
            raise Problem(404, message, code="question_not_found")
        logger.warning(
            "AG-UI: answers to questions that no one asked on thread %.80r: %s",
            asked.thread_id,
            names,
        )
    if turn is None:
        return None
    if missing := questions.keys() - answers.keys():
        message = f"resume: expected an answer to every question of the thread; none for {', '.join(sorted(missing))}"
        raise Problem(409, message, code="question_open")
    is_new_prompt = asked.prompts > turn.prompts
    if is_new_prompt and any(answers[each].is_cancelled for each in questions):
        turns.unpark(asked.thread_id, turn)
        await turn.task.cancel()
        return None
    if is_new_prompt:
        message = "messages: a new message cannot come with answers; send it after this run, or cancel the questions"
        raise Problem(409, message, code="question_open")
    options = {
        each: _chosen_option(question, answers[each]) for each, question in questions.items()
    }
    turns.unpark(asked.thread_id, turn)
    for question_id, chosen in options.items():
        turn.questions.answer(question_id, chosen)
    return turn


async def _follow(
    turn: InterruptibleTurn, asked: _Asked, turns: InterruptibleTurns, written: _Written
) -> None:
    """Show a turn until it ends, or asks; a run that is cancelled before that stops it."""
    run = Run(written, asked.ids)
    shown = asked.thread_id, asked.run_id
    turns.shown[shown] = turn
    turn.run_id = asked.run_id
    is_handed_over = (
        False  # to the run that brings the answers, which may begin before this one is over
    )
    try:
        if await run.show_until_asked(turn):
            is_handed_over = True
            turns.park(
                asked.thread_id, turn
            )  # first, because an answer may come as soon as the question is sent
            await run.interrupted([_interrupt(question) for question in turn.questions.waiting()])
    except anyio.get_cancelled_exc_class():
        if written.has_lost_client:
            is_handed_over = is_handed_over and turns.parked(asked.thread_id) is not turn
        else:
            # For clients that follow the run, or come back.
            with anyio.move_on_after(LAST_SECONDS, shield=True), suppress(ClientLeft):
                await run.cancelled()
        raise
    except ClientLeft:
        is_handed_over = is_handed_over and turns.parked(asked.thread_id) is not turn
        raise
    finally:
        turns.shown.pop(shown, None)
        if not is_handed_over:
            turns.unpark(asked.thread_id, turn)
            await turn.task.cancel()


# ── ag ui run ──

_TOGETHER_SECONDS = 0.05
"""After the first question: calls that run at the same time ask at about the same time, and are answered together."""


# ── turns ──


class InterruptibleTurn:
    """One turn in a session of its own, which outlives its run while it waits for an answer; it begins when it is made.

    Attributes:
        prompts: How many messages of the user the conversation has, the prompt included.
        asked: The questions with which its latest run has ended; none while a run shows it.
        started_calls: The tool calls that clients know.
        run_id: Of the run that showed it last.
        is_over: True once nothing more happens.
        ended: How it ended. None before that, and if it was stopped.
    """

    def __init__(self, agents: Agents, ask: Ask) -> None:
        self._agents = agents
        self._ask = ask
        self._run: Run | None = None
        self._unshown: list[tuple[TurnEvent, str]] = []
        self._changed = anyio.Event()
        self._shown = anyio.Event()
        self.is_over: bool = False
        self.ended: Ended | None = None
        self.prompts: int = (ask.prompt is not None) + sum(
            message["role"] == "user" for message in ask.history
        )
        self.record: TurnRecord = TurnRecord()
        self.questions: Questions = Questions(self._note_asked, self._note_closed)
        self.asked: set[str] = set()
        self.started_calls: set[str] = set()
        self.run_id: str | None = None
        self.task: LiveRun[None] = agents.runs.start(self._run_turn, None, stays=None)

    async def _run_turn(self, task: LiveRun[None]) -> None:
        try:
            self.ended = await self._agents.run_once(
                self._ask, self.record, self._show, flush=self._flush, approvals=self.questions
            )
        except Exception as error:  # noqa: BLE001  # third-party modules; the run reports it
            self.ended = Ended(status="error", error=error)
        finally:
            self.is_over = True
            self._changed.set()

    # Events are shown by the task of the turn, in place, and only what a run has to decide about
    # wakes its task: a question, a call that the client now knows, the end.

    async def _show(self, turn_event: TurnEvent, text: str) -> None:
        if self._run is None:
            self._unshown.append((turn_event, text))
            return
        self._run.show(turn_event, text, self)
        if self._run.is_full:
            await self._flush()

    async def _flush(self) -> None:
        """Wait for slow clients, and for a run that shows what none has shown."""
        while self._unshown:
            await self._shown.wait()
        if self._run is not None:
            await self._run.flush()

    @contextmanager
    def shown_by(self, run: Run) -> Iterator[None]:
        """Show everything in a run, inside the block."""
        unshown, self._unshown = self._unshown, []
        for item in unshown:
            run.show(*item, self)
        self._run = run
        self._shown.set()
        try:
            yield
        finally:
            self._run, self._shown = None, anyio.Event()

    async def wait_changed(self) -> None:
        """Wait until it asks, a client knows another call, or it is over."""
        await self._changed.wait()
        if not self.is_over:
            self._changed = anyio.Event()

    async def _note_asked(self, question: Question) -> None:
        self._changed.set()

    def note_started(self, call_id: str) -> None:
        """Note that clients know a tool call."""
        self.started_calls.add(call_id)
        if self.questions.waiting():
            self._changed.set()

    def steer(self, message: Any) -> bool:
        """Give it a message, which the model reads with its next request; returns whether it takes it."""
        try:
            if self._ask.session is not None:
                self._ask.session.steer(message)
        except (
            SessionStateError,
            ValueError,
        ):  # it has its answer already, its loop takes none, or it is no text
            return False
        return self._ask.session is not None

    def _note_closed(self, question: Question, answer: Any) -> None:
        if self.asked:  # too late, and no client would see how it goes on
            self.task.stop()

    def asked_questions(self) -> dict[str, Question]:
        """Those without an answer, by id."""
        return {
            each.question_id: each
            for each in self.questions.waiting()
            if each.question_id in self.asked
        }

    def is_asking(self) -> bool:
        """Whether it waits for answers about calls that have all been shown, which may take a moment after the question."""
        questions = self.questions.waiting()
        return bool(questions) and all(
            each.tool_call_id is None or each.tool_call_id in self.started_calls
            for each in questions
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

    def __init__(self, stream: _Written, ids: dict[str, str]) -> None:
        self._stream = stream
        self._ids = ids
        self._record = TurnRecord()
        self._is_over = False
        self._message: str | None = None
        self._reasoning: str | None = None
        self._answer: str | None = (
            None  # the latest message, until a tool has a result: its calls belong to it
        )

    async def show_until_asked(self, turn: InterruptibleTurn) -> bool:
        """Show a turn to its end, or until it waits for an answer; returns whether it does.

        Raises:
            Exception: The turn failed before anything was shown.
        """
        self._record = turn.record
        before = (self._record.input_tokens, self._record.output_tokens)
        asked_at = math.inf
        with turn.shown_by(self):
            while not turn.is_over:
                asked_at = min(asked_at, anyio.current_time()) if turn.is_asking() else math.inf
                with anyio.CancelScope(deadline=asked_at + _TOGETHER_SECONDS) as scope:
                    await turn.wait_changed()
                if scope.cancelled_caught and turn.is_asking():  # or its time is over just now
                    return True
        if turn.ended is None:
            await self.cancelled()
        else:
            await self._end(turn.ended, before)
        return False

    async def _end(self, ended: Ended, before: tuple[int, int]) -> None:
        if isinstance(ended.error, ClientLeft):
            raise ended.error
        if ended.status == "cancelled" and ended.error is not None and self._stream.has_begun:
            await self.cancelled()
            return
        if ended.error is not None:
            if not self._stream.has_begun:
                raise ended.error
            self._close()
            problem, self._is_over = problem_of(ended.error), True
            self._send("RUN_ERROR", message=problem.message, code=problem.code)
            await self._stream.wait_taken()
            return
        self._say(self._record.rest(ended.result))
        given, made = self._record.input_tokens - before[0], self._record.output_tokens - before[1]
        usage = {"inputTokens": given, "outputTokens": made, "totalTokens": given + made}
        await self._finish({"type": "success"}, usage=[usage])

    async def steered(self) -> None:
        """End the run: its message is read, and answered, in the run that it steers."""
        await self._finish({"type": "success"}, result={"steered": True})

    async def interrupted(self, interrupts: list[dict[str, Any]]) -> None:
        """End the run with questions to answer."""
        await self._finish({"type": "interrupt", "interrupts": interrupts})

    async def cancelled(self) -> None:
        """End the run without a result, unless it has ended: it was stopped."""
        if not self._is_over:
            await self._finish({"type": "cancelled"})

    async def _finish(self, outcome: dict[str, Any], **fields: Any) -> None:
        self._close()
        self._begin()
        self._is_over = True
        self._send("RUN_FINISHED", **self._ids, outcome=outcome, **fields)
        await self._stream.wait_taken()

    def _send(self, kind: str, **fields: Any) -> None:
        self._stream.add(event({"type": kind, **fields}))

    def _begin(self) -> None:
        if not self._stream.has_begun:
            self._send("RUN_STARTED", **self._ids)

    @property
    def is_full(self) -> bool:
        """True if so much was shown that `flush` has to come before the next event."""
        return self._stream.is_full

    async def flush(self) -> None:
        """Wait while clients are still busy with what was shown before.

        Raises:
            ClientLeft: The client did not take it, and the run ends with its client.
        """
        await self._stream.flush()

    def show(self, turn_event: TurnEvent, text: str, turn: InterruptibleTurn) -> None:
        """Show one event of a turn; `flush` must follow the last one that is ready."""
        self._begin()
        match turn_event:
            case ThinkingDelta():
                self._think(turn_event.text)
            case AnswerReset():  # a message cannot be taken back: the answer that replaces it is another one
                if self._message is not None:
                    self._say(text.rstrip("\n"))
                self._close()
            case ToolStarted():
                self._call(turn_event, turn_event.tool_input)
                turn.note_started(turn_event.tool_call_id)
            case ToolFinished():
                use = turn.record.tools[turn_event.tool_call_id]
                if (
                    turn_event.tool_call_id not in turn.started_calls
                ):  # rejected before it began: an unknown tool
                    self._call(turn_event, use.arguments)
                if (
                    use.output == WAITING
                ):  # the client carries it out, and brings the result with its next run
                    return
                self._answer = None
                self._send(
                    "TOOL_CALL_RESULT",
                    messageId=_new_id(),
                    toolCallId=turn_event.tool_call_id,
                    content=use.shown(LONGEST_OUTPUT),
                    role="tool",
                )
            case _:
                self._say(text.lstrip("\n") if self._message is None else text)
                if turn_event.name == PROVIDER_RESPONSE:
                    self._close()

    def _say(self, text: str) -> None:
        if not text:
            return
        if self._message is None:
            self._close()
            self._message = self._answer = _new_id()
            self._send("TEXT_MESSAGE_START", messageId=self._message, role="assistant")
        self._send("TEXT_MESSAGE_CONTENT", messageId=self._message, delta=text)

    def _think(self, text: str) -> None:
        if not text:
            return
        if self._reasoning is None:
            self._close()
            self._reasoning = _new_id()
            self._send("REASONING_START", messageId=self._reasoning)
            self._send("REASONING_MESSAGE_START", messageId=self._reasoning, role="reasoning")
        self._send("REASONING_MESSAGE_CONTENT", messageId=self._reasoning, delta=text)

    def _call(self, called: ToolStarted | ToolFinished, given: Any) -> None:
        call_id, self._answer = called.tool_call_id, self._answer or _new_id()
        self._close()
        name, parent = called.tool_name, self._answer
        self._send("TOOL_CALL_START", toolCallId=call_id, toolCallName=name, parentMessageId=parent)
        arguments = orjson.dumps(given, default=str).decode()
        self._send("TOOL_CALL_ARGS", toolCallId=call_id, delta=arguments)
        self._send("TOOL_CALL_END", toolCallId=call_id)

    def _close(self) -> None:
        """End the message that is open."""
        message, self._message = self._message, None
        reasoning, self._reasoning = self._reasoning, None
        if message is not None:
            self._send("TEXT_MESSAGE_END", messageId=message)
        if reasoning is not None:
            self._send("REASONING_MESSAGE_END", messageId=reasoning)
            self._send("REASONING_END", messageId=reasoning)


def _new_id() -> str:
    return secrets.token_hex(12)
