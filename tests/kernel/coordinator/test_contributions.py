"""Contribution channels: order, filtering, deadlines for each and for all, failures that are named. Time is virtual."""

from __future__ import annotations

import anyio
import pytest

from amplifier.kernel.coordinator.ownership import Contributions
from amplifier.kernel.runtime.owner import Owner

pytestmark = pytest.mark.virtual_time


@pytest.fixture
def channels():
    return Contributions()


def after(seconds, value):
    async def contribute():
        await anyio.sleep(seconds)
        return value

    return contribute


async def collect(channels, channel="x", *, each=10.0, total=30.0):
    return await channels.collect(channel, each=each, total=total)


async def test_contributors_run_sequentially_in_order(channels):
    running, most = 0, 0

    def after(seconds, value):
        async def contribute():
            nonlocal running, most
            running += 1
            most = max(most, running)
            await anyio.sleep(seconds)
            running -= 1
            return value

        return contribute

    channels.register("x", "slow", after(5, "slow"), Owner("a"))
    channels.register("x", "sync", lambda: "sync", Owner("b"))
    channels.register("x", "fast", after(0, "fast"), None)
    channels.register("x", "fast", after(1, "same name"), None)
    channels.register("y", "other", lambda: "other channel", None)
    assert await collect(channels) == ["slow", "sync", "fast", "same name"]
    assert await collect(channels, "unknown") == []
    assert most == 1


async def test_only_none_contribution_is_dropped(channels):
    values = [0, "", [], {}, False, object()]
    for value in (*values, None):
        channels.register("x", "n", lambda value=value: value, None)
    channels.register("x", "n", after(0, None), None)
    collected = await collect(channels)
    assert [id(value) for value in collected] == [id(value) for value in values]


async def test_coroutine_from_sync_callback_is_awaited(channels):
    def contribute():
        return after(1, "value")()

    channels.register("x", "n", contribute, None)
    assert await collect(channels) == ["value"]


async def test_contributor_may_register_another(channels):
    channels.register(
        "x", "n", lambda: channels.register("x", "late", lambda: "late", None) or "first", None
    )
    assert await collect(channels) == ["first"]
    assert await collect(channels) == ["first", "late"]


def test_contributors_show_channel_name_and_callback(channels):
    channels.register("x", "n", len, Owner("a"))
    shown = channels.as_dict()
    assert shown == {"x": [{"name": "n", "callback": len}]}
    shown["x"].clear()
    assert channels.as_dict() == {"x": [{"name": "n", "callback": len}]}
