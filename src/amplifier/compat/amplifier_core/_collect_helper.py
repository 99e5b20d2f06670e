"""Collecting contributions over a dict of channels, as published tests import it."""

from __future__ import annotations

import asyncio
import inspect
import logging
from typing import Any

__all__ = ["collect_contributions"]

logger = logging.getLogger(__name__)


async def collect_contributions(channels: dict[str, list[dict[str, Any]]], channel: str) -> list[Any]:
    """Call every contributor of a channel in order; failures are logged and left out, and so is None.

    A contributor that raises a cancellation although nothing was cancelled ends the collection with what there is so far.
    """
    collected: list[Any] = []
    for contributor in channels.get(channel) or ():
        try:
            value = contributor["callback"]()
            if inspect.iscoroutine(value):
                value = await value
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise  # the caller was cancelled
            logger.warning("Collection cancelled during contributor '%s' on channel '%s'", contributor["name"], channel)
            break
        except Exception as exc:  # noqa: BLE001 — contributors are third-party code
            logger.warning("Contributor '%s' on channel '%s' failed: %s", contributor["name"], channel, exc)
        else:
            if value is not None:
                collected.append(value)
    return collected
