"""Merging the results of several handlers into one, by the rules of the published kernel.

It keeps less than our own merging (`amplifier.kernel`): a modification comes back as ``continue`` with the new payload, the
first approval request is returned as its handler wrote it, messages of other handlers are dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Any

from amplifier.models import ContextInjection, HookResult

INVALID_RESPONSE = "Hook handler returned invalid response"

_ACTIONS = frozenset({"continue", "deny", "modify", "inject_context", "ask_user"})


def parse_answer(answer: Any) -> HookResult | None:
    """The result that a handler returned; None for a plain continue, a denial for anything invalid."""
    if answer is None:
        return None
    try:
        if isinstance(answer, HookResult):
            if answer.action in _ACTIONS and (answer.data is None or isinstance(answer.data, dict)):
                return answer
        else:
            dump = getattr(answer, "model_dump", None)
            fields = answer if isinstance(answer, Mapping) else None if dump is None else dump()
            if isinstance(fields, Mapping):
                return HookResult(**fields) if fields else None
    except Exception:  # noqa: BLE001 — the answer is a third-party object
        return HookResult(action="deny", reason=INVALID_RESPONSE)
    return HookResult(action="deny", reason=INVALID_RESPONSE)


class PublishedMerge:
    """The merged result of one dispatch so far.

    Attributes:
        payload: What the next handler receives.
    """

    __slots__ = ("_denial", "_event", "_injecting", "_items", "_question", "payload")

    def __init__(self, event: str, payload: Any) -> None:
        self.payload = payload
        self._event = event
        self._denial: HookResult | None = None
        self._question: HookResult | None = None
        self._injecting: list[HookResult] = []
        self._items: list[ContextInjection] = []

    def add(self, result: HookResult, hook_name: str) -> bool:
        """Take in one handler's result; True when it was a denial, which ends the dispatch."""
        if result.action == "deny":
            self._denial = result
            return True
        if result.action == "modify" and result.data is not None:
            self.payload = result.data
        elif result.action == "ask_user" and self._question is None:
            self._question = result
        elif result.action == "inject_context":
            items = _items_of(result, hook_name, self._event)
            if items:
                self._injecting.append(result)
                self._items += items
        return False

    def result(self) -> HookResult:
        """The merged result."""
        if self._denial is not None:
            return self._denial
        if self._question is not None:
            return self._question
        if not self._items:
            return HookResult(action="continue", data=self.payload if isinstance(self.payload, dict) else {})
        if len(self._injecting) == 1:
            merged = self._injecting[0]
        else:
            merged = HookResult(action="inject_context", suppress_output=self._injecting[0].suppress_output)
        write_items(merged, self._items)
        return merged


def write_items(result: HookResult, items: list[ContextInjection]) -> None:
    """Put a list of injections on a result together with its joined scalar form."""
    result.context_injections = items
    result.context_injection = "\n\n".join(item.content for item in items)
    result.context_injection_role = items[0].role
    result.ephemeral = any(item.ephemeral for item in items)
    result.append_to_last_tool_result = any(item.append_to_last_tool_result for item in items)


def _items_of(result: HookResult, hook_name: str, event: str) -> list[ContextInjection]:
    """The injections of one result, under the name and event they really came from."""
    items = [copy(item) for item in result.context_injections]
    if not items and result.context_injection is not None:
        items = [scalar_item(result, hook_name, event)]
    for item in items:
        item.hook_name, item.event = hook_name, event
    return items


def scalar_item(result: HookResult, hook_name: str, event: str) -> ContextInjection:
    """The scalar injection of a result as an item."""
    return ContextInjection(
        content=result.context_injection or "",
        role=result.context_injection_role,
        ephemeral=result.ephemeral,
        append_to_last_tool_result=result.append_to_last_tool_result,
        hook_name=hook_name,
        event=event,
    )
