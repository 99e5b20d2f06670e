"""The SDK of Temporal in this process; imported first, because it reports that the SDK is not installed."""

from __future__ import annotations

import logging
from functools import cache

from amplifier.errors import MissingExtraError

try:
    from temporalio.runtime import LogForwardingConfig, LoggingConfig, Runtime, TelemetryConfig, TelemetryFilter
except ModuleNotFoundError as _error:
    if _error.name is None or not _error.name.startswith("temporalio"):
        raise
    raise MissingExtraError("amplifier.durable.temporal", extra="temporal", missing=_error.name) from _error

logger = logging.getLogger("amplifier.durable")


@cache
def sdk_runtime() -> Runtime:
    """The threads of the SDK, one set per process; what it logs goes to our logger, by default it is printed."""
    log = LoggingConfig(
        filter=TelemetryFilter(core_level="WARN", other_level="ERROR"), forwarding=LogForwardingConfig(logger=logger)
    )
    return Runtime(telemetry=TelemetryConfig(logging=log))
