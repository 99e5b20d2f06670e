"""The connection to one server. After a loss, the next call opens it again."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self, TypeVar

import anyio
import attrs
import httpx2
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp import Client, MCPError
from mcp.client.session import IncomingMessage
from mcp.client.subscriptions import SubscriptionLost
from mcp.shared.message import SessionMessage
from mcp_types import (
    CONNECTION_CLOSED,
    Implementation,
    JSONRPCResponse,
    LoggingMessageNotificationParams,
    Tool,
    ToolListChangedNotification,
)
from mcp_types.methods import validate_server_result
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from amplifier._internal.json import SchemaRefused, build_validator
from amplifier.contracts import Coordinator

from ..._shared.failure import ToolFailure, shown
from ..._shared.session import working_directory
from ..._shared.worker_threads import Stop, Workers
from ._options import ServerOptions
from ._requests_from_server import RequestsFromServer
from ._transports import HttpTransport, StdioTransport, new_auth

logger = logging.getLogger("amplifier.modules.tool-mcp")


# ── tool list filter ──────────────────────────────────────────────────────────────────────────────
# The SDK refuses a whole list of tools if one of them is invalid. So invalid tools are removed
# before the SDK receives the list.


@asynccontextmanager
async def without_invalid_tools(
    transport: AbstractAsyncContextManager[Any], options: ServerOptions, version: Callable[[], str]
) -> AsyncIterator[Any]:
    """Open a transport, and remove and log invalid tools in the server's lists.

    Args:
        transport: The transport of the server.
        options: The options of the server.
        version: Returns the version of the protocol in use. It raises RuntimeError before client
            and server have agreed on one.
    """
    async with transport as (received, to_send):
        yield _Filtered(received, options, version), to_send


_REST_OF_A_LIST = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
"""Fields that newer versions of the protocol require in lists of tools. Older ones ignore them."""


class _Filtered:
    """A stream of the server's messages, without invalid tools.

    Other attributes, which the SDK uses, come from the original stream.
    """

    def __init__(self, received: Any, options: ServerOptions, version: Callable[[], str]) -> None:
        self._received = received
        self._options = options
        self._version = version

    def __getattr__(self, name: str) -> Any:
        return getattr(self._received, name)

    async def __aenter__(self) -> Self:
        await self._received.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> Any:
        return await self._received.__aexit__(*error)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        return self._checked(await self._received.__anext__())

    def _checked(self, item: SessionMessage | Exception) -> SessionMessage | Exception:
        message = item.message if isinstance(item, SessionMessage) else None
        if isinstance(message, JSONRPCResponse) and isinstance(
            tools := message.result.get("tools"), list
        ):
            valid_tools = [tool for tool in tools if self._is_valid(tool)]
            # The SDK would check every result against this schema, in the event loop and without a
            # time limit.
            for tool in valid_tools:
                tool.pop("outputSchema", None)
            message.result["tools"] = valid_tools
        return item

    def _is_valid(self, tool: Any) -> bool:
        try:
            schema = Tool.model_validate(tool, by_name=False).input_schema
        except ValidationError as error:
            _log_unused(self._options, tool, first_problem(error))
            return False
        if schema.get("type") != "object":
            _log_unused(
                self._options,
                tool,
                f"its input schema has type {schema.get('type')!r}, expected 'object'",
            )
            return False
        # The SDK makes this check before it reads the list.
        try:
            validate_server_result(
                "tools/list", self._version(), {**_REST_OF_A_LIST, "tools": [tool]}
            )
        except ValidationError as error:
            _log_unused(self._options, tool, first_problem(error).replace("tools.0.", ""))
            return False
        except RuntimeError:
            # Client and server haven't agreed on a version yet, so this isn't a list of tools.
            return True
        return True


def first_problem(error: ValidationError) -> str:
    """Describe the first problem in a message from a server, and where it is."""
    first = error.errors(include_url=False, include_input=False)[0]
    return f"invalid value at {'.'.join(map(str, first['loc'])) or '$'}: {first['msg']}"


def _log_unused(options: ServerOptions, tool: Any, problem: str) -> None:
    name = tool["name"] if isinstance(tool, dict) and "name" in tool else tool
    logger.warning(
        "server %r: tool %s is not used: %s",
        options.name,
        shown(ascii(name), 80),
        shown(problem, 300),
    )


# ── offer ─────────────────────────────────────────────────────────────────────────────────────────

_MAX_PAGES = 100
_MAX_TOOLS = 1000


@attrs.frozen(kw_only=True)
class Offer:
    """Everything that a server offers.

    Attributes:
        server: The name and version that the server declares.
        protocol: The version of the protocol in use.
        instructions: The server's instructions for the model.
        tools: The usable tools.
        has_resources: True if the server has resources.
        has_prompts: True if the server has prompts.
    """

    server: str
    protocol: str
    instructions: str
    tools: tuple[Tool, ...]
    has_resources: bool
    has_prompts: bool


async def read_offer(client: Client, options: ServerOptions) -> Offer:
    """Read the offer of a server. Tools with an invalid schema are left out and logged.

    Raises:
        ToolFailure: The server's list of tools is too long.
    """
    capabilities = client.server_capabilities
    info = client.server_info
    tools = [] if capabilities.tools is None else await _list_tools(client, options)
    # The deadline for opening the connection covers this, too.
    workers = Workers(timeout=math.inf)
    usable = await workers.run(
        lambda stop: _usable(tools, options, stop), label=f"tools of MCP server {options.name}"
    )
    return Offer(
        server="unnamed" if info is None else shown(f"{info.name} {info.version}", 200),
        protocol=client.protocol_version,
        instructions=shown(client.instructions or "", 4000),
        tools=tuple(usable),
        has_resources=capabilities.resources is not None,
        has_prompts=capabilities.prompts is not None,
    )


async def _list_tools(client: Client, options: ServerOptions) -> list[Tool]:
    tools: list[Tool] = []
    cursor: str | None = None
    for _ in range(_MAX_PAGES):
        page = await client.list_tools(cursor=cursor, cache_mode="refresh")
        tools += page.tools
        cursor = page.next_cursor
        if cursor is None:
            return tools
        if len(tools) > _MAX_TOOLS:
            break
    raise ToolFailure(
        "ServerFailed",
        f"server {options.name!r}: its list of tools is too long, or has no end; got {len(tools)}",
    )


def _usable(tools: list[Tool], options: ServerOptions, stop: Stop) -> list[Tool]:
    usable: dict[str, Tool] = {}
    for tool in tools:
        stop.check()
        problem = "it is listed twice" if tool.name in usable else _problem(tool)
        if problem is not None:
            _log_unused(options, {"name": tool.name}, problem)
            continue
        usable[tool.name] = tool
    return list(usable.values())


def _problem(tool: Tool) -> str | None:
    if tool.execution is not None and tool.execution.task_support == "required":
        return "it can only be called as a task of the protocol, which this module does not support"
    try:
        build_validator(tool.input_schema)
    except SchemaRefused as error:
        return f"its input schema is refused: {error}"
    return None


# ── connection ────────────────────────────────────────────────────────────────────────────────────

LOG = "mcp:log"
CLIENT = Implementation(name="amplifier", version=version("amplifier"))

FIRST_DELAY, MAX_DELAY = 0.5, 30.0
"""Seconds before the next start after the second failure in a row. The delay doubles each time."""
_CLOSE_SECONDS = 3.0
"""Seconds for an orderly exit from a connection. After this time the exit is cancelled."""
_END_SECONDS = 5.0
"""Seconds that a call waits for the end of its connection, to report how the process ended."""
_TERMINATED = "Session terminated"
"""The message of the SDK's transport for a session that an HTTP server has dropped."""

