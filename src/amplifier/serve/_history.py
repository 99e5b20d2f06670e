"""The conversation that a request carries: checked, and split into what the agent knows already and the new prompt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from ._problems import Problem

__all__ = ["split_conversation"]


def split_conversation(messages: Any, *, complete: bool = False) -> tuple[list[dict[str, Any]], str]:
    """The messages before the last one, as a context keeps them, and the prompt of the last one.

    Args:
        messages: As they came.
        complete: Give calls without a result one, instead of refusing the conversation.

    Raises:
        Problem: It is not a conversation that ends with a message of the user.
    """
    if not isinstance(messages, list) or not messages:
        raise _wrong("messages", "expected a list with at least one message")
    each = (_read(message, f"messages[{index}]") for index, message in enumerate(messages))
    read = [message for message in each if message is not None]
    if not read or read[-1]["role"] != "user":
        raise _wrong("messages", "expected the last message to be the user's: it is the prompt")
    prompt: str = read.pop()["content"]
    if not prompt.strip():
        raise _wrong("messages", "the last message has no text")
    return _with_results(read, complete=complete), prompt


def _read(message: Any, where: str) -> dict[str, Any] | None:
    if not isinstance(message, Mapping):
        raise _wrong(where, f"expected an object, got {type(message).__name__}")
    match message.get("role"):
        case "system" | "developer":
            return {"role": "system", "content": _text(message.get("content"), where)}
        case "user":
            return {"role": "user", "content": _text(message.get("content"), where)}
        case "assistant":
            return _answer(message, where)
        case "tool":
            call_id = message.get("tool_call_id", message.get("toolCallId"))
            if not isinstance(call_id, str):
                raise _wrong(f"{where}.tool_call_id", "expected the id of the call whose result it is")
            return {"role": "tool", "tool_call_id": call_id, "content": _text(message.get("content"), where)}
        case "reasoning" | "activity":
            return None  # for the user's eyes; what a provider needs of it is not in there
        case other:
            raise _wrong(f"{where}.role", f"expected system, developer, user, assistant or tool, got {other!r:.80}")


def _answer(message: Mapping[str, Any], where: str) -> dict[str, Any]:
    content = message.get("content")
    answer: dict[str, Any] = {"role": "assistant", "content": "" if content is None else _text(content, where)}
    given = message.get("tool_calls", message.get("toolCalls"))
    calls = []
    for index, call in enumerate(given if isinstance(given, list) else ()):
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(call.get("id"), str):
            raise _wrong(f"{where}.tool_calls[{index}]", "expected an object with id and function")
        try:
            arguments = orjson.loads(function.get("arguments") or "{}")
        except (TypeError, ValueError):
            arguments = None
        if not isinstance(arguments, dict):
            raise _wrong(f"{where}.tool_calls[{index}].function.arguments", "expected a JSON object as text")
        calls.append({"id": call["id"], "name": str(function.get("name") or ""), "arguments": arguments})
    if calls:
        answer["tool_calls"] = calls
    return answer


def _text(content: Any, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise _wrong(f"{where}.content", f"expected a text or a list of parts, got {type(content).__name__}")
    texts = []
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind not in ("text", "input_text") or not isinstance(part.get("text"), str):
            problem = f"expected a part of type text, got {kind!r:.80}; this server takes no images, audio or files"
            raise _wrong(f"{where}.content[{index}]", problem)
        texts.append(part["text"])
    return "\n".join(texts)


def _with_results(messages: list[dict[str, Any]], *, complete: bool) -> list[dict[str, Any]]:
    """Providers refuse a conversation in which a call has no result, or a result no call."""
    checked: list[dict[str, Any]] = []
    open_calls: dict[str, None] = {}

    def close_calls() -> None:
        if open_calls and not complete:
            raise _wrong("messages", f"no result for the tool calls {', '.join(open_calls)[:200]}")
        for call_id in open_calls:
            content = "Error: the call has no result, because its turn was stopped"
            checked.append({"role": "tool", "tool_call_id": call_id, "content": content})
        open_calls.clear()

    for message in messages:
        if message["role"] == "tool":
            if message["tool_call_id"] not in open_calls:
                raise _wrong("messages", f"a result for {message['tool_call_id']!r:.80}, which no call before it has")
            del open_calls[message["tool_call_id"]]
        else:
            close_calls()
        checked.append(message)
        open_calls.update(dict.fromkeys(call["id"] for call in message.get("tool_calls", ())))
    close_calls()
    return checked


def _wrong(where: str, problem: str) -> Problem:
    return Problem(400, f"{where}: {problem}", code="invalid_messages")
