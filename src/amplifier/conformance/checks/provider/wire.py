"""Checks of what providers send and receive: those that can be configured to use the fake LLM server are checked by its requests."""

from __future__ import annotations

import json
from typing import Any

from amplifier.conformance.checks.provider.answers import (
    PROVIDER,
    asking,
    call_tuples,
    calls_of,
    check_error,
    complete,
    tool_specs,
    usable,
)
from amplifier.conformance.checks.registry import check
from amplifier.conformance.inputs.fake_server import REDACTED, SIGNATURE, THOUGHT
from amplifier.conformance.inputs.server_process import is_served, received_requests
from amplifier.conformance.target.mounted import CheckContext, MountFailed
from amplifier.errors import LLMError
from amplifier.models import ChatRequest, ChatResponse, Message, TextBlock, ThinkingBlock, ToolCallBlock
from amplifier.testing import EventRecorder

_SENT_SIGNATURE = "c2VudC1zaWduYXR1cmU="
_SENT_REDACTED = "c2VudC1yZWRhY3RlZA=="
_RETRYABLE = {401: False, 400: False, 429: True, 503: True}


def _config(ctx: CheckContext, scenario: str) -> dict[str, Any] | None:
    """The settings with another scenario; None if the provider does not use the server."""
    if not is_served(ctx.loaded.config):
        return None
    changed: dict[str, Any] = json.loads(json.dumps(ctx.loaded.config).replace("/auto", f"/{scenario}"))
    return changed


async def _exchange(
    ctx: CheckContext, scenario: str, request: ChatRequest
) -> tuple[ChatResponse, dict[str, Any], EventRecorder] | None:
    """Send a request in a scenario; the response, the last HTTP request of the provider, and the events.

    None if the provider does not use the server or returns no response.
    """
    config = _config(ctx, scenario)
    if config is None:
        return None
    async with ctx.mount(config=config) as mounted:
        if not usable(mounted):
            return None
        received_requests()
        outcome = await complete(mounted, request)
        sent = received_requests()
        if not outcome.returned or not isinstance(outcome.value, ChatResponse) or not sent:
            return None
        return outcome.value, sent[-1], mounted.events


@check("P6", "P10", kind="behaviour", types=PROVIDER)
async def reads_the_wire(ctx: CheckContext) -> None:
    """Lets the server think, answer and call a tool, and compares the response with what it sent, block by block."""
    found = await _exchange(ctx, "thinking", asking("Use a tool."))
    if found is None:
        return
    response, sent, _ = found
    calls = calls_of(response)
    if [(call.name, call.arguments) for call in calls] != [("look", {"text": "é 0"})]:
        what = f"the service called 'look' with {{'text': 'é 0'}}; the response has {call_tuples(calls)!r}"
        ctx.fault("P6", what)
    if not any(isinstance(block, TextBlock) and "Use a tool." in block.text for block in response.content):
        ctx.fault("P6", f"the text that the service sent is not in the response: {response.content!r}"[:300])
    if _has_signatures(sent):
        _check_thoughts(ctx, response)


def _has_signatures(sent: dict[str, Any]) -> bool:
    """Whether the provider uses the protocol with signed thinking blocks."""
    return str(sent["path"]).rsplit("/", 1)[-1].startswith("messages")


def _check_thoughts(ctx: CheckContext, response: ChatResponse) -> None:
    types = [block.type for block in response.content]
    expected = ["thinking", "redacted_thinking", "text", "tool_call"]
    if types != expected:
        ctx.fault("P6", f"the service sent blocks {expected!r}; the response has {types!r}")
        return
    thought, redacted = response.content[0], response.content[1]
    if not isinstance(thought, ThinkingBlock) or (thought.thinking, thought.signature) != (THOUGHT, SIGNATURE):
        ctx.fault("P6", f"the service sent a thought with the signature {SIGNATURE!r}; the response has {thought!r}")
    elif getattr(redacted, "data", None) != REDACTED:
        ctx.fault("P6", f"the service sent a redacted thought {REDACTED!r}; the response has {redacted!r}")


