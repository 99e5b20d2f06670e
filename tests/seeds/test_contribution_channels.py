"""Contribution channels: every snippet of that document, and its prose around them."""

from __future__ import annotations

import logging

import pytest

from amplifier.testing import EventRecorder, TestCoordinator

CHANNEL = "observability.events"


async def test_module_contribution_is_flattened_by_consumer(
    coordinator: TestCoordinator,
) -> None:
    async def mount(coordinator, config):
        coordinator.register_contributor(
            "observability.events",
            "tool-filesystem",
            lambda: [
                "filesystem:read",
                "filesystem:write",
                "filesystem:delete",
            ],
        )

    await mount(coordinator, {})

    events = await coordinator.collect_contributions("observability.events")
    flattened: list[str] = []
    for contribution in events:
        if isinstance(contribution, list):
            flattened.extend(contribution)

    assert flattened == ["filesystem:read", "filesystem:write", "filesystem:delete"]


async def test_logging_module_registers_for_announced_events(
    coordinator: TestCoordinator,
) -> None:
    coordinator.register_contributor(
        "observability.events",
        "module-hooks-streaming-ui",
        lambda: [
            "streaming-ui:content-block-start",
            "streaming-ui:content-block-end",
        ],
    )
    recorder = EventRecorder()

    def register_handler(event_name: str) -> None:
        coordinator.hooks.register(event_name, recorder)

    discovered = await coordinator.collect_contributions("observability.events")
    for contribution in discovered:
        for event_name in contribution or []:
            register_handler(event_name)

    await coordinator.hooks.emit("streaming-ui:content-block-start", {})
    await coordinator.hooks.emit("streaming-ui:something-else", {})
    await coordinator.hooks.emit("streaming-ui:content-block-end", {})
    assert recorder.names() == [
        "streaming-ui:content-block-start",
        "streaming-ui:content-block-end",
    ]


async def test_later_module_is_in_next_collection(
    coordinator: TestCoordinator,
) -> None:
    coordinator.register_contributor(CHANNEL, "first", lambda: "a")
    assert await coordinator.collect_contributions(CHANNEL) == ["a"]
    coordinator.register_contributor(CHANNEL, "second", lambda: "b")
    assert await coordinator.collect_contributions(CHANNEL) == ["a", "b"]


async def test_failing_contributor_is_logged_and_skipped(
    coordinator: TestCoordinator, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise RuntimeError("broken metrics")

    coordinator.register_contributor(CHANNEL, "first", lambda: 1)
    coordinator.register_contributor(CHANNEL, "the-broken-one", fail)
    coordinator.register_contributor(CHANNEL, "last", lambda: 3)
    with caplog.at_level(logging.WARNING, logger="amplifier"):
        assert await coordinator.collect_contributions(CHANNEL) == [1, 3]
    assert "the-broken-one" in caplog.text
    assert CHANNEL in caplog.text
    assert "broken metrics" in caplog.text


@pytest.mark.parametrize(
    "channel", ["capabilities.catalog", "session.metadata", "toolkit:debug-metrics", "capabilities"]
)
async def test_channels_of_every_naming_are_kept_apart(
    coordinator: TestCoordinator, channel: str
) -> None:
    coordinator.register_contributor(CHANNEL, "other", lambda: "other")
    coordinator.register_contributor(channel, "mine", lambda: channel)
    assert await coordinator.collect_contributions(channel) == [channel]
