"""The conversation that a request carries: checked, and split into what the agent knows already and the new prompt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import attrs
import orjson

from amplifier._reading import Kind, any_text, list_each, option, optional, read_record, read_value
from amplifier.errors import PlanError

from ._problems import Problem

__all__ = ["split_conversation"]

_ROLES: Final = ("system", "developer", "user", "assistant", "tool")
_NOT_ASKED: Final = ("reasoning", "activity")
"""Roles of messages for the user's eyes; what a provider needs of them is not in there."""


def split_conversation(messages: Any, *, complete: bool = False) -> tuple[list[dict[str, Any]], str]:
    """The messages before the last one, as a context keeps them, and the prompt of the last one.

    Args:
        messages: As they came.
        complete: Give calls without a result one, instead of refusing the conversation.

    Raises:
        Problem: It is not a conversation that ends with a message of the user.
    """
    problems: list[str] = []
    each = read_value(_messages, messages, "messages", lambda path, problem: problems.append(f"{path}: {problem}"), ())
    if problems:
        raise Problem(400, "; ".join(problems), code="invalid_messages")
    read = [message for message in each if message is not None]
    if not read or read[-1]["role"] != "user":
        raise _wrong("expected the last message to be the user's: it is the prompt")
    prompt: str = read.pop()["content"]
    if not prompt.strip():
        raise _wrong("the last message has no text")
    return _with_results(read, complete=complete), prompt


# ── reading ──


def _joined(content: Any) -> str:
    return content if isinstance(content, str) else "\n".join(_parts.convert(content))


def _part(part: Mapping[str, Any]) -> str:
    kind, text = part.get("type"), part.get("text")
    if kind not in ("text", "input_text") or not isinstance(text, str):
        problem = f"expected a part of type text, got {kind!r:.80}; this server takes no images, audio or files"
        raise PlanError([("$", problem)])
    return text


def _arguments(text: str) -> dict[str, Any]:
    try:
        arguments = orjson.loads(text or "{}")
    except ValueError:
        arguments = None
    if not isinstance(arguments, dict):
        raise PlanError([("$", "expected a JSON object as text")])
    return arguments


def _is_object(value: Any) -> bool:
    return isinstance(value, Mapping)


_parts = list_each("parts", Kind("an object", _is_object, _part))
_content = Kind("a text or a list of parts", lambda value: isinstance(value, str | list), _joined)


@attrs.frozen(kw_only=True)
class _Function:
    name: str | None = option(optional(any_text), None)
    arguments: dict[str, Any] = option(
        optional(Kind("a JSON object as text", any_text.accepts, _arguments)), attrs.Factory(dict)
    )


@attrs.frozen(kw_only=True)
class _Call:
    id: str = option(any_text, "")
    function: _Function | None = option(Kind("an object", _is_object, lambda value: _record(_Function, value)), None)


def _record(cls: type[Any], value: Mapping[str, Any]) -> Any:
    """An object whose members that the class does not declare are ignored."""
    problems: list[tuple[str, str]] = []
    members = read_record(cls, value, "$", lambda *problem: problems.append(problem), lambda *unknown: None)
    if problems:
        raise PlanError(problems)
    return cls(**members)


def _call(value: Mapping[str, Any]) -> dict[str, Any]:
    call = _record(_Call, value)
    if not call.id or call.function is None:
        raise PlanError([("$", "expected an object with id and function")])
    return {"id": call.id, "name": call.function.name or "", "arguments": call.function.arguments or {}}


@attrs.frozen(kw_only=True)
class _Message:
    """A message; the two spellings are those of OpenAI and of AG-UI."""

    role: str = option(Kind(f"one of {', '.join(_ROLES)}", lambda value: value in _ROLES), "")
    content: str | None = option(optional(_content), None)
    tool_call_id: str | None = option(optional(any_text), None, aliases=("toolCallId",))
    tool_calls: tuple[dict[str, Any], ...] | None = option(
        optional(list_each("tool calls", Kind("an object", _is_object, _call))),
        None,
        aliases=("toolCalls",),
    )


def _message(value: Mapping[str, Any]) -> dict[str, Any] | None:
    """A message as a context keeps it; None for one that it does not keep."""
    if value.get("role") in _NOT_ASKED:
        return None
    message: _Message = _record(_Message, value)
    if not message.role:
        raise PlanError([("$.role", f"expected one of {', '.join(_ROLES)}")])
    if message.content is None and message.role != "assistant":
        raise PlanError([("$.content", "expected a text or a list of parts, got none")])
    role = "system" if message.role == "developer" else message.role
    kept: dict[str, Any] = {"role": role, "content": message.content or ""}
    if message.role == "tool":
        if message.tool_call_id is None:
            raise PlanError([("$.tool_call_id", "expected the id of the call whose result it is")])
        kept["tool_call_id"] = message.tool_call_id
    elif message.role == "assistant" and message.tool_calls:
        kept["tool_calls"] = list(message.tool_calls)
    return kept


_messages = attrs.evolve(
    list_each("messages", Kind("an object", _is_object, _message), least=1), expected="a list with at least one message"
)


# ── calls and results ──


def _with_results(messages: list[dict[str, Any]], *, complete: bool) -> list[dict[str, Any]]:
    """Providers refuse a conversation in which a call has no result, or a result no call."""
    checked: list[dict[str, Any]] = []
    open_calls: dict[str, None] = {}

    def close_calls() -> None:
        if open_calls and not complete:
            raise _wrong(f"no result for the tool calls {', '.join(open_calls)[:200]}")
        for call_id in open_calls:
            content = "Error: the call has no result, because its turn was stopped"
            checked.append({"role": "tool", "tool_call_id": call_id, "content": content})
        open_calls.clear()

    for message in messages:
        if message["role"] == "tool":
            if message["tool_call_id"] not in open_calls:
                raise _wrong(f"a result for {message['tool_call_id']!r:.80}, which no call before it has")
            del open_calls[message["tool_call_id"]]
        else:
            close_calls()
        checked.append(message)
        open_calls.update(dict.fromkeys(call["id"] for call in message.get("tool_calls", ())))
    close_calls()
    return checked


def _wrong(problem: str) -> Problem:
    return Problem(400, f"messages: {problem}", code="invalid_messages")
