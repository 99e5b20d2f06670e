"""Cases of contexts and loops as calls and answers, for a reader who does not know the kit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from amplifier.conformance.target.turn_script import block_of, read_turns
from amplifier.models import to_dict

Words = list[str]


def in_words(inputs: str | None, case: Any) -> Any:
    """Return the case of a strategy in words; other cases, which are plain inputs, as they are."""
    write = _WRITERS.get(inputs or "")
    try:
        return case if write is None or case is None else write(case)
    except (KeyError, TypeError, StopIteration):
        return case


# ── contexts ──

_OWNER_CHANGES = {
    "given": "change every message that it was given",
    "stored": "change what get_messages returned",
    "view": "change what get_messages_for_request returned",
    "small view": "change what get_messages_for_request(token_budget=20) returned",
}


def _program(case: dict[str, Any]) -> Words:
    return [line for step in case["steps"] for line in _step(step)]


def _step(step: dict[str, Any]) -> Iterator[str]:
    match step["do"]:
        case "say" | "call" | "again":
            yield f"add_message({_message(step)})"
        case "set":
            messages = ", ".join(_message(each) for each in step["messages"])
            yield f"set_messages([{messages}])"
        case "clear":
            yield "clear()"
        case "remount":
            yield "close it, mount it again, get_messages()"
        case "view":
            budget = step["budget"]
            yield f"get_messages_for_request({'' if budget is None else f'token_budget={budget}'})"
        case "overwrite":
            yield _OWNER_CHANGES[step["what"]]
        case "burst":
            yield f"add_message from {step['count']} tasks at once"
        case "cancel":
            yield f"{step['what']}, cancelled at its await {step['at']}"
        case "sweep":
            late = ", with worker threads that begin late" if step.get("late") else ""
            yield f"{step['what']}, cancelled at each await in turn{late}; then other calls"
        case other:
            yield str(other)


def _message(step: dict[str, Any]) -> str:
    if step["do"] == "again":
        return "the same message again"
    if step["do"] == "call":
        return f"an assistant's message with {step['calls']} calls, and each result"
    return repr({"role": step["role"], "content": step["content"], **step.get("extra", {})})


# ── loops ──

_DOES = {
    "nothing": "returns None as its output",
    "empty": "returns an empty text",
    "zero": "returns 0",
    "unknown": "does not exist",
    "misfits": "gets an input that does not fit its schema",
    "fails": "returns success=False",
    "fails silently": "returns success=False without an error",
    "returns None": "returns None instead of a ToolResult",
    "returns str": "returns a str instead of a ToolResult",
}


def _turns(case: dict[str, Any]) -> Words:
    found = []
    if case.get("history"):
        hidden = ", which no view shows" if case.get("compacts") else ""
        found.append(f"{case['history']} earlier messages{hidden}")
    if case.get("fails"):
        name, number = case["fails"]
        method = {"add": "add_message", "view": "get_messages_for_request"}[name]
        found.append(f"the context raises OSError in call {number} of {method}")
    for turn, script in zip(case["turns"], read_turns(case), strict=True):
        found.append(f"prompt: {turn['prompt']!r}")
        if turn.get("submit"):
            found.append(f"a hook returns at prompt:submit: {turn['submit']}")
        for answer in script.answers:
            if answer.request:
                found.append(f"a hook returns at provider:request: {answer.request}")
            if answer.error:
                often = f" {answer.times} times" if answer.times else ", each time"
                found.append(f"the provider raises {answer.error}{often}")
                continue
            found.append(f"the model answers: {_content(answer) or 'nothing'}")
            if answer.stops:
                when = {"asked": "while the model works", "told": "at provider:response"}
                found.append(f"a graceful stop is requested {when[answer.stops]}")
            found += [line for call in answer.calls for line in _call(call)]
    return found


def _content(answer: Any) -> str:
    parts = []
    for block in answer.blocks:
        written = to_dict(block_of(block, answer.calls))
        if written["type"] == "text":
            parts.append(repr(written["text"]))
        elif written["type"] == "tool_call":
            parts.append(f"{written['name']} as {written['id']}")
        else:
            parts.append(f"a {written['type']} block")
    return ", ".join(parts)


def _call(call: Any) -> Iterator[str]:
    if call.does.startswith("raises "):
        yield f"the tool of {call.id} raises {call.does.removeprefix('raises ')}"
    elif call.does != "returns":
        yield f"the tool of {call.id} {_DOES.get(call.does, call.does)}"
    if call.steps + call.idle:
        yield f"the tool of {call.id} awaits {call.steps + call.idle} times"
    for event, action in (("tool:pre", call.pre), ("tool:post", call.post)):
        if action:
            yield f"a hook returns at {event} of {call.id}: {action}"
    if call.stops:
        yield f"a graceful stop is requested while the tool of {call.id} runs"


_WRITERS: dict[str, Callable[[Any], Any]] = {"context_programs": _program, "turns": _turns}
