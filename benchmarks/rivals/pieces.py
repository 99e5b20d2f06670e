"""What the rivals' streamed turns share: their text is read to its end, and every piece has to come."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from benchmarks.streams import PAUSE

Work = Callable[[], Awaitable[Any]]


def preparing(
    streamed_text: Callable[[int, float], AsyncIterator[str]],
) -> Callable[[int], Awaitable[Work]]:
    """Make the function that prepares turns of so many pieces for a `Worker`."""

    async def prepare(pieces: int) -> Work:
        async def work() -> None:
            assert len([text async for text in streamed_text(pieces, PAUSE)]) == pieces

        return work

    return prepare
