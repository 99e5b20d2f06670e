"""What a hook promises: that its handlers answer every event well, change nothing but by their answer, and go when told."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from amplifier.conformance.harness.check_registry import check
from amplifier.conformance.harness.mounted_module import OWNER, CheckContext, MountFailed
from amplifier.conformance.harness.time_budget import Budget, shared_budget
from amplifier.conformance.inputs.hook_payloads import (
    EVENTS,
    UNKNOWN_EVENTS,
    odd_payloads,
    ordinary_payload,
    reaching_payloads,
)
from amplifier.conformance.target.source_literals import choices_in, inputs_in, settings_in, texts_in, triggers_in
from amplifier.events import ALL_EVENTS

from .cross_talk import look_for_mixed_events
from .event_series import Event, EventSeries

_HOOK = ("hook",)
_FIRST, _LAST = 10, 90
_USUAL = ("tool:pre", "tool:post", "prompt:submit")
_MOST_EVENTS = 6
_SECONDS = 2.0
"""Of our own work, in the quick profile, for each of the checks that list their questions."""


# ── how it registers ──


@check("H9", "H10", "H11", kind="structure", types=_HOOK)
async def registers_well(ctx: CheckContext) -> None:
    """Looks at what mount registers: its names, its priorities, what the log says of it, and a way to undo it."""
    with _log_of(ctx) as records:
        async with ctx.mount() as mounted:
            found = mounted.registrations
            if not found:
                return
            own = [each for each in mounted.session.coordinator.cleanups.entries if each.owner == OWNER]
            undone = mounted.cleanup is not None or mounted.is_structured or any(each.what == "cleanup" for each in own)
            ctx.expect(undone, "H9", "mount returns no cleanup that unregisters its handlers")
            for each in found:
                if not _FIRST <= each.priority <= _LAST:
                    what = f"{each.name!r} for {each.event!r} has the priority {each.priority}; expected 10 to 90"
                    ctx.fault("H10", what)
                    break
            unnamed = [each.event for each in found if each.name.startswith("_auto_")]
            if unnamed:
                ctx.fault("H11", f"the handler for {unnamed[0]!r} is registered without a name")
            elif not records:
                ctx.fault("H11", "mount registers handlers and logs nothing about it")


@contextmanager
def _log_of(ctx: CheckContext) -> Iterator[list[logging.LogRecord]]:
    """What the module logs, at whatever level."""
    records: list[logging.LogRecord] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if ctx.loaded.subject.owns(record.pathname):
                records.append(record)

    root, keep = logging.getLogger(), Keep(level=0)
    before = root.level
    root.addHandler(keep)
    root.setLevel(logging.DEBUG)
    try:
        yield records
    finally:
        root.removeHandler(keep)
        root.setLevel(before)


@check("H12", kind="structure", types=_HOOK)
async def lets_events_be_chosen(ctx: CheckContext) -> None:
    """Mounts it with settings that could name events, and looks whether it registers for others."""
    keys = settings_in(ctx.loaded.subject)
    if any("event" in key.lower() for key in keys):
        return
    usual = await _events_with(ctx, {})
    if not usual or usual == {next(iter(usual))} - {"*"}:
        return  # of one event there is nothing to choose
    for key in dict.fromkeys([*keys, "events", "enabled_events"]):
        for value in ([], [sorted(usual)[0]], ["prompt:submit"], False):
            if await _events_with(ctx, {key: value}) not in (usual, None):
                return
    ctx.fault("H12", f"no setting chooses which events are handled; it always handles {', '.join(sorted(usual)[:6])}")


async def _events_with(ctx: CheckContext, config: dict[str, Any]) -> set[str] | None:
    try:
        async with ctx.mount(config={**ctx.loaded.config, **config}) as mounted:
            return {each.event for each in mounted.registrations}
    except MountFailed:
        return None


# ── how it answers ──


@check("H1", "H3", "H4", "H5", "H6", "H7", "H8", "H13", "H14", kind="behaviour", types=_HOOK)
async def answers_listed_events(ctx: CheckContext) -> None:
    """Gives every handler every event of the catalogue and some of none, with payloads that are wrong by one thing."""
    subject = ctx.loaded.subject
    words, choices, texts = inputs_in(subject), choices_in(subject), set(texts_in(subject))
    named = [event for event in EVENTS if event in texts]
    async with ctx.mount() as mounted:
        series = EventSeries(ctx, Budget(ctx, _SECONDS))
        by_handler: list[tuple[Any, list[str]]] = []
        for registration in mounted.registrations:
            known = next((events for each, events in by_handler if each.handler == registration.handler), None)
            if known is None:
                by_handler.append((registration, known := []))
            known += [registration.event] if registration.event != "*" else []
        for registration, _ in by_handler:
            await series.play(mounted, registration, _briefly(words))
        for registration, events in by_handler:
            likely = list(dict.fromkeys([*(event for event in events if event in texts), *named, *events]))
            chosen = (likely or list(_USUAL))[:_MOST_EVENTS]
            await series.play(mounted, registration, _thoroughly(chosen, words, choices, triggers_in(subject)))
        series.look_at_what_was_given()
        if series.is_over:
            ctx.notes.append("there was no time to give the handlers every payload on the list")


def _briefly(words: list[str]) -> Iterator[Event]:
    for event in (*EVENTS, *UNKNOWN_EVENTS):
        yield event, ordinary_payload(event)
        yield from ((event, data) for data in odd_payloads(event, words, briefly=True))


def _thoroughly(events: list[str], words: list[str], choices: list[str], triggers: list[str]) -> Iterator[Event]:
    for event in events:
        yield from ((event, data) for data in reaching_payloads(event, words, choices, triggers))
        yield from ((event, data) for data in odd_payloads(event, words))


@check("H3", "H4", "H5", "H6", "H7", "H13", "H14", kind="behaviour", types=_HOOK, inputs="hook_events")
async def answers_drawn_events(ctx: CheckContext) -> None:
    """Gives every handler events and payloads that are drawn, known and unknown, right and wrong."""
    events = [(str(each["event"]), each["data"]) for each in ctx.case]
    async with ctx.mount() as mounted:
        series = EventSeries(ctx, shared_budget(ctx, "hook_events", _SECONDS * 2), is_drawn=True)
        for registration in mounted.registrations:
            await series.play(mounted, registration, events)
        series.look_at_what_was_given()


@check("H3", "H5", kind="behaviour", types=_HOOK)
async def keeps_events_apart(ctx: CheckContext) -> None:
    """Gives a handler two events at the same time; neither answer may hold what the other event carried."""
    named = [event for event in ALL_EVENTS if event in set(texts_in(ctx.loaded.subject))]
    await look_for_mixed_events(ctx, named, Budget(ctx, _SECONDS))
