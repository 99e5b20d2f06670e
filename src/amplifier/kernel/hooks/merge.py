"""How many HookResults become one. Pure: no clocks, no awaits, nothing is mutated.

Precedence: deny > ask_user > inject_context > modify > continue. A denial ends the dispatch and keeps nothing but itself and the
payload. Under every other action nothing that a handler returned is lost: user messages, injections, modifications, approval gates.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Any

from amplifier._json import copy_json, is_same_json
from amplifier.events import CATALOGUE
from amplifier.models import ApprovalGate, ContextInjection, HookAction, HookResult, UserMessageLevel

INVALID_RESPONSE = "Hook handler returned invalid response"

_KNOWN_KEYS = frozenset(
    {
        "action",
        "data",
        "reason",
        "context_injection",
        "context_injection_role",
        "ephemeral",
        "approval_prompt",
        "approval_options",
        "approval_timeout",
        "approval_default",
        "suppress_output",
        "user_message",
        "user_message_level",
        "user_message_source",
        "append_to_last_tool_result",
        "context_injections",
        "approval_gates",
    }
)
_ACTIONS = frozenset({"continue", "deny", "modify", "inject_context", "ask_user"})
_SAME = {event.name: event.same for event in CATALOGUE.values() if event.same}
_LEVELS = {"info": 0, "warning": 1, "error": 2}


def is_plain_continue(result: HookResult) -> bool:
    """Whether a result is empty, so that merging it changes nothing."""
    return (
        result.action == "continue"
        and result.user_message is None
        and not result.suppress_output
        and result.reason is None
        and not result.context_injections
        and not result.approval_gates
        and (result.data is None or type(result.data) is dict)
    )


def parse_answer(answer: Any) -> HookResult | None:
    """What a handler returned, as a HookResult; None means a plain continue.

    Anything that cannot be understood is a denial: gates fail closed (L7).
    """
    if answer is None:
        return None
    try:
        if isinstance(answer, HookResult):
            if _is_valid(answer):
                return answer
        elif isinstance(answer, Mapping):
            if not answer:
                return None
            known = {key: value for key, value in answer.items() if key in _KNOWN_KEYS}
            if known:
                return HookResult(**known)
    except Exception:  # noqa: BLE001 — the answer is a foreign object: values no model takes, mappings that raise
        return HookResult(action="deny", reason=INVALID_RESPONSE)
    return HookResult(action="deny", reason=INVALID_RESPONSE)


def is_invalid_response(result: HookResult, answer: Any) -> bool:
    """Whether a parsed result replaces a return value that could not be understood, and is not the handler's own denial."""
    return result is not answer and result.reason is INVALID_RESPONSE


def _is_valid(result: Any) -> bool:
    """HookResults are mutable, so what was right at construction is looked at again; `Verdict.add` sees to the rest."""
    return (
        result.action in _ACTIONS
        and (result.data is None or isinstance(result.data, dict))
        and _is_text(result.reason)
        and _is_text(result.user_message)
        and result.user_message_level in _LEVELS
        and _is_text(result.user_message_source)
        and isinstance(result.suppress_output, bool)
    )


def _is_text(value: Any) -> bool:
    return value is None or isinstance(value, str)


class Verdict:
    """The merged result of one dispatch so far.

    Attributes:
        payload: What the next handler will see.
    """

    __slots__ = (
        "_denial",
        "_event",
        "_gates",
        "_injections",
        "_levels",
        "_messages",
        "_modified",
        "_owned",
        "_reasons",
        "_sources",
        "_suppress",
        "payload",
    )

    def __init__(self, event: str, payload: dict[str, Any], owned: Mapping[str, Any]) -> None:
        """Start with the payload of the event and the fields of it that belong to the kernel."""
        self.payload: dict[str, Any] = payload
        self._event = event
        self._owned = owned
        self._denial: HookResult | None = None
        self._modified = False
        self._suppress = False
        self._gates: list[ApprovalGate] = []
        self._injections: list[ContextInjection] = []
        self._messages: list[str] = []
        self._levels: list[UserMessageLevel] = []
        self._sources: list[str | None] = []
        self._reasons: list[str] = []

    def add(self, result: HookResult, hook_name: str, *, is_partial: bool = False) -> bool:
        """Take in one handler's result.

        Args:
            result: What it returned.
            hook_name: Its name.
            is_partial: It received some fields of the payload only; so its data replaces fields and leaves the others.

        Returns:
            True when the dispatch is over because it was denied.
        """
        try:
            if result.action == "deny":
                self._denial = self._own(result, is_partial)
                return True
            self._take(result, hook_name, is_partial)
        except Exception:  # noqa: BLE001 — a foreign object: lists changed after construction, circular or bottomless data
            self._denial = HookResult(action="deny", reason=INVALID_RESPONSE)
            return True
        return False

    def _own(self, denial: HookResult, is_partial: bool) -> HookResult:
        """A denial that its handler cannot change afterwards."""
        owned = copy(denial)
        if owned.data is not None:
            owned.data = {**(self.payload if is_partial else {}), **copy_json(owned.data)}
        return owned

    def _take(self, result: HookResult, hook_name: str, is_partial: bool) -> None:
        action = result.action
        if action == "ask_user" or result.approval_gates:
            self._gates.extend(_gates_asked_by(result, hook_name))
        if action == "inject_context" or result.context_injections:
            self._injections.extend(_injections_of(result, hook_name, self._event))
        if was_modified(result) and result.data is not None:
            # The other fields are not copied again: no handler has them.
            before = self.payload
            self.payload = {**(before if is_partial else {}), **copy_json(result.data), **self._owned}
            if self._event in _SAME:
                _keep_same(_SAME[self._event], before, self.payload)
            self._modified = True
        if result.user_message is not None:
            self._messages.append(result.user_message)
            self._levels.append(result.user_message_level)
            self._sources.append(result.user_message_source or hook_name)
        if result.reason is not None:
            self._reasons.append(result.reason)
        if result.suppress_output:
            self._suppress = True

    def result(self) -> HookResult:
        """All results merged into one."""
        if self._denial is not None:
            return _with_data(self._denial, self.payload, self._owned)
        action: HookAction = "continue"
        if self._modified:
            action = "modify"
        if self._injections:
            action = "inject_context"
        if self._gates:
            action = "ask_user"
        merged = HookResult(action=action, data=self.payload, suppress_output=self._suppress)
        merged.modified = self._modified
        if self._reasons:
            merged.reason = "; ".join(dict.fromkeys(self._reasons))
        if self._injections:
            _write_injections(merged, self._injections)
        if self._gates:
            first = self._gates[0]
            merged.approval_gates = self._gates
            merged.approval_prompt, merged.approval_options = first.prompt, first.options
            merged.approval_timeout, merged.approval_default = first.timeout, first.default
        if self._messages:
            merged.user_message = "\n".join(self._messages)
            merged.user_message_level = max(self._levels, key=lambda level: _LEVELS.get(level, 0))
            merged.user_message_source = ", ".join(dict.fromkeys(s for s in self._sources if s)) or None
        return merged


