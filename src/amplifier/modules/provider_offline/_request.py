"""Reads a chat request: the prompt of the current turn, the results of the calls made for it, and the tools on offer.

The id of each call states which instruction of the prompt it belongs to, so that nothing has to be remembered between two
requests of a turn.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

import attrs

from amplifier.models import ChatRequest, Message, TextBlock, ToolResultBlock
from amplifier.models._definition.shared_list import shared_members

from .._local_answers import calls_in, fresh_id, used_ids

_TAG = re.compile(r"\s*<[a-z][\w-]*(?:\s[^>]*)?>")
"""The start of a user message that a hook injected, such as ``<system-reminder>``."""

_CALL_ID = re.compile(r"offline_[0-9a-f]+_(?P<step>\d{1,9})_(?P<instruction>\d{1,9})_(?P<call>\d)(?:_\d+)?")

Place = tuple[int, int]
"""The number of an instruction in the prompt, and of a call among those of the instruction."""


@attrs.frozen
class Turn:
    """The current turn.

    Attributes:
        prompt: The user's prompt.
        results: The text of each result; None for a call whose result the conversation does not hold.
        steps: How many replies with tool calls this turn has had.
        tools: Names of the tools on offer.
        taken: Tool-call ids that the conversation has used.
        mark: Differs from one request of a conversation to the next.
    """

    prompt: str
    results: Mapping[Place, str | None]
    steps: int
    tools: frozenset[str]
    taken: frozenset[str]
    mark: str

    def new_id(self, place: Place) -> str:
        """Make the id of a call."""
        return fresh_id(f"offline_{self.mark}_{self.steps + 1}_{place[0]}_{place[1]}", self.taken)


def read_turn(request: ChatRequest) -> Turn:
    """Read the turn that a request belongs to."""
    messages = [*shared_members(request.messages)]
    start = _prompt_index(messages)
    prompt = "" if start is None else _text(messages[start])
    since = messages if start is None else messages[start + 1 :]
    texts: dict[str, str] = {}
    for message in since:
        texts.update(_results(message))
    replies = [calls for message in since if message.role == "assistant" and (calls := calls_in(message))]
    results: dict[Place, str | None] = {}
    steps = len(replies)
    for call in (call for calls in replies for call in calls):
        if found := _CALL_ID.fullmatch(call.id):
            results[int(found["instruction"]), int(found["call"])] = texts.get(call.id)
            # A context may leave out early calls of a long turn; the ids still state how many steps there were.
            steps = max(steps, int(found["step"]))
    tools = () if request.tool_choice == "none" else request.tools or ()
    taken = frozenset(used_ids(request))
    mark = _mark(messages, prompt, taken)
    return Turn(prompt, results, steps, frozenset(spec.name for spec in tools), taken, mark)


def _prompt_index(messages: list[Message]) -> int | None:
    """Find the last user message with text, preferably one that no hook injected."""
    spoken = [index for index, message in enumerate(messages) if message.role == "user" and _text(message).strip()]
    own = [index for index in spoken if _TAG.match(_text(messages[index])) is None]
    return next(reversed(own or spoken), None)


def _text(message: Message) -> str:
    if isinstance(message.content, str):
        return message.content
    return "\n".join(block.text for block in message.content if isinstance(block, TextBlock))


def _results(message: Message) -> dict[str, str]:
    if isinstance(message.content, list):
        blocks = [block for block in message.content if isinstance(block, ToolResultBlock)]
        if blocks:
            return {block.tool_call_id: str(block.output) for block in blocks}
    if message.role in ("tool", "function") and message.tool_call_id:
        return {message.tool_call_id: _text(message)}
    return {}


def _mark(messages: list[Message], prompt: str, taken: frozenset[str]) -> str:
    # The number and the end of the messages distinguish requests whose context leaves out all earlier ids.
    last = _text(messages[-1])[-200:] if messages else ""
    seen = "\0".join([str(len(messages)), prompt, last, *sorted(taken)])
    return hashlib.sha256(seen.encode("utf-8", "surrogatepass")).hexdigest()[:10]


def read_result(text: str, key: str, kind: type) -> Mapping[str, Any] | str:
    """Read a result: the built-in tools return an object, and plain text for a failed or denied call.

    Args:
        text: The result as the conversation holds it; a hook may have appended words.
        key: The field that the answer needs.
        kind: The type of that field.

    Returns:
        The object, or why there is none.
    """
    start = text.lstrip()
    if not start.startswith("{"):
        return text.strip() or "the tool returned nothing"
    try:
        data, _ = json.JSONDecoder().raw_decode(start)
    except (ValueError, RecursionError):
        return "the result was cut short and cannot be read"
    return data if isinstance(data.get(key), kind) else f"the result has no usable field {key!r}"