def _conversation() -> ChatRequest:
    """A conversation with a mark in each of its parts."""
    content = [
        {"type": "thinking", "thinking": "mark-thought", "signature": _SENT_SIGNATURE},
        {"type": "redacted_thinking", "data": _SENT_REDACTED},
        {"type": "text", "text": "mark-two"},
        {"type": "tool_call", "id": "toolu_mark1", "name": "look", "input": {"text": "mark-three"}},
        {"type": "tool_call", "id": "toolu_mark2", "name": "count", "input": {"text": "mark-four"}},
    ]
    return ChatRequest(
        messages=[
            Message(role="system", content="mark-zero"),
            Message(role="user", content=[TextBlock(text="mark-one")]),
            Message(role="assistant", content=content),  # type: ignore[arg-type]  # blocks may be given as dicts
            Message(role="tool", tool_call_id="toolu_mark1", content="mark-five"),
            Message(role="tool", tool_call_id="toolu_mark2", content="mark-six"),
            Message(role="user", content="mark-seven"),
        ],
        tools=tool_specs(),
    )


@check("P6", kind="behaviour", types=PROVIDER)
async def writes_the_wire(ctx: CheckContext) -> None:
    """Reads what a conversation became on the wire: every part, in order, with ids and signatures."""
    found = await _exchange(ctx, "auto", _conversation())
    if found is not None:
        _check_sent(ctx, found[1])


def _check_sent(ctx: CheckContext, sent: dict[str, Any]) -> None:
    body = sent["body"]
    text = json.dumps(body.get("messages") or body.get("input") or body)
    everything = json.dumps(body)
    words = ["zero", "one", "two", "three", "four", "five", "six", "seven"]
    for word in words:
        if f"mark-{word}" not in everything:
            ctx.fault("P6", f"the text 'mark-{word}' of the conversation did not reach the service")
            return
    places = [text.find(f"mark-{word}") for word in words[1:]]
    if places != sorted(places):
        ctx.fault("P6", "the parts of the conversation reached the service in another order")
        return
    for each in ("toolu_mark1", "toolu_mark2"):
        if everything.count(each) < 2:
            times = everything.count(each)
            ctx.fault("P6", f"the id {each!r} of a call and its result reached the service {times} times")
            return
    for what, text in (("signature", _SENT_SIGNATURE), ("redacted thought", _SENT_REDACTED)):
        if _has_signatures(sent) and text not in everything:
            ctx.fault("P6", f"the {what} {text!r} of the conversation did not reach the service")
            return


@check("P16", kind="behaviour", types=PROVIDER)
async def sends_no_loose_call(ctx: CheckContext) -> None:
    """Sends a call without a result, and reads whether the provider repaired that before it sent the request."""
    call = ToolCallBlock(id="toolu_loose", name="look", input={})
    messages = [
        Message(role="user", content="Look."),
        Message(role="assistant", content=[call]),
        Message(role="user", content="And?"),
    ]
    found = await _exchange(ctx, "auto", ChatRequest(messages=messages, tools=tool_specs()))
    if found is None:
        return
    _, sent, events = found
    if json.dumps(sent["body"]).count("toolu_loose") == 1:
        ctx.fault("P16", "a tool call without a result was sent to the service as it was")
    elif not events.get_events("provider:tool_sequence_repaired"):
        what = "a tool call without a result was repaired, and provider:tool_sequence_repaired not emitted"
        ctx.fault("P16", what)


@check("P19", kind="behaviour", types=PROVIDER)
async def names_failures(ctx: CheckContext) -> None:
    """Lets the server return error codes, and refuses the connection; reads what the call raises."""
    for status, may_help in _RETRYABLE.items():
        config = _config(ctx, f"status-{status}")
        if config is None:
            break
        await _check_refusal(ctx, config, f"an answer with status {status}", may_help)
    config = _config(ctx, "auto")
    if config is not None and not ctx.faults:
        nowhere = json.loads(json.dumps(config).replace("{service}", "http://127.0.0.1:9"))
        await _check_refusal(ctx, nowhere, "a connection that was refused", None)


async def _check_refusal(ctx: CheckContext, config: dict[str, Any], what: str, may_help: bool | None) -> None:
    try:
        async with ctx.mount(config=config) as mounted:
            if not usable(mounted):
                return
            outcome = await complete(mounted, asking("Hello."))
    except MountFailed:
        return
    if outcome.returned:
        ctx.fault("P19", f"after {what} complete returned as if nothing had happened")
    elif outcome.kind == "raised":
        check_error(ctx, outcome)
        error = outcome.error
        if isinstance(error, LLMError) and may_help is not None and error.retryable is not may_help:
            found = f"after {what} {type(error).__name__} has retryable={error.retryable}"
            ctx.fault("P19", f"{found}; expected {may_help}", error=error)
