"""The Agent-User Interaction protocol (AG-UI 1.0): a run is a POST with server-sent events."""

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

from amplifier._internal.json import JSON
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
from .requests import MAX_OUTPUT_LENGTH, Problem, problem_of, read_body, read_json

logger: logging.Logger = logging.getLogger("amplifier.servers.http")

# The events of a run are kept in a log if its client can come back. Otherwise they are written at
# once.
_Written: TypeAlias = LiveRun[Any] | NumberedEvents

# ── answers ──

_text = attrs.evolve(text, expected="a text")


@attrs.frozen(kw_only=True)
class Resume:
    """One answer. ``cancelled`` means that the user doesn't want to answer, which is a denial."""

    interrupt_id: str = option(_text, key="interruptId")
    status: str = option(
        Kind("resolved or cancelled", lambda value: value in ("resolved", "cancelled"))
    )
    payload: Any = option(anything, None)

    @property
    def is_cancelled(self) -> bool:
        """True if the user doesn't want to answer."""
        return self.status == "cancelled"


def _interrupt(question: Question) -> dict[str, JSON]:
    """Return a question in the form that clients get."""
    described: dict[str, JSON] = {
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
    """Return the option of a question that an answer chooses."""
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
        option = next((name for name in allowed if name.lower() != "allow always"), None)
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
#
# A question ends a run, and the run with the answer continues the same turn. A run whose
# ``parentRunId`` names a run that hasn't ended steers that run. A client that has lost its
# connection may return with ``Last-Event-ID``. The same run then continues after that event.


def ag_ui_routes(agents: Agents) -> list[Route]:
    """Return the routes of ``/ag-ui``. DELETE cancels a run, with or without its client."""
    turns = InterruptibleTurns()
    # A stopped server couldn't receive the answers that parked turns wait for.
    agents.at_end.append(turns.stop_parked)

    async def run(request: Request) -> Response:
        body = await read_json(request, agents.limits)
        run_input = _read(body)
        last = request.headers.get("last-event-id")
        name = _name(run_input.thread_id, run_input.run_id)
        after = event_number(last, "Last-Event-ID")
        known = None if last is None else agents.runs.find(name)
        if known is None and after:
            raise Problem(
                404,
                f"run {run_input.run_id!r:.80} of this thread is not, or no longer, known",
                code="run_not_found",
            )
        if known is not None and not after and known.about != body:
            message = (
                f"runId: {run_input.run_id!r:.80} is the run of another request on this thread; "
                "send a new one"
            )
            raise Problem(409, message, code="run_exists", param="runId")
        # The input is read before the response starts, so that an error can set the status. A run
        # that continues a turn may come without a new prompt.
        is_continued = known or (run_input.answers and not run_input.has_prompt)
        conversation = None if is_continued else _conversation(run_input)

        async def begin(run: LiveRun[Any]) -> None:
            await _run(agents, run_input, conversation, turns, run)

        async def work(stream: EventStream) -> None:
            if last is None:
                await _run(agents, run_input, conversation, turns, NumberedEvents(stream))
                await stream.begin()
                return
            stays = agents.limits.abandoned_seconds
            run = known or agents.runs.start(begin, body, stays=stays, name=name)
            await follow_run(run, after, stream)

        return LongResponse(work, agents.limits.send_seconds)

    async def cancel(request: Request) -> Response:
        query = request.query_params
        run = agents.runs.find(_name(query.get("threadId", ""), query.get("runId", "")))
        if run is None:
            message = "threadId, runId: expected those of a run that was begun with Last-Event-ID"
            raise Problem(404, message, code="run_not_found")
        await run.cancel()
        waiting = turns.parked(query["threadId"])
        # The run may have ended with a question that is still waiting.
        if waiting is not None and waiting.run_id == query["runId"]:
            turns.unpark(query["threadId"], waiting)
            await waiting.task.cancel()
        return Response(status_code=204)

    return [Route("/ag-ui", run, methods=["POST"]), Route("/ag-ui", cancel, methods=["DELETE"])]


def _name(thread_id: str, run_id: str) -> str:
    return orjson.dumps([thread_id, run_id]).decode()


async def _run(
    agents: Agents,
    run_input: _RunInput,
    conversation: Ask | None,
    turns: InterruptibleTurns,
    run: _Written,
) -> None:
    try:
        turn = await _resumed(run_input, turns)
    except Problem as problem:
        # The protocol reports invalid answers as an event.
        await run.write(
            event({"type": "RUN_ERROR", "message": problem.message, "code": problem.code})
        )
        return
    if turn is None:
        if conversation is None:
            # The question was given up.
            await Run(run, run_input.ids).cancelled()
            return
        steered = turns.shown.get((run_input.thread_id, run_input.parent_run_id))
        if steered is not None and steered.steer(conversation.prompt):
            await Run(run, run_input.ids).steered()
            return
        turn = InterruptibleTurn(agents, conversation)
    await _follow(turn, run_input, turns, run)


@attrs.frozen(kw_only=True)
class _Context:
    description: str = option(_text)
    value: str = option(attrs.evolve(any_text, expected="a text"))


@attrs.frozen(kw_only=True)
class _RunInput:
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
    forwarded: dict[str, JSON] = option(
        optional(mapping), attrs.Factory(dict), key="forwardedProps"
    )
    answers: tuple[Resume, ...] = option(
        optional(list_each("answers", record(Resume, is_open=True))), (), key="resume"
    )

    @property
    def ids(self) -> dict[str, str]:
        return {"threadId": self.thread_id, "runId": self.run_id}

    @property
    def notes(self) -> str:
        """The client application's description of itself, for the model."""
        notes = [f"{item.description}: {item.value}" for item in self.context]
        if self.state:
            notes.append(f"Its state, as JSON: {orjson.dumps(self.state).decode()}")
        return "\n".join(["The user's application says:", *notes]) if notes else ""

    @property
    def _roles(self) -> list[Any]:
        messages = self.messages if isinstance(self.messages, list) else []
        return [message.get("role") for message in messages if isinstance(message, Mapping)]

    @property
    def prompts(self) -> int:
        """The number of messages from the user."""
        return self._roles.count("user")

    @property
    def has_prompt(self) -> bool:
        """True if the last message is from the user."""
        return self._roles[-1:] == ["user"]


def _read(body: dict[str, JSON]) -> _RunInput:
    run_input = read_body(
        _RunInput, {name: value for name, value in body.items() if value is not None}, is_open=True
    )
    answered: set[str] = set()
    for index, answer in enumerate(run_input.answers):
        if answer.interrupt_id in answered:
            problem = f"resume[{index}].interruptId: {answer.interrupt_id!r:.80} is answered twice"
            raise Problem(400, problem, code="invalid_request")
        answered.add(answer.interrupt_id)
    return run_input


def _conversation(run_input: _RunInput) -> Ask:
    # A stopped run, or a question that was given up, leaves calls without a result.
    history, prompt = split_conversation(read_messages(run_input.messages), complete=True)
    settings = {"metadata": run_input.forwarded} if run_input.forwarded else {}
    return Ask(
        history=history,
        prompt=prompt,
        settings=settings,
        tools=ClientTools(run_input.tools),
        notes=run_input.notes,
    )


async def _resumed(run_input: _RunInput, turns: InterruptibleTurns) -> InterruptibleTurn | None:
    """Return the turn that the answers continue, or None if the run starts a new one."""
    turn = turns.parked(run_input.thread_id)
    questions = {} if turn is None else turn.asked_questions()
    answers = {answer.interrupt_id: answer for answer in run_input.answers}
    if unknown := answers.keys() - questions.keys():
        names = ", ".join(sorted(unknown))[:200]
        if turn is None and not all(answer.is_cancelled for answer in run_input.answers):
            message = (
                f"resume: {names} does not wait for an answer; cancel it to continue with "
                "the thread"
            )
            raise Problem(404, message, code="question_not_found")
        logger.warning(
            "AG-UI: answers to questions that no one asked on thread %.80r: %s",
            run_input.thread_id,
            names,
        )
    if turn is None:
        return None
    if missing := questions.keys() - answers.keys():
        names = ", ".join(sorted(missing))
        message = f"resume: expected an answer to every question of the thread; none for {names}"
        raise Problem(409, message, code="question_open")
    is_new_prompt = run_input.prompts > turn.prompts
    if is_new_prompt and any(answers[question_id].is_cancelled for question_id in questions):
        turns.unpark(run_input.thread_id, turn)
        await turn.task.cancel()
        return None
    if is_new_prompt:
        message = (
            "messages: a new message cannot come with answers; send it after this run, or cancel "
            "the questions"
        )
        raise Problem(409, message, code="question_open")
    options = {
        question_id: _chosen_option(question, answers[question_id])
        for question_id, question in questions.items()
    }
    turns.unpark(run_input.thread_id, turn)
    for question_id, chosen in options.items():
        turn.questions.answer(question_id, chosen)
    return turn


async def _follow(
    turn: InterruptibleTurn, run_input: _RunInput, turns: InterruptibleTurns, written: _Written
) -> None:
    """Show a turn until it ends or asks. If the run is cancelled first, stop the turn."""
    run = Run(written, run_input.ids)
    shown = run_input.thread_id, run_input.run_id
    turns.shown[shown] = turn
    turn.run_id = run_input.run_id
    # The next run, which brings the answers, may start before this one has ended.
    is_handed_over = False
    try:
        if await run.show_until_asked(turn):
            is_handed_over = True
            # The turn is parked first, since an answer may come as soon as the question is sent.
            turns.park(run_input.thread_id, turn)
            await run.interrupted([_interrupt(question) for question in turn.questions.waiting()])
    except anyio.get_cancelled_exc_class():
        if written.has_lost_client:
            is_handed_over = is_handed_over and turns.parked(run_input.thread_id) is not turn
        else:
            # Clients that follow the run or return to it are shown its end.
            with anyio.move_on_after(LAST_SECONDS, shield=True), suppress(ClientLeft):
                await run.cancelled()
        raise
    except ClientLeft:
        is_handed_over = is_handed_over and turns.parked(run_input.thread_id) is not turn
        raise
    finally:
        turns.shown.pop(shown, None)
        if not is_handed_over:
            turns.unpark(run_input.thread_id, turn)
            await turn.task.cancel()


_TOGETHER_SECONDS = 0.05
"""Seconds to wait after a question, since parallel calls ask at about the same time."""


# ── turns ──


class InterruptibleTurn:
    """One turn in a new session. It outlives its run while it waits for an answer.

    The turn starts when it is created.

    Attributes:
        prompts: The number of the user's messages in the conversation, including the prompt.
        record: A summary of the events so far.
        questions: Its questions.
        asked: The ids of the questions that ended its latest run. Empty while a run shows it.
        started_calls: The tool calls that clients have received.
        run_id: The id of the run that last showed the turn.
        task: The task that runs it.
        is_over: True once nothing more happens.
        ended: The end of the turn. None before that, or if the turn was stopped.
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
        except Exception as error:  # noqa: BLE001 — third-party modules
            # The run reports it.
            self.ended = Ended(status="error", error=error)
        finally:
            self.is_over = True
            self._changed.set()

    # The turn's own task shows its events. Only decisions of the run wake the run's task: a
    # question, a call that the client has received, the end.

    async def _show(self, turn_event: TurnEvent, text: str) -> None:
        if self._run is None:
            self._unshown.append((turn_event, text))
            return
        self._run.show(turn_event, text, self)
        if self._run.is_full:
            await self._flush()

    async def _flush(self) -> None:
        """Wait for slow clients, and for a run that shows the events kept so far."""
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
        """Wait until the turn asks a question or ends, or a client receives another call."""
        await self._changed.wait()
        if not self.is_over:
            self._changed = anyio.Event()

    async def _note_asked(self, question: Question) -> None:
        self._changed.set()

    def note_started(self, call_id: str) -> None:
        """Record that clients have received a tool call."""
        self.started_calls.add(call_id)
        if self.questions.waiting():
            self._changed.set()

    def steer(self, message: Any) -> bool:
        """Add a message that the model reads with its next request.

        Returns:
            True if the turn accepts it.
        """
        try:
            if self._ask.session is not None:
                self._ask.session.steer(message)
        except (SessionStateError, ValueError):
            # The turn already has its answer, its loop accepts no messages, or the message isn't
            # text.
            return False
        return self._ask.session is not None

    def _note_closed(self, question: Question, answer: Any) -> None:
        # The answer came too late, and no client would see how the turn continues.
        if self.asked:
            self.task.stop()

    def asked_questions(self) -> dict[str, Question]:
        """Return the unanswered questions by id."""
        return {
            question.question_id: question
            for question in self.questions.waiting()
            if question.question_id in self.asked
        }

    def is_asking(self) -> bool:
        """Return whether the turn waits for answers and all calls in question have been shown.

        A call may be shown a moment after its question.
        """
        questions = self.questions.waiting()
        return bool(questions) and all(
            question.tool_call_id is None or question.tool_call_id in self.started_calls
            for question in questions
        )


class InterruptibleTurns:
    """All turns of AG-UI. Waiting turns are found by their thread."""

    def __init__(self) -> None:
        self._parked: dict[str, InterruptibleTurn] = {}
        self.shown: dict[tuple[str, str | None], InterruptibleTurn] = {}
        """The turns that runs show, by the ids of thread and run."""

    def __repr__(self) -> str:
        return f"<InterruptibleTurns: {len(self._parked)} wait for an answer>"

    def parked(self, thread_id: str) -> InterruptibleTurn | None:
        """Return the turn of a thread that waits for an answer, or None."""
        turn = self._parked.get(thread_id)
        if turn is not None and (turn.task.over.is_set() or not turn.questions.waiting()):
            del self._parked[thread_id]
            return None
        return turn

    def park(self, thread_id: str, turn: InterruptibleTurn) -> None:
        """Park a waiting turn and stop the thread's previous one."""
        self.stop_parked(thread_id)
        turn.asked = {question.question_id for question in turn.questions.waiting()}
        self._parked[thread_id] = turn

    def unpark(self, thread_id: str, turn: InterruptibleTurn) -> None:
        """Forget that a turn is waiting, because a run shows it again or it has ended."""
        turn.asked = set()
        if self._parked.get(thread_id) is turn:
            del self._parked[thread_id]

    def stop_parked(self, thread_id: str | None = None) -> None:
        """Stop the waiting turn of a thread, or of all threads."""
        for name in list(self._parked) if thread_id is None else [thread_id]:
            turn = self._parked.pop(name, None)
            if turn is not None:
                turn.task.stop()


# ── a run ──


class Run:
    """One run. A message of it is open while its text is being streamed."""

    def __init__(self, stream: _Written, ids: dict[str, str]) -> None:
        self._stream = stream
        self._ids = ids
        self._record = TurnRecord()
        self._is_over = False
        self._message: str | None = None
        self._reasoning: str | None = None
        # This is the latest message. The calls until the next tool result belong to it.
        self._answer: str | None = None

    async def show_until_asked(self, turn: InterruptibleTurn) -> bool:
        """Show a turn until it ends or waits for an answer.

        Returns:
            True if the turn waits for an answer.

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
                # Or the time may have expired just now.
                if scope.cancelled_caught and turn.is_asking():
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
        read = self._record.input_tokens - before[0]
        written = self._record.output_tokens - before[1]
        usage = {"inputTokens": read, "outputTokens": written, "totalTokens": read + written}
        await self._finish({"type": "success"}, usage=[usage])

    async def steered(self) -> None:
        """End this run, because the steered run handles its message."""
        await self._finish({"type": "success"}, result={"steered": True})

    async def interrupted(self, interrupts: list[dict[str, JSON]]) -> None:
        """End the run with questions to answer."""
        await self._finish({"type": "interrupt", "interrupts": interrupts})

    async def cancelled(self) -> None:
        """End a stopped run without a result, unless it has ended."""
        if not self._is_over:
            await self._finish({"type": "cancelled"})

    async def _finish(self, outcome: dict[str, JSON], **fields: Any) -> None:
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
        """True if `flush` has to come before the next event."""
        return self._stream.is_full

    async def flush(self) -> None:
        """Wait while clients are busy with earlier events.

        Raises:
            ClientLeft: The client didn't accept the events, and the run ends with its client.
        """
        await self._stream.flush()

    def show(self, turn_event: TurnEvent, text: str, turn: InterruptibleTurn) -> None:
        """Show one event of a turn. `flush` must follow the last one that is ready."""
        self._begin()
        match turn_event:
            case ThinkingDelta():
                self._think(turn_event.text)
            case AnswerReset():
                # A message can't be withdrawn, so the new answer is another message.
                if self._message is not None:
                    self._say(text.rstrip("\n"))
                self._close()
            case ToolStarted():
                self._call(turn_event, turn_event.tool_input)
                turn.note_started(turn_event.tool_call_id)
            case ToolFinished():
                use = turn.record.tools[turn_event.tool_call_id]
                if turn_event.tool_call_id not in turn.started_calls:
                    # The call was rejected before it started, for example as an unknown tool.
                    self._call(turn_event, use.arguments)
                if use.output == WAITING:
                    # The client carries out the call, and sends the result with its next run.
                    return
                self._answer = None
                self._send(
                    "TOOL_CALL_RESULT",
                    messageId=_new_id(),
                    toolCallId=turn_event.tool_call_id,
                    content=use.shown(MAX_OUTPUT_LENGTH),
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

    def _call(self, called: ToolStarted | ToolFinished, tool_input: object) -> None:
        call_id, self._answer = called.tool_call_id, self._answer or _new_id()
        self._close()
        name, parent = called.tool_name, self._answer
        self._send("TOOL_CALL_START", toolCallId=call_id, toolCallName=name, parentMessageId=parent)
        arguments = orjson.dumps(tool_input, default=str).decode()
        self._send("TOOL_CALL_ARGS", toolCallId=call_id, delta=arguments)
        self._send("TOOL_CALL_END", toolCallId=call_id)

    def _close(self) -> None:
        """End the open message."""
        message, self._message = self._message, None
        reasoning, self._reasoning = self._reasoning, None
        if message is not None:
            self._send("TEXT_MESSAGE_END", messageId=message)
        if reasoning is not None:
            self._send("REASONING_MESSAGE_END", messageId=reasoning)
            self._send("REASONING_END", messageId=reasoning)


def _new_id() -> str:
    return secrets.token_hex(12)
