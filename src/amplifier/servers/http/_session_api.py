"""The session API: lasting sessions with their turns, events and questions."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import attrs
import orjson
from anyio.to_thread import run_sync
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from amplifier._internal.json import JSON
from amplifier._internal.reading import (
    Kind,
    any_text,
    anything,
    flag,
    mapping,
    option,
    optional,
    text,
    whole_number,
)
from amplifier.errors import AmplifierError, PlanError, SessionStateError
from amplifier.events import CONTEXT_COMPACTION
from amplifier.kernel import AmplifierSession
from amplifier.models import AnswerReset, ThinkingDelta, ToolFinished, ToolStarted, TurnEvent
from amplifier.models.prompts import Prompt
from amplifier.models.turns import Ended, ToolOutcome, TurnRecord
from amplifier.plan import validate_session_id
from amplifier.shared_sessions import (
    EventLog,
    LiveSession,
    LiveSessions,
    LiveTurn,
    SessionRefused,
    questions_on,
)
from amplifier.shared_sessions.checkpoints import replace_messages
from amplifier.shared_sessions.edits import Edits
from amplifier.shared_sessions.questions import shown
from amplifier.store import RUNNING, SessionIndex
from amplifier.store.sessions import TITLE_LENGTH, now

from ..sessions import SessionRequest, describe_session
from ._agents import Agents
from ._event_stream import EventStream, LongResponse, check_cursor, event_number, send_all
from ._history import read_messages, split_conversation
from .requests import MAX_OUTPUT_LENGTH, Problem, problem_of, read_body, read_json

_MAX_METADATA_BYTES = 16 * 1024
"""Maximum size of a session's metadata, which is part of every listing."""

_MAX_WATCHERS = 20
_MAX_LISTED = 500
_MAX_DIFF_LINES = 400


@attrs.frozen(kw_only=True)
class _About:
    """The server's own data about a session.

    Attributes:
        metadata: The metadata that a client wrote.
        edits: The edits by its running calls.
        created: The time at which the session was created.
    """

    metadata: dict[str, JSON]
    edits: Edits = attrs.field(factory=Edits)
    created: str = attrs.field(factory=now)


def _checked_size(metadata: dict[str, JSON]) -> dict[str, JSON]:
    try:
        size = len(orjson.dumps(metadata))
    except TypeError:  # in JSON, only nesting
        raise PlanError([("$", "expected fewer levels")]) from None
    if size > _MAX_METADATA_BYTES:
        raise PlanError(
            [("$", f"expected at most {_MAX_METADATA_BYTES} bytes of JSON, got {size}")]
        )
    return metadata


_session_id = optional(attrs.evolve(any_text, convert=validate_session_id))
_title = Kind(
    "a short text",
    lambda value: (
        isinstance(value, str) and bool(value.strip()) and len(value) <= 10 * TITLE_LENGTH
    ),
    lambda value: " ".join(value.split()),
)


@attrs.frozen(kw_only=True)
class _NewSession:
    session_id: str | None = option(_session_id, None)
    metadata: dict[str, JSON] | None = option(
        optional(attrs.evolve(mapping, convert=_checked_size)), None
    )
    fork_of: str | None = option(_session_id, None)
    keep: int | None = option(optional(whole_number(0)), None)


@attrs.frozen(kw_only=True)
class _NewTitle:
    title: str = option(_title)


@attrs.frozen(kw_only=True)
class _NewTurn:
    prompt: Any = option(anything, None)
    keep: int | None = option(optional(whole_number(0)), None)
    resume: bool = option(flag, False)
    wait: bool = option(flag, False)


@attrs.frozen(kw_only=True)
class _Steering:
    message: str = option(text)


@attrs.frozen(kw_only=True)
class _Answer:
    chosen: Any = option(anything, None, key="option")


