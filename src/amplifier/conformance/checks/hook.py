"""Checks of hooks: how they register, and what their handlers return for every event, alone, in a session and at the same time."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import anyio
import attrs

from amplifier.conformance.checks.registry import check
from amplifier.conformance.inputs.json_schema import fingerprint, json_problem
from amplifier.conformance.inputs.payloads import (
    NEUTRAL,
    odd_beginnings,
    ordinary_payload,
    several_tools,
)
from amplifier.conformance.oracles.calls import CallSeries
from amplifier.conformance.target.calls import binding_error
from amplifier.conformance.target.mounted import OWNER, CheckContext, MountedModule, MountFailed
from amplifier.conformance.target.process import captured_logs
from amplifier.conformance.target.source import settings_in
from amplifier.conformance.target.use import typical_operations
from amplifier.errors import ApprovalTimeoutError, HookRecursionError
from amplifier.events import HOOK_FAILED
from amplifier.models import HookResult

Event = tuple[str, dict[str, Any]]


class EventSeries(CallSeries):
    """Events for all handlers of one module."""

    def __init__(self, ctx: CheckContext) -> None:
        super().__init__(ctx)
        self._kept: list[tuple[Any, str, Any]] = []

    async def run(self, mounted: MountedModule, registration: Any, events: Iterable[Event]) -> None:
        """Pass the events to one handler."""
        for event, data in events:
            if self.is_over:
                return
            await self._call(mounted, registration, event, data)

    async def _call(
        self, mounted: MountedModule, registration: Any, event: str, data: dict[str, Any]
    ) -> None:
        given = {"handler": registration.name, "event": event, "data": data}
        heard = len(mounted.events.events)
        outcome, own, changed = await self.call(mounted, partial(registration.handler, event), data)
        if outcome.kind == "raised":
            is_unfit = (
                outcome.is_async is None
                and binding_error(registration.handler, "event", {}) is not None
            )
            what = f"the handler {registration.name!r} {outcome}"
            self.fault("H1" if is_unfit else "H4", what, given, error=outcome.error)
        elif outcome.returned:
            self.expect(
                outcome.is_async, "H8", f"the handler {registration.name!r} is not async", None
            )
            self._check_result(outcome.value, registration, data, given)
        self._check_recursion(mounted.events.events[heard:], given)
        if changed is not None:
            self.fault(
                "H7", f"the handler {registration.name!r} changed the data it was given", given
            )
        else:
            self._kept.append((own, fingerprint(own), given))

    def _check_recursion(self, emitted: list[Event], given: Any) -> None:
        """Report handlers that emit events in a circle: the kernel ends it with an error, which leaves the innermost one."""
        for event, data in emitted:
            if (
                event == HOOK_FAILED
                and data["module_id"] == OWNER
                and data["error_type"] == HookRecursionError.__name__
            ):
                what = (
                    f"the handler {data['hook_name']!r} raised HookRecursionError: {data['error']}"
                )
                self.fault("H4", what, given)
                return

    def check_payloads(self) -> None:
        """Compare every payload with what it was: a handler may change one after it has returned."""
        for own, was, given in self._kept:
            if fingerprint(own) != was:
                self.fault(
                    "H7", "a handler changed the data it was given after it had answered", given
                )
                return

    def _check_result(
        self, result: Any, registration: Any, data: dict[str, Any], given: Any
    ) -> None:
        problem = _invalid(result)
        if problem is not None:
            if result is None and registration.on_failure == "deny":
                problem += "; it is a gate, so the kernel denies the event"
            self.fault("H3", f"the handler {registration.name!r} answered with {problem}", given)
            return
        if result.action == "modify":
            self._check_modify(result, data, given)
        elif result.action == "inject_context":
            injected = result.context_injections or result.context_injection
            self.expect(injected, "H6", "an inject_context carries no text", given)
            texts = [each.content for each in result.context_injections]
            self.expect(all(texts), "H6", "an injection carries no text", given)
        elif result.action == "deny":
            self.expect(result.reason, "H13", "a denial carries no reason", given)
        elif result.action == "ask_user":
            prompts = [each.prompt for each in result.approval_gates] or [result.approval_prompt]
            self.expect(all(prompts), "H13", "a question carries no prompt", given)
            defaults = [each.default for each in result.approval_gates] or [result.approval_default]
            self.expect(
                "allow" not in defaults,
                "H15",
                "a question that no one answers in time allows",
                given,
            )
        if result.action in ("deny", "ask_user") and registration.on_failure != "deny":
            what = f"the handler {registration.name!r} can {result.action}, and is skipped when it fails"
            self.fault("H14", what, given)

    def _check_modify(self, result: HookResult, data: dict[str, Any], given: Any) -> None:
        changed = result.data
        if changed is None:
            self.fault("H5", "a modify carries no payload", given)
            return
        problem = json_problem(changed)
        if problem is not None:
            self.fault("H5", f"the payload of a modify holds {problem}, which is not JSON", given)
        if all(key in data and key not in changed for key in NEUTRAL):
            what = f"a modify carries the keys {sorted(changed)[:8]} only; the payload had {sorted(data)[:12]}"
            self.fault("H5", what, given)
        lost = [key for key in data if key not in changed]
        if lost:
            self.fault("H5", f"a modify carries no {lost[0]!r}; the payload had it", given)
        else:
            inside = next(_lost_inside(data, changed, ""), None)
            self.expect(inside is None, "H16", f"a modify {inside}", given)
        numbers = NEUTRAL["kit_numbers"]
        if data.get("kit_numbers") == numbers and changed.get("kit_numbers", numbers) != numbers:
            what = f"a modify carries {changed['kit_numbers']!r} for a key that no handler knows; it was {numbers!r}"
            self.fault("H5", what, given)


_MAX_DEPTH = 120


def _lost_inside(data: Any, changed: Any, place: str, depth: int = 0) -> Iterator[str]:
    """Return the keys and the items that a changed payload lacks below its outermost level."""
    if depth > _MAX_DEPTH:
        return
    if isinstance(data, dict) and isinstance(changed, dict):
        for key, value in data.items():
            if key in changed:
                yield from _lost_inside(value, changed[key], f"{place}/{key}", depth + 1)
            else:
                yield f"lacks the key {key!r} in {place[1:]!r}; the payload had it"
    elif isinstance(data, list) and isinstance(changed, list):
        if len(data) != len(changed):
            yield f"has {len(changed)} items in {place[1:]!r}; the payload had {len(data)}"
        for number, (one, other) in enumerate(zip(data, changed, strict=False)):
            yield from _lost_inside(one, other, f"{place}/{number}", depth + 1)


def _invalid(result: Any) -> str | None:
    """What is wrong with a handler's result; None if it is a valid HookResult."""
    if not isinstance(result, HookResult):
        return f"{type(result).__name__}, expected a HookResult"
    # A result can be changed after it was made, so it is made again from its fields.
    fields: dict[str, Any] = {
        each.name: getattr(result, each.name, None)
        for each in attrs.fields(HookResult)
        if each.init
    }
    try:
        HookResult(**fields)
    except Exception as error:  # noqa: BLE001 — values of foreign classes
        return f"a HookResult that is not valid: {error}"
    return None


