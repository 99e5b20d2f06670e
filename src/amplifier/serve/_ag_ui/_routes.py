"""``/ag-ui``: begins a run, or goes on with a turn that waits for an answer."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import attrs
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from .._agents import Agents
from .._event_stream import ClientLeft, EventStream, LongResponse, event
from .._history import split_conversation
from .._limits import read_json
from .._problems import Problem
from ._resume import Resume, chosen_option, interrupt, read_resume
from ._run import Run
from ._turn import InterruptibleTurn, InterruptibleTurns

__all__ = ["ag_ui_routes"]

logger: logging.Logger = logging.getLogger("amplifier.serve")


def ag_ui_routes(agents: Agents, turns: InterruptibleTurns) -> list[Route]:
    """``/ag-ui``."""

    async def run(request: Request) -> Response:
        asked = _read(await read_json(request, agents.limits))
        # Read now, so that what is wrong with it has a status; a run that goes on with a turn may come without a new prompt.
        conversation = None if asked.resume and not asked.has_prompt else _conversation(asked)

        async def work(stream: EventStream) -> None:
            try:
                turn = await _resumed(asked, turns)
            except Problem as problem:  # the protocol wants an event for what is wrong with the answers
                await stream.write(event({"type": "RUN_ERROR", "message": problem.message, "code": problem.code}))
                return
            if turn is None and conversation is None:
                await Run(stream, asked.ids).cancelled()  # what it waited for has been given up
                return
            await _follow(turn or turns.start(*(conversation or ([], ""))), asked, turns, stream)

        return LongResponse(work, agents.limits.send_seconds)

    return [Route("/ag-ui", run, methods=["POST"])]


@attrs.frozen(kw_only=True)
class _Asked:
    """The input of a run.

    Attributes:
        prompts: How many of the messages are the user's.
        has_prompt: The last message is the user's.
    """

    thread_id: str
    run_id: str
    messages: Any
    prompts: int
    has_prompt: bool
    resume: list[Resume]

    @property
    def ids(self) -> dict[str, str]:
        return {"threadId": self.thread_id, "runId": self.run_id}


def _read(body: dict[str, Any]) -> _Asked:
    thread_id, run_id = (_id(body, name) for name in ("threadId", "runId"))
    if body.get("tools"):
        raise Problem(
            400,
            "tools: this server runs an agent with tools of its own and calls none of the client's; leave tools out",
            code="client_tools_not_supported",
        )
    messages = body.get("messages")
    roles = [each.get("role") for each in messages if isinstance(each, Mapping)] if isinstance(messages, list) else []
    return _Asked(
        thread_id=thread_id,
        run_id=run_id,
        messages=messages,
        prompts=roles.count("user"),
        has_prompt=bool(roles) and roles[-1] == "user",
        resume=read_resume(body.get("resume")),
    )


def _id(body: dict[str, Any], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str) or not value:
        raise Problem(400, f"{name}: expected a text, got {value!r:.80}", code="invalid_request")
    return value


def _conversation(asked: _Asked) -> tuple[list[dict[str, Any]], str]:
    # A client that stopped a run, or gave up a question, has calls without a result in its conversation.
    return split_conversation(asked.messages, complete=True)


async def _resumed(asked: _Asked, turns: InterruptibleTurns) -> InterruptibleTurn | None:
    """The turn that the answers are for, now going on; None if the run begins a new one.

    Raises:
        Problem: The answers fit no question, or leave one open.
    """
    turn = turns.parked(asked.thread_id)
    questions = {} if turn is None else {each.interrupt_id: each for each in turn.open_questions() if each.is_announced}
    answers = {answer.interrupt_id: answer for answer in asked.resume}
    if unknown := answers.keys() - questions.keys():
        names = ", ".join(sorted(unknown))[:200]
        if turn is None and not all(answer.is_cancelled for answer in asked.resume):
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
        await turn.stop_and_wait()
        return None
    if is_new_prompt:
        message = "messages: a new message cannot come with answers; send it after this run, or cancel the questions"
        raise Problem(409, message, code="question_open")
    options = {each: chosen_option(question, answers[each]) for each, question in questions.items()}
    turns.unpark(asked.thread_id, turn)
    turn.answer(options)
    return turn


async def _follow(turn: InterruptibleTurn, asked: _Asked, turns: InterruptibleTurns, stream: EventStream) -> None:
    """Show a turn until it ends, or asks; a client that leaves before that stops it."""
    run = Run(stream, asked.ids)
    is_handed_over = False  # to the run that brings the answers, which may begin before this one is over
    try:
        if await run.show_until_asked(turn):
            is_handed_over = True
            turns.park(asked.thread_id, turn)  # first, because an answer may come as soon as the question is sent
            await run.interrupted([interrupt(question) for question in turn.open_questions()])
    except ClientLeft:
        is_handed_over = is_handed_over and turns.parked(asked.thread_id) is not turn
        raise
    finally:
        if not is_handed_over:
            turns.unpark(asked.thread_id, turn)
            await turn.stop_and_wait()