_MAX_WAITING_LOGS = 64
"""Maximum number of log messages that wait for slow handlers. Further messages are dropped."""

_Result = TypeVar("_Result")
_Log = LoggingMessageNotificationParams


@attrs.define
class _Attempt:
    """One attempt to use the server, from the request to open it to the end of the connection.

    Attributes:
        client: The client. None while the connection isn't open.
        failure: The error that prevented the opening or ended the connection, or None.
        transport: The transport, once there is one.
        reason: The error that ended an open connection, as an addition to a message.
        settled: Set when the connection is open or the opening has failed.
        lost: Set when the connection has to be closed.
        over: Set once the connection has exited.
        changed: Set when the server has announced a change to its tools.
    """

    client: Client | None = None
    failure: ToolFailure | None = None
    transport: HttpTransport | StdioTransport | None = None
    reason: str = ""
    settled: anyio.Event = attrs.field(factory=anyio.Event)
    lost: anyio.Event = attrs.field(factory=anyio.Event)
    over: anyio.Event = attrs.field(factory=anyio.Event)
    changed: anyio.Event = attrs.field(factory=anyio.Event)


# Everything of one connection (the process or HTTP client, the SDK's client, their task groups and
# cancel scopes) is entered and exited in the task that runs `Connection.run`. Calls come from other
# tasks, which only use the open client.


