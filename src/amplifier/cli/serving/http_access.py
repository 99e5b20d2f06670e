"""Who may use an agent behind HTTP: the token that requests carry, the names under which the server is reached, its socket."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Sequence
from pathlib import Path

from amplifier.cli.core.exit_codes import CommandError

__all__ = ["TOKEN_VARIABLE", "listen_on", "reachability_warning", "read_token", "server_names"]

TOKEN_VARIABLE = "AMPLIFIER_SERVE_TOKEN"

_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")


def read_token(file: Path | None, *, none: bool) -> str | None:
    """The token that the user gives; empty for none, None to generate one.

    Raises:
        CommandError: It cannot be read, or is not fit to be one.
    """
    given = os.environ.get(TOKEN_VARIABLE)
    if none:
        if file is not None:
            raise CommandError("leave out --token-file or --no-token: they exclude each other")
        return ""
    if file is not None:
        try:
            given = file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise CommandError(f"{file}: the token cannot be read: {error}") from error
    if given is None:
        return None
    if len(given) < 16 or not given.isascii() or not given.isprintable() or " " in given:
        source = TOKEN_VARIABLE if file is None else str(file)
        raise CommandError(
            f"{source}: expected at least 16 printable ASCII characters without spaces, got {len(given)}"
        )
    return given


def server_names(host: str, token: str | None, allowed: Sequence[str]) -> list[str]:
    """The names under which the server may be reached.

    Args:
        host: The address it listens on.
        token: As `read_token` returns it.
        allowed: More names, which the user gives.

    Raises:
        CommandError: Without a token the server would be open to other machines, or no request could reach it.
    """
    if _is_loopback(host):
        return [*_LOOPBACK_NAMES, *allowed]
    if token == "":
        raise CommandError(
            "without a token the server may listen on this machine only (--host 127.0.0.1): anyone could run the agent's tools"
        )
    if host in ("0.0.0.0", "::") and not allowed:
        raise CommandError(f"--host {host} needs --allow-host with the names under which clients reach the server")
    own = f"[{host}]" if ":" in host else host
    return [*_LOOPBACK_NAMES, own, *allowed]


def listen_on(host: str, port: int) -> socket.socket:
    """A listening socket.

    Raises:
        CommandError: The address cannot be listened on.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = found[0]
        return socket.create_server(address[:2], family=family, backlog=1024)
    except OSError as error:
        raise CommandError(f"cannot listen on {host} port {port}: {error.strerror or error}") from error


def reachability_warning(host: str) -> str | None:
    """A warning for an address that other machines reach."""
    return None if _is_loopback(host) else "Other machines can reach this server, and the traffic is not encrypted."


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
