"""The hook: later hooks receive events redacted, or not at all."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from amplifier.contracts import Coordinator
from amplifier.models import HookResult

from .._tool_base import ToolFailure, Workers
from ._options import MODULE, RedactionOptions, read_redaction_options
from ._redactor import Redactor

logger = logging.getLogger("amplifier.modules.hooks-redaction")

_MUCH = 100_000
"""Larger payloads are searched in a worker thread, so that the event loop is not blocked."""
_SECONDS = 60.0


class RedactionHook:
    """Redacts the payload of events.

    Args:
        options: The configuration.
    """

    def __init__(self, options: RedactionOptions | None = None) -> None:
        self._options = options or read_redaction_options(None)
        self._redactor = Redactor(self._options)
        self._workers = Workers(threads=1, timeout=_SECONDS)
        self._note = {"applied": True, "rules": list(self._options.rules)}

    async def __call__(self, event: str, data: dict[str, Any]) -> HookResult:
        """Redact one payload; a payload that cannot be redacted is denied."""
        try:
            if _size(data) > _MUCH:
                redacted = await self._workers.run(
                    lambda _stop: self._redactor.redact(data), what=f"redaction of {event}"
                )
            else:
                redacted = self._redactor.redact(data)
        except ToolFailure as failure:
            return _withheld(event, str(failure))
        except Exception as error:  # the payload may contain third-party objects that fail when read
            logger.exception("the payload of %r cannot be redacted", event)
            return _withheld(event, type(error).__name__)
        if redacted is None:
            return HookResult()
        return HookResult(action="modify", data={**redacted, "redaction": dict(self._note)})


def _withheld(event: str, why: str) -> HookResult:
    return HookResult(
        action="deny", reason=f"{MODULE}: the payload of {event} could not be searched for secrets ({why})"
    )


def _size(data: Any) -> int:
    """Estimate the number of characters to search; counting stops above `_MUCH`."""
    size = 0
    waiting = [data]
    while waiting and size <= _MUCH:
        value = waiting.pop()
        if isinstance(value, str | bytes | bytearray):
            size += len(value)
        elif isinstance(value, dict | list | tuple):
            size += 16 * len(value)
            waiting += value.values() if isinstance(value, dict) else value
    return size


async def mount(coordinator: Coordinator, config: dict[str, Any] | None = None) -> Callable[[], None]:
    """Start redacting events; see `RedactionOptions` and the module's reference page for the configuration.

    Returns:
        The cleanup, which unregisters the hook.

    Raises:
        PlanError: The configuration is wrong.
    """
    options = read_redaction_options(config)
    hook = RedactionHook(options)
    registered = [
        coordinator.hooks.register(event, hook, priority=options.priority, name=MODULE, on_failure="deny")
        for event in options.events
    ]
    logger.info("%d events are redacted by %s", len(registered), ", ".join(options.rules))

    def close() -> None:
        for unregister in registered:
            unregister()

    return close