class Connection:
    """The connection to one server.

    Args:
        options: The options of the server.
        coordinator: The coordinator of the session that owns the connection.
        max_bytes: Maximum size of one message.

    Attributes:
        offer: The latest offer of the server. None before the first opening succeeded.
        failure: The error that makes the server unavailable. None if it is available.
        starts: The number of times that the server was opened.
        seconds: The duration of the last opening.
        listeners: Functions that are called when the offer has changed.
    """

    def __init__(
        self,
        options: ServerOptions,
        coordinator: Coordinator,
        max_bytes: int,
    ) -> None:
        self.options = options
        self.offer: Offer | None = None
        self.failure: ToolFailure | None = None
        self.starts = 0
        self.seconds = 0.0
        self.listeners: list[Callable[[Connection], Awaitable[None]]] = []
        self._coordinator = coordinator
        self._max_bytes = max_bytes
        self._requests = RequestsFromServer(options)
        self._attempt: _Attempt | None = None
        self._wanted = anyio.Event()
        self._closing = anyio.Event()
        self._failures = 0
        self._not_before = -math.inf

    def __repr__(self) -> str:
        return f"<Connection to {self.options.name!r}: {self.state}>"

    @property
    def state(self) -> str:
        """``closed``, ``opening``, ``open`` or ``failed``."""
        if self._attempt is not None:
            return "opening" if not self._attempt.settled.is_set() else "open"
        return "closed" if self.failure is None else "failed"

    @property
    def pid(self) -> int | None:
        """The id of the server's process, if it has one."""
        attempt = self._attempt
        return None if attempt is None or attempt.transport is None else attempt.transport.pid

    # ── the task that owns the connection ──

    async def run(self) -> None:
        """Open the server whenever a call needs it, until `close`."""
        while not self._closing.is_set():
            await self._wanted.wait()
            self._wanted = anyio.Event()
            attempt = self._attempt
            if attempt is None or self._closing.is_set():
                continue
            try:
                await self._run_attempt(attempt)
            finally:
                self._attempt = None
                if attempt.failure is None and not self._closing.is_set():
                    attempt.failure = ToolFailure(
                        "ServerCrashed", f"server {self.options.name!r} {_ended(attempt)}"
                    )
                self._record_failure(attempt.failure)
                attempt.settled.set()
                attempt.over.set()
            if attempt.failure is not None:
                await self._report(attempt.failure)

    def close(self) -> None:
        """Let `run` exit the connection and return."""
        self._closing.set()
        self._wanted.set()
        if self._attempt is not None:
            self._attempt.lost.set()

    async def _run_attempt(self, attempt: _Attempt) -> None:
        started = anyio.current_time()
        sending, logs = anyio.create_memory_object_stream[_Log](_MAX_WAITING_LOGS)
        with (
            sending,
            logs,
            anyio.CancelScope(deadline=started + self.options.open_timeout) as scope,
        ):
            try:
                attempt.transport = self._new_transport(attempt.lost.set)
                async with self._new_client(attempt.transport, sending) as client:
                    self.offer, before = await read_offer(client, self.options), self.offer
                    scope.deadline = math.inf
                    self.starts += 1
                    self.seconds = anyio.current_time() - started
                    self.failure = None
                    attempt.client = client
                    attempt.settled.set()
                    # If there are no listeners, the module is being mounted, and on_session_ready
                    # emits the events.
                    if self.listeners:
                        await self._announce_opening(before)
                    async with anyio.create_task_group() as group:
                        group.start_soon(self._follow_changes, attempt, client)
                        group.start_soon(self._follow_notices, attempt, client)
                        group.start_soon(self._emit_logs, logs)
                        await attempt.lost.wait()
                        scope.deadline = anyio.current_time() + _CLOSE_SECONDS
                        group.cancel_scope.cancel()
            except Exception as error:  # noqa: BLE001 — the SDK raises errors of many types
                if attempt.client is None:
                    attempt.failure = self._failure_from(error, attempt)
                else:
                    attempt.reason = f" ({self._describe(error)})"
            finally:
                attempt.client = None
        if scope.cancelled_caught and not attempt.settled.is_set():
            hint = "" if attempt.transport is None else attempt.transport.hint
            attempt.failure = ToolFailure(
                "ServerUnavailable",
                f"server {self.options.name!r} did not answer within {self.options.open_timeout:g} "
                f"s{hint}; set open_timeout if it needs longer to start",
            )

    def _new_transport(self, on_lost: Callable[[], None]) -> HttpTransport | StdioTransport:
        if self.options.url is not None:
            auth = new_auth(self.options, self._coordinator)
            return HttpTransport(
                self.options, max_bytes=self._max_bytes, on_lost=on_lost, auth=auth
            )
        return StdioTransport(
            self.options,
            working_directory(self._coordinator, Path.cwd()),
            max_bytes=self._max_bytes,
            coordinator=self._coordinator,
            on_lost=on_lost,
        )

    def _new_client(
        self, transport: HttpTransport | StdioTransport, logs: MemoryObjectSendStream[_Log]
    ) -> Client:
        options, requests = self.options, self._requests
        client = Client(
            without_invalid_tools(transport.open(), options, lambda: client.protocol_version),
            mode=options.protocol,
            client_info=CLIENT,
            message_handler=self._take_message,
            logging_callback=partial(_take_log, logs),
            log_level="info",
            list_roots_callback=None if options.roots is None else requests.list_roots,
            sampling_callback=None if options.sampling == "deny" else requests.sample,
            elicitation_callback=requests.elicit if options.elicitation else None,
        )
        return client

    async def _take_message(self, message: IncomingMessage) -> None:
        if isinstance(message, ToolListChangedNotification) and self._attempt is not None:
            self._attempt.changed.set()

    async def _follow_notices(self, attempt: _Attempt, client: Client) -> None:
        """Read the offer again after notices of changes.

        A server may send any number of notices. All notices that arrive during one reading cause
        only one more reading.
        """
        while True:
            await attempt.changed.wait()
            attempt.changed = anyio.Event()
            await self._refresh(client)

    async def _follow_changes(self, attempt: _Attempt, client: Client) -> None:
        """Subscribe to notices of changes, which protocol versions from 2026-07-28 on require."""
        tools = client.server_capabilities.tools
        if (
            client.protocol_version not in MODERN_PROTOCOL_VERSIONS
            or tools is None
            or not tools.list_changed
        ):
            return
        try:
            async with client.listen(tools_list_changed=True) as changes:
                async for _ in changes:
                    attempt.changed.set()
        except (MCPError, SubscriptionLost) as error:
            logger.info(
                "server %r: changes of its tools are not followed: %s",
                self.options.name,
                self._describe(error),
            )

    async def _refresh(self, client: Client) -> None:
        """Read the offer again. If that fails, keep the old offer."""
        try:
            with anyio.fail_after(self.options.open_timeout):
                offer = await read_offer(client, self.options)
        except (MCPError, TimeoutError, ToolFailure, ValidationError) as error:
            logger.warning(
                "server %r: its changed tools cannot be read: %s",
                self.options.name,
                self._describe(error),
            )
            return
        before, self.offer = self.offer, offer
        if before is not None and before != offer:
            await self._announce_change(before)

    # ── calls ──

    async def use(
        self,
        coordinator: Coordinator,
        request: Callable[[Client], Awaitable[_Result]],
        subject: str,
    ) -> _Result:
        """Send a request to the server. Open the connection first if necessary.

        Args:
            coordinator: The coordinator of the calling session, which handles requests from the
                server during the call.
            request: Sends the request.
            subject: The name of the tool, for messages.

        Raises:
            ToolFailure: The server can't be reached, exited, refused the request or sent an invalid
                response.
        """
        for _ in range(2):
            attempt = await self._opened()
            try:
                with (
                    self._requests.during_call(coordinator),
                    anyio.fail_after(self.options.call_timeout),
                ):
                    assert attempt.client is not None
                    result = await request(attempt.client)
            except TimeoutError:
                raise ToolFailure(
                    "Timeout",
                    f"{subject}: server {self.options.name!r} did not answer within "
                    f"{self.options.call_timeout:g} s",
                ) from None
            except MCPError as error:
                if error.message == _TERMINATED:
                    # The server has dropped the session, so it didn't process the request.
                    await self._end(attempt)
                    continue
                if error.code == CONNECTION_CLOSED:
                    raise await self._lost_during(attempt, subject) from None
                message = f"{subject}: {self._shown(error.message)}"
                raise ToolFailure("ServerError", message) from None
            except (ValidationError, RuntimeError, ValueError) as error:
                raise ToolFailure(
                    "ProtocolError",
                    f"{subject}: server {self.options.name!r} sent an invalid answer: "
                    f"{self._describe(error)}",
                ) from None
            except (httpx2.HTTPError, OSError) as error:
                await self._end(attempt)
                message = f"{subject}: {self._describe(error)}"
                raise ToolFailure("ServerUnavailable", message) from None
            self._failures = 0
            return result
        raise ToolFailure(
            "ServerUnavailable", f"{subject}: server {self.options.name!r} ended the session twice"
        )

    async def _end(self, attempt: _Attempt) -> None:
        """Exit a broken connection."""
        attempt.lost.set()
        with anyio.move_on_after(_END_SECONDS):
            await attempt.over.wait()

    async def _lost_during(self, attempt: _Attempt, subject: str) -> ToolFailure:
        await self._end(attempt)
        return ToolFailure(
            "ServerCrashed",
            f"{subject}: server {self.options.name!r} {_ended(attempt)}; the next call starts it "
            "again",
        )

    async def open(self) -> None:
        """Open the server if it isn't open. Keep an error in `failure`."""
        attempt = self._begin()
        await attempt.settled.wait()

    async def _opened(self) -> _Attempt:
        """Return the connection. Open it if necessary.

        Raises:
            ToolFailure: The connection can't be opened, or it is too early to try again.
        """
        while True:
            attempt = self._attempt
            if attempt is not None and attempt.client is not None and not attempt.lost.is_set():
                return attempt
            if attempt is not None and attempt.settled.is_set():
                # The connection is lost and is being closed.
                await attempt.over.wait()
                continue
            if attempt is None:
                self._check_delay()
                attempt = self._begin()
            await attempt.settled.wait()
            if attempt.client is None:
                raise attempt.failure or ToolFailure(
                    "ServerCrashed", f"server {self.options.name!r} {_ended(attempt)}"
                )

    def _begin(self) -> _Attempt:
        if self._closing.is_set():
            raise ToolFailure(
                "ServerUnavailable", f"server {self.options.name!r} is closed with its session"
            )
        if self._attempt is None:
            self._attempt = _Attempt()
            self._wanted.set()
        return self._attempt

    def _check_delay(self) -> None:
        if (left := self._not_before - anyio.current_time()) > 0:
            raise ToolFailure(
                "ServerUnavailable",
                f"server {self.options.name!r} failed {self._failures} times in a row and is "
                f"started again in {left:.1f} s at the earliest; the last failure: {self.failure}",
            )

    def _record_failure(self, failure: ToolFailure | None) -> None:
        if failure is None:
            return
        self.failure = failure
        self._failures += 1
        if self._failures > 1:
            delay = min(FIRST_DELAY * 2 ** (self._failures - 2), MAX_DELAY)
            self._not_before = anyio.current_time() + delay

    # ── messages and events ──

    def _failure_from(self, error: Exception, attempt: _Attempt) -> ToolFailure:
        while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
            error = error.exceptions[0]
        if isinstance(error, ToolFailure):
            return error
        server = f"server {self.options.name!r}"
        hint = "" if attempt.transport is None else attempt.transport.hint
        if isinstance(error, MCPError) and error.code == CONNECTION_CLOSED:
            return ToolFailure(
                "ServerUnavailable", f"{server} {_ended(attempt)} before it answered{hint}"
            )
        if self.options.url is not None:
            server += f" at {self.options.address}"
        return ToolFailure(
            "ServerUnavailable", f"{server} cannot be used: {self._describe(error)}{hint}"
        )

    def _describe(self, error: BaseException) -> str:
        while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
            error = error.exceptions[0]
        if isinstance(error, MCPError):
            return self._shown(error.message)
        if isinstance(error, ValidationError):
            return self._shown(first_problem(error))
        return self._shown(f"{type(error).__name__}: {error}")

    def _shown(self, message: str) -> str:
        return shown(self.options.without_secrets(" ".join(message.split())), 500)

    async def _report(self, failure: ToolFailure) -> None:
        logger.warning("%s", failure)
        # If there are no listeners, the module is being mounted, and on_session_ready emits the
        # event.
        if self.listeners:
            await self._coordinator.hooks.emit(
                "mcp:server_failed",
                {"server": self.options.name, "error": str(failure), "error_type": failure.kind},
            )

    async def _emit_logs(self, logs: MemoryObjectReceiveStream[_Log]) -> None:
        async for log in logs:
            message = (
                log.data
                if isinstance(log.data, str)
                else json.dumps(log.data, ensure_ascii=False, default=repr)
            )
            details = {
                "server": self.options.name,
                "level": log.level,
                "logger": log.logger and self._shown(log.logger),
                "message": self._shown(message),
            }
            await self._coordinator.hooks.emit(LOG, details)

    async def _announce_opening(self, before: Offer | None) -> None:
        await self._coordinator.hooks.emit(
            "mcp:server_connected",
            {"server": self.options.name, "seconds": round(self.seconds, 3), "starts": self.starts},
        )
        if before != self.offer:
            await self._announce_change(before)

    async def _announce_change(self, before: Offer | None) -> None:
        for listener in list(self.listeners):
            await listener(self)
        assert self.offer is not None
        old = set() if before is None else {tool.name for tool in before.tools}
        new = {tool.name for tool in self.offer.tools}
        await self._coordinator.hooks.emit(
            "mcp:tools_changed",
            {"server": self.options.name, "added": sorted(new - old), "removed": sorted(old - new)},
        )


async def _take_log(logs: MemoryObjectSendStream[_Log], log: _Log) -> None:
    with suppress(anyio.WouldBlock, anyio.ClosedResourceError, anyio.BrokenResourceError):
        logs.send_nowait(log)


def _ended(attempt: _Attempt) -> str:
    return (
        "was not started"
        if attempt.transport is None
        else f"{attempt.transport.how_it_ended()}{attempt.reason}"
    )
