"""The MCP server of an agent: the tool ``run``, conversations as resources, commands as prompts."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

import anyio
import attrs
import mcp_types as types
import orjson
from mcp.server import Server, ServerRequestContext
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import principal_components
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from amplifier._internal.json import redact_text
from amplifier._internal.message_lines import LineSplitter
from amplifier._internal.reading import any_text, option, record, text
from amplifier.errors import PlanError, SessionBusyError
from amplifier.events import PROVIDER_REQUEST
from amplifier.kernel import AmplifierSession
from amplifier.models import ToolStarted, TurnEvent
from amplifier.shared_sessions import (
    EventLog,
    LiveSession,
    LiveSessions,
    LiveTurn,
    Question,
    SessionRefused,
    questions_on,
)
from amplifier.shared_sessions.questions import DENY

from ..acp import StandardStreams, taken_standard_streams
from ..sessions import expanded, summary

logger = logging.getLogger("amplifier.servers.mcp")

_ANSWER = "permission"
_ARGUMENTS = "arguments"
_SESSION_ID = "session_id"
_TEMPLATE = f"amplifier://sessions/{{{_SESSION_ID}}}/transcript"
"""The addresses of conversations, as a URI template."""
_MAX_COMPLETIONS = 100
"""Maximum number of completions in one answer. The protocol sets this limit."""
_STOP_SECONDS = 10.0
"""Seconds for which a cancelled call waits until its turn has ended."""
_OUTPUT: dict[str, Any] = {
    "type": "object",
    "properties": {"response": {"type": "string"}, "session_id": {"type": "string"}},
    "required": ["response", "session_id"],
}

_prompt = attrs.evolve(text, schema={"type": "string", "minLength": 1})
_session_id = attrs.evolve(any_text, expected="the session_id of an earlier result")


@attrs.frozen(kw_only=True)
class _Arguments:
    prompt: str = option(_prompt, doc="What the agent is to do.")
    session: str = option(
        _session_id, "", "The session_id of an earlier result, to go on with that conversation."
    )


_arguments = record(_Arguments)
_Context = ServerRequestContext[Any]
_Session = LiveSession[str | None]
"""A session and its owner. The owner is None if clients can't be distinguished."""


@asynccontextmanager
async def open_agent_server(
    factory: Callable[[], AmplifierSession],
    name: str,
    max_sessions: int,
    transport: str,
    prompts: Mapping[str, str],
) -> AsyncIterator[Server[Any]]:
    """Open the server. Close its sessions when the block exits."""
    sessions: LiveSessions[str | None] = LiveSessions()
    async with sessions.running():
        agent = AgentServer(
            sessions=sessions,
            factory=factory,
            limit=max_sessions,
            prompts=prompts,
            is_shared=transport == "http",
        )
        try:
            yield Server(
                name,
                version=version("amplifier"),
                instructions="An agent: call run with what it is to do.",
                on_list_tools=agent.list_tools,
                on_call_tool=agent.call_tool,
                on_list_resources=agent.list_resources,
                on_list_resource_templates=agent.list_resource_templates,
                on_read_resource=agent.read_resource,
                on_list_prompts=agent.list_prompts if prompts else None,
                on_get_prompt=agent.get_prompt if prompts else None,
                on_completion=agent.complete,
            )
        finally:
            with anyio.CancelScope(shield=True):
                await sessions.close_all()


@attrs.define(eq=False)
class _Followed:
    """A turn that a client follows.

    Attributes:
        live: The session.
        turn: The turn.
        position: The number of the latest entry of the session's log that the client has received.
        steps: The number of steps that were reported.
        asked: The question that ended a request, or None.
    """

    live: _Session
    turn: LiveTurn
    position: int
    steps: int = 0
    asked: Question | None = None


# The server supports both forms of the protocol. Up to version 2025-11-25, a client has a
# connection, which carries questions while its call runs. From 2026-07-28 on, every request stands
# alone. A question ends the request, and the client repeats the request with the answer. The turn
# continues in between.