@attrs.frozen(eq=False)
class SessionApi:
    """The routes of ``/api/sessions``: lasting sessions and their turns."""

    _agents: Agents
    _storage: SessionIndex | None
    _reports: Callable[[], list[dict[str, JSON]]] | None
    _live: LiveSessions[_About] = attrs.field(
        default=attrs.Factory(lambda self: self._agents.live, takes_self=True)
    )

    def routes(self) -> list[Route]:
        """Return the routes of ``/api/sessions`` and below."""
        one = "/api/sessions/{session_id}"
        return [
            Route("/api/sessions", self._create, methods=["POST"]),
            Route("/api/sessions", self._list, methods=["GET"]),
            Route(one, self._read, methods=["GET"]),
            Route(one, self._rename, methods=["PATCH"]),
            Route(one, self._delete, methods=["DELETE"]),
            Route(f"{one}/turns", self._turn, methods=["POST"]),
            Route(f"{one}/events", self._events, methods=["GET"]),
            Route(f"{one}/stop", self._stop, methods=["POST"]),
            Route(f"{one}/steer", self._steer, methods=["POST"]),
            Route(f"{one}/approvals/{{question}}", self._approve, methods=["POST"]),
        ]

    def _find(self, request: Request) -> LiveSession[_About]:
        return self._found(request.path_params["session_id"])

    def _found(self, session_id: str) -> LiveSession[_About]:
        live = self._live.find(session_id)
        if live is None:
            # A page must not mistake the end of the server for the end of its conversation.
            self._agents.require_running()
            raise _missing(session_id)
        return live

    async def _is_kept(self, session_id: str) -> bool:
        return self._storage is not None and await run_sync(self._storage.exists, session_id)

    # ── sessions ──

    async def _create(self, request: Request) -> Response:
        """Open a new session, or the stored session of this id."""
        body = read_body(_NewSession, await read_json(request, self._agents.limits))
        messages = [] if body.fork_of is None else (await self._messages(body.fork_of))[: body.keep]
        session_id = body.session_id or secrets.token_hex(8)
        try:
            with self._live.reserved(session_id):
                live = await self._open(
                    session_id, body.metadata, is_stored=await self._is_kept(session_id)
                )
        except Exception as error:  # third-party modules
            raise problem_of(error) from error
        context = live.session.coordinator.get("context")
        if messages and context is not None:
            await replace_messages(context, messages)
            first = next(
                (message["content"] for message in messages if message["role"] == "user"), ""
            )
            await describe_session(self._storage, session_id, prompt=f"{_text_of(first)} (copy)")
        description = {**_description(live), "tools": _tools(live)}
        headers = {"Location": f"/api/sessions/{session_id}"}
        return JSONResponse(description, status_code=201, headers=headers)

    async def _open(
        self, session_id: str, metadata: dict[str, JSON] | None, *, is_stored: bool
    ) -> LiveSession[_About]:
        storage, log = self._storage, EventLog()
        if metadata is None and storage is not None:
            metadata = await run_sync(storage.metadata, session_id)

        async def check(session: AmplifierSession) -> None:
            self._agents.check(session)
            if metadata and storage is not None:
                await run_sync(storage.write_metadata, session_id, metadata)

        about = _About(metadata=metadata or {})
        questions = questions_on(log, about.edits)
        session = self._agents.make(
            SessionRequest(session_id=session_id, approvals=questions, is_resumed=is_stored)
        )
        seconds = self._agents.limits.abandoned_seconds
        live = LiveSession(session, about, log=log, questions=questions, abandoned_seconds=seconds)
        await self._live.add(live, check)
        session.coordinator.hooks.register("tool:pre", about.edits, name="servers.diffs")
        return live

    async def _list(self, request: Request) -> Response:
        """Return the open sessions and, on request, stored conversations and reports."""
        listed: dict[str, JSON] = {"sessions": [_description(live) for live in self._live.all()]}
        if "stored" in request.query_params:
            here = str(await run_sync(Path.cwd))
            kept: dict[str, list[Any]] = {"stored": [], "elsewhere": []}
            for record in [] if self._storage is None else await run_sync(self._storage.records):
                of_all = kept["stored" if record.directory in (None, here) else "elsewhere"]
                if record.title and len(of_all) < _MAX_LISTED:
                    of_all.append(attrs.asdict(record))
            listed |= {
                **kept,
                "reports": [] if self._reports is None else await run_sync(self._reports),
            }
        return JSONResponse(listed)

    async def _read(self, request: Request) -> Response:
        live = self._find(request)
        messages = await self._messages(live.session_id)
        body = orjson.dumps(
            {**_description(live), "tools": _tools(live), "messages": messages}, default=str
        )
        return Response(body, media_type="application/json")

    async def _messages(self, session_id: str) -> list[dict[str, JSON]]:
        """Return the conversation of an open or stored session."""
        if (
            self._live.find(session_id) is None
            and self._storage is not None
            and await self._is_kept(session_id)
        ):
            return await run_sync(self._storage.transcript, session_id)
        return await self._found(session_id).session.messages()

    async def _rename(self, request: Request) -> Response:
        session_id = request.path_params["session_id"]
        title = read_body(_NewTitle, await read_json(request, self._agents.limits)).title
        # This refuses a session that doesn't exist.
        await self._messages(session_id)
        if self._storage is None:
            raise Problem(409, "the server keeps no titles", code="not_kept")
        await describe_session(self._storage, session_id, title=title)
        return JSONResponse({"session_id": session_id, "title": title})

    async def _delete(self, request: Request) -> Response:
        """Stop a session's turn, close it, and delete its conversation, even if it isn't open."""
        session_id = request.path_params["session_id"]
        if not await self._is_kept(session_id):
            self._found(session_id)
        try:
            async with self._live.without(session_id):
                if self._storage is not None:
                    await run_sync(self._storage.delete, session_id)
        except SessionRefused as error:
            # The session is being opened or deleted, so for clients it doesn't exist.
            raise _missing(session_id) from error
        return Response(status_code=204)

    # ── turns ──

    async def _turn(self, request: Request) -> Response:
        live = self._find(request)
        body = read_body(_NewTurn, await read_json(request, self._agents.limits))
        prompt = _prompt(body)
        if not body.wait:
            started = self._start_turn(live, prompt, body.keep)
            return JSONResponse(
                {"turn": started.turn_id, "last_event_id": live.log.last_id}, status_code=202
            )

        async def work(stream: EventStream) -> Response:
            turn = self._start_turn(live, prompt, body.keep)
            try:
                await turn.over.wait()
            finally:
                if not turn.over.is_set():  # the client left
                    live.stop("its client has left")
            return JSONResponse({"turn": turn.turn_id, **turn.report})

        return LongResponse(work, self._agents.limits.send_seconds)

    def _start_turn(
        self, live: LiveSession[_About], prompt: Prompt | None, keep: int | None
    ) -> LiveTurn:
        """Start a turn, or continue the interrupted one. It outlives its request."""
        turn = live.begin_turn(prompt)
        try:
            turn.claims.enter_context(self._agents.admit(live.session))
            self._live.start_soon(self._run, live, turn, keep)
        except BaseException:
            live.end_turn(turn)
            raise
        live.log.add("turn_started", turn=turn.turn_id, prompt=_text_of(prompt))
        return turn

    async def _run(self, live: LiveSession[_About], turn: LiveTurn, keep: int | None) -> None:
        """Run a turn to its end, and report that as the event ``turn_ended``."""

        async def show(event: TurnEvent, text: str) -> None:
            _log_event(live, event, text, turn.record)

        context = live.session.coordinator.get("context")
        try:
            await describe_session(
                self._storage, live.session_id, status=RUNNING, prompt=_text_of(turn.prompt)
            )
            if keep is not None and context is not None:
                await replace_messages(context, (await context.get_messages())[:keep])
            ended = await live.run_turn(turn, show)
            if text := turn.record.rest(ended.result):
                live.log.add("text", text=text)
        except (AmplifierError, OSError) as error:  # of the store
            turn.ended = Ended(status="error", error=error)
        finally:
            turn.report = _outcome(turn.ended, turn.record)
            # This comes before the turn counts as over, since deleting the session waits for that.
            with anyio.CancelScope(shield=True), suppress(AmplifierError, OSError):
                await describe_session(self._storage, live.session_id, status=turn.ended.status)
            live.end_turn(turn)
            live.log.add("turn_ended", turn=turn.turn_id, **turn.report)

    async def _events(self, request: Request) -> Response:
        live = self._find(request)
        number = request.headers.get("last-event-id") or request.query_params.get("after")
        after = event_number(number, "after")
        check_cursor(after, live.log)

        async def work(stream: EventStream) -> None:
            if len(live.log.readers) >= _MAX_WATCHERS:
                message = f"{_MAX_WATCHERS} clients watch this session, which is the limit"
                raise Problem(429, message, code="too_many_watchers")
            with live.log.reading(after) as reader:
                await stream.write(b": connected\n\n")
                await send_all(reader, stream, b"id: %d\ndata: %s\n\n")

        return LongResponse(work, self._agents.limits.send_seconds)

    async def _stop(self, request: Request) -> Response:
        return JSONResponse({"stopped": self._find(request).stop("a client stopped the turn")})

    async def _steer(self, request: Request) -> Response:
        live = self._find(request)
        body = read_body(_Steering, await read_json(request, self._agents.limits))
        try:
            live.session.steer(body.message)
        except SessionStateError as error:
            raise Problem(409, str(error), code="no_turn") from error
        return JSONResponse({"steered": True})

    async def _approve(self, request: Request) -> Response:
        live, key = self._find(request), request.path_params["question"]
        option = read_body(_Answer, await read_json(request, self._agents.limits)).chosen
        question = live.questions.find(key)
        if question is None:
            raise Problem(
                404,
                f"no question {key!r:.80} is waiting for an answer",
                code="question_not_found",
            )
        if option not in question.options:
            names = ", ".join(map(repr, question.options))
            message = f"option: expected one of {names}, got {option!r:.80}"
            raise Problem(400, message, code="invalid_option")
        live.questions.answer(key, option)
        return JSONResponse({"question": key, "option": option})


