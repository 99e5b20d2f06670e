"""The transports: standard streams of a process, and streamable HTTP with OAuth logins."""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import re
import shutil
import socket
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qs, urlsplit

import anyio
import anyio.abc
import anyio.to_thread
import httpx2
from anyio.abc import SocketListener
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.auth import OAuthClientProvider
from mcp.client.auth.oauth2 import OAuthContext
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import (
    AuthorizationCodeResult,
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    OAuthToken,
)
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter
from pydantic import AnyUrl, BaseModel, ValidationError

from amplifier._internal.message_lines import LineSplitter, LineTooLong, read_chunk, write_all
from amplifier._internal.programs import find_program
from amplifier._internal.regular_files import make_folders, replace_file
from amplifier.contracts import Coordinator

from ..._shared.failure import ToolFailure, shown
from ..._shared.processes import ServiceProcess
from ..._shared.session import default_sessions_directory, run_shielded
from ._options import OAuthOptions, ServerOptions

logger = logging.getLogger("amplifier.modules.tool-mcp")

_MAX_WAITING = 1024
"""Maximum number of messages that wait for a server that doesn't read.

While there is room, sending doesn't block and doesn't delay a cancelled call.
"""
_DRAIN_SECONDS = 0.2
"""Seconds for reading the rest of the output of a dead process."""

_MAX_STDERR = 8192
_INHERITED = (
    "HOME",
    "LANG",
    "LOGNAME",
    "PATH",
    "SHELL",
    "TERM",
    "TMPDIR",
    "TZ",
    "USER",
    "VIRTUAL_ENV",
)
"""Environment variables that every server inherits. API keys of other services are left out."""
_INHERITED_PREFIXES = ("LC_", "XDG_")

Inbox = MemoryObjectSendStream[SessionMessage | Exception]
Streams = tuple[
    MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]
]


# ── standard streams ──────────────────────────────────────────────────────────────────────────────


# This transport sends one JSON-RPC message per line. The SDK has such a transport, too, but this
# one reads in linear time, notices the death of a process whose children keep its output open, and
# reports lines that aren't messages. A cancelled call never waits for a server that doesn't read.


