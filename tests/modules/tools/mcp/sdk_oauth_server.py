"""A server on the official SDK that wants a login, and the authorization server for it: prints its port once it listens."""

from __future__ import annotations

import secrets
import socket
import sys
import time
from typing import Any

import uvicorn
from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    AuthorizationParams,
    RefreshToken,
    construct_redirect_uri,
)
from mcp.server.auth.settings import AuthSettings, ClientRegistrationOptions
from mcp.server.mcpserver import MCPServer
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from pydantic import AnyUrl
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

KNOWN = {
    "client_id": "known",
    "client_secret": "a secret: 100%",
    "redirect_uris": ["http://127.0.0.1/callback"],
    "token_endpoint_auth_method": sys.argv[1] if len(sys.argv) > 1 else "client_secret_basic",
}


class AnyPort(OAuthClientInformationFull):
    """A client whose browser may come back to any port (RFC 8252)."""

    def validate_redirect_uri(self, redirect_uri: AnyUrl | None) -> AnyUrl:
        assert redirect_uri is not None
        assert (redirect_uri.host, redirect_uri.path) == ("127.0.0.1", "/callback")
        return redirect_uri


class Provider:
    """Everyone who asks is let in."""

    def __init__(self) -> None:
        self.clients: dict[str, OAuthClientInformationFull] = {}
        self.codes: dict[str, AuthorizationCode] = {}
        self.tokens: dict[str, AccessToken] = {}
        self.renewals: dict[str, AccessToken] = {}  # by refresh token

    async def get_client(self, client_id: str) -> OAuthClientInformationFull | None:
        if client_id == "known":  # registered beforehand, for any port of this machine
            return AnyPort.model_validate(KNOWN)
        return self.clients.get(client_id)

    async def register_client(self, client_info: OAuthClientInformationFull) -> None:
        assert client_info.client_id is not None
        self.clients[client_info.client_id] = client_info

    async def authorize(
        self, client: OAuthClientInformationFull, params: AuthorizationParams
    ) -> str:
        assert client.client_id is not None
        code = AuthorizationCode(
            code=secrets.token_hex(16),
            client_id=client.client_id,
            scopes=params.scopes or [],
            expires_at=time.time() + 300,
            code_challenge=params.code_challenge,
            redirect_uri=params.redirect_uri,
            redirect_uri_provided_explicitly=params.redirect_uri_provided_explicitly,
            resource=params.resource,
        )
        self.codes[code.code] = code
        return construct_redirect_uri(str(params.redirect_uri), code=code.code, state=params.state)

    async def load_authorization_code(
        self, client: Any, authorization_code: str
    ) -> AuthorizationCode | None:
        return self.codes.get(authorization_code)

    async def exchange_authorization_code(
        self, client: Any, authorization_code: AuthorizationCode
    ) -> OAuthToken:
        del self.codes[authorization_code.code]
        return self._issue(client.client_id, authorization_code.scopes, authorization_code.resource)

    def _issue(self, client_id: str, scopes: list[str], resource: str | None) -> OAuthToken:
        token, renewal = f"token-{secrets.token_hex(16)}", f"refresh-{secrets.token_hex(16)}"
        access = AccessToken(token=token, client_id=client_id, scopes=scopes, resource=resource)
        self.tokens[token] = self.renewals[renewal] = access
        return OAuthToken(
            access_token=token, token_type="Bearer", expires_in=3600, refresh_token=renewal
        )

    async def load_access_token(self, token: str) -> AccessToken | None:
        return self.tokens.get(token)

    async def load_refresh_token(self, client: Any, refresh_token: str) -> RefreshToken | None:
        found = self.renewals.get(refresh_token)
        if found is None:
            return None
        return RefreshToken(token=refresh_token, client_id=found.client_id, scopes=found.scopes)

    async def exchange_refresh_token(
        self, client: Any, refresh_token: Any, scopes: list[str]
    ) -> OAuthToken:
        access = self.renewals.pop(refresh_token.token)  # good for once
        self.tokens.pop(access.token, None)
        return self._issue(access.client_id, scopes, access.resource)

    async def revoke_token(self, token: Any) -> None:
        self.tokens.pop(token.token, None)

    async def exchange_identity_assertion(self, client: Any, params: Any) -> OAuthToken:
        raise NotImplementedError


def main() -> None:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    port = listener.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    provider = Provider()
    server = MCPServer(
        "guarded",
        auth_server_provider=provider,
        auth=AuthSettings.model_validate(  # of texts, which keep their form: an issuer is compared letter by letter
            {
                "issuer_url": address,
                "resource_server_url": f"{address}/mcp",
                "client_registration_options": ClientRegistrationOptions(enabled=True),
            }
        ),
    )

    @server.tool()
    def secret() -> str:
        """Tell a secret."""
        return "the milk is white"

    async def introspect(request: Request) -> JSONResponse:
        """What a resource server asks about a token (RFC 7662)."""
        found = provider.tokens.get(str((await request.form())["token"]))
        if found is None:
            return JSONResponse({"active": False})
        return JSONResponse(
            {"active": True, "client_id": found.client_id, "aud": found.resource, "scope": ""}
        )

    async def expire(request: Request) -> JSONResponse:
        """The time of all tokens is over; they can be renewed."""
        provider.tokens.clear()
        return JSONResponse({})

    async def metadata(request: Request) -> JSONResponse:
        """What the SDK says, but for the only way to authenticate."""
        return JSONResponse(
            {
                "issuer": address,
                "authorization_endpoint": f"{address}/authorize",
                "token_endpoint": f"{address}/token",
                "response_types_supported": ["code"],
                "code_challenge_methods_supported": ["S256"],
                "token_endpoint_auth_methods_supported": [KNOWN["token_endpoint_auth_method"]],
            }
        )

    app = server.streamable_http_app()
    if len(sys.argv) > 1:
        app.router.routes.insert(0, Route("/.well-known/oauth-authorization-server", metadata))
    app.router.routes.append(Route("/introspect", introspect, methods=["POST"]))
    app.router.routes.append(Route("/expire", expire, methods=["POST"]))
    print(port, flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listener])


main()