@attrs.frozen(eq=False, kw_only=True)
class AgentServer:
    """The handlers of the server.

    Attributes:
        sessions: The open sessions.
        factory: Makes a session.
        limit: The maximum number of open sessions. The session that has been idle longest makes
            room.
        prompts: The texts of prompts by name.
        is_shared: True if several clients reach the server.
    """

    _sessions: LiveSessions[str | None]
    _factory: Callable[[], AmplifierSession]
    _limit: int
    _prompts: Mapping[str, str]
    _is_shared: bool
    _opening: anyio.Lock = attrs.field(factory=anyio.Lock, init=False)
    _waiting: dict[str, _Followed] = attrs.field(factory=dict, init=False)

    async def list_tools(
        self, context: _Context, params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        """Return the tool ``run``."""
        tool = types.Tool(
            name="run",
            title="Run the agent",
            description=(
                "Have the agent do something, and return its answer. Progress is reported; "
                "cancelling stops it."
            ),
            input_schema=dict(_arguments.schema),
            output_schema=_OUTPUT,
            annotations=types.ToolAnnotations(read_only_hint=False, open_world_hint=True),
        )
        return types.ListToolsResult(tools=[tool])

    async def call_tool(
        self, context: _Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult:
        """Run a turn, or continue one with the answer to its question."""
        if params.name != "run":
            raise MCPError(
                types.INVALID_PARAMS, f"there is no tool {params.name!r}; the only one is 'run'"
            )
        if params.request_state is not None:
            return await self._follow(context, self._resumed(context, params))
        try:
            arguments: _Arguments = _arguments.read(params.arguments or {})
        except PlanError as error:
            return _failed(
                "; ".join(
                    f"{path.removeprefix('$.')}: {problem}" for path, problem in error.problems
                )
            )
        try:
            live = await self._session(context, arguments.session)
        except MCPError:
            raise
        except Exception as error:  # noqa: BLE001 - the plan's modules are foreign code
            return _failed(f"the agent cannot be started: {type(error).__name__}: {error}")
        try:
            followed = _Followed(live, live.begin_turn(arguments.prompt), live.log.last_id)
        except SessionBusyError:
            return _failed(
                "the agent is busy with another prompt of this conversation; wait for it, or "
                "cancel it"
            )
        self._sessions.start_soon(_run, live, followed.turn)
        return await self._follow(context, followed)

    # ── sessions ──

    def _connection(self, context: _Context) -> str | None:
        """Return the id of a client's connection, or None if the transport has none."""
        if not self._is_shared:
            return "stdio"
        session_id = (
            None if context.request is None else context.request.headers.get("mcp-session-id")
        )
        return None if session_id is None else str(session_id)

    def _owner(self, context: _Context) -> str | None:
        """Identify the client by its connection and by its user's token, if it has them."""
        token = get_access_token()
        user = () if token is None else principal_components(token)
        parts = [str(part) for part in (*user, self._connection(context)) if part is not None]
        return " ".join(parts) or None

    def _of_owner(self, owner: str | None) -> list[_Session]:
        return (
            [] if owner is None else [live for live in self._sessions.all() if live.about == owner]
        )

    def _find(self, session_id: str, owner: str | None) -> _Session | None:
        """Return a session by its id, if it may belong to the client."""
        live = self._sessions.find(session_id)
        return live if live is not None and live.about == owner else None

    async def _session(self, context: _Context, session_id: str) -> _Session:
        owner = self._owner(context)
        if session_id:
            live = self._find(session_id, owner)
            if live is None:
                problem = f"there is no session {session_id[:80]!r}; leave session out to begin one"
                raise MCPError(types.INVALID_PARAMS, problem)
            return live
        async with self._opening:
            if self._connection(context) is not None and (held := self._of_owner(owner)):
                return held[0]
            await self._make_room()
            session, log = self._factory(), EventLog()
            questions = questions_on(log)
            if session.coordinator.approval_system is None:
                session.coordinator.approval_system = questions
            with self._sessions.reserved(session.session_id):
                live = LiveSession(session, owner, log=log, questions=questions)
                return await self._sessions.add(live, lambda session: None)

    async def _make_room(self) -> None:
        while len(self._sessions) >= self._limit:
            idle = [live for live in self._sessions.all() if not live.is_busy]
            if not idle:
                raise SessionRefused(
                    "too_many_sessions", f"{self._limit} sessions are at work; try again later"
                )
            async with self._sessions.without(min(idle, key=lambda live: live.used_at).session_id):
                pass

    # ── one turn ──

    async def _follow(
        self, context: _Context, followed: _Followed
    ) -> types.CallToolResult | types.InputRequiredResult:
        """Report a turn until it ends or asks. If the request is cancelled, stop the turn."""
        live, turn = followed.live, followed.turn
        try:
            while True:
                await live.log.wait_after(followed.position)
                for number, data in live.log.after(followed.position):
                    followed.position = number
                    entry = orjson.loads(data)
                    if entry["type"] == "step":
                        followed.steps += 1
                        await context.session.report_progress(followed.steps, None, entry["text"])
                    elif entry["type"] == "approval_required":
                        question = live.questions.find(entry["question"])
                        if (
                            question is not None
                            and (later := await self._ask(context, followed, question)) is not None
                        ):
                            return later
                    elif entry["type"] in ("turn_ended", "session_closed"):
                        return _result(live, turn)
        except anyio.get_cancelled_exc_class():
            live.stop("the client cancelled the call")
            with anyio.move_on_after(_STOP_SECONDS, shield=True):
                await turn.over.wait()
            raise

    async def _ask(
        self, context: _Context, followed: _Followed, question: Question
    ) -> types.InputRequiredResult | None:
        """Ask the client. Return the question if it ends the request."""
        live, form = followed.live, _form(question)
        capabilities = context.session.client_capabilities
        if capabilities is None or capabilities.elicitation is None:
            logger.warning("the client cannot ask its user for permission: denied")
            live.questions.answer(question.question_id, DENY)
        elif context.protocol_version in MODERN_PROTOCOL_VERSIONS:
            followed.asked = question
            self._waiting[live.session_id] = followed
            return types.InputRequiredResult(
                input_requests={_ANSWER: types.ElicitRequest(params=form)},
                request_state=live.session_id,
            )
        else:
            answer = await context.session.elicit_form(
                form.message, form.requested_schema, context.request_id
            )
            live.questions.answer(question.question_id, _choice(answer, question))
        return None

    def _resumed(self, context: _Context, params: types.CallToolRequestParams) -> _Followed:
        followed = self._waiting.get(params.request_state or "")
        if followed is None or followed.live.about != self._owner(context):
            raise MCPError(types.INVALID_PARAMS, "no turn is waiting for this answer")
        del self._waiting[followed.live.session_id]
        if (question := followed.asked) is not None:
            answer = (params.input_responses or {}).get(_ANSWER)
            followed.live.questions.answer(question.question_id, _choice(answer, question))
        return followed

    # ── conversations ──

    async def list_resources(
        self, context: _Context, params: types.PaginatedRequestParams | None
    ) -> types.ListResourcesResult:
        """Return the conversations of this client."""
        return types.ListResourcesResult(
            resources=[
                types.Resource(
                    uri=_address(live),
                    name=f"transcript of {live.session_id}",
                    mime_type="application/json",
                )
                for live in self._of_owner(self._owner(context))
            ]
        )

    async def list_resource_templates(
        self, context: _Context, params: types.PaginatedRequestParams | None
    ) -> types.ListResourceTemplatesResult:
        """Return the template for the addresses of conversations."""
        template = types.ResourceTemplate(
            uri_template=_TEMPLATE,
            name="transcript",
            description="The messages of a conversation, by the session_id of an earlier result.",
            mime_type="application/json",
        )
        return types.ListResourceTemplatesResult(resource_templates=[template])

    async def read_resource(
        self, context: _Context, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        """Return one conversation as JSON."""
        uri = str(params.uri)
        session_id = uri.removeprefix("amplifier://sessions/").removesuffix("/transcript")
        live = self._find(session_id, self._owner(context))
        if live is None or _address(live) != uri:
            raise MCPError(
                types.INVALID_PARAMS, f"there is no resource {uri[:200]!r}", {"uri": uri[:200]}
            )
        text = json.dumps(await live.session.messages(), ensure_ascii=False, default=str)
        return types.ReadResourceResult(
            contents=[types.TextResourceContents(uri=uri, mime_type="application/json", text=text)]
        )

    # ── prompts ──

    async def list_prompts(
        self, context: _Context, params: types.PaginatedRequestParams | None
    ) -> types.ListPromptsResult:
        """Return the prompts, each with its arguments as one text."""
        argument = types.PromptArgument(name=_ARGUMENTS, required=False)
        return types.ListPromptsResult(
            prompts=[
                types.Prompt(name=name, description=summary(text), arguments=[argument])
                for name, text in self._prompts.items()
            ]
        )

    async def get_prompt(
        self, context: _Context, params: types.GetPromptRequestParams
    ) -> types.GetPromptResult:
        """Return the text of a prompt."""
        text, arguments = self._prompts.get(params.name), params.arguments or {}
        if text is None or arguments.keys() - {_ARGUMENTS}:
            known = f"there are {', '.join(self._prompts)}, with the argument {_ARGUMENTS!r}"
            raise MCPError(
                types.INVALID_PARAMS,
                f"no prompt {params.name[:80]!r} with these arguments; {known}",
            )
        content = types.TextContent(type="text", text=expanded(text, arguments.get(_ARGUMENTS, "")))
        return types.GetPromptResult(
            description=summary(text),
            messages=[types.PromptMessage(role="user", content=content)],
        )

    # ── completion ──

    async def complete(
        self, context: _Context, params: types.CompleteRequestParams
    ) -> types.CompleteResult:
        """Complete the id of a conversation of this client. The arguments of prompts are free text.

        Raises:
            MCPError: There is no such prompt or template.
        """
        reference, argument = params.ref, params.argument
        values: list[str] = []
        if isinstance(reference, types.PromptReference):
            if reference.name not in self._prompts:
                raise MCPError(types.INVALID_PARAMS, f"there is no prompt {reference.name[:80]!r}")
        elif reference.uri != _TEMPLATE:
            raise MCPError(types.INVALID_PARAMS, f"there is no template {reference.uri[:200]!r}")
        elif argument.name == _SESSION_ID:
            ids = [live.session_id for live in self._of_owner(self._owner(context))]
            values = [session_id for session_id in ids if session_id.startswith(argument.value)]
        shown = values[:_MAX_COMPLETIONS]
        completion = types.Completion(
            values=shown, total=len(values), has_more=len(values) > len(shown)
        )
        return types.CompleteResult(completion=completion)


async def _run(live: _Session, turn: LiveTurn) -> None:
    """Run a turn, and write its steps and its end to the session's log."""

    async def show(event: TurnEvent, text: str) -> None:
        if isinstance(event, ToolStarted):
            live.log.add("step", text=f"tool {event.tool_name}")
        elif event.name == PROVIDER_REQUEST:
            live.log.add("step", text="asking the model")

    try:
        await live.run_turn(turn, show)
    finally:
        live.end_turn(turn)
        live.log.add("turn_ended")


def _address(live: _Session) -> str:
    return _TEMPLATE.replace(f"{{{_SESSION_ID}}}", live.session_id)


def _form(question: Question) -> types.ElicitRequestFormParams:
    choice = {"type": "string", "title": "Decision", "enum": list(question.options)}
    schema = {"type": "object", "properties": {"decision": choice}, "required": ["decision"]}
    return types.ElicitRequestFormParams(message=question.prompt, requested_schema=schema)


def _choice(answer: Any, question: Question) -> str:
    """Return the user's choice. Everything except an offered option counts as a denial."""
    if not isinstance(answer, types.ElicitResult) or answer.action != "accept":
        return DENY
    decision = (answer.content or {}).get("decision")
    return decision if isinstance(decision, str) and decision in question.options else DENY


def _result(live: _Session, turn: LiveTurn) -> types.CallToolResult:
    ended = turn.ended
    if ended.status == "error":
        return _failed(redact_text(f"the turn failed: {type(ended.error).__name__}: {ended.error}"))
    if ended.result is None:
        return _failed("the turn was stopped")
    return types.CallToolResult(
        content=[
            types.TextContent(type="text", text=ended.result),
            # This is for models that receive only the text.
            types.TextContent(type="text", text=f"(session: {live.session_id})"),
        ],
        structured_content={"response": ended.result, "session_id": live.session_id},
    )


def _failed(message: str) -> types.CallToolResult:
    return types.CallToolResult(
        content=[types.TextContent(type="text", text=message)], is_error=True
    )


# ── stdio ──

_MAX_BYTES = 64 * 1024 * 1024
_LAST_ANSWERS_SECONDS = 2.0
"""Seconds for writing the last answers to a client that keeps its end of the stream open."""


@attrs.frozen
class _Lines:
    """Streams in place of the SDK's files, because the thread that reads files can't be stopped."""

    streams: StandardStreams

    async def __aiter__(self) -> AsyncIterator[bytes]:
        lines = LineSplitter(_MAX_BYTES)
        while chunk := await self.streams.receive():
            for line in lines.feed(chunk):
                if line.strip():
                    yield line

    async def write(self, text: str) -> None:
        try:
            await self.streams.send(text.encode())
        except OSError:  # the client has gone
            raise anyio.ClosedResourceError from None

    async def flush(self) -> None:
        """Do nothing, since everything is already written."""


@asynccontextmanager
async def open_standard_streams() -> AsyncIterator[tuple[Any, Any]]:
    """Open message streams over stdio until the client closes its end."""
    with taken_standard_streams() as streams, anyio.CancelScope() as scope:
        lines: Any = _Lines(streams)
        async with stdio_server(lines, lines) as opened:
            yield opened
            scope.deadline = anyio.current_time() + _LAST_ANSWERS_SECONDS