_HOOK = ("hook",)
_MIN_PRIORITY, _MAX_PRIORITY = 10, 90


@check("H9", "H10", "H11", kind="structure", types=_HOOK)
async def registers_well(ctx: CheckContext) -> None:
    """Reads what mount registers: names, priorities, log records, and a way to undo it."""
    with captured_logs(lambda record: ctx.loaded.target.owns(record.pathname)) as records:
        async with ctx.mount() as mounted:
            found = mounted.registrations
            if not found:
                return
            undone = (
                mounted.cleanup is not None or mounted.is_structured or mounted.registered_cleanups
            )
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
    ctx.fault(
        "H12",
        f"no setting chooses which events are handled; it always handles {', '.join(sorted(usual)[:6])}",
    )


async def _events_with(ctx: CheckContext, config: dict[str, Any]) -> set[str] | None:
    try:
        async with ctx.mount(config={**ctx.loaded.config, **config}) as mounted:
            return {each.event for each in mounted.registrations}
    except MountFailed:
        return None


@check(
    "H1", "H3", "H4", "H5", "H6", "H7", "H8", "H13", "H14", "H15", "H16",
    kind="behaviour", types=_HOOK, inputs="hook_events", on=CheckContext.mount,
)  # fmt: skip
async def answers_events(mounted: MountedModule) -> None:
    """Passes events to every handler: known and unknown ones with payloads right and wrong, and those of a session in which tools fail."""
    case = mounted.ctx.case
    events = [(str(each["event"]), each["data"]) for each in case["events"]]
    series = EventSeries(mounted.ctx)
    if case.get("routed"):
        for event, data in events:
            for registration in mounted.registrations:
                if registration.event in (event, "*"):
                    await series.run(mounted, registration, [(event, data)])
    else:
        seen: list[Any] = []
        for registration in mounted.registrations:
            if registration.handler not in seen:
                seen.append(registration.handler)
                # Each handler has a budget of its own.
                series.check_payloads()
                series = EventSeries(mounted.ctx)
                await series.run(mounted, registration, events)
    series.check_payloads()


