"""Every answer of ``/v1`` against the types of the official SDK: exact types, and no other members."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, get_args

import pydantic

_SENT_BY_THE_SERVICE = {"store"}
"""Members that OpenAI's own service sends although the types of its SDK have none."""


@cache
def _adapters() -> dict[str, pydantic.TypeAdapter[Any]]:
    from openai.types import Model
    from openai.types.chat import ChatCompletion, ChatCompletionChunk
    from openai.types.responses import Response
    from openai.types.shared import ErrorObject

    types: dict[str, Any] = {
        "model": Model,
        "chat.completion": ChatCompletion,
        "chat.completion.chunk": ChatCompletionChunk,
        "response": Response,
        "ErrorObject": ErrorObject,
        **_events(),
    }
    return {name: pydantic.TypeAdapter(kind) for name, kind in types.items()}


@cache
def _events() -> dict[str, Any]:
    """Return the types of events of a stream by their ``type``."""
    from openai.types.responses import ResponseStreamEvent

    union = get_args(ResponseStreamEvent)[0]
    return {get_args(kind.model_fields["type"].annotation)[0]: kind for kind in get_args(union)}


def openai_problems(value: Any) -> list[str]:
    """Return where a whole answer, or an event of a stream, deviates from its type."""
    if value == "[DONE]":
        return []
    if isinstance(value, dict) and set(value) == {"error"}:
        return _deviations("ErrorObject", value["error"])
    if isinstance(value, dict) and value.get("object") == "list":
        return [problem for model in value["data"] for problem in _deviations("model", model)]
    if "type" in value:
        return _deviations(value["type"], value)
    if value.get("object") not in _adapters():
        return []  # of an endpoint that is ours, or the word that something is deleted
    return _deviations(value["object"], value)


def check_openai(path: str, value: Any) -> None:
    """Raise an AssertionError if an answer of an endpoint of OpenAI deviates."""
    if path.startswith("/v1/"):
        problems = openai_problems(value)
        assert problems == [], f"{path}: {problems}"


def _deviations(kind: str, value: Any) -> list[str]:
    if kind not in _adapters():
        return [f"type: there is no event {kind!r}"]
    try:
        read = _adapters()[kind].validate_python(value, strict=True)
    except pydantic.ValidationError as error:
        return [
            f"{'.'.join(map(str, each['loc']))}: {each['msg']}"
            for each in error.errors(include_url=False)
        ]
    return [
        f"{name} is not a member of the type"
        for name in _unknown(read, kind)
        if name.rpartition("response.")[2] not in _SENT_BY_THE_SERVICE
    ]


def _unknown(read: Any, path: str) -> Iterator[str]:
    if isinstance(read, pydantic.BaseModel):
        yield from (f"{path}.{name}" for name in read.model_extra or {})
        for name in type(read).model_fields:
            yield from _unknown(getattr(read, name), f"{path}.{name}")
    elif isinstance(read, list):
        for index, item in enumerate(read):
            yield from _unknown(item, f"{path}[{index}]")