_COMPACTION = ("tier", "before_tokens", "after_tokens", "left_out", "summary", "failure")


def _log_event(live: LiveSession[_About], event: TurnEvent, text: str, record: TurnRecord) -> None:
    log = live.log
    match event:
        case ThinkingDelta():
            log.add("thinking", text=event.text)
        case AnswerReset():
            log.add("text_reset", text=event.text)
        case ToolStarted():
            log.add(
                "tool_started",
                call=event.tool_call_id,
                name=event.tool_name,
                input=event.tool_input,
            )
        case ToolFinished():
            use, edit = record.tools[event.tool_call_id], live.about.edits.pop(event.tool_call_id)
            called = {"call": event.tool_call_id, "name": event.tool_name, "success": event.success}
            called |= {
                "status": ToolOutcome.read(event.name, event.data).status,
                "seconds": round(use.seconds, 3),
            }
            diff = (
                {"diff": edit.lines[:_MAX_DIFF_LINES]} if edit is not None and event.success else {}
            )
            log.add("tool_finished", **called, output=use.shown(MAX_OUTPUT_LENGTH), **diff)
        case _ if event.name == CONTEXT_COMPACTION:
            log.add("compaction", **{name: event.data.get(name) for name in _COMPACTION})
        case _ if text:
            log.add("text", text=text)


