"""Check hooks: their registrations, and the results of their handlers for every event."""

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
        """Report handlers that emit events in a circle.

        The kernel ends the circle with an error, which leaves the innermost handler.
        """
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
        """Compare every payload with the original, since a handler may change it later."""
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
            texts = [injection.content for injection in result.context_injections]
            self.expect(all(texts), "H6", "an injection carries no text", given)
        elif result.action == "deny":
            self.expect(result.reason, "H13", "a denial carries no reason", given)
        elif result.action == "ask_user":
            prompts = [gate.prompt for gate in result.approval_gates] or [result.approval_prompt]
            self.expect(all(prompts), "H13", "a question carries no prompt", given)
            defaults = [gate.default for gate in result.approval_gates] or [result.approval_default]
            self.expect(
                "allow" not in defaults,
                "H15",
                "a question that no one answers in time allows",
                given,
            )
        if result.action in ("deny", "ask_user") and registration.on_failure != "deny":
            what = (
                f"the handler {registration.name!r} can {result.action}, "
                "and is skipped when it fails"
            )
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
            what = (
                f"a modify carries the keys {sorted(changed)[:8]} only; "
                f"the payload had {sorted(data)[:12]}"
            )
            self.fault("H5", what, given)
        lost = [key for key in data if key not in changed]
        if lost:
            self.fault("H5", f"a modify carries no {lost[0]!r}; the payload had it", given)
        else:
            inside = next(_lost_inside(data, changed, ""), None)
            self.expect(inside is None, "H16", f"a modify {inside}", given)
        numbers = NEUTRAL["kit_numbers"]
        if data.get("kit_numbers") == numbers and changed.get("kit_numbers", numbers) != numbers:
            what = (
                f"a modify carries {changed['kit_numbers']!r} for a key that no handler uses; "
                f"it was {numbers!r}"
            )
            self.fault("H5", what, given)


_MAX_DEPTH = 120


def _lost_inside(data: Any, changed: Any, place: str, depth: int = 0) -> Iterator[str]:
    """Yield the keys and items that a changed payload lacks below its outermost level."""
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
    """Describe the fault of a handler's result, or return None if it is a valid HookResult."""
    if not isinstance(result, HookResult):
        return f"{type(result).__name__}, expected a HookResult"
    # A result can change after its construction, so it is constructed again from its fields.
    fields: dict[str, Any] = {
        field.name: getattr(result, field.name, None)
        for field in attrs.fields(HookResult)
        if field.init
    }
    try:
        HookResult(**fields)
    # The values may be of foreign classes.
    except Exception as error:  # noqa: BLE001
        return f"a HookResult that is not valid: {error}"
    return None


_HOOK = ("hook",)
_MIN_PRIORITY, _MAX_PRIORITY = 10, 90


@check("H9", "H10", "H11", kind="structure", types=_HOOK)
async def registers_well(ctx: CheckContext) -> None:
    """Check the registrations of mount: names, priorities, log records, and a way to undo them."""
    with captured_logs(lambda record: ctx.loaded.target.owns(record.pathname)) as records:
        async with ctx.mount() as mounted:
            registrations = mounted.registrations
            if not registrations:
                return
            undone = (
                mounted.cleanup is not None or mounted.is_structured or mounted.registered_cleanups
            )
            ctx.expect(undone, "H9", "mount returns no cleanup that unregisters its handlers")
            for entry in registrations:
                if not _MIN_PRIORITY <= entry.priority <= _MAX_PRIORITY:
                    what = (
                        f"{entry.name!r} for {entry.event!r} has the priority {entry.priority}; "
                        "expected 10 to 90"
                    )
                    ctx.fault("H10", what)
                    break
            unnamed = [entry.event for entry in registrations if entry.name.startswith("_auto_")]
            if unnamed:
                ctx.fault("H11", f"the handler for {unnamed[0]!r} is registered without a name")
            elif not records:
                ctx.fault("H11", "mount registers handlers and logs nothing about it")


