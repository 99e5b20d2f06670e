"""Detects cross-talk between concurrent events of one handler."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

from amplifier.conformance.harness.calls.concurrent import HEAD_STARTS, MARKS, has_swapped, run_concurrently
from amplifier.conformance.harness.calls.outcome import Outcome, call_with_deadline
from amplifier.conformance.harness.check_registry import check
from amplifier.conformance.harness.mounted_module import CheckContext, MountedModule
from amplifier.conformance.harness.work_budget import Budget
from amplifier.conformance.inputs.hook_payloads import ordinary_payload, reaching_payloads
from amplifier.conformance.inputs.json_schema import fingerprint
from amplifier.conformance.target.source_literals import choices_in, inputs_in, texts_in, triggers_in
from amplifier.events import ALL_EVENTS
from amplifier.models import HookResult, to_dict

_SECONDS = 2.0
_CALLS = 2_000
_MAX_PAYLOADS = 8
_EVENTS_PER_HANDLER = 3


@check("H3", "H5", kind="behaviour", types=("hook",))
async def keeps_events_apart(ctx: CheckContext) -> None:
    """Passes two events to a handler at the same time; no result may hold what the other event carried."""
    target = ctx.loaded.target
    named = [event for event in ALL_EVENTS if event in set(texts_in(target))]
    budget = Budget(ctx, _CALLS)
    async with ctx.mount() as mounted:
        handlers: list[Any] = []
        registered: list[tuple[int, str]] = []
        for index, each in enumerate(mounted.registrations):
            if handlers.count(each.handler) < _EVENTS_PER_HANDLER:
                handlers.append(each.handler)
                registered.append((index, each.event))
    for index, pattern in registered:
        for event in [pattern] if pattern != "*" else (named or ["tool:pre", "tool:post"])[:4]:
            reaching = reaching_payloads(event, inputs_in(target), choices_in(target), triggers_in(target))
            for data in [ordinary_payload(event), *reaching][:_MAX_PAYLOADS]:
                if budget.is_spent() or await _is_mixed(ctx, index, event, data):
                    return


async def _is_mixed(ctx: CheckContext, index: int, event: str, data: dict[str, Any]) -> bool:
    payloads = [_marked(data, mark) for mark in MARKS]
    for which, mark in enumerate(MARKS):
        async with ctx.mount() as mounted:
            alone = await _handle(mounted, index, event, payloads[which])
        if mark not in _shown(alone):
            return False  # the result does not show which event it is about
    for head_start in HEAD_STARTS:
        async with ctx.mount() as mounted:
            first, second = (partial(_handle, mounted, index, event, payload) for payload in payloads)
            together = await run_concurrently(ctx, (first, second), head_start, what="a handler", seconds=_SECONDS)
        for which, outcome in enumerate(together):
            text = _shown(outcome)
            if has_swapped(which, text):
                clause = "H5" if getattr(outcome.value, "action", "") == "modify" else "H3"
                what = f"two {event} at the same time: the answer to one holds what the other carried, {text[:150]}"
                ctx.fault(clause, what, given={"event": event, "data": payloads})
                return True
    return False


def _marked(data: Any, mark: str) -> Any:
    """A payload of which every text ends with a mark."""
    if isinstance(data, dict):
        return {key: _marked(value, mark) if key != "tool_name" else value for key, value in data.items()}
    if isinstance(data, list):
        return [_marked(value, mark) for value in data]
    return f"{data} {mark}" if isinstance(data, str) else data


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
    except Exception:  # noqa: BLE001 — values that no model accepts; another check reports them
        return ""
