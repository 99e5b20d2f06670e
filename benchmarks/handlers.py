"""Hook handlers for the benchmarks, by what of their payload they ask for and whether they wait.

Most handlers look at a few fields, and ask for them as the built-in hooks do (`FIELDS`); others take the whole payload. In the
published kernel no handler can ask.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

FIELDS = ("tool_name", "iteration")
"""What handlers ask for that do not take the whole payload."""

Handler = Callable[[str, dict[str, Any]], Any]
Make = Callable[[Callable[[], Any]], Handler]
"""Gives a handler that answers with what the function returns."""


def looking(answer: Callable[[], Any]) -> Handler:
    """Looks at two fields."""

    async def handler(event: str, data: dict[str, Any]) -> Any:
        if data.get("tool_name") == data.get("iteration") == "never":
            raise AssertionError("unreachable")
        return answer()

    return handler


def waiting(answer: Callable[[], Any]) -> Handler:
    """Looks at a field and has an await."""

    async def nothing() -> None:
        pass

    async def handler(event: str, data: dict[str, Any]) -> Any:
        if data.get("tool_name") == "never":
            raise AssertionError("unreachable")
        await nothing()
        return answer()

    return handler


def taking_all(answer: Callable[[], Any]) -> Handler:
    """Asks for nothing in particular, so it gets a copy of all of it."""

    def take(data: dict[str, Any]) -> None:
        pass

    async def handler(event: str, data: dict[str, Any]) -> Any:
        take(data)
        return answer()

    return handler


def fields_of(make: Make) -> tuple[str, ...] | None:
    """What a handler of this kind asks for when it is registered; None for everything."""
    return None if make is taking_all else FIELDS


KINDS: dict[str, Make] = {
    "": looking,
    " with an await": waiting,
    " with the whole payload": taking_all,
}
"""The kinds of handlers by what a row says behind their number."""