class StdioTransport:
    """The transport of one process.

    Args:
        options: The options of the server.
        directory: The working directory, unless the options name another one.
        max_bytes: Maximum size of one message.
        coordinator: The coordinator of the session that owns the server.
        on_lost: Called when no more messages will come.

    Attributes:
        loss: The reason for the end of messages, if it isn't the end of the process.
        garbage: The first line that wasn't a message, without secrets.
    """

    def __init__(
        self,
        options: ServerOptions,
        directory: Path,
        *,
        max_bytes: int,
        coordinator: Coordinator,
        on_lost: Callable[[], None],
    ) -> None:
        self._options = options
        self._directory = directory
        self._max_bytes = max_bytes
        self._coordinator = coordinator
        self._on_lost = on_lost
        self._process: ServiceProcess | None = None
        self._stderr = b""
        self.loss: str | None = None
        self.garbage: str | None = None

    @property
    def pid(self) -> int | None:
        """The id of the process, once it is running."""
        return None if self._process is None else self._process.group or None

    @property
    def hint(self) -> str:
        """A text to add to messages if the server has sent output that wasn't a message."""
        if self.garbage is None:
            return ""
        return f"; it printed {self.garbage}, which is not a message"

    def how_it_ended(self) -> str:
        """Return the reason for the loss of the connection."""
        if self.loss is not None or self._process is None:
            return self.loss or "was not started"
        reason = self._process.how_it_ended()
        lines = self._stderr.decode("utf-8", "backslashreplace").strip().splitlines()[-3:]
        if not lines:
            return reason
        text = shown(self._options.without_secrets(" | ".join(lines)), 500)
        return f"{reason}; its last lines on standard error: {text}"

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Streams]:
        """Start the process, and end it and its children on exit.

        Raises:
            ToolFailure: The process can't be started.
        """
        process = self._process = _start(self._options, self._options.cwd or self._directory)
        try:
            try:
                await process.wait_until_running()
            except OSError as error:
                raise _not_startable(self._options, error) from None
            inbox, received = anyio.create_memory_object_stream[SessionMessage | Exception](0)
            outbox, to_send = anyio.create_memory_object_stream[SessionMessage](_MAX_WAITING)
            with inbox, received, outbox, to_send:
                async with anyio.create_task_group() as group:
                    group.start_soon(self._read, process, inbox, group)
                    group.start_soon(self._write, process, to_send, inbox)
                    group.start_soon(self._read_stderr, process)
                    yield received, outbox
                    group.cancel_scope.cancel()
        finally:
            await run_shielded(
                self._coordinator,
                process.end,
                self._options.stop_grace,
                name=f"end of MCP server {self._options.name}",
            )

    # ── from the server ──

    async def _read(
        self, process: ServiceProcess, inbox: Inbox, group: anyio.abc.TaskGroup
    ) -> None:
        group.start_soon(self._watch, process)
        lines = LineSplitter(self._max_bytes)
        try:
            while chunk := await read_chunk(process.stdout):
                for line in lines.feed(chunk):
                    message = self._parse(line)
                    if message is not None:
                        await inbox.send(message)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            # The client is disconnecting.
            return
        except LineTooLong:
            self.loss = (
                f"sent a message of more than {self._max_bytes} bytes; raise max_message_bytes"
            )
        self._lose(inbox)

    def _parse(self, line: bytes) -> SessionMessage | None:
        if not line.strip():
            return None
        try:
            return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
        except ValueError:
            self._report_garbage(line)
            return None

    def _report_garbage(self, line: bytes) -> None:
        """Report the first line that isn't a message. Later lines aren't reported."""
        if self.garbage is None:
            start = line[:200].decode("utf-8", "backslashreplace")
            self.garbage = shown(ascii(self._options.without_secrets(start)), 120)
            logger.warning(
                "server %r printed a line that is not a JSON-RPC message, ignored: %s; a server "
                "has to log to standard error",
                self._options.name,
                self.garbage,
            )

    async def _watch(self, process: ServiceProcess) -> None:
        """End the children of a dead process, which may keep its output open."""
        await process.wait_for_death()
        await anyio.sleep(_DRAIN_SECONDS)
        process.kill_rest()

    async def _read_stderr(self, process: ServiceProcess) -> None:
        while data := await read_chunk(process.stderr):
            self._stderr = (self._stderr + data)[-_MAX_STDERR:]
            logger.debug(
                "server %r: %s",
                self._options.name,
                self._options.without_secrets(data.decode("utf-8", "backslashreplace").rstrip()),
            )

    # ── to the server ──

    async def _write(
        self,
        process: ServiceProcess,
        to_send: MemoryObjectReceiveStream[SessionMessage],
        inbox: Inbox,
    ) -> None:
        async for message in to_send:
            text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
            try:
                await write_all(process.stdin, text.encode("utf-8") + b"\n")
            except OSError as error:
                if error.errno != errno.EPIPE:
                    self.loss = f"cannot be written to: {error.strerror or error}"
                self._lose(inbox)
                return

    def _lose(self, inbox: Inbox) -> None:
        inbox.close()
        self._on_lost()


def _start(options: ServerOptions, directory: Path) -> ServiceProcess:
    assert options.command is not None
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name in _INHERITED or name.startswith(_INHERITED_PREFIXES)
    }
    environment = {**inherited, **options.env}
    if not directory.is_dir():
        raise ToolFailure(
            "ServerUnavailable",
            f"server {options.name!r}: its working directory {shown(str(directory))!r} does not "
            "exist",
        )
    command = options.command
    # As in the system, a name with a slash is relative to the working directory of the server.
    if os.sep in command:
        program = shutil.which(directory / command)
    else:
        program = find_program(command, path=environment.get("PATH"), avoid=[directory])
    if program is None:
        raise ToolFailure(
            "ServerUnavailable",
            f"{_describe(options)} was not found on the search path outside of the working "
            "directory; install it, or use its full path in the plan",
        )
    try:
        return ServiceProcess(
            [os.path.abspath(program), *options.args],  # noqa: PTH100 — links aren't resolved
            directory=str(directory),
            environment=environment,
        )
    except OSError as error:
        raise _not_startable(options, error) from None


