"""Logging in to remote servers: the SDK's OAuth flow, with tokens in files that only their owner can read.

A session never opens a browser: without a stored token the server fails with the command that logs in. That command offers the
capability `LOGIN`, a function that shows the user where to go.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qs, urlsplit

import anyio
import anyio.abc
import anyio.to_thread
from mcp.client.auth import OAuthClientProvider
from mcp.shared.auth import (
    AuthorizationCodeResult,
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthToken,
)
from pydantic import AnyUrl, BaseModel, ValidationError

from amplifier.contracts import Coordinator

from .._shared.session_files import default_sessions_directory
from .._tool_base import ToolFailure
from ._options import OAuthOptions, ServerOptions

LOGIN = "mcp.login"
"""The capability with an async function that gets the URL the user has to open."""

_LONGEST_REQUEST = 16_384
_DONE = b"You are logged in. You can close this page."

_Model = TypeVar("_Model", bound=BaseModel)


def new_auth(options: ServerOptions, coordinator: Coordinator) -> OAuthClientProvider | None:
    """What adds tokens to the requests to a server; None if the plan has no ``oauth`` for it."""
    oauth = options.oauth
    if oauth is None:
        return None
    assert options.url is not None
    redirect = f"http://127.0.0.1:{oauth.redirect_port}/callback"

    async def show(address: str) -> None:
        login = coordinator.get_capability(LOGIN)
        if login is None:
            raise ToolFailure(
                "LoginNeeded",
                f"server {options.name!r} needs a login; run: amplifier mcp login {options.name} --plan FILE",
            )
        await login(address)

    async def receive() -> AuthorizationCodeResult:
        return await _receive_code(oauth.redirect_port)

    metadata = OAuthClientMetadata(
        client_name="Amplifier",
        redirect_uris=[AnyUrl(redirect)],
        scope=" ".join(oauth.scopes) or None,
        token_endpoint_auth_method="client_secret_post" if oauth.client_secret else "none",
    )
    return OAuthClientProvider(
        options.url, metadata, TokenFile(options, oauth, redirect), redirect_handler=show, callback_handler=receive
    )


class TokenFile:
    """The tokens of one server, as the SDK stores them.

    Args:
        options: The server's.
        oauth: How to log in.
        redirect: The address that the browser is sent back to.
    """

    def __init__(self, options: ServerOptions, oauth: OAuthOptions, redirect: str) -> None:
        assert options.url is not None
        folder = oauth.token_directory or default_sessions_directory().with_name("mcp-tokens")
        digest = hashlib.sha256(options.url.encode()).hexdigest()[:16]
        self.path = folder / f"{re.sub(r'[^A-Za-z0-9_-]', '_', options.name)[:60]}-{digest}.json"
        self._oauth = oauth
        self._redirect = redirect

    async def get_tokens(self) -> OAuthToken | None:
        """The stored tokens."""
        return await self._get("tokens", OAuthToken)

    async def set_tokens(self, tokens: OAuthToken) -> None:
        """Store tokens."""
        await self._set("tokens", tokens)

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        """The stored registration, or the client of the plan."""
        if self._oauth.client_id is None:
            return await self._get("client", OAuthClientInformationFull)
        return OAuthClientInformationFull(
            client_id=self._oauth.client_id,
            client_secret=self._oauth.client_secret,
            redirect_uris=[AnyUrl(self._redirect)],
            token_endpoint_auth_method="client_secret_post" if self._oauth.client_secret else "none",
        )

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """Store a registration."""
        await self._set("client", client_info)

    async def _get(self, key: str, kind: type[_Model]) -> _Model | None:
        stored = (await anyio.to_thread.run_sync(self._read)).get(key)
        try:
            return None if stored is None else kind.model_validate(stored)
        except ValidationError:  # of another version; the user logs in again
            return None

    async def _set(self, key: str, value: BaseModel) -> None:
        await anyio.to_thread.run_sync(self._write, key, value.model_dump(mode="json", exclude_none=True))

    def _read(self) -> dict[str, Any]:
        try:
            content = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return content if isinstance(content, dict) else {}

    def _write(self, key: str, value: Any) -> None:
        content = {**self._read(), key: value}
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=self.path.parent)  # readable for the owner alone
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump(content, file)
            Path(name).replace(self.path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise


async def _receive_code(port: int) -> AuthorizationCodeResult:
    """Wait until the browser comes back with the code; other requests get no answer that helps."""
    answers: list[AuthorizationCodeResult] = []
    arrived = anyio.Event()

    async def serve(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            request = b""
            while b"\r\n\r\n" not in request and len(request) < _LONGEST_REQUEST:
                request += await stream.receive()
            target = request.split(b" ", 2)[1].decode("ascii", "replace") if request.count(b" ") > 1 else ""
            given = {name: values[0] for name, values in parse_qs(urlsplit(target).query).items()}
            found = "code" in given and urlsplit(target).path == "/callback"
            body = _DONE if found else b"This is not the page you are looking for."
            status = b"200 OK" if found else b"404 Not Found"
            await stream.send(
                b"HTTP/1.1 %s\r\nContent-Type: text/plain\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s"
                % (status, len(body), body)
            )
            if found:
                answers.append(
                    AuthorizationCodeResult(code=given["code"], state=given.get("state"), iss=given.get("iss"))
                )
                arrived.set()

    async def serve_contained(stream: anyio.abc.SocketStream) -> None:
        try:
            await serve(stream)
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            return  # a browser that opens connections in advance

    async with (
        await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=port) as listener,
        anyio.create_task_group() as group,
    ):
        group.start_soon(listener.serve, serve_contained)
        await arrived.wait()
        group.cancel_scope.cancel()
    return answers[0]
