"""What a hook promises: that its handlers answer every event well, change nothing but by their answer, and go when told."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from amplifier.conformance.harness.check_registry import check
from amplifier.conformance.harness.mounted_module import OWNER, MountFailed, Stage
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
from .event_trials import Happening, HookTrial

_HOOK = ("hook",)
_FIRST, _LAST = 10, 90
_USUAL = ("tool:pre", "tool:post", "prompt:submit")
_MOST_EVENTS = 6
_SECONDS = 2.0
"""Of our own work, in the quick profile, for each of the checks that list their questions."""


# ── how it registers ──


@check("H9", "H10", "H11", kind="structure", types=_HOOK)
async def registers_well(stage: Stage) -> None:
    """Looks at what mount registers: its names, its priorities, what the log says of it, and a way to undo it."""
    with _log_of(stage) as records:
        async with stage.scene() as scene:
            found = scene.registrations
            if not found:
                return
            own = [each for each in scene.session.coordinator.cleanups.entries if each.owner == OWNER]
            undone = scene.cleanup is not None or scene.is_structured or any(each.what == "cleanup" for each in own)
            stage.expect(undone, "H9", "mount returns no cleanup that unregisters its handlers")
            for each in found:
                if not _FIRST <= each.priority <= _LAST:
                    what = f"{each.name!r} for {each.event!r} has the priority {each.priority}; expected 10 to 90"
                    stage.fault("H10", what)
                    break
            unnamed = [each.event for each in found if each.name.startswith("_auto_")]
            if unnamed:
                stage.fault("H11", f"the handler for {unnamed[0]!r} is registered without a name")
            elif not records:
                stage.fault("H11", "mount registers handlers and logs nothing about it")


@contextmanager
def _log_of(stage: Stage) -> Iterator[list[logging.LogRecord]]:
    """What the module logs, at whatever level."""
    records: list[logging.LogRecord] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if stage.loaded.target.owns(record.pathname):
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
async def lets_events_be_chosen(stage: Stage) -> None:
    """Mounts it with settings that could name events, and looks whether it registers for others."""
    keys = settings_in(stage.loaded.target)
    if any("event" in key.lower() for key in keys):
        return
    usual = await _events_with(stage, {})
    if not usual or usual == {next(iter(usual))} - {"*"}:
        return  # of one event there is nothing to choose
    for key in dict.fromkeys([*keys, "events", "enabled_events"]):
        for value in ([], [sorted(usual)[0]], ["prompt:submit"], False):
            if await _events_with(stage, {key: value}) not in (usual, None):
                return
    stage.fault("H12", f"no setting chooses which events are handled; it always handles {', '.join(sorted(usual)[:6])}")


async def _events_with(stage: Stage, config: dict[str, Any]) -> set[str] | None:
    try:
        async with stage.scene(config={**stage.loaded.config, **config}) as scene:
            return {each.event for each in scene.registrations}
    except MountFailed:
        return None


# ── how it answers ──


@check("H1", "H3", "H4", "H5", "H6", "H7", "H8", "H13", "H14", kind="behaviour", types=_HOOK)
async def answers_listed_events(stage: Stage) -> None:
    """Gives every handler every event of the catalogue and some of none, with payloads that are wrong by one thing."""
    subject = stage.loaded.target
    words, choices, texts = inputs_in(subject), choices_in(subject), set(texts_in(subject))
    named = [event for event in EVENTS if event in texts]
    async with stage.scene() as scene:
        trial = HookTrial(stage, Budget(stage, _SECONDS))
        by_handler: list[tuple[Any, list[str]]] = []
        for registration in scene.registrations:
            known = next((events for each, events in by_handler if each.handler == registration.handler), None)
            if known is None:
                by_handler.append((registration, known := []))
            known += [registration.event] if registration.event != "*" else []
        for registration, _ in by_handler:
            await trial.play(scene, registration, _briefly(words))
        for registration, events in by_handler:
            likely = list(dict.fromkeys([*(event for event in events if event in texts), *named, *events]))
            chosen = (likely or list(_USUAL))[:_MOST_EVENTS]
            await trial.play(scene, registration, _thoroughly(chosen, words, choices, triggers_in(subject)))
        trial.look_at_what_was_given()
        if trial.is_over:
            stage.notes.append("there was no time to give the handlers every payload on the list")


def _briefly(words: list[str]) -> Iterator[Happening]:
    for event in (*EVENTS, *UNKNOWN_EVENTS):
        yield event, ordinary_payload(event)
        yield from ((event, data) for data in odd_payloads(event, words, briefly=True))


def _thoroughly(events: list[str], words: list[str], choices: list[str], triggers: list[str]) -> Iterator[Happening]:
    for event in events:
        yield from ((event, data) for data in reaching_payloads(event, words, choices, triggers))
        yield from ((event, data) for data in odd_payloads(event, words))


@check("H3", "H4", "H5", "H6", "H7", "H13", "H14", kind="behaviour", types=_HOOK, inputs="hook_events")
async def answers_drawn_events(stage: Stage) -> None:
    """Gives every handler events and payloads that are drawn, known and unknown, right and wrong."""
    happenings = [(str(each["event"]), each["data"]) for each in stage.case]
    async with stage.scene() as scene:
        trial = HookTrial(stage, shared_budget(stage, "hook_events", _SECONDS * 2), is_drawn=True)
        for registration in scene.registrations:
            await trial.play(scene, registration, happenings)
        trial.look_at_what_was_given()


@check("H3", "H5", kind="behaviour", types=_HOOK)
async def keeps_events_apart(stage: Stage) -> None:
    """Gives a handler two events at the same time; neither answer may hold what the other event carried."""
    named = [event for event in ALL_EVENTS if event in set(texts_in(stage.loaded.target))]
    await look_for_mixed_events(stage, named, Budget(stage, _SECONDS))
