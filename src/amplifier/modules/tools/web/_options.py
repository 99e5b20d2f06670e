"""The options of tool-web."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import attrs

from ..._shared.configuration import Kind, existing_file, list_of, option, seconds, whole_number

_HOST = r"[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?"
_HOST_PATTERN = re.compile(rf"(\*\.)?{_HOST}|[0-9a-f:]+")
_HOST_AND_PORT = re.compile(rf"(?:({_HOST})|\[([0-9a-f:]+)\]):([0-9]{{1,5}})")


def _is_port(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 65536


def _is_host_pattern(value: Any) -> bool:
    return isinstance(value, str) and _HOST_PATTERN.fullmatch(value) is not None


def _is_host_and_port(value: Any) -> bool:
    return isinstance(value, str) and (found := _HOST_AND_PORT.fullmatch(value)) is not None and _is_port(int(found[4]))


def _split(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)


_hosts = list_of("hosts in lower case, such as example.org or *.example.org", _is_host_pattern)
_hosts_and_ports = attrs.evolve(
    list_of("hosts with ports, such as localhost:8000 or [::1]:8000", _is_host_and_port),
    convert=lambda value: frozenset(map(_split, value)),
)
_ports = attrs.evolve(list_of("ports", _is_port), convert=frozenset)
_user_agent = Kind(
    "a short ASCII text",
    lambda value: isinstance(value, str) and 0 < len(value) <= 200 and value.isascii() and value.isprintable(),
)


@attrs.frozen(kw_only=True)
class WebOptions:
    """Which hosts may be fetched from, and how much one fetch may take.

    Attributes:
        allow_hosts: The only hosts that may be fetched, ``*.`` for all below one; empty for every public one.
        allow_private: Hosts and ports that need not be public.
        ports: The only ports of public hosts.
        timeout: Seconds for one fetch: name resolution, redirects and the whole body.
        max_bytes: Of the body, after decompression.
        max_chars: Of one answer.
        max_redirects: Hops after the first.
        user_agent: The User-Agent header.
        ca_file: More certificates to trust.
    """

    allow_hosts: tuple[str, ...] = option(_hosts, default=(), restricts=True)
    allow_private: frozenset[tuple[str, int]] = option(_hosts_and_ports, default=frozenset())
    ports: frozenset[int] = option(_ports, default=frozenset({80, 443, 8080, 8443}), restricts=True)
    timeout: float = option(seconds, default=30.0)
    max_bytes: int = option(whole_number(1), default=2_000_000)
    max_chars: int = option(whole_number(1), default=50_000)
    max_redirects: int = option(whole_number(0), default=5)
    user_agent: str = option(_user_agent, default="amplifier-web-fetch")
    ca_file: Path | None = option(existing_file, default=None)
