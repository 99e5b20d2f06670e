"""Read the answers of handlers and merge them into one result. Nothing here awaits."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from itertools import chain
from typing import Any, get_args

import attrs

from amplifier._internal.json import JSON, copy_json, is_same_json, sanitize_text
from amplifier._internal.reading import check_timeout
from amplifier.events import CATALOGUE, TOOL_POST, TOOL_PRE
from amplifier.models import (
    ApprovalGate,
    ContextInjection,
    ContextInjectionRole,
    HookAction,
    HookResult,
    UserMessageLevel,
)

INVALID_RESPONSE = "Hook handler returned invalid response"

_KNOWN_KEYS = frozenset(field.name for field in attrs.fields(HookResult))
_ACTIONS = frozenset(get_args(HookAction))
_ALIASES = {event.name: event.same for event in CATALOGUE.values() if event.same}
_CALL_FIELDS = ("tool_name", "tool_call_id")
_LEVELS = {"info": 0, "warning": 1, "error": 2}


class InvalidAnswer(ValueError):
    """The answer of a handler can't be understood.

    The text of the error becomes the reason of a denial, because gates fail closed (L7).
    """


# ── one answer ────────────────────────────────────────────────────────────────────────────────


def continued(payload: dict[str, JSON]) -> HookResult:
    """Build a "continue" result without model validation."""
    # The kernel made the payload, so the model need not check and copy it.
    result = HookResult.__new__(HookResult)
    result.__attrs_init__(data=payload)
    return result


def is_plain_continue(result: HookResult) -> bool:
    """Return whether a result is empty, so that merging it changes nothing."""
    return (
        result.action == "continue"
        and result.user_message is None
        and not result.suppress_output
        and result.reason is None
        and not result.context_injections
        and not result.approval_gates
        and (result.data is None or type(result.data) is dict)
    )


def parse_answer(answer: object) -> HookResult | None:
    """Return the answer of a handler as a HookResult, or None for a plain continue.

    Raises:
        InvalidAnswer: The answer is anything else.
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
                # Check this here, because the model would convert "5" and True to numbers.
                _check_approval_timeout(known["approval_timeout"])
            if known:
                return HookResult(**known)
    except InvalidAnswer:
        raise
    except Exception:  # noqa: BLE001 — foreign object: the model refuses it, or its mapping raises
        raise InvalidAnswer(INVALID_RESPONSE) from None
    raise InvalidAnswer(INVALID_RESPONSE)


def _is_valid(result: Any) -> bool:
    """Check the fields of a HookResult again, because it can be changed after construction.

    `Verdict.add` checks its injections and gates.
    """
    return (
        result.action in _ACTIONS
        and (result.data is None or isinstance(result.data, dict))
        and _is_text(result.reason)
        and _is_text(result.user_message)
        and result.user_message_level in _LEVELS
        and _is_text(result.user_message_source)
        and isinstance(result.suppress_output, bool)
    )


def _is_text(value: object) -> bool:
    return value is None or isinstance(value, str)


def _check_approval_timeout(seconds: object) -> None:
    """Check the timeout of an approval by the rules for a handler's own timeout."""
    try:
        check_timeout(seconds)
    except (TypeError, ValueError) as problem:
        raise InvalidAnswer(f"{INVALID_RESPONSE}: approval_timeout: {problem}") from None


# ── many answers ──────────────────────────────────────────────────────────────────────────────


