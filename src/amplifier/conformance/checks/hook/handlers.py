"""Checks of hooks: how they register, and what their handlers return for every event."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from amplifier.conformance.harness.check_registry import check
from amplifier.conformance.harness.mounted_module import CheckContext, MountFailed
from amplifier.conformance.harness.resources.observers import captured_logs
from amplifier.conformance.harness.work_budget import Budget
from amplifier.conformance.inputs.hook_payloads import (
    EVENTS,
    UNKNOWN_EVENTS,
    odd_payloads,
    ordinary_payload,
    reaching_payloads,
)
from amplifier.conformance.target.source_literals import choices_in, inputs_in, settings_in, texts_in, triggers_in

from .event_series import Event, EventSeries

_HOOK = ("hook",)
_MIN_PRIORITY, _MAX_PRIORITY = 10, 90
_USUAL = ("tool:pre", "tool:post", "prompt:submit")
_MAX_EVENTS = 6
_CALLS = 3_000
"""The budget of the listed events in the quick profile."""


@check("H9", "H10", "H11", kind="structure", types=_HOOK)
async def registers_well(ctx: CheckContext) -> None:
    """Reads what mount registers: names, priorities, log records, and a way to undo it."""
    with captured_logs(lambda record: ctx.loaded.target.owns(record.pathname)) as records:
        async with ctx.mount() as mounted:
            found = mounted.registrations
            if not found:
                return
            undone = mounted.cleanup is not None or mounted.is_structured or mounted.registered_cleanups
            ctx.expect(undone, "H9", "mount returns no cleanup that unregisters its handlers")
            for each in found:
                if not _MIN_PRIORITY <= each.priority <= _MAX_PRIORITY:
                    what = f"{each.name!r} for {each.event!r} has the priority {each.priority}; expected 10 to 90"
                    ctx.fault("H10", what)
                    break
            unnamed = [each.event for each in found if each.name.startswith("_auto_")]
            if unnamed:
                ctx.fault("H11", f"the handler for {unnamed[0]!r} is registered without a name")
            elif not records:
                ctx.fault("H11", "mount registers handlers and logs nothing about it")


@check("H12", kind="structure", types=_HOOK)
async def lets_events_be_chosen(ctx: CheckContext) -> None:
    """Mounts it with settings that could name events; one of them should change the events it registers for."""
    keys = settings_in(ctx.loaded.target)
    if any("event" in key.lower() for key in keys):
        return
    usual = await _events_with(ctx, {})
    if not usual or usual == {next(iter(usual))} - {"*"}:
        return  # a single event leaves nothing to choose
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


@check("H1", "H3", "H4", "H5", "H6", "H7", "H8", "H13", "H14", kind="behaviour", types=_HOOK)
async def answers_listed_events(ctx: CheckContext) -> None:
    """Passes every event of the catalogue and unknown ones to every handler, with payloads that have one defect each."""
    target = ctx.loaded.target
    words, texts = inputs_in(target), set(texts_in(target))
    named = [event for event in EVENTS if event in texts]
    async with ctx.mount() as mounted:
        series = EventSeries(ctx, Budget(ctx, _CALLS))
        by_handler: list[tuple[Any, list[str]]] = []
        for registration in mounted.registrations:
            known = next((events for each, events in by_handler if each.handler == registration.handler), None)
            if known is None:
                by_handler.append((registration, known := []))
            known += [registration.event] if registration.event != "*" else []
        for registration, _ in by_handler:
            await series.run(mounted, registration, _few_events(words))
        for registration, events in by_handler:
            likely = list(dict.fromkeys([*(event for event in events if event in texts), *named, *events]))
            chosen = (likely or list(_USUAL))[:_MAX_EVENTS]
            await series.run(mounted, registration, _many_events(ctx, chosen))
        series.check_payloads()


def _few_events(words: list[str]) -> Iterator[Event]:
    for event in (*EVENTS, *UNKNOWN_EVENTS):
        yield event, ordinary_payload(event)
        yield from ((event, data) for data in odd_payloads(event, words, briefly=True))


def _many_events(ctx: CheckContext, events: list[str]) -> Iterator[Event]:
    target = ctx.loaded.target
    words = inputs_in(target)
    for event in events:
        for data in reaching_payloads(event, words, choices_in(target), triggers_in(target)):
            yield event, data
        yield from ((event, data) for data in odd_payloads(event, words))


@check("H3", "H4", "H5", "H6", "H7", "H13", "H14", kind="behaviour", types=_HOOK, inputs="hook_events")
async def answers_drawn_events(ctx: CheckContext) -> None:
    """Passes drawn events and payloads to every handler, known and unknown, valid and invalid."""
    events = [(str(each["event"]), each["data"]) for each in ctx.case]
    async with ctx.mount() as mounted:
        series = EventSeries(ctx, is_drawn=True)
        for registration in mounted.registrations:
            await series.run(mounted, registration, events)
        series.check_payloads()