_MAX_BEGINNINGS = 360
_AT_ONCE = 6
"""Odd events before one ordinary session."""


@check("H3", "H4", "H5", "H6", "H7", "H13", "H16", kind="behaviour", types=_HOOK)
async def goes_on_after_odd_events(ctx: CheckContext) -> None:
    """Passes an early event with an odd value in one field, then the events of an ordinary session with several tools."""
    async with ctx.mount() as mounted:
        handled = {each.event for each in mounted.registrations}
    if not handled:
        return
    is_for_all = "*" in handled
    beginnings = [
        each for each in odd_beginnings(sorted(handled)) if is_for_all or each[0] in handled
    ]
    random.Random(ctx.seed).shuffle(beginnings)
    budget = ctx.budget(_MAX_CALLS)
    for start in range(0, _MAX_BEGINNINGS, _AT_ONCE):
        batch = beginnings[start : start + _AT_ONCE]
        if not batch or budget.is_spent():
            return
        trial = ctx.fresh()
        await _pass(trial, batch)
        if not trial.faults:
            continue
        # The one event that it takes, if it is one.
        for each in batch:
            alone = ctx.fresh()
            await _pass(alone, [each])
            if alone.faults:
                trial = alone
                break
        ctx.faults += trial.faults
        return


_MAX_CALLS = 8_000


async def _pass(ctx: CheckContext, beginning: Sequence[Event]) -> None:
    """Pass odd events and then an ordinary session; report what is wrong with the answers, and the events that it takes."""
    async with ctx.mount() as mounted:
        series = EventSeries(ctx)
        odd = {event for event, _ in beginning}
        # Ordinary events of the same kind would heal what the odd one broke.
        healing = odd - {"tool:pre", "tool:post", "tool:error"}
        rest = [each for each in several_tools() if each[0] not in healing]
        for event, data in [*beginning, *rest]:
            before = len(ctx.faults)
            for registration in mounted.registrations:
                if registration.event in (event, "*"):
                    await series.run(mounted, registration, [(event, data)])
            if len(ctx.faults) > before:
                break
        series.check_payloads()
    if (event, data) in beginning or not ctx.faults:
        return
    earlier = [{"event": event, "data": _odd_part(event, data)} for event, data in beginning]
    ctx.faults[:] = [
        attrs.evolve(fault, input={"after": earlier, "then": fault.input}) for fault in ctx.faults
    ]


def _odd_part(event: str, data: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a payload that are not those of an ordinary one."""
    usual = ordinary_payload(event)
    return {key: value for key, value in data.items() if usual.get(key, ...) != value}


class _NobodyAnswers:
    """An approval system whose user is away."""

    asked = 0

    async def request_approval(
        self, prompt: str, options: Any = (), timeout: float = 3600.0, *rest: Any, **more: Any
    ) -> Any:
        self.asked += 1
        await anyio.sleep(timeout)
        raise ApprovalTimeoutError(f"no one has answered {prompt!r}")


@check("H15", kind="behaviour", types=("hook",), on=CheckContext.mount)
async def denies_without_an_answer(mounted: MountedModule) -> None:
    """Passes events to handlers that ask the user themselves, with an approval system that never answers."""
    away = _NobodyAnswers()
    mounted.session.coordinator.approval_system = away
    for operation in typical_operations(mounted):
        asked = away.asked
        outcome = await mounted.call(operation.run, mounted, seconds=_LONGEST_QUESTION)
        action = outcome.value.get("action") if isinstance(outcome.value, dict) else None
        if away.asked > asked and action in ("continue", "modify", "inject_context"):
            what = f"{operation.name} asked, got no answer, and let it pass with {action!r}"
            mounted.ctx.fault("H15", what, given=operation.given)
            return


_LONGEST_QUESTION = 4_000.0
