"""The methods of the Agent Client Protocol, version 1."""

from __future__ import annotations

import importlib.metadata
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.to_thread
import attrs
from anyio.abc import TaskGroup

from amplifier._json import redact_text
from amplifier._live_session import LiveSession
from amplifier.errors import ExecutionCancelled, SessionBusyError

from ._connection import ByteStream, Connection, Work
from ._host import SessionHost
from ._messages import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    SESSION_NOT_FOUND,
    Call,
    RpcError,
)
from ._params import mcp_servers, prompt_text, session_id, working_directory
from ._permission import EditorApprovals
from ._updates import Updates

__all__ = ["serve"]

logger: logging.Logger = logging.getLogger("amplifier.acp")

PROTOCOL_VERSION: Final = 1

_LAST = 2**31 + 1  # after the handler of the stream of events, which is what shows a call
_PAGE = 50
"""Sessions in one answer to ``session/list``."""


async def serve(stream: ByteStream, host: SessionHost) -> OSError | None:
    """Serve one client until it closes the connection; every turn has unwound and every session is closed at the return.

    Args:
        stream: The bytes from and to the client.
        host: Makes the sessions.

    Returns:
        What went wrong with writing, if the client stopped reading before it closed the connection.
    """
    connection = Connection(stream)
    async with connection.writing(), _open_agent(connection, host) as agent:
        await connection.read(agent.begin)
    return connection.lost


@asynccontextmanager
async def _open_agent(connection: Connection, host: SessionHost) -> AsyncIterator[_Agent]:
    async with anyio.create_task_group() as group:
        yield _Agent(connection, host, group)
        group.cancel_scope.cancel()


@attrs.frozen
class _Open:
    """An open session.

    Attributes:
        notes: What the user should know, shown with the first turn.
    """

    live: LiveSession
    updates: Updates
    notes: list[str]