@check("H12", kind="structure", types=_HOOK)
async def lets_events_be_chosen(ctx: CheckContext) -> None:
    """Mount the module with settings that could name events, one of which should change them."""
    keys = settings_in(ctx.loaded.target)
    if any("event" in key.lower() for key in keys):
        return
    usual = await _events_with(ctx, {})
    # A single event leaves nothing to choose.
    if not usual or usual == {next(iter(usual))} - {"*"}:
        return
    for key in dict.fromkeys([*keys, "events", "enabled_events"]):
        for value in ([], [sorted(usual)[0]], ["prompt:submit"], False):
            if await _events_with(ctx, {key: value}) not in (usual, None):
                return
    names = ", ".join(sorted(usual)[:6])
    ctx.fault("H12", f"no setting chooses the events; it always handles {names}")


async def _events_with(ctx: CheckContext, config: dict[str, Any]) -> set[str] | None:
    try:
        async with ctx.mount(config={**ctx.loaded.config, **config}) as mounted:
            return {registration.event for registration in mounted.registrations}
    except MountFailed:
        return None


@check(
    "H1", "H3", "H4", "H5", "H6", "H7", "H8", "H13", "H14", "H15", "H16",
    kind="behaviour", types=_HOOK, inputs="hook_events", on=CheckContext.mount,
)  # fmt: skip
async def answers_events(mounted: MountedModule) -> None:
    """Pass known and unknown events with valid and odd payloads to handlers, and run sessions."""
    case = mounted.ctx.case
    events = [(str(entry["event"]), entry["data"]) for entry in case["events"]]
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
                # Each handler has its own budget.
                series.check_payloads()
                series = EventSeries(mounted.ctx)
                await series.run(mounted, registration, events)
    series.check_payloads()


_MAX_BEGINNINGS = 360
_AT_ONCE = 6
"""A sequence of odd events before one ordinary session."""


@check("H3", "H4", "H5", "H6", "H7", "H13", "H16", kind="behaviour", types=_HOOK)
async def goes_on_after_odd_events(ctx: CheckContext) -> None:
    """Pass an early event with an odd value in one field, then an ordinary session with tools."""
    async with ctx.mount() as mounted:
        handled = {registration.event for registration in mounted.registrations}
    if not handled:
        return
    is_for_all = "*" in handled
    beginnings = [
        event for event in odd_beginnings(sorted(handled)) if is_for_all or event[0] in handled
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
        # A single event may be enough.
        for event in batch:
            alone = ctx.fresh()
            await _pass(alone, [event])
            if alone.faults:
                trial = alone
                break
        ctx.faults += trial.faults
        return


_MAX_CALLS = 8_000


async def _pass(ctx: CheckContext, beginning: Sequence[Event]) -> None:
    """Pass odd events, then an ordinary session, and report faults with the events they need."""
    async with ctx.mount() as mounted:
        series = EventSeries(ctx)
        odd = {event for event, _ in beginning}
        # Ordinary events of the same kind would undo the effect of the odd one.
        healing = odd - {"tool:pre", "tool:post", "tool:error"}
        rest = [event for event in several_tools() if event[0] not in healing]
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
    """Return the fields of a payload that differ from an ordinary one."""
    usual = ordinary_payload(event)
    return {key: value for key, value in data.items() if usual.get(key, ...) != value}


class _UnansweredApprovals:
    """An approval system whose user never answers."""

    asked = 0

    async def request_approval(
        self, prompt: str, options: Any = (), timeout: float = 3600.0, *rest: Any, **more: Any
    ) -> Any:
        self.asked += 1
        await anyio.sleep(timeout)
        raise ApprovalTimeoutError(f"no one has answered {prompt!r}")


@check("H15", kind="behaviour", types=("hook",), on=CheckContext.mount)
async def denies_without_an_answer(mounted: MountedModule) -> None:
    """Pass events to handlers that ask the user, with an approval system that never answers."""
    away = _UnansweredApprovals()
    mounted.session.coordinator.approval_system = away
    for operation in typical_operations(mounted):
        asked = away.asked
        outcome = await mounted.call(operation.run, mounted, seconds=_MAX_QUESTION_SECONDS)
        action = outcome.value.get("action") if isinstance(outcome.value, dict) else None
        if away.asked > asked and action in ("continue", "modify", "inject_context"):
            what = f"{operation.name} asked, got no answer, and let it pass with {action!r}"
            mounted.ctx.fault("H15", what, given=operation.given)
            return


_MAX_QUESTION_SECONDS = 4_000.0
