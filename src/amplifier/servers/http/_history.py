"""The conversation of a request, which is checked and split into the history and the prompt."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from typing import Any, Final

import attrs
import orjson

from amplifier._internal.json import JSON
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
_DISPLAY_ROLES: Final = ("reasoning", "activity")
"""The roles of messages that only the user reads. They lack the data that a provider needs."""
_DATA_URL: Final = re.compile(r"data:([\w.+-]+/[\w.+-]+)(?:;[^;,]*)*;base64,")


def read_messages(messages: Any, where: str = "messages") -> list[dict[str, JSON]]:
    """Read the messages of a request in the form that a context keeps.

    The messages that form one answer of the model become one message.
    """
    problems: list[tuple[str, str]] = []
    parsed = read_value(_messages, messages, where, problems, ())
    if problems:
        raise Problem.of_all(problems, code="invalid_messages")
    conversation: list[dict[str, JSON]] = []
    for message in parsed:
        if message is None:
            continue
        last = conversation[-1] if conversation else {}
        # Clients store each call as a separate message.
        if message.get("tool_calls") and last.get("role") == "assistant":
            calls = [*last.get("tool_calls", ()), *message["tool_calls"]]
            conversation[-1] = {
                **last,
                "content": last["content"] + message["content"],
                "tool_calls": calls,
            }
        else:
            conversation.append(message)
    return conversation


def split_conversation(
    messages: list[dict[str, JSON]], where: str = "messages", *, complete: bool = False
) -> tuple[list[dict[str, JSON]], Prompt | None]:
    """Split off the prompt, which is the last message.

    If the last message is a tool's result, the turn continues. In this case all messages are the
    history, and there is no prompt.

    Args:
        messages: The result of `read_messages`.
        where: The name of the messages in the request.
        complete: True to add the missing results of calls instead of refusing the conversation.
    """
    role = messages[-1]["role"] if messages else None
    if role == "tool" and any(message["role"] == "user" for message in messages):
        return _with_results(messages, where, complete=complete), None
    if role != "user":
        raise _wrong(
            where,
            "expected the last message to be the user's, which is the prompt, or the result of a "
            "tool",
        )
    prompt: Prompt = messages[-1]["content"]
    if isinstance(prompt, str) and not prompt.strip():
        raise _wrong(where, "the last message has no text")
    return _with_results(messages[:-1], where, complete=complete), prompt


def split_results(messages: list[dict[str, JSON]]) -> tuple[list[dict[str, JSON]], dict[str, JSON]]:
    """Split a conversation that ends with results.

    Returns:
        The messages before the answer with the calls, and the results by call.
    """
    at = max(index for index, message in enumerate(messages) if message.get("tool_calls"))
    results = {
        message["tool_call_id"]: message["content"]
        for message in messages[at + 1 :]
        if message["role"] == "tool"
    }
    return messages[:at], results


# ── reading ──


def _joined(content: Any) -> str | list[dict[str, JSON]]:
    """Return content as a text, or as blocks if it isn't only text."""
    if isinstance(content, str):
        return content
    blocks: list[dict[str, JSON]] = list(_parts.convert(content))
    is_text = all(block["type"] == "text" for block in blocks)
    return "\n".join(block["text"] for block in blocks) if is_text else blocks


def _part(part: Mapping[str, JSON]) -> dict[str, JSON]:
    """Return a part of a message as a block. It is spelled as in OpenAI's APIs or in AG-UI."""
    kind = part.get("type")
    try:
        match kind:
            case "text" | "input_text" | "output_text" if isinstance(part.get("text"), str):
                return {"type": "text", "text": part["text"]}
            case "refusal" if isinstance(part.get("refusal"), str):
                return {"type": "text", "text": part["refusal"]}
            case "image_url" | "input_image" if part.get("image_url") is not None:
                image = part["image_url"]
                about = (
                    image
                    if isinstance(image, Mapping)
                    else {"url": image, "detail": part.get("detail")}
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


def _image(url: object, detail: object = None) -> dict[str, JSON]:
    source: dict[str, JSON] = {"type": "url", "url": url}
    if isinstance(url, str) and (match := _DATA_URL.match(url)) is not None:
        source = {"type": "base64", "media_type": match[1], "data": url[match.end() :]}
    elif isinstance(url, str) and url.startswith("data:"):
        raise ValueError("expected data:MEDIA_TYPE;base64,DATA as a data URL")
    return _block("image", source if detail in (None, "auto") else {**source, "detail": detail})


def _file(part: Mapping[str, JSON]) -> dict[str, JSON]:
    data, url = part.get("file_data"), part.get("file_url")
    if isinstance(url, str):
        return _block("document", {"type": "url", "url": url})
    if not isinstance(data, str):
        raise ValueError(
            "expected file_data with the content of the file; files that were uploaded before are "
            "not known"
        )
    match = _DATA_URL.match(data)
    name = part.get("filename")
    content = base64.b64decode(data[match.end() :] if match else data, validate=True)
    return to_dict(file(content, name=name if isinstance(name, str) else None))


def _attached(kind: str, source: Mapping[str, JSON]) -> dict[str, JSON]:
    if source.get("type") == "url":
        return _block(kind, {"type": "url", "url": source.get("value")})
    return _block(
        kind, {"type": "base64", "media_type": source.get("mimeType"), "data": source.get("value")}
    )


def _block(kind: str, source: dict[str, JSON]) -> dict[str, JSON]:
    prompt = read_prompt([{"type": kind, "source": source}])
    assert isinstance(prompt, list)
    return prompt[0]


def _arguments(text: str) -> dict[str, JSON]:
    try:
        arguments = orjson.loads(text or "{}")
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
    arguments: dict[str, JSON] = option(
        optional(Kind("a JSON object as text", any_text.accepts, _arguments)), attrs.Factory(dict)
    )


@attrs.frozen(kw_only=True)
class _Call:
    id: str = option(text)
    function: _Function = option(record(_Function, "an object", is_open=True))


_a_call = record(_Call, is_open=True)


def _call(value: Mapping[str, JSON]) -> dict[str, JSON]:
    call: _Call = _a_call.read(value)
    return {
        "id": call.id,
        "name": call.function.name or "",
        "arguments": call.function.arguments or {},
    }


@attrs.frozen(kw_only=True)
class _Message:
    """A message, in the spelling of OpenAI or of AG-UI."""

    role: str = option(Kind(f"one of {', '.join(_ROLES)}", lambda value: value in _ROLES), "")
    content: str | list[dict[str, JSON]] | None = option(optional(_content), None)
    tool_call_id: str | None = option(optional(any_text), None, aliases=("toolCallId",))
    tool_calls: tuple[dict[str, JSON], ...] | None = option(
        optional(list_each("tool calls", attrs.evolve(mapping, convert=_call))),
        None,
        aliases=("toolCalls",),
    )


_a_message = record(_Message, is_open=True)


def _message(value: Mapping[str, JSON]) -> dict[str, JSON] | None:
    """Return a message in the form that a context keeps, or None if it isn't kept."""
    if value.get("role") in _DISPLAY_ROLES:
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
    kept: dict[str, JSON] = {"role": role, "content": message.content or ""}
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
    messages: list[dict[str, JSON]], where: str, *, complete: bool
) -> list[dict[str, JSON]]:
    """Check that every call has a result and every result a call, as providers require."""
    checked: list[dict[str, JSON]] = []
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