def _not_startable(options: ServerOptions, error: OSError) -> ToolFailure:
    return ToolFailure(
        "ServerUnavailable", f"{_describe(options)} cannot be started: {error.strerror or error}"
    )


def _describe(options: ServerOptions) -> str:
    return f"server {options.name!r}: the command {shown(options.command or '', 200)!r}"


LOGIN = "mcp.login"
"""The capability with an async function that receives the URL that the user has to open."""

_LOOPBACK = "127.0.0.1"
_NO_PORT = 1
"""A placeholder until a login starts, because a client must have a redirect address."""
_MAX_REQUEST = 16_384
_DONE = b"You are logged in. You can close this page."

_Model = TypeVar("_Model", bound=BaseModel)


# ── oauth ─────────────────────────────────────────────────────────────────────────────────────────
# The SDK provides the flow. Tokens are stored in files that only their owner can read. A session
# never opens a browser: without a stored token the server fails with the command that logs in. That
# command registers the capability `LOGIN`.


def new_auth(options: ServerOptions, coordinator: Coordinator) -> OAuthClientProvider | None:
    """Return the OAuth provider, or None if the options have no ``oauth``."""
    oauth = options.oauth
    if oauth is None:
        return None
    assert options.url is not None
    metadata = OAuthClientMetadata(
        client_name="Amplifier",
        redirect_uris=[_redirect_address(oauth.redirect_port or _NO_PORT)],
        scope=" ".join(oauth.scopes) or None,
        token_endpoint_auth_method="none",
    )
    return _LoginAuth(options, oauth, metadata, TokenFile(options, oauth), coordinator)


class _LoginAuth(OAuthClientProvider):
    """The SDK's login, with a port that is open only while the browser is awaited."""

    # The port is bound when a response requires a login, because the registration of a client and
    # the address of the login page both contain it. With a fixed port, two logins at the same time
    # would fail, so any free port is taken unless the plan names one. Authorization servers have to
    # accept any port of a loopback address (RFC 8252, section 7.3). Some don't, so the port of an
    # earlier registration is tried first.

    def __init__(
        self,
        options: ServerOptions,
        oauth: OAuthOptions,
        metadata: OAuthClientMetadata,
        file: TokenFile,
        coordinator: Coordinator,
    ) -> None:
        assert options.url is not None
        super().__init__(
            options.url,
            metadata,
            file,
            redirect_handler=self._show,
            callback_handler=self._receive,
            client_metadata_url=oauth.client_metadata_url,
        )
        self._options = options
        self._port = oauth.redirect_port
        self._file = file
        self._coordinator = coordinator
        self._bound: socket.socket | None = None
        file.context = self.context

    async def async_auth_flow(
        self, request: httpx2.Request
    ) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """Drive the SDK's flow. Refuse to start a login that no one could complete."""
        flow = super().async_auth_flow(request)
        is_first = True
        try:
            outgoing = await anext(flow)
            while True:
                response = yield outgoing
                if outgoing is request and is_first:
                    is_first = False
                    if _wants_login(response):
                        self._prepare_login()
                outgoing = await flow.asend(response)
        except StopAsyncIteration:
            return
        finally:
            if self._bound is not None:
                self._bound.close()
                self._bound = None
            await flow.aclose()

    def _prepare_login(self) -> None:
        if self._coordinator.get_capability(LOGIN) is None:
            raise ToolFailure(
                "LoginNeeded",
                f"server {self._options.name!r} needs a login; "
                f"run: amplifier mcp login {self._options.name} --plan FILE",
            )
        self._bound = self._bind()
        self.context.client_metadata.redirect_uris = [
            _redirect_address(self._bound.getsockname()[1])
        ]

    def _bind(self) -> socket.socket:
        if self._port is not None:
            try:
                return _bind_loopback(self._port)
            except OSError as error:
                raise ToolFailure(
                    "ServerUnavailable",
                    f"server {self._options.name!r}: the redirect_port {self._port} of the plan "
                    f"cannot be used: {error.strerror or error}; set another one, or leave it out "
                    "to take any free one",
                ) from None
        for address in (self.context.client_info and self.context.client_info.redirect_uris) or ():
            if address.host == _LOOPBACK and address.port:
                with suppress(OSError):
                    return _bind_loopback(address.port)
        return _bind_loopback(0)

    async def _show(self, address: str) -> None:
        # The metadata of the authorization server is known by now.
        self.context.client_info = self._file.client_of_plan() or self.context.client_info
        await self._coordinator.get_capability(LOGIN)(address)

    async def _receive(self) -> AuthorizationCodeResult:
        assert self._bound is not None
        bound, self._bound = self._bound, None
        return await _receive_code(bound)


