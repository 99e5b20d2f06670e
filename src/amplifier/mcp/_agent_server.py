"""The MCP server of an agent: the tool ``run``, and conversations as resources.

Clients of both forms of the protocol are served. Up to version 2025-11-25 a client has a connection, on which it is asked while its
call runs. From 2026-07-28 on every request stands alone: a question ends the request, and the client repeats it with the answer;
the turn goes on between the two.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

import anyio
from mcp.server import Server, ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    InputRequiredResult,
    ListResourcesResult,
    ListToolsResult,
    PaginatedRequestParams,
    ReadResourceRequestParams,
    ReadResourceResult,
    Resource,
    TextContent,
    TextResourceContents,
    Tool,
    ToolAnnotations,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from amplifier._json import redact_text
from amplifier.errors import ExecutionCancelled
from amplifier.kernel import AmplifierSession

from ._sessions import Question, ServedSession, ServedSessions, Turn

logger = logging.getLogger("amplifier.mcp")

_ANSWER = "permission"
_STOPPING = 10.0
"""Seconds that a cancelled call waits for its turn to end."""
_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "prompt": {"type": "string", "minLength": 1, "description": "What the agent is to do."},
        "session": {
            "type": "string",
            "description": "The session_id of an earlier result, to go on with that conversation.",
        },
    },
    "required": ["prompt"],
    "additionalProperties": False,
}
_OUTPUT: dict[str, Any] = {
    "type": "object",
    "properties": {"response": {"type": "string"}, "session_id": {"type": "string"}},
    "required": ["response", "session_id"],
}

_Context = ServerRequestContext[Any]


@asynccontextmanager
async def open_agent_server(
    factory: Callable[[], AmplifierSession], name: str, max_sessions: int, transport: str
) -> AsyncIterator[Server[Any]]:
    """The server; its sessions are closed when this is left."""
    async with anyio.create_task_group() as group:
        sessions = ServedSessions(factory, group, max_sessions)
        agent = AgentServer(sessions, is_shared=transport == "http")
        try:
            yield Server(
                name,
                version=version("amplifier"),
                instructions="An agent: call run with what it is to do.",
                on_list_tools=agent.list_tools,
                on_call_tool=agent.call_tool,
                on_list_resources=agent.list_resources,
                on_read_resource=agent.read_resource,
            )
        finally:
            with anyio.CancelScope(shield=True):
                await sessions.close()


class AgentServer:
    """The handlers of the server.

    Args:
        sessions: Of its clients.
        is_shared: Several clients reach the server.
    """

    def __init__(self, sessions: ServedSessions, *, is_shared: bool) -> None:
        self._sessions = sessions
        self._is_shared = is_shared
        self._waiting: dict[str, tuple[ServedSession, Turn]] = {}

    async def list_tools(self, context: _Context, params: PaginatedRequestParams | None) -> ListToolsResult:
        """The tool ``run``."""
        tool = Tool(
            name="run",
            title="Run the agent",
            description="Have the agent do something, and return its answer. Progress is reported; cancelling stops it.",
            input_schema=_SCHEMA,
            output_schema=_OUTPUT,
            annotations=ToolAnnotations(read_only_hint=False, open_world_hint=True),
        )
        return ListToolsResult(tools=[tool])

    async def call_tool(self, context: _Context, params: CallToolRequestParams) -> CallToolResult | InputRequiredResult:
        """Run a turn, or go on with one whose question is answered now."""
        if params.name != "run":
            raise MCPError(INVALID_PARAMS, f"there is no tool {params.name!r}; the only one is 'run'")
        if params.request_state is not None:
            served, turn = self._resumed(params)
            return await self._follow(context, served, turn)
        given = params.arguments or {}
        prompt, session_id = given.get("prompt"), given.get("session")
        if not isinstance(prompt, str) or not prompt.strip():
            return _failed("prompt: expected a non-empty text")
        try:
            served = await self._session(context, session_id)
        except MCPError:
            raise
        except Exception as error:  # noqa: BLE001 - the plan's modules are foreign code
            return _failed(f"the agent cannot be started: {type(error).__name__}: {error}")
        if served.turn is not None:
            return _failed("the agent is busy with another prompt of this conversation; wait for it, or cancel it")
        return await self._follow(context, served, served.begin(prompt))

    # ── sessions ──

    def _owner(self, context: _Context) -> str | None:
        """The client, as far as the transport knows it."""
        if not self._is_shared:
            return "stdio"
        session_id = None if context.request is None else context.request.headers.get("mcp-session-id")
        return None if session_id is None else str(session_id)

    async def _session(self, context: _Context, session_id: Any) -> ServedSession:
        owner = self._owner(context)
        if session_id is None:
            return await self._sessions.open(owner)
        found = self._sessions.by_id(str(session_id), owner)
        if found is None:
            raise MCPError(
                INVALID_PARAMS, f"there is no session {str(session_id)[:80]!r}; leave session out to begin one"
            )
        return found

    # ── one turn ──

    async def _follow(
        self, context: _Context, served: ServedSession, turn: Turn
    ) -> CallToolResult | InputRequiredResult:
        """Report the progress of a turn until it is over or asks; a cancelled request stops it."""
        try:
            while not turn.is_over:
                changed = turn.changed
                while turn.reported < len(turn.steps):
                    turn.reported += 1
                    await context.session.report_progress(turn.reported, None, turn.steps[turn.reported - 1])
                question = turn.question
                if question is None or question.answered.is_set():
                    if not turn.is_over:
                        await changed.wait()
                elif not _can_ask(context):
                    logger.warning("the client cannot ask its user for permission: denied")
                    question.give("Deny")
                elif context.protocol_version in MODERN_PROTOCOL_VERSIONS:
                    return self._ask_later(served, turn, question)
                else:
                    await self._ask_now(context, question)
        except anyio.get_cancelled_exc_class():
            served.stop()
            with anyio.move_on_after(_STOPPING, shield=True):
                while not turn.is_over:
                    await turn.changed.wait()
            raise
        return _result(served, turn)

    async def _ask_now(self, context: _Context, question: Question) -> None:
        params = _form(question)
        answer = await context.session.elicit_form(params.message, params.requested_schema, context.request_id)
        question.give(_choice(answer, question))

    def _ask_later(self, served: ServedSession, turn: Turn, question: Question) -> InputRequiredResult:
        state = served.session.session_id
        self._waiting[state] = (served, turn)
        return InputRequiredResult(input_requests={_ANSWER: ElicitRequest(params=_form(question))}, request_state=state)

    def _resumed(self, params: CallToolRequestParams) -> tuple[ServedSession, Turn]:
        found = self._waiting.pop(params.request_state or "", None)
        if found is None:
            raise MCPError(INVALID_PARAMS, "no turn waits for this answer any more")
        served, turn = found
        if turn.question is not None and not turn.question.answered.is_set():
            answer = (params.input_responses or {}).get(_ANSWER)
            turn.question.give(_choice(answer, turn.question))
        return served, turn

    # ── conversations ──

    async def list_resources(self, context: _Context, params: PaginatedRequestParams | None) -> ListResourcesResult:
        """The conversations of this client."""
        return ListResourcesResult(
            resources=[
                Resource(
                    uri=_address(served),
                    name=f"transcript of {served.session.session_id}",
                    mime_type="application/json",
                )
                for served in self._sessions.of_owner(self._owner(context))
            ]
        )

    async def read_resource(self, context: _Context, params: ReadResourceRequestParams) -> ReadResourceResult:
        """One conversation as JSON."""
        uri = str(params.uri)
        session_id = uri.removeprefix("amplifier://sessions/").removesuffix("/transcript")
        served = self._sessions.by_id(session_id, self._owner(context))
        if served is None or _address(served) != uri:
            raise MCPError(INVALID_PARAMS, f"there is no resource {uri[:200]!r}")
        conversation = served.session.coordinator.get("context")
        messages = [] if conversation is None else await conversation.get_messages()
        text = json.dumps(messages, ensure_ascii=False, default=str)
        return ReadResourceResult(contents=[TextResourceContents(uri=uri, mime_type="application/json", text=text)])


def _address(served: ServedSession) -> str:
    return f"amplifier://sessions/{served.session.session_id}/transcript"


def _can_ask(context: _Context) -> bool:
    capabilities = context.session.client_capabilities
    return capabilities is not None and capabilities.elicitation is not None


def _form(question: Question) -> ElicitRequestFormParams:
    choice = {"type": "string", "title": "Decision", "enum": question.options}
    schema = {"type": "object", "properties": {"decision": choice}, "required": ["decision"]}
    return ElicitRequestFormParams(message=question.prompt, requested_schema=schema)


def _choice(answer: Any, question: Question) -> str:
    """What the user chose; everything but a choice on offer denies."""
    if not isinstance(answer, ElicitResult) or answer.action != "accept":
        return "Deny"
    decision = (answer.content or {}).get("decision")
    return decision if isinstance(decision, str) and decision in question.options else "Deny"


def _result(served: ServedSession, turn: Turn) -> CallToolResult:
    if turn.error is not None:
        if isinstance(turn.error, ExecutionCancelled):
            return _failed("the turn was stopped")
        return _failed(redact_text(f"the turn failed: {type(turn.error).__name__}: {turn.error}"))
    response = turn.response or ""
    return CallToolResult(
        content=[TextContent(type="text", text=response)],
        structured_content={"response": response, "session_id": served.session.session_id},
    )


def _failed(message: str) -> CallToolResult:
    return CallToolResult(content=[TextContent(type="text", text=message)], is_error=True)
