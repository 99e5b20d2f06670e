"""Make requests for providers, and judge their responses by the rules of the contract."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from typing import Any

from amplifier.models import (
    ChatRequest,
    ChatResponse,
    Message,
    ToolCall,
    ToolCallBlock,
    ToolSpec,
    Usage,
    from_dict,
    to_dict,
    to_json,
)

_TOOLS = ("look", "count")


def tool_specs() -> list[ToolSpec]:
    """Return the offered tools."""
    schema = {"type": "object", "properties": {"text": {"type": "string"}}}
    return [
        ToolSpec(name=name, description=f"The tool {name}.", parameters=copy.deepcopy(schema))
        for name in _TOOLS
    ]


def request_from(case: Mapping[str, Any]) -> ChatRequest:
    """Build the request of a case, which has messages as JSON, and options."""
    tools = tool_specs() if case.get("tools", True) else None
    given = {**case.get("options", {}), "messages": copy.deepcopy(case["messages"])}
    request = from_dict(ChatRequest, given)
    request.tools = tools
    return request


def asking(text: str) -> ChatRequest:
    """Return a request with one user message."""
    return ChatRequest(messages=[Message(role="user", content=text)], tools=tool_specs())


def calls_of(response: ChatResponse) -> list[ToolCall]:
    """Return the calls that a response lists, or else those among its blocks."""
    if response.tool_calls:
        return list(response.tool_calls)
    return [
        ToolCall(id=block.id, name=block.name, arguments=block.input)
        for block in response.content
        if isinstance(block, ToolCallBlock)
    ]


def call_tuples(calls: Sequence[Any]) -> list[tuple[Any, Any, Any]]:
    """Return calls as tuples of id, name and arguments."""
    return [
        (getattr(call, "id", None), getattr(call, "name", None), getattr(call, "arguments", None))
        for call in calls
    ]


def continued(request: ChatRequest, response: ChatResponse, next_words: str) -> ChatRequest:
    """Return the next request of a conversation.

    It adds the response, then the results of its calls or the next user message.
    """
    messages = [
        *copy.deepcopy(request.messages),
        Message(role="assistant", content=copy.deepcopy(response.content)),
    ]
    calls = calls_of(response)
    for call in calls:
        messages.append(
            Message(
                role="tool", tool_call_id=call.id, name=call.name, content=f"result of {call.name}"
            )
        )
    if not calls:
        messages.append(Message(role="user", content=next_words))
    return ChatRequest(messages=messages, tools=copy.deepcopy(request.tools))


def without_ids(response: ChatResponse) -> str:
    """Return a response as text with numbers in place of call ids."""
    text = json.dumps(to_dict(response), sort_keys=True, default=str)
    for number, call in enumerate(calls_of(response)):
        text = text.replace(json.dumps(call.id), f'"<call {number}>"')
    return text


def problem_with(response: Any) -> tuple[str, str] | None:
    """Return the clause that a single response violates, and how, or None if it violates none."""
    if not isinstance(response, ChatResponse):
        return "P4", f"complete returned {type(response).__name__}; expected a ChatResponse"
    # Any value may have been assigned after the construction.
    content: Any = response.content
    if not isinstance(content, list) or not all(hasattr(block, "type") for block in content):
        shown = str(response.content)[:120]
        return "P4", f"the content of a response is {shown!r}; expected a list of blocks"
    usage = response.usage
    if not isinstance(usage, Usage):
        return "P5", f"a response came with usage {usage!r}; expected a Usage"
    counts: tuple[Any, ...] = (usage.input_tokens, usage.output_tokens, usage.total_tokens)
    if not all(isinstance(count, int) and count >= 0 for count in counts):
        return "P5", f"usage counts {counts!r}; expected whole numbers from 0 up"
    if usage.total_tokens != usage.input_tokens + usage.output_tokens:
        total = usage.input_tokens + usage.output_tokens
        return "P5", f"usage has total_tokens {usage.total_tokens}; input and output make {total}"
    return _problem_with_json(response) or _problem_with_calls(response)


def _problem_with_json(response: ChatResponse) -> tuple[str, str] | None:
    try:
        text = to_json(response)
        again = from_dict(ChatResponse, json.loads(text))
    except (ValueError, TypeError) as error:
        return "P6", f"a response cannot be written and read as JSON: {error}"
    before, after = (
        [block.type for block in response.content],
        [block.type for block in again.content],
    )
    if before != after:
        return (
            "P6",
            f"a response has blocks {before!r}; written and read as JSON they are {after!r}",
        )
    return None


def _problem_with_calls(response: ChatResponse) -> tuple[str, str] | None:
    blocks = [block for block in response.content if isinstance(block, ToolCallBlock)]
    calls = calls_of(response)
    for call in calls:
        call_id: Any = call.id
        if not isinstance(call_id, str) or not call_id.strip():
            return (
                "P9",
                f"the call of {call.name!r} has the id {call_id!r}; expected a non-empty text",
            )
    ids = [call.id for call in calls]
    if len(set(ids)) < len(ids):
        return "P9", f"a response has calls with the ids {ids!r}; expected each once"
    if response.tool_calls and blocks:
        listed, shown = (
            call_tuples(response.tool_calls),
            [(block.id, block.name, block.input) for block in blocks],
        )
        if listed != shown:
            return "P10", f"a response lists the calls {listed!r}, and its blocks contain {shown!r}"
    return None


def snapshot(value: ChatRequest | ChatResponse) -> Any:
    """Return a copy of a request or a response for a later comparison."""
    return copy.deepcopy(to_dict(value))