def _wants_login(response: httpx2.Response) -> bool:
    """Return whether the token is missing or refused, or its scope does not suffice."""
    if response.status_code == 401:
        return True
    return response.status_code == 403 and "insufficient_scope" in response.headers.get(
        "WWW-Authenticate", ""
    )


def _redirect_address(port: int) -> AnyUrl:
    return AnyUrl(f"http://{_LOOPBACK}:{port}/callback")


def _bind_loopback(port: int) -> socket.socket:
    bound = socket.socket()
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((_LOOPBACK, port))
        # From here on, a browser that comes back at once waits until its connection is accepted.
        bound.listen()
    except BaseException:
        bound.close()
        raise
    return bound


class TokenFile:
    """The SDK's storage for the tokens of one server.

    Args:
        options: The options of the server.
        oauth: The options of the login.

    Attributes:
        context: The SDK's data in this process. The expiry and the issuer of stored tokens are
            written to it. Without them, the SDK would use tokens until they are refused and then
            require a login.
        path: The file.
    """

    context: OAuthContext

    def __init__(self, options: ServerOptions, oauth: OAuthOptions) -> None:
        assert options.url is not None
        folder = oauth.token_directory or default_sessions_directory().with_name("mcp-tokens")
        digest = hashlib.sha256(options.url.encode()).hexdigest()[:16]
        self.path = folder / f"{re.sub(r'[^A-Za-z0-9_-]', '_', options.name)[:60]}-{digest}.json"
        self._oauth = oauth

    async def get_tokens(self) -> OAuthToken | None:
        """Return the stored tokens."""
        expiry = (await anyio.to_thread.run_sync(self._read)).get("expires_at")
        self.context.token_expiry_time = expiry if isinstance(expiry, int | float) else None
        self.context.oauth_metadata = await self._get("issuer", OAuthMetadata)
        return await self._get("tokens", OAuthToken)

    async def set_tokens(self, tokens: OAuthToken) -> None:
        """Store tokens."""
        await self._set("tokens", tokens)
        expiry = None if tokens.expires_in is None else time.time() + tokens.expires_in
        await anyio.to_thread.run_sync(self._write, "expires_at", expiry)
        if self.context.oauth_metadata is not None:
            await self._set("issuer", self.context.oauth_metadata)

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        """Return the plan's client, or the stored registration."""
        return self.client_of_plan() or await self._get("client", OAuthClientInformationFull)

    def client_of_plan(self) -> OAuthClientInformationFull | None:
        """Return the plan's client, with the authentication that its server accepts."""
        if self._oauth.client_id is None:
            return None
        return OAuthClientInformationFull(
            client_id=self._oauth.client_id,
            client_secret=self._oauth.client_secret,
            token_endpoint_auth_method=self._authentication(),
        )

    def _authentication(self) -> str:
        """Choose Basic, which every server must accept (RFC 6749), unless only POST is offered."""
        if self._oauth.client_secret is None:
            return "none"
        metadata = self.context.oauth_metadata
        offered = (metadata and metadata.token_endpoint_auth_methods_supported) or [
            "client_secret_basic"
        ]
        only_in_body = "client_secret_post" in offered and "client_secret_basic" not in offered
        return "client_secret_post" if only_in_body else "client_secret_basic"

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """Store a registration."""
        await self._set("client", client_info)

    async def _get(self, key: str, kind: type[_Model]) -> _Model | None:
        stored = (await anyio.to_thread.run_sync(self._read)).get(key)
        try:
            return None if stored is None else kind.model_validate(stored)
        except ValidationError:
            # Another version has written the file, so the user has to log in again.
            return None

    async def _set(self, key: str, value: BaseModel) -> None:
        await anyio.to_thread.run_sync(
            self._write, key, value.model_dump(mode="json", exclude_none=True)
        )

    def _read(self) -> dict[str, Any]:
        try:
            content = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return content if isinstance(content, dict) else {}

    def _write(self, key: str, value: Any) -> None:
        make_folders(self.path.parent)
        replace_file(self.path, json.dumps({**self._read(), key: value}).encode())


