"""The conversation that a request carries: checked, and split into what the agent knows already and the new prompt."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from typing import Any, Final

import attrs
import orjson

from amplifier._internal.reading import (
    Kind,
    any_text,
    list_each,
    mapping,
    option,
    optional,
    read_value,
    record,
    text,
)
from amplifier.errors import ModelError, PlanError
from amplifier.models import to_dict
from amplifier.models.prompts import Prompt, file, read_prompt

from .requests import Problem

_ROLES: Final = ("system", "developer", "user", "assistant", "tool")
_NOT_ASKED: Final = ("reasoning", "activity")
"""Roles of messages for the user's eyes; what a provider needs of them is not in there."""
_DATA_URL: Final = re.compile(r"data:([\w.+-]+/[\w.+-]+)(?:;[^;,]*)*;base64,")


def read_messages(messages: Any, where: str = "messages") -> list[dict[str, Any]]:
    """The messages of a request as a context keeps them; those of one answer of the model are one message."""
    problems: list[tuple[str, str]] = []
    each = read_value(_messages, messages, where, problems, ())
    if problems:
        raise Problem.of_all(problems, code="invalid_messages")
    read: list[dict[str, Any]] = []
    for message in each:
        if message is None:
            continue
        last = read[-1] if read else {}
        if (
            message.get("tool_calls") and last.get("role") == "assistant"
        ):  # clients keep calls as messages of their own
            calls = [*last.get("tool_calls", ()), *message["tool_calls"]]
            read[-1] = {
                **last,
                "content": last["content"] + message["content"],
                "tool_calls": calls,
            }
        else:
            read.append(message)
    return read


def split_conversation(
    read: list[dict[str, Any]], where: str = "messages", *, complete: bool = False
) -> tuple[list[dict[str, Any]], Prompt | None]:
    """The messages before the last one, and its prompt; all of them and no prompt if it is a tool's result: the turn goes on.

    Args:
        read: By `read_messages`.
        where: What the request calls them.
        complete: Give calls without a result one, instead of refusing the conversation.
    """
    role = read[-1]["role"] if read else None
    if role == "tool" and any(message["role"] == "user" for message in read):
        return _with_results(read, where, complete=complete), None
    if role != "user":
        raise _wrong(
            where,
            "expected the last message to be the user's, which is the prompt, or the result of a tool",
        )
    prompt: Prompt = read[-1]["content"]
    if isinstance(prompt, str) and not prompt.strip():
        raise _wrong(where, "the last message has no text")
    return _with_results(read[:-1], where, complete=complete), prompt


