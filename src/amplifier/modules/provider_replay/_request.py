"""A request in the form in which two requests are compared.

What the model does not see is left out, secrets are removed, and ids that differ in every run are numbered in the order in
which they occur: ids of tool calls, of child sessions, UUIDs and other random ids of 16 or 32 hexadecimal digits. Longer
hexadecimal texts are hashes, which are compared.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Any

from amplifier._json import Frame, canonical_dumps, rebuild
from amplifier.models import ChatRequest, to_dict

from ._scrubbing import Scrubber, map_texts

_NOT_COMPARED = ("stream", "timeout", "metadata", "conversation_id")
"""How the answer is delivered, and what is for the application."""
_RANDOM_ID = re.compile(
    r"(?<![\w.:-])[\w.:-]{1,200}?-[0-9a-f]{16}_[\w.:-]{1,60}+"  # a child session of tool-task: PARENT-RANDOM_AGENT
    r"|(?<![0-9A-Za-z])(?:[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32}|[0-9a-f]{16})(?![0-9A-Za-z])",
    re.ASCII,
)
_IGNORED = "<ignored>"


def canonical_request(request: ChatRequest, scrubber: Scrubber, ignore: Sequence[re.Pattern[str]]) -> dict[str, Any]:
    """The request as it is compared and written: plain JSON that shares nothing with the request."""
    given = {key: value for key, value in to_dict(request).items() if key not in _NOT_COMPARED and value is not None}
    given["messages"] = [
        {key: value for key, value in message.items() if key != "metadata" and value is not None}
        for message in given["messages"]
    ]
    plain: dict[str, Any] = scrubber.scrub(_with_numbered_calls(given))
    if ignore:
        plain = map_texts(plain, lambda text: _without(text, ignore))
    numbers: dict[str, str] = {}

    def number(found: re.Match[str]) -> str:
        return numbers.setdefault(found[0], f"<id {len(numbers) + 1}>")

    numbered: dict[str, Any] = map_texts(plain, lambda text: _RANDOM_ID.sub(number, text))
    return numbered


def digest(value: Any) -> str:
    """A short name for a JSON value, equal for equal values."""
    return hashlib.sha256(canonical_dumps(value).encode()).hexdigest()[:12]


def _with_numbered_calls(request: dict[str, Any]) -> dict[str, Any]:
    numbers: dict[str, str] = {}

    def visit(value: Any, frames: Sequence[Frame]) -> Any:
        if isinstance(value, str) and frames and frames[-1].keys is not None and _is_call_id(frames):
            return numbers.setdefault(value, f"call-{len(numbers) + 1}")
        return value

    messages = rebuild(request["messages"], visit, subject="the request cannot be recorded")
    return {**request, "messages": messages}


def _is_call_id(frames: Sequence[Frame]) -> bool:
    """Whether the place is that of a call's id: ``[n].tool_call_id``, or in one of a message's blocks or calls."""
    place = [frame.key() for frame in frames]
    if len(place) not in (2, 4) or (len(place) == 4 and place[1] not in ("content", "tool_calls")):
        return False
    if place[-1] == "tool_call_id":
        return True
    owner = frames[-1].source
    is_call = place[1] == "tool_calls" or owner.get("type") in ("tool_call", "tool_use")
    return len(place) == 4 and place[-1] == "id" and is_call


def _without(text: str, ignore: Sequence[re.Pattern[str]]) -> str:
    for pattern in ignore:
        text = pattern.sub(_IGNORED, text)
    return text
