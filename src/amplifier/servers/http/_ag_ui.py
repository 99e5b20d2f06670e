"""The Agent-User Interaction protocol (AG-UI 1.0): a run is a POST, its events are server-sent events.

A question ends a run; the run that brings the answer goes on with the same turn. A run whose ``parentRunId`` is a run that is not over
steers that one. A client that sends ``Last-Event-ID`` may lose its connection and come back: the same run goes on after that event.
`_ag_ui_run` has the turns and the events.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import anyio
import attrs
import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from amplifier._reading import Kind, any_text, anything, list_each, mapping, option, optional, record, text
from amplifier.live import ClientLeft, ClientTool, ClientTools, LiveRun, Question
from amplifier.live._questions import DENY, allowing

from ._ag_ui_run import InterruptibleTurn, InterruptibleTurns, Run
from ._agents import Agents, Ask
from ._event_stream import LAST_SECONDS, EventStream, LongResponse, event, event_number, follow_run
from ._history import read_messages, split_conversation
from ._limits import read_json
from ._openai_request import frontend_tools
from ._problems import Problem, read_body

logger: logging.Logger = logging.getLogger("amplifier.servers.http")

# ── answers ──

_text = attrs.evolve(text, expected="a text")


@attrs.frozen(kw_only=True)
class Resume:
    """One answer; ``cancelled`` if the person does not want to answer, which denies."""

    interrupt_id: str = option(_text, key="interruptId")
    status: str = option(Kind("resolved or cancelled", lambda value: value in ("resolved", "cancelled")))
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
        raise Problem(400, f"{where}: {expected}, got {answer.payload!r:.80}", code="invalid_option")
    allowed = allowing(question.options)
    if option is None:
        if not approved:
            return DENY
        option = next((each for each in allowed if each.lower() != "allow always"), None)
    names = ", ".join(map(repr, question.options))
    if option not in question.options:
        raise Problem(400, f"{where}: expected option to be one of {names}, got {option!r:.80}", code="invalid_option")
    if approved is not (option in allowed):
        raise Problem(400, f"{where}: approved is {approved}, but option is {option!r}", code="invalid_option")
    return str(option)


# ── runs ──


def ag_ui_routes(agents: Agents) -> list[Route]:
    """``/ag-ui``; DELETE cancels a run whose client may be away."""
    turns = InterruptibleTurns()
    agents.at_end.append(turns.stop_parked)  # their answers would come to a server that is not there

    async def run(request: Request) -> Response:
        body = await read_json(request, agents.limits)
        asked = _read(body)
        last, name = request.headers.get("last-event-id"), _name(asked.thread_id, asked.run_id)
        after = event_number(last, "Last-Event-ID")
        found = None if last is None else agents.runs.find(name)
        if found is None and after:
            raise Problem(404, f"no run {asked.run_id!r:.80} of this thread is known (any more)", code="run_not_found")
        if found is not None and not after and found.about != body:
            message = f"runId: {asked.run_id!r:.80} is the run of another request on this thread; send a new one"
            raise Problem(409, message, code="run_exists", param="runId")
        # Read now, so that what is wrong with it has a status; a run that goes on with a turn may come without a new prompt.
        conversation = None if found or (asked.answers and not asked.has_prompt) else _conversation(asked)

        async def begin(run: LiveRun[Any]) -> None:
            await _run(agents, asked, conversation, turns, run)

        async def work(stream: EventStream) -> None:
            stays = 0 if last is None else agents.limits.abandoned_seconds
            run = found or agents.runs.start(begin, body, stays=stays, name=None if last is None else name)
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
        if waiting is not None and waiting.run_id == given["runId"]:  # the run is over, its question is not
            turns.unpark(given["threadId"], waiting)
            await waiting.task.cancel()
        return Response(status_code=204)

    return [Route("/ag-ui", run, methods=["POST"]), Route("/ag-ui", cancel, methods=["DELETE"])]


def _name(thread_id: str, run_id: str) -> str:
    return orjson.dumps([thread_id, run_id]).decode()


async def _run(
    agents: Agents, asked: _Asked, conversation: Ask | None, turns: InterruptibleTurns, run: LiveRun[Any]
) -> None:
    try:
        turn = await _resumed(asked, turns)
    except Problem as problem:  # the protocol wants an event for what is wrong with the answers
        await run.write(event({"type": "RUN_ERROR", "message": problem.message, "code": problem.code}))
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
    context: tuple[_Context, ...] = option(optional(list_each("objects", record(_Context, is_open=True))), ())
    state: Any = option(anything, None)
    forwarded: dict[str, Any] = option(optional(mapping), attrs.Factory(dict), key="forwardedProps")
    answers: tuple[Resume, ...] = option(optional(list_each("answers", record(Resume, is_open=True))), (), key="resume")

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
    asked = read_body(_Asked, {name: value for name, value in body.items() if value is not None}, is_open=True)
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
    return Ask(history=history, prompt=prompt, settings=settings, tools=ClientTools(asked.tools), notes=asked.notes)


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
        logger.warning("AG-UI: answers to questions that no one asked on thread %.80r: %s", asked.thread_id, names)
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
    options = {each: _chosen_option(question, answers[each]) for each, question in questions.items()}
    turns.unpark(asked.thread_id, turn)
    for question_id, chosen in options.items():
        turn.questions.answer(question_id, chosen)
    return turn


async def _follow(turn: InterruptibleTurn, asked: _Asked, turns: InterruptibleTurns, written: LiveRun[Any]) -> None:
    """Show a turn until it ends, or asks; a run that is cancelled before that stops it."""
    run = Run(written, asked.ids)
    shown = asked.thread_id, asked.run_id
    turns.shown[shown] = turn
    turn.run_id = asked.run_id
    is_handed_over = False  # to the run that brings the answers, which may begin before this one is over
    try:
        if await run.show_until_asked(turn):
            is_handed_over = True
            turns.park(asked.thread_id, turn)  # first, because an answer may come as soon as the question is sent
            await run.interrupted([_interrupt(question) for question in turn.questions.waiting()])
    except anyio.get_cancelled_exc_class():
        with anyio.move_on_after(LAST_SECONDS, shield=True):  # for those who follow it, or come back
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
