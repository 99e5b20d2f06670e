"""Hook handlers for the benchmarks, by what of their payload they read and whether they may wait.

Most handlers look at a few fields. The kernel sees in their code which ones, and copies no others; what it cannot see, such as a
payload that is passed on, it copies whole. An async handler with an ``await`` in its code gets a cancel scope for its deadline.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
    """Passes its payload on, so that it gets a copy of all of it."""

    def take(data: dict[str, Any]) -> None:
        pass

    async def handler(event: str, data: dict[str, Any]) -> Any:
        take(data)
        return answer()

    return handler


KINDS: dict[str, Make] = {"": looking, " with an await": waiting, " with the whole payload": taking_all}
"""The kinds of handlers by what a row says behind their number."""


def nothing_to_say() -> None:
    """The answer of a handler that only observes."""