def split_results(messages: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """A conversation that ends with results: the messages before the answer that calls for them, and the results by call."""
    at = max(index for index, message in enumerate(messages) if message.get("tool_calls"))
    results = {
        each["tool_call_id"]: each["content"]
        for each in messages[at + 1 :]
        if each["role"] == "tool"
    }
    return messages[:at], results


# ── reading ──


def _joined(content: Any) -> str | list[dict[str, Any]]:
    """A text, or blocks if there is more than text."""
    if isinstance(content, str):
        return content
    blocks: list[dict[str, Any]] = list(_parts.convert(content))
    is_text = all(block["type"] == "text" for block in blocks)
    return "\n".join(block["text"] for block in blocks) if is_text else blocks


def _part(part: Mapping[str, Any]) -> dict[str, Any]:
    """A part of a message as a block; its spellings are those of both APIs of OpenAI, and of AG-UI."""
    kind = part.get("type")
    try:
        match kind:
            case "text" | "input_text" | "output_text" if isinstance(part.get("text"), str):
                return {"type": "text", "text": part["text"]}
            case "refusal" if isinstance(part.get("refusal"), str):
                return {"type": "text", "text": part["refusal"]}
            case "image_url" | "input_image" if part.get("image_url") is not None:
                given = part["image_url"]
                about = (
                    given
                    if isinstance(given, Mapping)
                    else {"url": given, "detail": part.get("detail")}
                )
                return _image(about.get("url"), about.get("detail"))
            case "file" if isinstance(part.get("file"), Mapping):
                return _file(part["file"])
            case "input_file":
                return _file(part)
            case "image" | "document" if isinstance(part.get("source"), Mapping):
                return _attached(kind, part["source"])
            case "binary" if isinstance(part.get("mimeType"), str):
                source = {
                    "type": "data" if "data" in part else "url",
                    "value": part.get("data") or part.get("url"),
                }
                kind = "image" if part["mimeType"].startswith("image/") else "document"
                return _attached(kind, {**source, "mimeType": part["mimeType"]})
    except ModelError as error:
        raise PlanError([("$", "; ".join(problem for _, problem in error.problems))]) from None
    except ValueError as error:  # of a file
        raise PlanError([("$", str(error))]) from None
    problem = f"expected a part with text, an image, or a file with its data, got {kind!r:.80}"
    raise PlanError(
        [("$", f"{problem}; this server takes no sound, and no files that were uploaded before")]
    )


def _image(url: Any, detail: Any = None) -> dict[str, Any]:
    source: dict[str, Any] = {"type": "url", "url": url}
    if isinstance(url, str) and (found := _DATA_URL.match(url)) is not None:
        source = {"type": "base64", "media_type": found[1], "data": url[found.end() :]}
    elif isinstance(url, str) and url.startswith("data:"):
        raise ValueError("expected data:MEDIA_TYPE;base64,DATA as a data URL")
    return _block("image", source if detail in (None, "auto") else {**source, "detail": detail})


def _file(given: Mapping[str, Any]) -> dict[str, Any]:
    data, url = given.get("file_data"), given.get("file_url")
    if isinstance(url, str):
        return _block("document", {"type": "url", "url": url})
    if not isinstance(data, str):
        raise ValueError(
            "expected file_data with the content of the file; files that were uploaded before are not known"
        )
    found = _DATA_URL.match(data)
    name = given.get("filename")
    content = base64.b64decode(data[found.end() :] if found else data, validate=True)
    return to_dict(file(content, name=name if isinstance(name, str) else None))


def _attached(kind: str, source: Mapping[str, Any]) -> dict[str, Any]:
    if source.get("type") == "url":
        return _block(kind, {"type": "url", "url": source.get("value")})
    return _block(
        kind, {"type": "base64", "media_type": source.get("mimeType"), "data": source.get("value")}
    )


def _block(kind: str, source: dict[str, Any]) -> dict[str, Any]:
    read = read_prompt([{"type": kind, "source": source}])
    assert isinstance(read, list)
    return read[0]


def _arguments(given: str) -> dict[str, Any]:
    try:
        arguments = orjson.loads(given or "{}")
    except ValueError:
        arguments = None
    if not isinstance(arguments, dict):
        raise PlanError([("$", "expected a JSON object as text")])
    return arguments


_parts = list_each("parts", attrs.evolve(mapping, convert=_part))
_content = Kind("a text or a list of parts", lambda value: isinstance(value, str | list), _joined)


@attrs.frozen(kw_only=True)
class _Function:
    name: str | None = option(optional(any_text), None)
    arguments: dict[str, Any] = option(
        optional(Kind("a JSON object as text", any_text.accepts, _arguments)), attrs.Factory(dict)
    )


@attrs.frozen(kw_only=True)
class _Call:
    id: str = option(text)
    function: _Function = option(record(_Function, "an object", is_open=True))


_a_call = record(_Call, is_open=True)


def _call(value: Mapping[str, Any]) -> dict[str, Any]:
    call: _Call = _a_call.read(value)
    return {
        "id": call.id,
        "name": call.function.name or "",
        "arguments": call.function.arguments or {},
    }


@attrs.frozen(kw_only=True)
class _Message:
    """A message; the two spellings are those of OpenAI and of AG-UI."""

    role: str = option(Kind(f"one of {', '.join(_ROLES)}", lambda value: value in _ROLES), "")
    content: str | list[dict[str, Any]] | None = option(optional(_content), None)
    tool_call_id: str | None = option(optional(any_text), None, aliases=("toolCallId",))
    tool_calls: tuple[dict[str, Any], ...] | None = option(
        optional(list_each("tool calls", attrs.evolve(mapping, convert=_call))),
        None,
        aliases=("toolCalls",),
    )


_a_message = record(_Message, is_open=True)


def _message(value: Mapping[str, Any]) -> dict[str, Any] | None:
    """A message as a context keeps it; None for one that it does not keep."""
    if value.get("role") in _NOT_ASKED:
        return None
    message: _Message = _a_message.read(value)
    if not message.role:
        raise PlanError([("$.role", f"expected one of {', '.join(_ROLES)}")])
    if isinstance(message.content, list) and message.role not in ("user", "tool"):
        raise PlanError(
            [("$.content", "expected text: images and files come from the user and from tools")]
        )
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
    list_each("messages", attrs.evolve(mapping, convert=_message), least=1),
    expected="a list with at least one message",
)


# ── calls and results ──


def _with_results(
    messages: list[dict[str, Any]], where: str, *, complete: bool
) -> list[dict[str, Any]]:
    """Providers refuse a conversation in which a call has no result, or a result no call."""
    checked: list[dict[str, Any]] = []
    open_calls: dict[str, None] = {}

    def close_calls() -> None:
        if open_calls and not complete:
            raise _wrong(where, f"no result for the tool calls {', '.join(open_calls)[:200]}")
        for call_id in open_calls:
            content = "Error: the call has no result, because its turn was stopped"
            checked.append({"role": "tool", "tool_call_id": call_id, "content": content})
        open_calls.clear()

    for message in messages:
        if message["role"] == "tool":
            if message["tool_call_id"] not in open_calls:
                raise _wrong(
                    where,
                    f"a result for {message['tool_call_id']!r:.80}, which no call before it has",
                )
            del open_calls[message["tool_call_id"]]
        else:
            close_calls()
        checked.append(message)
        open_calls.update(dict.fromkeys(call["id"] for call in message.get("tool_calls", ())))
    close_calls()
    return checked


def _wrong(where: str, problem: str) -> Problem:
    return Problem(400, f"{where}: {problem}", code="invalid_messages", param=where)
