"""Reads the configuration and mounts the tool."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Any

import anyio.to_thread

from amplifier.contracts import Coordinator
from amplifier.errors import MissingExtraError, PlanError

from .._shared.configuration import read_options
from ._options import WebOptions
from ._tool import WebFetchTool

if TYPE_CHECKING:
    from ._fetcher import Fetcher

_MODULE = "tool-web"


async def mount(coordinator: Coordinator, config: dict[str, Any] | None = None) -> None:
    """Mount web_fetch.

    Args:
        coordinator: The session's.
        config: See the module's reference page for the keys.

    Raises:
        PlanError: The config is wrong.
        MissingExtraError: Its HTTP packages are not installed.
    """
    options = await anyio.to_thread.run_sync(read_options, WebOptions, _MODULE, config)
    fetcher = await anyio.to_thread.run_sync(_make_fetcher, options)
    await coordinator.mount(
        "tools", WebFetchTool(fetcher, max_parallel=options.max_parallel, max_chars=options.max_chars)
    )


def _make_fetcher(options: WebOptions) -> Fetcher:
    """Make the fetcher; blocks while it imports the extra and reads certificates."""
    try:
        import truststore  # noqa: PLC0415 - an extra

        from . import _fetcher, _urls  # noqa: PLC0415 - they import the rest of it
    except ImportError as error:
        raise MissingExtraError(_MODULE, extra="web", missing=error.name) from error
    context = truststore.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if options.ca_file is not None:
        try:
            context.load_verify_locations(cafile=options.ca_file)
        except OSError as error:
            problem = ("$.ca_file", f"no certificates can be read from it: {error.strerror or error}")
            raise PlanError([problem], subject=f"invalid config of {_MODULE}") from error
    policy = _urls.Policy(allow_hosts=options.allow_hosts, allow_private=options.allow_private, ports=options.ports)
    return _fetcher.Fetcher(policy, options, context)