def _outcome(ended: Ended, record: TurnRecord) -> dict[str, JSON]:
    """Return the end of a turn for clients."""
    outcome: dict[str, JSON] = {"status": ended.status}
    if ended.status == "error" and ended.error is not None:
        problem = problem_of(ended.error)
        outcome |= {"error": problem.message, "code": problem.code}
    elif ended.error is None:
        outcome["result"] = ended.result
    outcome |= {"model": record.model, "cost": None if record.cost is None else str(record.cost)}
    return {
        **outcome,
        "usage": {"input_tokens": record.input_tokens, "output_tokens": record.output_tokens},
    }


def _missing(session_id: str) -> Problem:
    message = f"no session {session_id!r:.80} is open; POST /api/sessions opens one"
    return Problem(404, message, code="session_not_found")


def _description(live: LiveSession[_About]) -> dict[str, JSON]:
    return {
        "session_id": live.session_id,
        "status": "running" if live.is_busy else "idle",
        "created": live.about.created,
        "metadata": live.about.metadata,
        "last_event_id": live.log.last_id,
        "questions": [shown(question) for question in live.questions.waiting()],
    }


def _tools(live: LiveSession[_About]) -> list[dict[str, str]]:
    tools = (live.session.coordinator.get("tools") or {}).values()
    return [{"name": str(tool.name), "description": str(tool.description)} for tool in tools]


def _text_of(prompt: Any) -> str | None:
    """Return the text of a prompt, and the types of its attachments."""
    if prompt is None or isinstance(prompt, str):
        return prompt
    return "\n".join(
        str(block.get("text") or f"[{block.get('type')}]")
        for block in prompt
        if isinstance(block, dict)
    )


def _prompt(body: _NewTurn) -> Prompt | None:
    """Return the prompt of a turn, or None to continue the interrupted one."""
    if body.resume and body.prompt is None:
        return None
    if isinstance(body.prompt, list) and body.prompt and not body.resume:
        return split_conversation(
            read_messages([{"role": "user", "content": body.prompt}], "prompt"), "prompt"
        )[1]
    if body.resume or not isinstance(body.prompt, str) or not body.prompt.strip():
        expected = "expected none with resume" if body.resume else "expected a text"
        raise Problem(400, f"prompt: {expected}, got {body.prompt!r:.80}", code="invalid_request")
    return body.prompt
