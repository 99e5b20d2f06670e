"""The session API: sessions that stay, turns that run on their own, events to follow, questions to answer."""

from __future__ import annotations

from typing import Any

import anyio
import orjson
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from amplifier.errors import PlanError
from amplifier.plan import validate_session_id

from .._agents import Agents
from .._event_stream import EventStream, LongResponse
from .._limits import read_json
from .._problems import Problem
from ._event_log import EventLog
from ._held_sessions import HeldSession, HeldSessions

__all__ = ["session_routes"]

_PING_SECONDS = 15.0
"""Between two signs of life to a client that watches a quiet session."""


_MOST_METADATA = 16 * 1024
"""Bytes; it is part of every listing."""


def session_routes(agents: Agents, sessions: HeldSessions) -> list[Route]:
    """``/api/sessions`` and below."""
    api = _SessionApi(agents, sessions)
    one = "/api/sessions/{session_id}"
    return [
        Route("/api/sessions", api.create, methods=["POST"]),
        Route("/api/sessions", api.list_all, methods=["GET"]),
        Route(one, api.read, methods=["GET"]),
        Route(one, api.delete, methods=["DELETE"]),
        Route(f"{one}/turns", api.turn, methods=["POST"]),
        Route(f"{one}/events", api.events, methods=["GET"]),
        Route(f"{one}/stop", api.stop, methods=["POST"]),
        Route(f"{one}/approvals/{{question}}", api.approve, methods=["POST"]),
    ]


class _SessionApi:
    def __init__(self, agents: Agents, sessions: HeldSessions) -> None:
        self._agents = agents
        self._sessions = sessions

    def _find(self, request: Request) -> HeldSession:
        return self._sessions.find(request.path_params["session_id"])

    async def create(self, request: Request) -> Response:
        body = await read_json(request, self._agents.limits)
        wanted = body.get("session_id")
        if wanted is not None:
            try:
                validate_session_id(wanted if isinstance(wanted, str) else "")
            except PlanError as error:
                raise Problem(400, f"session_id: {error}", code="invalid_request") from None
        held = await self._sessions.create(wanted, _metadata(body.get("metadata")))
        return JSONResponse(held.describe(), status_code=201, headers={"Location": f"/api/sessions/{held.session_id}"})

    async def list_all(self, request: Request) -> Response:
        return JSONResponse({"sessions": [held.describe() for held in self._sessions.all()]})

    async def read(self, request: Request) -> Response:
        held = self._find(request)
        described = held.describe()
        context = held.live.session.coordinator.get("context")
        messages = [] if context is None else await context.get_messages()
        body = orjson.dumps({**described, "messages": messages}, default=str)
        return Response(body, media_type="application/json")

    async def delete(self, request: Request) -> Response:
        await self._sessions.delete(request.path_params["session_id"])
        return Response(status_code=204)

    async def turn(self, request: Request) -> Response:
        held = self._find(request)
        body = await read_json(request, self._agents.limits)
        prompt = _prompt(body)
        if body.get("wait") is not True:
            started = self._sessions.start_turn(held, prompt)
            answer = {"turn": started.turn_id, "last_event_id": held.log.last_id}
            return JSONResponse(answer, status_code=202)

        async def work(stream: EventStream) -> Response:
            turn = self._sessions.start_turn(held, prompt)
            try:
                await turn.over.wait()
            finally:
                if not turn.over.is_set():  # the client has left
                    held.live.stop("its client has left")
            return JSONResponse({"turn": turn.turn_id, **turn.outcome})

        return LongResponse(work, self._agents.limits.send_seconds)

    async def events(self, request: Request) -> Response:
        held = self._find(request)
        given = request.headers.get("last-event-id") or request.query_params.get("after") or "0"
        if not given.isdecimal() or len(given) > 15:
            raise Problem(400, f"after: expected the number of an event, got {given!r:.80}", code="invalid_request")

        async def work(stream: EventStream) -> None:
            with held.watched():
                await stream.write(b": connected\n\n")
                await _follow(held.log, min(int(given), held.log.last_id), stream)

        return LongResponse(work, self._agents.limits.send_seconds)

    async def stop(self, request: Request) -> Response:
        return JSONResponse({"stopped": self._find(request).live.stop("a client stopped the turn")})

    async def approve(self, request: Request) -> Response:
        held, key = self._find(request), request.path_params["question"]
        option = (await read_json(request, self._agents.limits)).get("option")
        options = held.questions.options_of(key)
        if options is None:
            raise Problem(404, f"no question {key!r:.80} waits for an answer (any more)", code="question_not_found")
        if not isinstance(option, str) or option not in options:
            message = f"option: expected one of {', '.join(map(repr, options))}, got {option!r:.80}"
            raise Problem(400, message, code="invalid_option")
        held.questions.answer(key, option)
        return JSONResponse({"question": key, "option": option})


def _prompt(body: dict[str, Any]) -> str | None:
    """The prompt of a turn; None if the one that was cut off is to go on."""
    prompt, resume = body.get("prompt"), body.get("resume", False)
    if not isinstance(resume, bool):
        raise Problem(400, f"resume: expected true or false, got {resume!r:.80}", code="invalid_request")
    if resume and prompt is None:
        return None
    if resume or not isinstance(prompt, str) or not prompt.strip():
        expected = "expected none with resume" if resume else "expected a text"
        raise Problem(400, f"prompt: {expected}, got {prompt!r:.80}", code="invalid_request")
    return prompt


def _metadata(given: Any) -> dict[str, Any] | None:
    if given is None:
        return None
    if not isinstance(given, dict):
        raise Problem(400, f"metadata: expected an object, got {type(given).__name__}", code="invalid_request")
    try:
        size = len(orjson.dumps(given))
    except TypeError:  # of JSON, only nesting can be the reason
        raise Problem(400, "metadata: expected fewer levels", code="invalid_request") from None
    if size > _MOST_METADATA:
        message = f"metadata: expected at most {_MOST_METADATA} bytes of JSON, got {size}"
        raise Problem(400, message, code="invalid_request")
    return given


async def _follow(log: EventLog, number: int, stream: EventStream) -> None:
    while True:
        if news := log.after(number):
            await stream.write(b"".join(b"id: %d\ndata: %s\n\n" % each for each in news))
            number = news[-1][0]
            continue
        if log.is_closed:
            return
        with anyio.move_on_after(_PING_SECONDS):
            await log.wait_after(number)
            continue
        await stream.write(b": still here\n\n")
