"""Two events for a handler at the same time: each answer is about its own event.

Above stands the check; below stands the mounted.
"""

from __future__ import annotations

import copy
from typing import Any

import anyio
import anyio.lowlevel

from amplifier.conformance.harness.mounted_module import (
    CANCEL_GRACE,
    CheckContext,
    MountedModule,
    Outcome,
    call_with_deadline,
)
from amplifier.conformance.harness.time_budget import Budget
from amplifier.conformance.inputs.hook_payloads import ordinary_payload, reaching_payloads
from amplifier.conformance.inputs.json_schema import fingerprint
from amplifier.conformance.target.source_literals import choices_in, inputs_in, triggers_in
from amplifier.models import HookResult, to_dict

_MARKS = ("alphamark", "bravomark")
_SECONDS = 2.0
_MOST = 8
_EVENTS_EACH = 3


async def look_for_mixed_events(ctx: CheckContext, named: list[str], budget: Budget) -> None:
    """Report the first handler that answers one event with what another one carried."""
    async with ctx.mount() as mounted:
        handlers: list[Any] = []
        events: list[tuple[int, str]] = []
        for index, each in enumerate(mounted.registrations):
            if handlers.count(each.handler) < _EVENTS_EACH:
                handlers.append(each.handler)
                events.append((index, each.event))
    for index, event in events:
        for each in [event] if event != "*" else (named or ["tool:pre", "tool:post"])[:4]:
            for data in _payloads(ctx, each):
                if budget.is_spent() or await _is_mixed(ctx, index, each, data):
                    return


def _payloads(ctx: CheckContext, event: str) -> list[dict[str, Any]]:
    subject = ctx.loaded.subject
    reaching = list(reaching_payloads(event, inputs_in(subject), choices_in(subject), triggers_in(subject)))
    return [ordinary_payload(event), *reaching][:_MOST]


def _marked(data: Any, mark: str) -> Any:
    """A payload of which every text ends with a mark."""
    if isinstance(data, dict):
        return {key: _marked(value, mark) if key != "tool_name" else value for key, value in data.items()}
    if isinstance(data, list):
        return [_marked(value, mark) for value in data]
    return f"{data} {mark}" if isinstance(data, str) else data


async def _is_mixed(ctx: CheckContext, index: int, event: str, data: dict[str, Any]) -> bool:
    pair = [_marked(data, mark) for mark in _MARKS]
    alone = []
    for payload in pair:
        async with ctx.mount() as mounted:
            alone.append(_shown(await _handle(mounted, index, event, payload)))
    if not all(mark in text for mark, text in zip(_MARKS, alone, strict=True)):
        return False  # the answers do not show what they are about
    for head_start in (0, 1, 3):
        async with ctx.mount() as mounted:
            beside = await _beside_each_other(mounted, index, event, pair, head_start)
        for outcome, mark, other in zip(beside, _MARKS, _MARKS[::-1], strict=True):
            text = _shown(outcome)
            if mark not in text and other in text:
                clause = "H5" if getattr(outcome.value, "action", "") == "modify" else "H3"
                what = f"two {event} at the same time: the answer to one holds what the other carried, {text[:150]}"
                ctx.fault(clause, what, given={"event": event, "data": pair})
                return True
    return False


async def _beside_each_other(
    mounted: MountedModule, index: int, event: str, pair: list[dict[str, Any]], head_start: int
) -> list[Outcome]:
    outcomes: dict[int, Outcome] = {}

    async def handle(which: int) -> None:
        outcomes[which] = await _handle(mounted, index, event, pair[which])

    with mounted.ctx.alarm(_SECONDS * 2 + CANCEL_GRACE, "A8", "a handler"):
        async with anyio.create_task_group() as group:
            group.start_soon(handle, 0)
            for _ in range(head_start):
                await anyio.lowlevel.checkpoint()
            group.start_soon(handle, 1)
    return [outcomes[0], outcomes[1]]


async def _handle(mounted: MountedModule, index: int, event: str, data: dict[str, Any]) -> Outcome:
    registrations = mounted.registrations
    if index >= len(registrations):
        return Outcome(kind="late")
    return await call_with_deadline(registrations[index].handler, event, copy.deepcopy(data), seconds=_SECONDS)


def _shown(outcome: Outcome) -> str:
    if not isinstance(outcome.value, HookResult):
        return ""
    try:
        return fingerprint(to_dict(outcome.value))
    except Exception:  # noqa: BLE001 — values that no model takes; another check says so
        return ""
