"""The whole law of verdicts as one pure function."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from amplifier.kernel.hooks.merge import InvalidAnswer, Verdict, parse_answer
from amplifier.models import HookResult


def merge(
    event: str,
    payload: dict[str, Any],
    answers: list[tuple[str, Any]],
    owned: Mapping[str, Any] | None = None,
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
        try:
            result = parse_answer(answer)
            if result is not None and verdict.add(result, hook_name):
                break
        except InvalidAnswer as problem:
            verdict.add(HookResult(action="deny", reason=str(problem)), hook_name)
            break
    return verdict.result()
