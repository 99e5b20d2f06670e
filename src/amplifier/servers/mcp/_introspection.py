"""Tokens of an authorization server, about which it is asked (RFC 7662)."""

from __future__ import annotations

import logging
from typing import Any

import attrs
import httpx2
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings

logger = logging.getLogger("amplifier.servers.mcp")

_SECONDS = 10.0


@attrs.frozen(eq=False)
class Introspection:
    """A verifier of tokens: whatever the authorization server does not call active is refused.

    Args:
        url: Where it is asked.
        resource: The URL of this server, for tokens that are for several.
        credentials: The name and the secret of this server there, if it wants some.
    """

    _url: str
    _resource: str
    _credentials: tuple[str, str] | None = attrs.field(default=None, repr=False)

    async def verify_token(self, token: str) -> AccessToken | None:
        """What the authorization server says of a token; None if it is not good."""
        try:
            async with httpx2.AsyncClient(timeout=_SECONDS, auth=self._credentials) as client:
                answer = (await client.post(self._url, data={"token": token})).raise_for_status().json()
            if not isinstance(answer, dict) or answer.get("active") is not True:
                return None
            meant = answer.get("aud")
            if isinstance(meant, list):
                meant = self._resource if self._resource in meant else None
            names = {"client_id": answer.get("client_id") or "", "scopes": str(answer.get("scope") or "").split()}
            more = {"expires_at": answer.get("exp"), "resource": meant, "subject": answer.get("sub")}
            return AccessToken.model_validate({"token": token, **names, **more})
        except (httpx2.HTTPError, ValueError) as error:
            logger.warning("%s gives no answer about a token, which is refused: %s", self._url, type(error).__name__)
            return None


def oauth_of(issuer: str, introspection: str, resource: str, credentials: str | None) -> dict[str, Any]:
    """The arguments ``auth`` and ``token_verifier`` of `serve`; credentials are a name and a secret with a colon between."""
    about = {"issuer_url": issuer, "resource_server_url": resource, "validate_token_resource": True}
    name, _, secret = (credentials or "").partition(":")
    verifier = Introspection(introspection, resource, (name, secret) if name else None)
    return {"auth": AuthSettings.model_validate(about), "token_verifier": verifier}
