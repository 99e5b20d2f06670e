"""Records events: as a handler of a hook registry, or in its place where only `emit` is wanted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, final

from amplifier._json import copy_json
from amplifier.contracts import Hooks
from amplifier.models import HookResult


@final
class EventRecorder:
    """Records every event it receives and lets it pass.

    Attributes:
        events: Pairs of event name and payload, in order; the payloads are copies.
    """

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def __repr__(self) -> str:
        return f"<EventRecorder {len(self.events)} events>"

    async def record(self, event: str, data: Mapping[str, Any] | None = None) -> HookResult:
        """Remember one event.

        Returns:
            ``continue`` with the payload, like a registry without handlers.
        """
        payload: dict[str, Any] = copy_json(dict(data or {}))
        self.events.append((event, payload))
        return HookResult(action="continue", data=copy_json(payload))

    async def emit(self, event: str, data: Mapping[str, Any] | None = None) -> HookResult:
        """The same as `record`, for code that expects a hook registry."""
        return await self.record(event, data)

    async def __call__(self, event: str, data: dict[str, Any]) -> HookResult:
        """The same as `record`, for a registry that expects a handler."""
        return await self.record(event, data)

    def listen(self, hooks: Hooks, event: str = "*") -> Callable[[], None]:
        """Register with a registry, for every event unless names are given.

        Returns:
            A function that ends it.
        """
        return hooks.register(event, self, name="event-recorder")

    def get_events(self, event_type: str | None = None) -> list[tuple[str, dict[str, Any]]]:
        """The pairs of event name and payload, all of them or those of one name."""
        return [pair for pair in self.events if event_type is None or pair[0] == event_type]

    def names(self) -> list[str]:
        """The event names, in order."""
        return [event for event, _ in self.events]

    def clear(self) -> None:
        """Forget everything."""
        self.events.clear()
