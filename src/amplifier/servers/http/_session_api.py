"""The session API: sessions that stay, turns that run on their own, events to follow, questions to answer."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import anyio
import anyio.to_thread
import attrs
import orjson
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from amplifier._json import redact_text
from amplifier._reading import any_text, anything, flag, mapping, option, optional, whole_number
from amplifier.errors import AmplifierError, PlanError, SessionStateError
from amplifier.events import CONTEXT_COMPACTION
from amplifier.kernel import AmplifierSession
from amplifier.live import EventLog, LiveSession, LiveSessions, LiveTurn, SessionRefused, questions_on
from amplifier.live._checkpoints import replace_messages
from amplifier.live._edits import Edits
from amplifier.live._questions import shown
from amplifier.models import AnswerReset, ThinkingDelta, ToolFinished, ToolStarted, TurnEvent
from amplifier.models._prompts import Prompt
from amplifier.plan import validate_session_id
from amplifier.store import RUNNING, SessionIndex
from amplifier.turns import Ended, ToolOutcome, TurnRecord

from ._agents import Agents, SessionRequest
from ._event_stream import EventStream, LongResponse, send_all
from ._history import read_messages, split_conversation
from ._limits import LONGEST_OUTPUT, read_json
from ._problems import Problem, problem_of, read_body

__all__ = ["KeptSessions", "SessionStorage", "session_routes"]

_MOST_METADATA = 16 * 1024
"""Bytes; it is part of every listing."""

_MOST_WATCHERS = 20
_MOST_LISTED = 500
_MOST_DIFF_LINES = 400
_TITLE_LENGTH = 80


class SessionStorage(Protocol):
    """Where the application keeps conversations; called in worker threads. Those of a `SessionIndex` are also listed and named."""

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


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@attrs.frozen(kw_only=True)
class _About:
    """What is kept with a session.

    Attributes:
        metadata: What a client wrote about it.
        edits: What its running calls change.
        created: ISO 8601.
    """

    metadata: dict[str, Any]
    edits: Edits = attrs.field(factory=Edits)
    created: str = attrs.field(factory=_now)


class KeptSessions:
    """The sessions of the session API, and their turns.

    Attributes:
        live: Those that are open.
    """

    def __init__(
        self,
        agents: Agents,
        storage: SessionStorage | None,
        reports: Callable[[], list[dict[str, Any]]] | None = None,
    ) -> None:
        self._agents = agents
        self._storage = storage
        self._reports = reports
        self._index = storage if isinstance(storage, SessionIndex) else None
        self.live: LiveSessions[_About] = agents.live

    async def create(self, session_id: str | None, metadata: dict[str, Any] | None = None) -> LiveSession[_About]:
        """Open a session: a new one, or a stored one of this id.

        Args:
            session_id: Its id; None for a new one.
            metadata: What the client wants to keep with it; None to leave what is kept.

        Raises:
            Problem: There are too many, it is open already, or it cannot be opened.
        """
        wanted, storage, is_stored = session_id or secrets.token_hex(8), self._storage, False

        async def check(session: AmplifierSession) -> None:
            self._agents.check(session)
            if metadata and storage is not None:
                await anyio.to_thread.run_sync(storage.write_metadata, wanted, metadata)

        try:
            with self.live.reserved(wanted):
                if session_id is not None and storage is not None:
                    is_stored = await anyio.to_thread.run_sync(storage.exists, wanted)
                    if metadata is None:
                        metadata = await anyio.to_thread.run_sync(storage.metadata, wanted)
                log = EventLog()
                questions = questions_on(log)
                asked = SessionRequest(session_id=wanted, approvals=questions, is_resumed=is_stored)
                session, about = self._agents.make(asked), _About(metadata=metadata or {})
                seconds = self._agents.limits.abandoned_seconds
                live = LiveSession(session, about, log=log, questions=questions, abandoned_seconds=seconds)
                await self.live.add(live, check)
                session.coordinator.hooks.register("tool:pre", live.about.edits, name="servers.diffs")
                return live
        except Exception as error:  # third-party modules; the client gets the reason
            raise problem_of(error) from error

    def find(self, session_id: str) -> LiveSession[_About]:
        """The open session of this id.

        Raises:
            Problem: There is none.
        """
        live = self.live.find(session_id)
        if live is None:
            message = f"no session {session_id!r:.80} is open; POST /api/sessions opens one"
            raise Problem(404, message, code="session_not_found")
        return live

    async def delete(self, session_id: str) -> None:
        """Stop its turn, close it, and delete its conversation; also one that is kept and not open."""
        if (index := await self._index_of_closed(session_id)) is not None:
            with suppress(SessionRefused):  # it is being opened or deleted, so there is none
                with self.live.reserved(session_id):
                    try:
                        await anyio.to_thread.run_sync(index.delete, session_id)
                    except Exception as error:  # another process has it open
                        raise problem_of(error) from error
                return
        async with self.live.closed(self.find(session_id)):
            if self._storage is not None:
                await anyio.to_thread.run_sync(self._storage.delete, session_id)

    async def _index_of_closed(self, session_id: str) -> SessionIndex | None:
        """The index, if it has this session and the session is not open."""
        if self._index is None or self.live.find(session_id) is not None:
            return None
        return self._index if await anyio.to_thread.run_sync(self._index.exists, session_id) else None

    async def stored(self) -> dict[str, list[dict[str, Any]]]:
        """What is kept, the newest first: conversations of this folder, those of others, conformance reports."""
        here = str(await anyio.to_thread.run_sync(Path.cwd))
        records = [] if self._index is None else await anyio.to_thread.run_sync(self._index.records)
        shown: dict[str, list[dict[str, Any]]] = {"stored": [], "elsewhere": []}
        for record in records:
            of_all = shown["stored" if record.directory in (None, here) else "elsewhere"]
            if record.title and len(of_all) < _MOST_LISTED:
                of_all.append(attrs.asdict(record))
        shown["reports"] = [] if self._reports is None else await anyio.to_thread.run_sync(self._reports)
        return shown

    async def messages(self, session_id: str) -> list[dict[str, Any]]:
        """The conversation of a session that is open or kept.

        Raises:
            Problem: There is none.
        """
        if (index := await self._index_of_closed(session_id)) is not None:
            return await anyio.to_thread.run_sync(index.transcript, session_id)
        context = self.find(session_id).session.coordinator.get("context")
        return [] if context is None else list(await context.get_messages())

    async def describe(
        self, session_id: str, *, status: str | None = None, title: str | None = None, prompt: str = ""
    ) -> bool:
        """Write down what listings show of a session; returns whether they can show anything."""
        index = self._index
        if index is None:
            return False

        def write() -> None:
            record = index.record(session_id)
            begun = redact_text(" ".join(prompt.split()))[:_TITLE_LENGTH] or None
            record = attrs.evolve(record, title=title or record.title or begun, status=status or record.status)
            index.write(attrs.evolve(record, updated=_now()))

        await anyio.to_thread.run_sync(write)
        return True

    def start_turn(self, live: LiveSession[_About], prompt: Prompt | None, keep: int | None = None) -> LiveTurn:
        """Begin a turn, or go on with the one that was cut off; it goes on when the request that began it is over.

        Args:
            live: Its session.
            prompt: None to go on.
            keep: How many messages of the conversation stay; None for all.

        Raises:
            Problem: It cannot begin.
        """
        try:
            turn = live.begin_turn(prompt)
        except Exception as error:
            raise problem_of(error) from error
        try:
            turn.claims.enter_context(self._agents.turns.admit(live.session))
            self.live.start_soon(self._run, live, turn, keep)
        except BaseException:
            live.end_turn(turn)
            raise
        live.log.add("turn_started", turn=turn.turn_id, prompt=_text_of(prompt))
        return turn

    async def _run(self, live: LiveSession[_About], turn: LiveTurn, keep: int | None) -> None:
        """Run a turn to its end, whatever that is; it is reported as the event ``turn_ended``."""

        async def show(event: TurnEvent, text: str) -> None:
            _log_event(live, event, text, turn.record)

        context = live.session.coordinator.get("context")
        try:
            await self.describe(live.session_id, status=RUNNING, prompt=_text_of(turn.prompt) or "")
            if keep is not None and context is not None:
                await replace_messages(context, (await context.get_messages())[:keep])
            ended = await live.run_turn(turn, show)
            if text := turn.record.rest(ended.result):
                live.log.add("text", text=text)
        except (AmplifierError, OSError) as error:  # of the store
            turn.ended = Ended(status="error", error=error)
        finally:
            turn.report = _outcome(turn.ended, turn.record)
            # Before the turn is over: a session that is being deleted waits for that.
            with anyio.CancelScope(shield=True), suppress(AmplifierError, OSError):
                await self.describe(live.session_id, status=turn.ended.status)
            live.end_turn(turn)
            live.log.add("turn_ended", turn=turn.turn_id, **turn.report)


_COMPACTION = ("tier", "before_tokens", "after_tokens", "left_out", "summary", "failure")


def _log_event(live: LiveSession[_About], event: TurnEvent, text: str, record: TurnRecord) -> None:
    log = live.log
    match event:
        case ThinkingDelta():
            log.add("thinking", text=event.text)
        case AnswerReset():
            log.add("text_reset", text=event.text)
        case ToolStarted():
            log.add("tool_started", call=event.tool_call_id, name=event.tool_name, input=event.tool_input)
        case ToolFinished():
            use, edit = record.tools[event.tool_call_id], live.about.edits.pop(event.tool_call_id)
            use.waited += live.questions.waited.pop(event.tool_call_id, 0.0)
            called = {"call": event.tool_call_id, "name": event.tool_name, "success": event.success}
            called |= {"status": ToolOutcome.read(event.name, event.data).status, "seconds": round(use.seconds, 3)}
            diff = {"diff": edit.lines[:_MOST_DIFF_LINES]} if edit is not None and event.success else {}
            log.add("tool_finished", **called, output=use.shown(LONGEST_OUTPUT), **diff)
        case _ if event.name == CONTEXT_COMPACTION:
            log.add("compaction", **{name: event.data.get(name) for name in _COMPACTION})
        case _ if text:
            log.add("text", text=text)


def _outcome(ended: Ended, record: TurnRecord) -> dict[str, Any]:
    """How a turn ended, for clients."""
    shown: dict[str, Any] = {"status": ended.status}
    if ended.status == "error" and ended.error is not None:
        problem = problem_of(ended.error)
        shown |= {"error": problem.message, "code": problem.code}
    elif ended.error is None:
        shown["result"] = ended.result
    shown |= {"model": record.model, "cost": None if record.cost is None else str(record.cost)}
    return {**shown, "usage": {"input_tokens": record.input_tokens, "output_tokens": record.output_tokens}}


def session_routes(agents: Agents, sessions: KeptSessions) -> list[Route]:
    """``/api/sessions`` and below."""
    api = _SessionApi(agents, sessions)
    one = "/api/sessions/{session_id}"
    return [
        Route("/api/sessions", api.create, methods=["POST"]),
        Route("/api/sessions", api.list_all, methods=["GET"]),
        Route(one, api.read, methods=["GET"]),
        Route(one, api.rename, methods=["PATCH"]),
        Route(one, api.delete, methods=["DELETE"]),
        Route(f"{one}/turns", api.turn, methods=["POST"]),
        Route(f"{one}/events", api.events, methods=["GET"]),
        Route(f"{one}/stop", api.stop, methods=["POST"]),
        Route(f"{one}/steer", api.steer, methods=["POST"]),
        Route(f"{one}/approvals/{{question}}", api.approve, methods=["POST"]),
    ]


def _checked_size(metadata: dict[str, Any]) -> dict[str, Any]:
    try:
        size = len(orjson.dumps(metadata))
    except TypeError:  # of JSON, only nesting can be the reason
        raise PlanError([("$", "expected fewer levels")]) from None
    if size > _MOST_METADATA:
        raise PlanError([("$", f"expected at most {_MOST_METADATA} bytes of JSON, got {size}")])
    return metadata


@attrs.frozen(kw_only=True)
class _NewSession:
    session_id: str | None = option(optional(attrs.evolve(any_text, convert=validate_session_id)), None)
    metadata: dict[str, Any] | None = option(optional(attrs.evolve(mapping, convert=_checked_size)), None)
    fork_of: str | None = option(optional(attrs.evolve(any_text, convert=validate_session_id)), None)
    keep: int | None = option(optional(whole_number(0)), None)


@attrs.frozen(kw_only=True)
class _NewTurn:
    prompt: Any = option(anything, None)
    keep: int | None = option(optional(whole_number(0)), None)
    resume: bool = option(flag, False)
    wait: Any = option(anything, False)


class _SessionApi:
    def __init__(self, agents: Agents, sessions: KeptSessions) -> None:
        self._agents = agents
        self._sessions = sessions

    def _find(self, request: Request) -> LiveSession[_About]:
        return self._sessions.find(request.path_params["session_id"])

    async def create(self, request: Request) -> Response:
        asked = read_body(_NewSession, await read_json(request, self._agents.limits))
        messages = [] if asked.fork_of is None else (await self._sessions.messages(asked.fork_of))[: asked.keep]
        live = await self._sessions.create(asked.session_id, asked.metadata)
        context = live.session.coordinator.get("context")
        if messages and context is not None:
            await replace_messages(context, messages)
            first = next((each["content"] for each in messages if each["role"] == "user"), "")
            await self._sessions.describe(live.session_id, prompt=f"{_text_of(first)} (copy)")
        made = {**_describe(live), "tools": _tools(live)}
        return JSONResponse(made, status_code=201, headers={"Location": f"/api/sessions/{live.session_id}"})

    async def list_all(self, request: Request) -> Response:
        shown = {"sessions": [_describe(live) for live in self._sessions.live.all()]}
        if "stored" in request.query_params:
            shown.update(await self._sessions.stored())
        return JSONResponse(shown)

    async def read(self, request: Request) -> Response:
        live = self._find(request)
        described = _describe(live)
        messages = await self._sessions.messages(live.session_id)
        body = orjson.dumps({**described, "tools": _tools(live), "messages": messages}, default=str)
        return Response(body, media_type="application/json")

    async def rename(self, request: Request) -> Response:
        session_id = request.path_params["session_id"]
        title = (await read_json(request, self._agents.limits)).get("title")
        if not isinstance(title, str) or not title.strip() or len(title) > 10 * _TITLE_LENGTH:
            raise Problem(400, f"title: expected a short text, got {title!r:.80}", code="invalid_request")
        await self._sessions.messages(session_id)  # refuses one that does not exist
        if not await self._sessions.describe(session_id, title=" ".join(title.split())):
            raise Problem(409, "the server keeps no titles", code="not_kept")
        return JSONResponse({"session_id": session_id, "title": " ".join(title.split())})

    async def delete(self, request: Request) -> Response:
        await self._sessions.delete(request.path_params["session_id"])
        return Response(status_code=204)

    async def turn(self, request: Request) -> Response:
        live = self._find(request)
        asked = read_body(_NewTurn, await read_json(request, self._agents.limits))
        prompt = _prompt(asked)
        if asked.wait is not True:
            started = self._sessions.start_turn(live, prompt, asked.keep)
            answer = {"turn": started.turn_id, "last_event_id": live.log.last_id}
            return JSONResponse(answer, status_code=202)

        async def work(stream: EventStream) -> Response:
            turn = self._sessions.start_turn(live, prompt, asked.keep)
            try:
                await turn.over.wait()
            finally:
                if not turn.over.is_set():  # the client has left
                    live.stop("its client has left")
            return JSONResponse({"turn": turn.turn_id, **turn.report})

        return LongResponse(work, self._agents.limits.send_seconds)

    async def events(self, request: Request) -> Response:
        live = self._find(request)
        given = request.headers.get("last-event-id") or request.query_params.get("after") or "0"
        if not given.isdecimal() or len(given) > 15:
            raise Problem(400, f"after: expected the number of an event, got {given!r:.80}", code="invalid_request")

        async def work(stream: EventStream) -> None:
            if len(live.log.readers) >= _MOST_WATCHERS:
                message = f"{_MOST_WATCHERS} clients watch this session, which is the limit"
                raise Problem(429, message, code="too_many_watchers")
            with live.log.reading(int(given)) as reader:
                await stream.write(b": connected\n\n")
                await send_all(reader, stream, b"id: %d\ndata: %s\n\n")

        return LongResponse(work, self._agents.limits.send_seconds)

    async def stop(self, request: Request) -> Response:
        return JSONResponse({"stopped": self._find(request).stop("a client stopped the turn")})

    async def steer(self, request: Request) -> Response:
        live, message = self._find(request), (await read_json(request, self._agents.limits)).get("message")
        if not isinstance(message, str) or not message.strip():
            raise Problem(400, f"message: expected text, got {message!r:.80}", code="invalid_request")
        try:
            live.session.steer(message)
        except SessionStateError as error:
            raise Problem(409, str(error), code="no_turn") from error
        return JSONResponse({"steered": True})

    async def approve(self, request: Request) -> Response:
        live, key = self._find(request), request.path_params["question"]
        option = (await read_json(request, self._agents.limits)).get("option")
        question = live.questions.find(key)
        if question is None:
            raise Problem(404, f"no question {key!r:.80} waits for an answer (any more)", code="question_not_found")
        if not isinstance(option, str) or option not in question.options:
            message = f"option: expected one of {', '.join(map(repr, question.options))}, got {option!r:.80}"
            raise Problem(400, message, code="invalid_option")
        live.questions.answer(key, option)
        return JSONResponse({"question": key, "option": option})


def _describe(live: LiveSession[_About]) -> dict[str, Any]:
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
    """What a person has written of a prompt, and the names of what is attached."""
    if prompt is None or isinstance(prompt, str):
        return prompt
    return "\n".join(str(block.get("text") or f"[{block.get('type')}]") for block in prompt if isinstance(block, dict))


def _prompt(asked: _NewTurn) -> Prompt | None:
    """The prompt of a turn; None if the one that was cut off is to go on."""
    if asked.resume and asked.prompt is None:
        return None
    if isinstance(asked.prompt, list) and asked.prompt and not asked.resume:
        return split_conversation(read_messages([{"role": "user", "content": asked.prompt}], "prompt"), "prompt")[1]
    if asked.resume or not isinstance(asked.prompt, str) or not asked.prompt.strip():
        expected = "expected none with resume" if asked.resume else "expected a text"
        raise Problem(400, f"prompt: {expected}, got {asked.prompt!r:.80}", code="invalid_request")
    return asked.prompt