class Verdict:
    """The merged result of one dispatch so far.

    Args:
        event: The name of the event.
        payload: The payload that the first handler received.
        owned: The fields of the payload that no handler can change.

    Attributes:
        payload: The payload that the next handler receives.
        gates: The questions of each handler, by the key passed to `add`.
    """

    def __init__(self, event: str, payload: dict[str, JSON], owned: Mapping[str, JSON]) -> None:
        self.payload: dict[str, JSON] = payload
        self.gates: dict[int, list[ApprovalGate]] = {}
        self._event = event
        if event in (TOOL_PRE, TOOL_POST):
            # Otherwise a handler could disguise a call, and later handlers would check the wrong
            # one.
            owned = {**owned, **{name: payload[name] for name in _CALL_FIELDS if name in payload}}
        self._owned = owned
        self._denial: HookResult | None = None
        self._modified = False
        self._suppress = False
        self._injections: list[ContextInjection] = []
        self._messages: list[tuple[str, UserMessageLevel, str]] = []
        self._reasons: list[str] = []

    def add(
        self,
        result: HookResult,
        hook_name: str,
        *,
        is_partial: bool = False,
        key: int | None = None,
    ) -> bool:
        """Merge the result of one handler. Return True if it denies, which ends the dispatch.

        Args:
            result: The result of the handler.
            hook_name: The name of the handler.
            is_partial: True if the handler received only some fields of the payload. Its data then
                replaces these fields and keeps the others.
            key: Identifies the handler in `gates`.

        Raises:
            InvalidAnswer: The result holds an invalid value. The caller adds a denial instead.
        """
        try:
            if result.action == "deny":
                self._deny(result, is_partial)
                return True
            key = len(self.gates) if key is None else key
            self._merge(result, hook_name, is_partial, key)
        except InvalidAnswer:
            raise
        except Exception:  # noqa: BLE001 — foreign object: changed lists, circular or endless data
            raise InvalidAnswer(INVALID_RESPONSE) from None
        return False

    def _deny(self, denial: HookResult, is_partial: bool) -> None:
        """Keep a copy of a denial, with the current payload if it has none."""
        data = self.payload
        if denial.data is not None:
            # Restore the kernel's own fields, so that the event can't be attributed to another
            # session.
            before = self.payload if is_partial else {}
            data = {**before, **copy_json(denial.data), **self._owned}
        self._denial = _copy_texts(denial, "deny", data)

    def ask(self, result: HookResult, hook_name: str, key: int) -> None:
        """Add only the questions of a result."""
        if result.action == "ask_user" or result.approval_gates:
            self.gates.setdefault(key, []).extend(
                ApprovalGate(
                    hook_name=hook_name,
                    prompt=gate.prompt,
                    options=gate.options,
                    timeout=gate.timeout,
                    default=gate.default,
                )
                for gate in gates_of(result, hook_name)
            )

    def _merge(self, result: HookResult, hook_name: str, is_partial: bool, key: int) -> None:
        # Questions and injections carry the name of the handler, even if it wrote another name.
        self.ask(result, hook_name, key)
        if result.context_injections:
            self._injections += [
                _injection(item, item.content, item.role, hook_name, self._event)
                for item in result.context_injections
            ]
        elif result.action == "inject_context":
            self._injections += _scalar_injection(result, hook_name, self._event)
        if was_modified(result) and result.data is not None:
            before = self.payload
            # The kept fields need no copy, because no handler has a reference to them.
            kept = before if is_partial else {}
            self.payload = {**kept, **copy_json(result.data), **self._owned}
            if self._event in _ALIASES:
                _update_aliases(_ALIASES[self._event], before, self.payload)
            self._modified = True
        if result.user_message is not None:
            source = result.user_message_source or hook_name
            self._messages.append((result.user_message, result.user_message_level, source))
        if result.reason is not None:
            self._reasons.append(result.reason)
        if result.suppress_output:
            self._suppress = True

    def result(self) -> HookResult:
        """Return all results merged into one."""
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
            named = dict.fromkeys(source for source in sources if source)
            merged.user_message_source = ", ".join(named) or None
        return merged


def _copy_texts(result: HookResult, action: HookAction, data: dict[str, JSON] | None) -> HookResult:
    """Return a result of this action with the reason and the user message of ``result``."""
    return HookResult(
        action=action,
        data=data,
        reason=result.reason,
        suppress_output=result.suppress_output,
        user_message=result.user_message,
        user_message_level=result.user_message_level,
        user_message_source=result.user_message_source,
    )


def _update_aliases(
    names: tuple[str, ...], before: dict[str, JSON], after: dict[str, JSON]
) -> None:
    """Give all names of one value the value that a handler changed.

    A name that the handler left out keeps its value.
    """
    for name in names:
        if name in after and not (name in before and is_same_json(before[name], after[name])):
            after.update({other: after[name] for other in names if other in before})
            return
    after.update({name: before[name] for name in names if name in before})


def gates_of(result: HookResult, hook_name: str) -> list[ApprovalGate]:
    """Return the questions of a result. A scalar one is asked in the name of ``hook_name``.

    Raises:
        InvalidAnswer: The timeout of one of them is invalid.
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
    """Return the injection in the scalar fields of a result, if any."""
    content, role = result.context_injection, result.context_injection_role
    return [] if content is None else [_injection(result, content, role, hook_name, event)]


def _injection(
    item: HookResult | ContextInjection,
    content: str,
    role: ContextInjectionRole,
    hook_name: str,
    event: str,
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
    """Put injections on a result, as a list and in its joined scalar form."""
    result.context_injections = injections
    result.context_injection = "\n\n".join(item.content for item in injections)
    result.context_injection_role = injections[0].role
    result.ephemeral = any(item.ephemeral for item in injections)
    result.append_to_last_tool_result = any(item.append_to_last_tool_result for item in injections)


def was_modified(result: HookResult) -> bool:
    """Return whether a handler changed the payload of the result, under any winning action."""
    return result.action == "modify" or getattr(result, "modified", False)


def sanitised_injections(result: HookResult, event: str, hook_name: str) -> list[ContextInjection]:
    """Return the non-empty injections of a result, without control characters.

    The scalar form gets the name of the hook and the event.
    """
    injections = []
    for item in result.context_injections or _scalar_injection(result, hook_name, event):
        content = sanitize_text(item.content)
        if not content:
            continue
        injection = item
        if content != item.content:
            # Change a copy, because the result belongs to the emitter.
            injection = copy(item)
            injection.content = content
        injections.append(injection)
    return injections


def processed_result(result: HookResult, ephemeral: list[ContextInjection]) -> HookResult:
    """Return the orchestrator's part of a result.

    Its approvals, durable injections and messages have been carried out.
    """
    if not ephemeral and result.action == "modify" and not result.context_injections:
        return result
    modified = was_modified(result)
    action: HookAction = "modify" if modified else "continue"
    remaining = _copy_texts(result, "inject_context" if ephemeral else action, result.data)
    remaining.modified = modified
    if ephemeral:
        _write_injections(remaining, ephemeral)
    return remaining
