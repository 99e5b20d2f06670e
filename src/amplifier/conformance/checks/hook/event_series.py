"""Many events for the handlers of one hook module in one session, and what is wrong with the answers.

Above stand the checks of hooks; below stands the mounted.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterable
from typing import Any

import attrs

from amplifier.conformance.harness.mounted_module import CheckContext, MountedModule
from amplifier.conformance.harness.time_budget import Budget
from amplifier.conformance.inputs.hook_payloads import NEUTRAL
from amplifier.conformance.inputs.json_schema import fingerprint, json_problem
from amplifier.errors import ModelError
from amplifier.models import HookResult

_SECONDS = 1.5
_MOST_LATE = 2

Event = tuple[str, dict[str, Any]]


class EventSeries:
    """A series of events.

    Args:
        ctx: Where; faults are reported there, one for each clause.
        budget: How long.
        is_drawn: Whether the events are the ctx's case, which then is the input of every fault.
    """

    def __init__(self, ctx: CheckContext, budget: Budget, *, is_drawn: bool = False) -> None:
        self._ctx = ctx
        self._is_drawn = is_drawn
        self._broken: set[str] = set()
        self._kept: list[tuple[Any, str, Any]] = []
        self._budget = budget
        self._late = 0

    @property
    def is_over(self) -> bool:
        """Whether the time for this module is used up."""
        return self._late >= _MOST_LATE or self._budget.is_spent()

    async def play(self, mounted: MountedModule, registration: Any, events: Iterable[Event]) -> None:
        """Give one handler its events."""
        for event, data in events:
            if self.is_over:
                return
            await self._call(mounted, registration, event, data)

    async def _call(self, mounted: MountedModule, registration: Any, event: str, data: dict[str, Any]) -> None:
        own, was = copy.deepcopy(data), fingerprint(data)
        is_async: list[bool] = []

        async def handle() -> Any:
            answer = registration.handler(event, own)
            is_async.append(inspect.isawaitable(answer))
            return await answer if is_async[0] else answer

        given = {"handler": registration.name, "event": event, "data": data}
        outcome = await mounted.call(handle, seconds=_SECONDS)
        if outcome.kind == "late":
            self._late += 1
        elif outcome.kind == "raised":
            clause = "H1" if not is_async and not _can_be_called(registration.handler) else "H4"
            self._fault(clause, f"the handler {registration.name!r} {outcome}", given, error=outcome.error)
        else:
            if not is_async[0]:
                self._fault("H8", f"the handler {registration.name!r} is not async", None)
            self._look_at(outcome.value, registration, data, given)
        if fingerprint(own) != was:
            self._fault("H7", f"the handler {registration.name!r} changed the data it was given", given)
        else:
            self._kept.append((own, was, given))

    def look_at_what_was_given(self) -> None:
        """Look once more at everything that was given: it may have been changed behind everybody's back."""
        for own, was, given in self._kept:
            if fingerprint(own) != was:
                self._fault("H7", "a handler changed the data it was given after it had answered", given)
                return

    # ── answers ──

    def _look_at(self, answer: Any, registration: Any, data: dict[str, Any], given: Any) -> None:
        problem = _invalid(answer)
        if problem is not None:
            if answer is None and registration.on_failure == "deny":
                problem += "; it is a gate, so the kernel denies the event"
            self._fault("H3", f"the handler {registration.name!r} answered with {problem}", given)
            return
        if answer.action == "modify":
            self._look_at_modify(answer, data, given)
        elif answer.action == "inject_context":
            injected = answer.context_injections or answer.context_injection
            self._expect(injected, "H6", "an inject_context carries no text", given)
            texts = [each.content for each in answer.context_injections]
            self._expect(all(texts), "H6", "an injection carries no text", given)
        elif answer.action == "deny":
            self._expect(answer.reason, "H13", "a denial carries no reason", given)
        elif answer.action == "ask_user":
            prompts = [each.prompt for each in answer.approval_gates] or [answer.approval_prompt]
            self._expect(all(prompts), "H13", "a question carries no prompt", given)
        if answer.action in ("deny", "ask_user") and registration.on_failure != "deny":
            what = f"the handler {registration.name!r} can {answer.action}, and is skipped when it fails"
            self._fault("H14", what, given)

    def _look_at_modify(self, answer: HookResult, data: dict[str, Any], given: Any) -> None:
        changed = answer.data
        if changed is None:
            self._fault("H5", "a modify carries no payload", given)
            return
        problem = json_problem(changed)
        if problem is not None:
            self._fault("H5", f"the payload of a modify holds {problem}, which is not JSON", given)
        lost = [key for key in NEUTRAL if key in data and key not in changed]
        if len(lost) == len(NEUTRAL):
            what = f"a modify carries the keys {sorted(changed)[:8]} only; the payload had {sorted(data)[:12]}"
            self._fault("H5", what, given)

    def _expect(self, condition: object, clause: str, what: str, given: Any) -> None:
        if not condition:
            self._fault(clause, what, given)

    def _fault(self, clause: str, what: str, given: Any, **details: Any) -> None:
        if clause not in self._broken:
            self._broken.add(clause)
            self._ctx.fault(clause, what, given=None if self._is_drawn else given, **details)


def _invalid(answer: Any) -> str | None:
    """What is wrong with an answer; None if it is a valid HookResult."""
    if not isinstance(answer, HookResult):
        return f"{type(answer).__name__}, expected a HookResult"
    # A result can be changed after it was made, so it is made again from what it holds.
    fields: dict[str, Any] = {
        each.name: getattr(answer, each.name, None) for each in attrs.fields(HookResult) if each.init
    }
    try:
        HookResult(**fields)
    except ModelError as error:
        return f"a HookResult that is not valid: {error}"
    except Exception as error:  # noqa: BLE001 — values of foreign classes
        return f"a HookResult that is not valid: {error!r}"
    return None


def _can_be_called(handler: Any) -> bool:
    try:
        inspect.signature(handler).bind("event", {})
    except TypeError:
        return False
    except ValueError:
        return True  # a signature that cannot be read says nothing
    return True
