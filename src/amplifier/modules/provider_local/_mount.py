"""Mounts provider-local; the first request loads the model."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import anyio.to_thread

from amplifier.contracts import Coordinator
from amplifier.errors import MissingExtraError

from ._options import ENVIRONMENT_VARIABLE, MODULE, NO_MODEL, read_local_options

logger = logging.getLogger("amplifier.modules.provider_local")


async def mount(coordinator: Coordinator, config: dict[str, Any] | None = None) -> Callable[[], Awaitable[None]] | None:
    """Mount the provider ``local``, or log a warning if no model is named.

    Args:
        coordinator: The session's.
        config: See the module's reference page for the keys.

    Returns:
        The cleanup, which ends the server.

    Raises:
        PlanError: The configuration is wrong, or the file is no model.
        MissingExtraError: The server or the HTTP client is not installed.
    """
    options = await anyio.to_thread.run_sync(read_local_options, config)
    if options.model_path == NO_MODEL:
        logger.warning("%s: no model named; set model_path in the plan or %s", MODULE, ENVIRONMENT_VARIABLE)
        return None
    for package in ("xllamacpp", "httpcore2"):
        if importlib.util.find_spec(package) is None:  # found, not imported: the model runs in a separate process
            raise MissingExtraError(MODULE, extra="local", missing=package)
    provider_type, server_type = await anyio.to_thread.run_sync(_parts)
    server = server_type(options)
    provider = provider_type(coordinator, options, server)
    await coordinator.mount("providers", provider, name=provider.name)
    cleanup: Callable[[], Awaitable[None]] = provider.aclose
    return cleanup


def _parts() -> tuple[Any, Any]:
    """Import the classes that need the optional HTTP client, which is too slow for the event loop's thread."""
    from ._provider import LocalProvider  # noqa: PLC0415 - see above
    from ._server_process import Server  # noqa: PLC0415

    return LocalProvider, Server
