"""Answers to the questions that ended an earlier run: the ``resume`` list of a run's input."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import attrs

from .._problems import Problem
from ._turn import Question

__all__ = ["Resume", "chosen_option", "interrupt", "read_resume"]

_ALLOWING: Final = ("allow once", "allow", "allow always")
"""What counts as yes for the kernel, the narrowest first; everything else is a no."""

_DENY: Final = "Deny"


@attrs.frozen(kw_only=True)
class Resume:
    """One answer.

    Attributes:
        is_cancelled: The person does not want to answer, which denies.
        payload: The answer.
    """

    interrupt_id: str
    is_cancelled: bool
    payload: Any


def interrupt(question: Question) -> dict[str, Any]:
    """A question as clients get it."""
    described: dict[str, Any] = {
        "id": question.interrupt_id,
        "reason": "confirmation" if question.call_id is None else "tool_call",
        "message": question.prompt,
        "toolCallId": question.call_id,
        "expiresAt": question.expires_at,
        "responseSchema": {
            "type": "object",
            "properties": {
                "approved": {"type": "boolean"},
                "option": {"type": "string", "enum": question.options},
            },
            "required": ["approved"],
        },
    }
    return {name: value for name, value in described.items() if value is not None}


def read_resume(given: Any) -> list[Resume]:
    """The answers in the input of a run.

    Raises:
        Problem: They are not a list of answers.
    """
    if given is None:
        return []
    if not isinstance(given, list):
        raise _wrong("resume", f"expected a list, got {type(given).__name__}")
    found: dict[str, Resume] = {}
    for index, entry in enumerate(given):
        where = f"resume[{index}]"
        if not isinstance(entry, Mapping):
            raise _wrong(where, f"expected an object, got {type(entry).__name__}")
        interrupt_id, status = entry.get("interruptId"), entry.get("status")
        if not isinstance(interrupt_id, str) or not interrupt_id:
            raise _wrong(f"{where}.interruptId", f"expected a text, got {interrupt_id!r:.80}")
        if interrupt_id in found:
            raise _wrong(f"{where}.interruptId", f"{interrupt_id!r:.80} is answered twice")
        if status not in ("resolved", "cancelled"):
            raise _wrong(f"{where}.status", f"expected resolved or cancelled, got {status!r:.80}")
        found[interrupt_id] = Resume(
            interrupt_id=interrupt_id, is_cancelled=status == "cancelled", payload=entry.get("payload")
        )
    return list(found.values())


def chosen_option(question: Question, answer: Resume) -> str:
    """The option of a question that an answer chooses.

    Raises:
        Problem: It chooses none.
    """
    if answer.is_cancelled:
        return _DENY
    payload = answer.payload if isinstance(answer.payload, Mapping) else {}
    approved, option = payload.get("approved"), payload.get("option")
    where = f"the answer to {question.interrupt_id}"
    if not isinstance(approved, bool):
        expected = 'expected a payload such as {"approved": true} or {"approved": false}'
        raise Problem(400, f"{where}: {expected}, got {answer.payload!r:.80}", code="invalid_option")
    allowing = {each.lower(): each for each in question.options if each.lower() in _ALLOWING}
    if option is None:
        if not approved:
            return _DENY
        option = next((allowing[each] for each in _ALLOWING[:2] if each in allowing), None)
    names = ", ".join(map(repr, question.options))
    if option not in question.options:
        raise Problem(400, f"{where}: expected option to be one of {names}, got {option!r:.80}", code="invalid_option")
    if approved is not (option in allowing.values()):
        raise Problem(400, f"{where}: approved is {approved}, but option is {option!r}", code="invalid_option")
    return str(option)


def _wrong(where: str, problem: str) -> Problem:
    return Problem(400, f"{where}: {problem}", code="invalid_request")