class _Agent:
    """The agent's side of a connection.

    Args:
        connection: The client.
        host: Makes sessions.
        group: Holds them; its tasks end after those of the requests.
    """

    def __init__(self, connection: Connection, host: SessionHost, group: TaskGroup) -> None:
        self._connection = connection
        self._host = host
        self._group = group
        self._is_initialized = False
        self._sessions: dict[str, _Open] = {}
        self._opening: set[str] = set()
        self._methods: dict[str, Callable[[dict[str, Any]], Work]] = {
            "initialize": self._initialize,
            "session/new": self._new,
            "session/load": lambda params: self._reopen(params, replay=True),
            "session/resume": lambda params: self._reopen(params, replay=False),
            "session/list": self._list,
            "session/prompt": self._prompt,
            "session/close": self._close,
        }

    def begin(self, call: Call) -> Work | None:
        """Begin a request, or handle a notification.

        Raises:
            RpcError: It cannot begin.
        """
        if not call.is_request:
            if call.method == "session/cancel":
                self._cancel(call.params)
            return None  # an unknown notification is ignored, as JSON-RPC has it
        method = self._methods.get(call.method)
        if method is None:
            known = ", ".join(self._methods)
            raise RpcError(METHOD_NOT_FOUND, f"unknown method {call.method!r:.80}; there are: {known}")
        if not self._is_initialized and call.method != "initialize":
            raise RpcError(INVALID_REQUEST, f"{call.method} came before initialize, which has to be the first request")
        return method(call.params)

    # ── the connection ──

    def _initialize(self, params: dict[str, Any]) -> Work:
        version = params.get("protocolVersion")
        if isinstance(version, bool) or not isinstance(version, int):
            raise RpcError(INVALID_PARAMS, f"protocolVersion: expected a whole number, got {version!r:.80}")
        self._is_initialized = True

        async def work() -> dict[str, Any]:
            return {
                "protocolVersion": PROTOCOL_VERSION,  # a client that does not know it closes the connection
                "agentInfo": {"name": "amplifier", "version": importlib.metadata.version("amplifier")},
                "agentCapabilities": {
                    "loadSession": True,
                    "promptCapabilities": {"image": False, "audio": False, "embeddedContext": True},
                    "mcpCapabilities": {"http": self._host.has_mcp, "sse": False},
                    "sessionCapabilities": {"list": {}, "resume": {}, "close": {}},
                },
                "authMethods": [],
            }

        return work

    # ── sessions ──

    def _new(self, params: dict[str, Any]) -> Work:
        directory, servers = working_directory(params), mcp_servers(params)

        async def work() -> dict[str, Any]:
            wanted = self._host.new_id()
            await self._open(wanted, directory, servers, is_resumed=False)
            return {"sessionId": wanted}

        return work

    def _reopen(self, params: dict[str, Any], *, replay: bool) -> Work:
        wanted, directory, servers = session_id(params), working_directory(params), mcp_servers(params)
        if wanted in self._sessions or wanted in self._opening:
            raise RpcError(INVALID_REQUEST, f"session {wanted!r} is open already; prompt it, or close it first")
        self._opening.add(wanted)

        async def work() -> dict[str, Any]:
            try:
                stored = await anyio.to_thread.run_sync(self._host.stored)
                if wanted not in {each.session_id for each in stored}:
                    raise RpcError(
                        SESSION_NOT_FOUND, f"no session {wanted!r} is stored; session/list names those that are"
                    )
                opened = await self._open(wanted, directory, servers, is_resumed=True)
            finally:
                self._opening.discard(wanted)
            if replay:
                context = opened.live.session.coordinator.get("context")
                await opened.updates.replay([] if context is None else await context.get_messages())
            return {}

        return work

    async def _open(
        self, wanted: str, directory: Path, servers: dict[str, dict[str, Any]], *, is_resumed: bool
    ) -> _Open:
        notes: list[str] = []
        if servers and not self._host.has_mcp:
            names = ", ".join(servers)
            notes.append(
                f"The editor's MCP servers ({names}) are not available here: the module tool-mcp is not installed. "
                "Install it with: pip install 'amplifier[mcp]'"
            )
            logger.warning("%s", notes[0])
            servers = {}
        updates = Updates(self._connection, wanted, directory)
        approvals = EditorApprovals(self._connection, updates, wanted)
        try:
            live = LiveSession(self._host.make(wanted, directory, servers, approvals, is_resumed=is_resumed))
            await self._group.start(live.run)
            live.session.coordinator.hooks.register(
                "tool:pre", updates.hold_writing, _LAST, name="acp-diff", fields=("tool_name", "tool_call_id")
            )
            try:
                self._host.check(live.session)
            except BaseException:
                with anyio.CancelScope(shield=True):  # bounded by the session's own deadlines
                    await live.close()
                raise
        except Exception as error:  # third-party modules; the reason is for the person at the editor
            logger.debug("session %r cannot be opened", wanted, exc_info=True)
            raise RpcError(INTERNAL_ERROR, f"the session cannot be opened: {_reason(error)}") from error
        opened = self._sessions[wanted] = _Open(live, updates, notes)
        return opened

    def _list(self, params: dict[str, Any]) -> Work:
        cursor, directory = params.get("cursor"), params.get("cwd")
        if cursor is not None and not (isinstance(cursor, str) and cursor.isdecimal() and len(cursor) < 10):
            raise RpcError(INVALID_PARAMS, f"cursor: expected the nextCursor of an earlier answer, got {cursor!r:.80}")
        if directory is not None and not isinstance(directory, str):
            raise RpcError(INVALID_PARAMS, f"cwd: expected a text, got {directory!r:.80}")
        start = int(cursor or 0)

        async def work() -> dict[str, Any]:
            stored = await anyio.to_thread.run_sync(self._host.stored)
            found = [each for each in stored if directory is None or each.directory == directory]
            sessions = [
                {"sessionId": each.session_id, "cwd": each.directory, "title": each.title, "updatedAt": each.updated}
                for each in found[start : start + _PAGE]
            ]
            more = {"nextCursor": str(start + _PAGE)} if len(found) > start + _PAGE else {}
            return {"sessions": sessions, **more}

        return work

    def _close(self, params: dict[str, Any]) -> Work:
        opened = self._find(params)
        del self._sessions[opened.live.session.session_id]

        async def work() -> dict[str, Any]:
            await opened.live.close()
            return {}

        return work

    def _find(self, params: dict[str, Any]) -> _Open:
        wanted = session_id(params)
        opened = self._sessions.get(wanted)
        if opened is None:
            advice = "begin one with session/new, or open a stored one with session/load"
            raise RpcError(SESSION_NOT_FOUND, f"no session {wanted!r} is open on this connection; {advice}")
        return opened

    # ── turns ──

    def _prompt(self, params: dict[str, Any]) -> Work:
        opened, text = self._find(params), prompt_text(params)
        try:
            opened.live.claim()  # now, so that a cancel that follows finds the turn
        except SessionBusyError as error:
            raise RpcError(INVALID_REQUEST, f"{error}; session/cancel stops it") from error

        async def work() -> dict[str, Any]:
            try:
                return await self._run_turn(opened, text)
            finally:
                opened.live.release()

        return work

    async def _run_turn(self, opened: _Open, text: str) -> dict[str, Any]:
        session, updates = opened.live.session, opened.updates
        while opened.notes:
            await updates.text(f"{opened.notes.pop()}\n\n")
        updates.begin_turn()
        self._host.turn_begins(session.session_id, text)
        status = "cancelled"
        try:
            async with session.stream(text) as events:
                async for event in events:
                    await updates.show(event)
            await updates.end_turn(events.result)
            status = "cancelled" if session.status.status == "cancelled" else "success"
        except ExecutionCancelled:
            if not opened.live.was_stopped:
                raise
        except Exception as error:  # a turn runs third-party code
            status = "error"
            logger.debug("a turn of session %r failed", session.session_id, exc_info=True)
            raise RpcError(INTERNAL_ERROR, _reason(error)) from error
        finally:
            self._host.turn_ended(session.session_id, status)
        return {"stopReason": "end_turn" if status == "success" else "cancelled", "usage": updates.usage}

    def _cancel(self, params: dict[str, Any]) -> None:
        self._find(params).live.stop("the client cancelled the turn")


def _reason(error: BaseException) -> str:
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(dict.fromkeys(_reason(inner) for inner in error.exceptions))
    return redact_text(str(error) or type(error).__name__)
