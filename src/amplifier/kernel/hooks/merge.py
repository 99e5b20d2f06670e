"""Merge the results of several handlers into one. Nothing here awaits or reads a clock."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from itertools import chain
from typing import Any, get_args

import attrs

from amplifier._json import copy_json, is_same_json, sanitize_text
from amplifier.events import CATALOGUE, TOOL_POST, TOOL_PRE
from amplifier.models import (
    ApprovalGate,
    ContextInjection,
    ContextInjectionRole,
    HookAction,
    HookResult,
    UserMessageLevel,
)

from ..runtime.deadlines import check_timeout

INVALID_RESPONSE = "Hook handler returned invalid response"

_KNOWN_KEYS = frozenset(field.name for field in attrs.fields(HookResult))
_ACTIONS = frozenset(get_args(HookAction))
_SAME = {event.name: event.same for event in CATALOGUE.values() if event.same}
_OF_A_CALL = ("tool_name", "tool_call_id")
_LEVELS = {"info": 0, "warning": 1, "error": 2}


class InvalidAnswer(ValueError):
    """What a handler returned cannot be understood; the text is the reason of a denial, because gates fail closed (L7)."""


# ── one answer ───────────────────────────────────────────────────────────────────────────────────


def continued(payload: dict[str, Any]) -> HookResult:
    """The result of an event that goes on, by attrs' own constructor: the model's checks and copies what the kernel has made itself."""
    result = HookResult.__new__(HookResult)
    result.__attrs_init__(data=payload)
    return result


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

    Raises:
        InvalidAnswer: It is something else.
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
            if known.get("action") == "ask_user" and "approval_timeout" in known:
                # As it was written: the model would read "5" and True as numbers.
                _check_approval_timeout(known["approval_timeout"])
            if known:
                return HookResult(**known)
    except InvalidAnswer:
        raise
    except Exception:  # noqa: BLE001 — the answer is a foreign object: values no model takes, mappings that raise
        raise InvalidAnswer(INVALID_RESPONSE) from None
    raise InvalidAnswer(INVALID_RESPONSE)


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


def _check_approval_timeout(seconds: Any) -> None:
    """An approval waits for a person, but never for ever and never for no time at all, as a handler's own timeout."""
    try:
        check_timeout(seconds)
    except (TypeError, ValueError) as problem:
        raise InvalidAnswer(f"{INVALID_RESPONSE}: approval_timeout: {problem}") from None


# ── many answers ─────────────────────────────────────────────────────────────────────────────────


class Verdict:
    """The merged result of one dispatch so far.

    Attributes:
        payload: What the next handler will see.
    """

    def __init__(self, event: str, payload: dict[str, Any], owned: Mapping[str, Any]) -> None:
        """Start with the payload of the event and the fields of it that belong to the kernel."""
        self.payload: dict[str, Any] = payload
        self._event = event
        if event in (TOOL_PRE, TOOL_POST):  # no handler passes a call off as another one, which others would judge
            owned = {**owned, **{name: payload[name] for name in _OF_A_CALL if name in payload}}
        self._owned = owned
        self._denial: HookResult | None = None
        self._modified = False
        self._suppress = False
        self.gates: dict[Any, list[ApprovalGate]] = {}
        """The questions by who asks them."""
        self._injections: list[ContextInjection] = []
        self._messages: list[tuple[str, UserMessageLevel, str]] = []
        self._reasons: list[str] = []

    def add(self, result: HookResult, hook_name: str, *, is_partial: bool = False, key: Any = None) -> bool:
        """Take in one handler's result.

        Args:
            result: What it returned.
            hook_name: Its name.
            is_partial: It received some fields of the payload only; so its data replaces fields and leaves the others.
            key: Stands for it among those who ask.

        Returns:
            True when the dispatch is over because it was denied.

        Raises:
            InvalidAnswer: It holds what no result can hold; the caller adds a denial instead.
        """
        try:
            if result.action == "deny":
                self._deny(result, is_partial)
                return True
            self._take(result, hook_name, is_partial, len(self.gates) if key is None else key)
        except InvalidAnswer:
            raise
        except Exception:  # noqa: BLE001 — a foreign object: lists changed after construction, circular or bottomless data
            raise InvalidAnswer(INVALID_RESPONSE) from None
        return False

    def _deny(self, denial: HookResult, is_partial: bool) -> None:
        """Keep a denial, which its handler cannot change afterwards, with the payload it was about if it brought none of its own.

        The kernel's fields are put back in either case: a denial cannot be passed off as another session's.
        """
        data = self.payload
        if denial.data is not None:
            data = {**(self.payload if is_partial else {}), **copy_json(denial.data), **self._owned}
        self._denial = _with_words_of(denial, "deny", data)

    def ask(self, result: HookResult, hook_name: str, key: Any) -> None:
        """Take in the questions of a result, and nothing else."""
        if result.action == "ask_user" or result.approval_gates:
            self.gates.setdefault(key, []).extend(
                ApprovalGate(
                    hook_name=hook_name, prompt=g.prompt, options=g.options, timeout=g.timeout, default=g.default
                )
                for g in gates_of(result, hook_name)
            )

    def _take(self, result: HookResult, hook_name: str, is_partial: bool, key: Any) -> None:
        # Its own name is on whatever a handler asks and injects, whatever it wrote there.
        self.ask(result, hook_name, key)
        if result.context_injections:
            event = self._event
            self._injections += [_injection(i, i.content, i.role, hook_name, event) for i in result.context_injections]
        elif result.action == "inject_context":
            self._injections += _scalar_injection(result, hook_name, self._event)
        if was_modified(result) and result.data is not None:
            # The other fields are not copied again: no handler has them.
            before = self.payload
            self.payload = {**(before if is_partial else {}), **copy_json(result.data), **self._owned}
            if self._event in _SAME:
                _keep_same(_SAME[self._event], before, self.payload)
            self._modified = True
        if result.user_message is not None:
            source = result.user_message_source or hook_name
            self._messages.append((result.user_message, result.user_message_level, source))
        if result.reason is not None:
            self._reasons.append(result.reason)
        if result.suppress_output:
            self._suppress = True

    def result(self) -> HookResult:
        """All results merged into one."""
        if self._denial is not None:
            return self._denial
        action: HookAction = "continue"
        if self._modified:
            action = "modify"
        if self._injections:
            action = "inject_context"
        if self.gates:
            action = "ask_user"
        merged = continued(self.payload)
        merged.action, merged.suppress_output = action, self._suppress
        merged.modified = self._modified
        if self._reasons:
            merged.reason = "; ".join(dict.fromkeys(self._reasons))
        if self._injections:
            _write_injections(merged, self._injections)
        if self.gates:
            merged.approval_gates = list(chain.from_iterable(self.gates.values()))
            first = merged.approval_gates[0]
            merged.approval_prompt, merged.approval_options = first.prompt, first.options
            merged.approval_timeout, merged.approval_default = first.timeout, first.default
        if self._messages:
            texts, levels, sources = zip(*self._messages, strict=True)
            merged.user_message = "\n".join(texts)
            merged.user_message_level = max(levels, key=lambda level: _LEVELS.get(level, 0))
            merged.user_message_source = ", ".join(dict.fromkeys(source for source in sources if source)) or None
        return merged


