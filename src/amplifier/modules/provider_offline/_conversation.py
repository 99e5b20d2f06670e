"""What of a request matters to the rules: the prompt, what was called for it so far, and what may be called.

A transcript is all there is: the same request always reads the same, whatever happened in between.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

import attrs

from amplifier.models import ChatRequest, Message, TextBlock, ToolResultBlock

from .._canned import calls_in, used_ids

_LONGEST_PROMPT = 8_000
"""Characters of a prompt that are looked at; reading is not linear in a sentence's length."""

_REMINDER = re.compile(r"\s*<[a-z][\w-]*(?:\s[^>]*)?>")
"""How hooks that speak in the user's name begin: with a tag, such as ``<system-reminder>``."""

_STEP = re.compile(r"offline_[0-9a-f]+_(\d+)_\d+")


@attrs.frozen
class Called:
    """A call of this turn and what came back; None if the transcript does not show it."""

    tool: str
    arguments: Mapping[str, Any]
    result: str | None


@attrs.frozen
class Turn:
    """This turn as the transcript shows it.

    Attributes:
        prompt: What the user asked.
        called: Calls made for it, in order.
        steps: How many answers with calls were given for it.
        tools: The parameters of each tool that is offered, by its name.
        taken: Ids of calls that the conversation has used.
        mark: Some letters that differ from one request of a conversation to the next.
    """

    prompt: str
    called: tuple[Called, ...]
    steps: int
    tools: Mapping[str, Mapping[str, Any]]
    taken: frozenset[str]
    mark: str


def read_turn(request: ChatRequest) -> Turn:
    """Read the turn that the request is part of."""
    messages = request.messages
    start = _prompt_index(messages)
    prompt = _text(messages[start])[:_LONGEST_PROMPT] if start is not None else ""
    since = messages[start + 1 :] if start is not None else messages
    results: dict[str, str] = {}
    for message in since:
        results.update(_results(message))
    calls = [call for message in since if message.role == "assistant" for call in calls_in(message)]
    called = tuple(Called(call.name, call.arguments, results.get(call.id)) for call in calls)
    # A compacted view may hide early calls of a turn; their number is in the ids of those it still shows.
    numbers = [int(found[1]) for call in calls if (found := _STEP.fullmatch(call.id))]
    is_forbidden = request.tool_choice == "none"
    tools = {} if is_forbidden else {spec.name: spec.parameters for spec in request.tools or ()}
    taken = frozenset(used_ids(request))
    return Turn(prompt, called, max(numbers, default=0), tools, taken, _mark(request, prompt, taken))


def _prompt_index(messages: list[Message]) -> int | None:
    """Where the turn begins: at the user's last words that are not a hook's."""
    since = 0
    for index, message in enumerate(messages):
        if message.role == "assistant" and not calls_in(message):
            since = index + 1
    spoken = [index for index, message in enumerate(messages) if message.role == "user" and _text(message).strip()]
    own = [index for index in spoken if _REMINDER.match(_text(messages[index])) is None]
    current = [index for index in own if index >= since]
    if current or own:
        return (current or own)[-1]
    return spoken[-1] if spoken else None


def _text(message: Message) -> str:
    if isinstance(message.content, str):
        return message.content
    return "\n".join(block.text for block in message.content if isinstance(block, TextBlock))


def _results(message: Message) -> dict[str, str]:
    if isinstance(message.content, list):
        given = {b.tool_call_id: str(b.output) for b in message.content if isinstance(b, ToolResultBlock)}
        if given:
            return given
    if message.role in ("tool", "function") and message.tool_call_id:
        return {message.tool_call_id: _text(message)}
    return {}


def _mark(request: ChatRequest, prompt: str, taken: frozenset[str]) -> str:
    last = _text(request.messages[-1])[-200:] if request.messages else ""
    seen = "\0".join([str(len(request.messages)), prompt, last, *sorted(taken)])
    return hashlib.sha256(seen.encode("utf-8", "surrogatepass")).hexdigest()[:10]
