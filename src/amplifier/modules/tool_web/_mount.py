"""Reads the plan and mounts the tool."""

from __future__ import annotations

import re
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio.to_thread

from amplifier.contracts import Coordinator
from amplifier.errors import MissingExtraError, PlanError

from .._tool_base import count, read_config, seconds
from ._tool import WebFetchTool

if TYPE_CHECKING:
    from ._fetching import Fetcher

_MODULE = "tool-web"
_HOST = r"[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?"
_PATTERN = re.compile(rf"(\*\.)?{_HOST}|[0-9a-f:]+")
_PLACE = re.compile(rf"(?:({_HOST})|\[([0-9a-f:]+)\]):([0-9]{{1,5}})")


def _hosts(value: Any) -> str | None:
    if isinstance(value, list | tuple) and all(isinstance(host, str) and _PATTERN.fullmatch(host) for host in value):
        return None
    return f"expected a list of hosts in lower case, such as example.org or *.example.org, got {value!r}"


def _places(value: Any) -> str | None:
    if isinstance(value, list | tuple) and all(
        isinstance(place, str) and (found := _PLACE.fullmatch(place)) and 0 < int(found[4]) < 65536 for place in value
    ):
        return None
    return f"expected a list of hosts with ports, such as localhost:8000 or [::1]:8000, got {value!r}"


def _ports(value: Any) -> str | None:
    if isinstance(value, list | tuple) and all(
        isinstance(port, int) and not isinstance(port, bool) and 0 < port < 65536 for port in value
    ):
        return None
    return f"expected a list of ports, got {value!r}"


def _file(value: Any) -> str | None:
    if isinstance(value, str) and value and "\0" not in value and Path(value).is_file():
        return None
    return f"expected a file with certificates, got {value!r}"


def _agent(value: Any) -> str | None:
    if isinstance(value, str) and 0 < len(value) <= 200 and value.isascii() and value.isprintable():
        return None
    return f"expected a short ASCII text, got {value!r}"


_CHECKS = {
    "allow_hosts": _hosts,
    "allow_private": _places,
    "ports": _ports,
    "timeout": seconds,
    "max_bytes": count(1),
    "max_chars": count(1),
    "max_redirects": count(0),
    "max_parallel": count(1),
    "user_agent": _agent,
    "ca_file": _file,
}
_OF_A_FETCH = ("timeout", "max_bytes", "max_redirects", "user_agent")


async def mount(coordinator: Coordinator, config: dict[str, Any] | None = None) -> None:
    """Mount web_fetch.

    Args:
        coordinator: The session's.
        config: See the module's reference page for the keys.

    Raises:
        PlanError: The config is wrong.
        MissingExtraError: What it needs to speak HTTP is not installed.
    """
    given = await anyio.to_thread.run_sync(read_config, _MODULE, config, _CHECKS)
    fetcher = await anyio.to_thread.run_sync(_fetcher, given)
    limits = {name: given[name] for name in ("max_parallel", "max_chars") if name in given}
    await coordinator.mount("tools", WebFetchTool(fetcher, **limits))


def _fetcher(given: dict[str, Any]) -> Fetcher:
    """Blocks: imports the extra and reads certificates."""
    try:
        import truststore  # noqa: PLC0415 - an extra

        from . import _fetching, _urls  # noqa: PLC0415 - they import the rest of it
    except ImportError as error:
        raise MissingExtraError(_MODULE, extra="web", missing=error.name) from error
    context = truststore.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if "ca_file" in given:
        try:
            context.load_verify_locations(cafile=given["ca_file"])
        except OSError as error:
            problem = ("$.ca_file", f"no certificates can be read from it: {error.strerror or error}")
            raise PlanError([problem], subject=f"invalid config of {_MODULE}") from error
    policy = _urls.Policy(
        allow_hosts=tuple(given.get("allow_hosts", ())),
        allow_private=frozenset(map(_place, given.get("allow_private", ()))),
        **{name: frozenset(given[name]) for name in ("ports",) if name in given},
    )
    options = _fetching.FetchOptions(**{name: given[name] for name in _OF_A_FETCH if name in given})
    return _fetching.Fetcher(policy, options, context)


def _place(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)