def _keep_same(names: tuple[str, ...], before: dict[str, Any], after: dict[str, Any]) -> None:
    """Put what a handler wrote under one name of a value under its other names; what it left out it has not changed."""
    for name in names:
        if name in after and not (name in before and is_same_json(before[name], after[name])):
            after.update({other: after[name] for other in names if other in before})
            return
    after.update({name: before[name] for name in names if name in before})


def gates_of(result: HookResult, hook_name: str) -> list[ApprovalGate]:
    """The questions of a result; a scalar question is asked in the name of ``hook_name``."""
    if result.approval_gates:
        return result.approval_gates
    return [
        ApprovalGate(
            hook_name=hook_name,
            prompt=result.approval_prompt,
            options=result.approval_options,
            timeout=result.approval_timeout,
            default=result.approval_default,
        )
    ]


def _gates_asked_by(result: HookResult, hook_name: str) -> list[ApprovalGate]:
    """The questions of one handler's result, all under its own name whatever it wrote there."""
    return [
        ApprovalGate(hook_name=hook_name, prompt=g.prompt, options=g.options, timeout=g.timeout, default=g.default)
        for g in gates_of(result, hook_name)
    ]


def _injections_of(result: HookResult, hook_name: str, event: str) -> list[ContextInjection]:
    """The injections of one result with their true provenance; items of the list beat the scalar form."""
    if result.context_injections:
        return [
            ContextInjection(
                content=item.content,
                role=item.role,
                ephemeral=item.ephemeral,
                append_to_last_tool_result=item.append_to_last_tool_result,
                hook_name=hook_name,
                event=event,
            )
            for item in result.context_injections
        ]
    if result.context_injection is None:
        return []
    return [
        ContextInjection(
            content=result.context_injection,
            role=result.context_injection_role,
            ephemeral=result.ephemeral,
            append_to_last_tool_result=result.append_to_last_tool_result,
            hook_name=hook_name,
            event=event,
        )
    ]


def _write_injections(result: HookResult, injections: list[ContextInjection]) -> None:
    """Put a list of injections on a result together with its joined scalar form."""
    result.context_injections = injections
    result.context_injection = "\n\n".join(item.content for item in injections)
    result.context_injection_role = injections[0].role
    result.ephemeral = any(item.ephemeral for item in injections)
    result.append_to_last_tool_result = any(item.append_to_last_tool_result for item in injections)


def processed_result(result: HookResult, ephemeral: list[ContextInjection]) -> HookResult:
    """What is left of a result for the orchestrator once approvals, durable injections and messages are done."""
    if not ephemeral and result.action == "modify" and not result.context_injections:
        return result
    modified = was_modified(result)
    left = HookResult(
        action="inject_context" if ephemeral else "modify" if modified else "continue",
        data=result.data,
        reason=result.reason,
        suppress_output=result.suppress_output,
        user_message=result.user_message,
        user_message_level=result.user_message_level,
        user_message_source=result.user_message_source,
    )
    left.modified = modified
    if ephemeral:
        _write_injections(left, ephemeral)
    return left


def was_modified(result: HookResult) -> bool:
    """Whether some handler changed the payload that the result carries, whatever action won."""
    return result.action == "modify" or getattr(result, "modified", False)


def _with_data(denial: HookResult, payload: dict[str, Any], owned: Mapping[str, Any]) -> HookResult:
    """A denial as its handler wrote it, with the payload it was about where it brought none of its own.

    The kernel's fields are put back in either case: a denial cannot be passed off as another session's.
    """
    return HookResult(
        action="deny",
        data=payload if denial.data is None else {**denial.data, **owned},
        reason=denial.reason,
        suppress_output=denial.suppress_output,
        user_message=denial.user_message,
        user_message_level=denial.user_message_level,
        user_message_source=denial.user_message_source,
    )


def merge(
    event: str, payload: dict[str, Any], answers: list[tuple[str, Any]], owned: Mapping[str, Any] | None = None
) -> HookResult:
    """Merge what handlers returned, in the order they ran: the whole law of verdicts as one pure function.

    Args:
        event: The event's name, for provenance.
        payload: The payload before any handler.
        answers: Pairs of hook name and what it returned.
        owned: Fields of the payload that no modification can change.
    """
    verdict = Verdict(event, payload, owned or {})
    for hook_name, answer in answers:
        result = parse_answer(answer)
        if result is not None and verdict.add(result, hook_name):
            break
    return verdict.result()
