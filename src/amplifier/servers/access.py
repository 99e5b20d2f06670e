"""Access to an agent behind HTTP: the token, the host names and the socket."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence
from typing import Final

from amplifier.errors import PlanError

LOOPBACK_HOSTS: Final = ("localhost", "127.0.0.1", "[::1]")
_SUBJECT: Final = "the server cannot be started"


def check_token(token: str | None, source: str = "token") -> None:
    """Refuse a token that others could guess or that no header can carry. None is accepted.

    Raises:
        PlanError: The token is too short or has other characters than printable ASCII.
    """
    if token is not None and (
        len(token) < 16 or not token.isascii() or not token.isprintable() or " " in token
    ):
        problem = (
            f"expected at least 16 printable ASCII characters without spaces, got {len(token)}"
        )
        raise PlanError([(source, problem)], subject=_SUBJECT)


def server_names(host: str, allowed: Sequence[str], *, has_token: bool) -> list[str]:
    """Return the names under which clients may reach the server.

    Raises:
        PlanError: Other machines could reach the server without a token, or no request could reach
            it.
    """
    if _is_loopback(host):
        return [*LOOPBACK_HOSTS, *allowed]
    if not has_token:
        problem = (
            "without a token the server may listen on this machine only (127.0.0.1): anyone could "
            "run the agent's tools"
        )
        raise PlanError([("host", problem)], subject=_SUBJECT)
    if host in ("0.0.0.0", "::") and not allowed:
        problem = f"{host} needs --allow-host with the names under which clients reach the server"
        raise PlanError([("host", problem)], subject=_SUBJECT)
    return [*LOOPBACK_HOSTS, _in_url(host), *allowed]


def listen_on(host: str, port: int) -> socket.socket:
    """Return a listening socket. Port 0 picks a free port.

    Raises:
        OSError: Listening on the address is impossible.
    """
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = addresses[0]
        return socket.create_server(address[:2], family=family, backlog=1024)
    except OSError as error:
        raise OSError(
            error.errno, f"cannot listen on {host} port {port}: {error.strerror or error}"
        ) from error


def address_of(listening: socket.socket, host: str) -> str:
    """Return the URL of a listening server."""
    return f"http://{_in_url(host)}:{listening.getsockname()[1]}"


def reachability_warning(host: str) -> str | None:
    """Return a warning for an address that other machines can reach, or None."""
    return (
        None
        if _is_loopback(host)
        else "Other machines can reach this server, and the traffic is not encrypted."
    )


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