async def _receive_code(bound: socket.socket) -> AuthorizationCodeResult:
    """Wait for the browser to return with the code, and close the listening socket.

    Other requests get a 404.
    """
    results: list[AuthorizationCodeResult] = []
    arrived = anyio.Event()

    async def serve(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            request = b""
            while b"\r\n\r\n" not in request and len(request) < _MAX_REQUEST:
                request += await stream.receive()
            target = (
                request.split(b" ", 2)[1].decode("ascii", "replace")
                if request.count(b" ") > 1
                else ""
            )
            query = {name: values[0] for name, values in parse_qs(urlsplit(target).query).items()}
            is_callback = "code" in query and urlsplit(target).path == "/callback"
            body = _DONE if is_callback else b"This is not the page you are looking for."
            status = b"200 OK" if is_callback else b"404 Not Found"
            await stream.send(
                b"HTTP/1.1 %s\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n"
                b"Connection: close\r\n\r\n%s" % (status, len(body), body)
            )
            if is_callback:
                results.append(
                    AuthorizationCodeResult(
                        code=query["code"], state=query.get("state"), iss=query.get("iss")
                    )
                )
                arrived.set()

    async def serve_contained(stream: anyio.abc.SocketStream) -> None:
        try:
            await serve(stream)
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            # Browsers open connections in advance, and close them unused.
            return

    async with (
        await SocketListener.from_socket(bound) as listener,
        anyio.create_task_group() as group,
    ):
        group.start_soon(listener.serve, serve_contained)
        await arrived.wait()
        group.cancel_scope.cancel()
    return results[0]


# ── streamable http ───────────────────────────────────────────────────────────────────────────────

_CONNECT_SECONDS = 30.0


class HttpTransport:
    """The transport of one remote server.

    Redirects to other hosts aren't followed, because headers and tokens are meant for the
    configured host.

    Args:
        options: The options of the server.
        max_bytes: Maximum size of one message.
        on_lost: Called when no more messages will come.
        auth: Adds credentials to requests.

    Attributes:
        pid: Always None.
    """

    pid = None

    def __init__(
        self,
        options: ServerOptions,
        *,
        max_bytes: int,
        on_lost: Callable[[], None],
        auth: httpx2.Auth | None = None,
    ) -> None:
        self._options = options
        self._max_bytes = max_bytes
        self._on_lost = on_lost
        self._auth = auth
        self._refusal: str | None = None

    def how_it_ended(self) -> str:
        """Return the reason for the loss of the connection."""
        return self._refusal or "closed the connection"

    @property
    def hint(self) -> str:
        """A text to add to messages if the last response of the server was an error."""
        return "" if self._refusal is None else f"; it {self._refusal}"

    async def _record_refusal(self, response: httpx2.Response) -> None:
        status = response.status_code
        self._refusal = None
        if status >= 400:
            advice = {
                401: "check the headers in the plan, or set oauth: true",
                405: "it may support only the older HTTP with SSE, which is not supported here: "
                "use its address for streamable HTTP",
            }.get(status)
            self._refusal = f"answered HTTP {status} {response.reason_phrase}".rstrip() + (
                f"; {advice}" if advice else ""
            )

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Any]:
        """Open the connection. On exit, end the session on the server."""
        assert self._options.url is not None
        # A call may take as long as its own deadline allows, so reading has no deadline.
        timeout = httpx2.Timeout(_CONNECT_SECONDS, read=None)
        async with (
            httpx2.AsyncClient(
                headers=dict(self._options.headers),
                timeout=timeout,
                auth=self._auth,
                event_hooks={"response": [self._record_refusal]},
            ) as client,
            streamable_http_client(
                self._options.url, http_client=client, max_sse_event_size=self._max_bytes
            ) as streams,
        ):
            try:
                yield streams
            finally:
                self._on_lost()
