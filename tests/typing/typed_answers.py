"""Type-checked only, by mypy and pyright: what a turn with a result type returns."""

from __future__ import annotations

from typing import Any, assert_type

import attrs

from amplifier import AmplifierSession


@attrs.frozen
class City:
    """A type of the caller's own."""

    name: str


async def answers(session: AmplifierSession) -> None:
    """Without a type it is text, with a class its instance, with anything else unknown."""
    assert_type(await session.execute("go"), str)
    assert_type(await session.execute("go", timeout=5, result_type=City), City)
    assert_type(await session.execute("go", result_type=list[City]), list[City])
    assert_type(await session.execute("go", result_type={"type": "object"}), Any)
    assert_type(await session.resume_turn(), str)
    assert_type(await session.resume_turn(timeout=5, result_type=City), City)
    assert_type(await session.resume_turn(result_type={"type": "object"}), Any)


async def streams(session: AmplifierSession) -> None:
    """The same for streams."""
    async with session.stream("go") as events_of_text:
        assert_type(events_of_text.result, str | None)
    async with session.stream("go", result_type=City) as events:
        assert_type(events.result, City | None)
    async with session.stream_resumed_turn() as resumed_text:
        assert_type(resumed_text.result, str | None)
    async with session.stream_resumed_turn(result_type=City) as resumed:
        assert_type(resumed.result, City | None)