def _with_words_of(result: HookResult, action: HookAction, data: dict[str, Any] | None) -> HookResult:
    """A result of this action with the reason and the message to the user of another."""
    return HookResult(
        action=action,
        data=data,
        reason=result.reason,
        suppress_output=result.suppress_output,
        user_message=result.user_message,
        user_message_level=result.user_message_level,
        user_message_source=result.user_message_source,
    )


def _keep_same(names: tuple[str, ...], before: dict[str, Any], after: dict[str, Any]) -> None:
    """Put what a handler wrote under one name of a value under its other names; what it left out it has not changed."""
    for name in names:
        if name in after and not (name in before and is_same_json(before[name], after[name])):
            after.update({other: after[name] for other in names if other in before})
            return
    after.update({name: before[name] for name in names if name in before})


def gates_of(result: HookResult, hook_name: str) -> list[ApprovalGate]:
    """The questions of a result; a scalar question is asked in the name of ``hook_name``.

    Raises:
        InvalidAnswer: One of them has a deadline that is none.
    """
    if result.approval_gates:
        for gate in result.approval_gates:
            _check_approval_timeout(gate.timeout)
        return result.approval_gates
    _check_approval_timeout(result.approval_timeout)
    return [
        ApprovalGate(
            hook_name=hook_name,
            prompt=result.approval_prompt,
            options=result.approval_options,
            timeout=result.approval_timeout,
            default=result.approval_default,
        )
    ]


def _scalar_injection(result: HookResult, hook_name: str, event: str) -> list[ContextInjection]:
    """The injection in the scalar form of a result, if there is one."""
    if result.context_injection is None:
        return []
    return [_injection(result, result.context_injection, result.context_injection_role, hook_name, event)]


def _injection(
    item: HookResult | ContextInjection, content: str, role: ContextInjectionRole, hook_name: str, event: str
) -> ContextInjection:
    return ContextInjection(
        content=content,
        role=role,
        ephemeral=item.ephemeral,
        append_to_last_tool_result=item.append_to_last_tool_result,
        hook_name=hook_name,
        event=event,
    )


def _write_injections(result: HookResult, injections: list[ContextInjection]) -> None:
    """Put a list of injections on a result together with its joined scalar form."""
    result.context_injections = injections
    result.context_injection = "\n\n".join(item.content for item in injections)
    result.context_injection_role = injections[0].role
    result.ephemeral = any(item.ephemeral for item in injections)
    result.append_to_last_tool_result = any(item.append_to_last_tool_result for item in injections)


def was_modified(result: HookResult) -> bool:
    """Whether some handler changed the payload that the result carries, whatever action won."""
    return result.action == "modify" or getattr(result, "modified", False)


def sanitised_injections(result: HookResult, event: str, hook_name: str) -> list[ContextInjection]:
    """The injections of a result without control characters and without empty items; scalar forms get a provenance."""
    items = []
    for item in result.context_injections or _scalar_injection(result, hook_name, event):
        content = sanitize_text(item.content)
        if content != item.content:
            item = copy(item)  # noqa: PLW2901 — the result is its emitter's
            item.content = content
        if content:
            items.append(item)
    return items


def processed_result(result: HookResult, ephemeral: list[ContextInjection]) -> HookResult:
    """What is left of a result for the orchestrator once approvals, durable injections and messages are done."""
    if not ephemeral and result.action == "modify" and not result.context_injections:
        return result
    modified = was_modified(result)
    left = _with_words_of(result, "inject_context" if ephemeral else "modify" if modified else "continue", result.data)
    left.modified = modified
    if ephemeral:
        _write_injections(left, ephemeral)
    return left
