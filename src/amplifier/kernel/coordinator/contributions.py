"""Contribution channels: modules register callbacks, a consumer collects what they return.

Sequential, in registration order, each contributor under its deadline and the whole collection under another; a failing or late
one is logged by name and skipped, never the rest of the channel (L4). Sits on `deadlines`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from inspect import isawaitable
from types import CoroutineType
from typing import Any

import attrs

from ..runtime.deadlines import DeadlineGroup, DeadlinePassed
from ..runtime.watchdog import Watchdog
from .ownership import Ledger, Registration, Registry

logger: logging.Logger = logging.getLogger("amplifier.coordinator")

_PLAIN = frozenset({type(None), bool, int, float, str, list, tuple, dict, set})
"""Types that contributors usually return and that cannot be awaited."""


@attrs.define(eq=False)
class Contributor(Registration):
    """One callback on one channel."""

    channel: str
    name: str
    callback: Callable[[], Any]
    owner: str | None
    kept_by: Registry | None

    def __str__(self) -> str:
        module = f" of module {self.owner!r}" if self.owner and self.owner != self.name else ""
        return f"Contributor {self.name!r}{module} on channel {self.channel!r}"


class Contributions:
    """All contributors of one session."""

    __slots__ = ("_channels", "_ledger")

    def __init__(self, ledger: Ledger) -> None:
        self._channels: dict[str, list[Contributor]] = {}
        self._ledger = ledger

    def register(self, channel: Any, name: Any, callback: Any, owner: str | None) -> None:
        """Add a contributor; equal names are allowed.

        Raises:
            TypeError: Channel or name is not a non-empty string, or the callback cannot be called.
        """
        for what, value in (("channel", channel), ("name", name)):
            if not isinstance(value, str) or not value:
                raise TypeError(f"a contributor's {what} must be a non-empty str, got {value!r}")
        if not callable(callback):
            raise TypeError(f"contributor {name!r} on channel {channel!r} needs a callable, got {callback!r}")
        contributor = Contributor(channel, name, callback, owner, None if owner is None else self)
        self._channels.setdefault(channel, []).append(contributor)
        if owner is not None:
            self._ledger.enter(contributor, contributor)

    def remove(self, contributor: Contributor) -> None:
        """Remove a contributor, and its channel with the last one."""
        contributors = self._channels[contributor.channel]
        contributors.remove(contributor)
        if not contributors:
            del self._channels[contributor.channel]
        self._ledger.strike(contributor)

    def as_dict(self) -> dict[str, list[dict[str, Any]]]:
        """Channel → name and callback of each contributor, in order."""
        return {
            channel: [{"name": c.name, "callback": c.callback} for c in contributors]
            for channel, contributors in self._channels.items()
        }

    async def collect(
        self, channel: str, *, each: float | None, total: float | None, watch: Watchdog | None = None
    ) -> list[Any]:
        """Call every contributor of ``channel`` and return what is not None, in order."""
        contributors = self._channels.get(channel)
        if not contributors:
            return []
        collected: list[Any] = []
        series = DeadlineGroup(watch, limit=total)
        now: float | None = None  # when the latest call ended, as long as that is known
        try:
            for contributor in tuple(contributors):
                is_armed = False
                try:
                    value = contributor.callback()
                    kind = type(value)
                    # `isawaitable` costs more than everything else here, so it is asked only about what might be one.
                    if kind is CoroutineType or (kind not in _PLAIN and isawaitable(value)):
                        series.label = contributor
                        series.arm(each, series.clock() if now is None else now, value)
                        is_armed = True
                        value = await value
                        now = series.clock()
                        if now >= series.until:
                            raise series.renew()
                    else:
                        now = None
                except BaseException as exc:  # noqa: BLE001 — foreign code; judge() lets through what is not its own
                    now = None
                    _log_failure(contributor, series.judge(exc, is_armed=is_armed))
                else:
                    if value is not None:
                        collected.append(value)
        finally:
            series.close()
        return collected


def _log_failure(contributor: Contributor, failure: Exception) -> None:
    """In a frame of its own: one that names an exception and is in its traceback is a reference cycle."""
    if isinstance(failure, DeadlinePassed):
        logger.warning("%s was skipped: %s", contributor, failure)
    else:
        logger.warning("%s failed: %s", contributor, failure, exc_info=failure)
