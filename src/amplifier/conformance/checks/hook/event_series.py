"""Many events for the handlers of one hook module in one session, and what is wrong with the results."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import attrs

from amplifier.conformance.harness.calls.outcome import binding_error
from amplifier.conformance.harness.calls.series import CallSeries
from amplifier.conformance.harness.mounted_module import OWNER, CheckContext, MountedModule
from amplifier.conformance.harness.work_budget import Budget
from amplifier.conformance.inputs.hook_payloads import NEUTRAL
from amplifier.conformance.inputs.json_schema import fingerprint, json_problem
from amplifier.errors import HookRecursionError
from amplifier.events import HOOK_FAILED
from amplifier.models import HookResult

Event = tuple[str, dict[str, Any]]


class EventSeries(CallSeries):
    """Events for all handlers of one module."""

    def __init__(self, ctx: CheckContext, budget: Budget | None = None, *, is_drawn: bool = False) -> None:
        super().__init__(ctx, budget, is_drawn=is_drawn)
        self._kept: list[tuple[Any, str, Any]] = []

    async def run(self, mounted: MountedModule, registration: Any, events: Iterable[Event]) -> None:
        """Pass the events to one handler."""
        for event, data in events:
            if self.is_over:
                return
            await self._call(mounted, registration, event, data)

    async def _call(self, mounted: MountedModule, registration: Any, event: str, data: dict[str, Any]) -> None:
        given = {"handler": registration.name, "event": event, "data": data}
        heard = len(mounted.events.events)
        outcome, own, changed = await self.call(mounted, partial(registration.handler, event), data)
        if outcome.kind == "raised":
            is_unfit = outcome.is_async is None and binding_error(registration.handler, "event", {}) is not None
            what = f"the handler {registration.name!r} {outcome}"
            self.fault("H1" if is_unfit else "H4", what, given, error=outcome.error)
        elif outcome.returned:
            self.expect(outcome.is_async, "H8", f"the handler {registration.name!r} is not async", None)
            self._check_result(outcome.value, registration, data, given)
        self._check_recursion(mounted.events.events[heard:], given)
        if changed is not None:
            self.fault("H7", f"the handler {registration.name!r} changed the data it was given", given)
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
                what = f"the handler {data['hook_name']!r} raised HookRecursionError: {data['error']}"
                self.fault("H4", what, given)
                return

    def check_payloads(self) -> None:
        """Compare every payload with what it was: a handler may change one after it has returned."""
        for own, was, given in self._kept:
            if fingerprint(own) != was:
                self.fault("H7", "a handler changed the data it was given after it had answered", given)
                return

    def _check_result(self, result: Any, registration: Any, data: dict[str, Any], given: Any) -> None:
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


def _invalid(result: Any) -> str | None:
    """What is wrong with a handler's result; None if it is a valid HookResult."""
    if not isinstance(result, HookResult):
        return f"{type(result).__name__}, expected a HookResult"
    # A result can be changed after it was made, so it is made again from its fields.
    fields: dict[str, Any] = {
        each.name: getattr(result, each.name, None) for each in attrs.fields(HookResult) if each.init
    }
    try:
        HookResult(**fields)
    except Exception as error:  # noqa: BLE001 — values of foreign classes
        return f"a HookResult that is not valid: {error}"
    return None
