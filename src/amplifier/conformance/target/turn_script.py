"""Scripts of turns, with the model's answers, tool calls and hook results, and logs of turns.

A case consists of JSON values, so that it can be drawn, shrunk and replayed. This file turns it
into records, with a unique mark in every part that has to be found in a transcript.

    {"turns": [{"prompt": "…", "submit": "deny", "answers": [ANSWER, …]}],
     "history": 2, "streams": true, …}
    ANSWER = {"blocks": [BLOCK, …], "request": "deny", "error": "NotFoundError", "stops": "asked"}
    BLOCK = {"say": "…"} | {"think": "…"} | {"sealed": "…"} | {"reason": "…"} | {"odd": "…"}
          | {"call": "alpha", "does": "returns", "steps": 2, "pre": "modify", "post": "inject",
             "stops": true}
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import attrs

import amplifier.errors as errors
from amplifier._internal.json import copy_json
from amplifier.conformance.target.calls import Outcome
from amplifier.models import (
    ChatResponse,
    ContentBlockUnion,
    Model,
    ReasoningBlock,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolCall,
    ToolCallBlock,
    UnknownBlock,
    Usage,
    from_dict,
    to_dict,
)

TOOLS = ("alpha", "beta", "gamma")
UNKNOWN_TOOL = "nowhere"


class Unplanned(Exception):
    """An error outside the taxonomy."""


RAISED: dict[str, type[Exception]] = {
    "ValueError": ValueError,
    "KeyError": KeyError,
    "TimeoutError": TimeoutError,
    "OSError": OSError,
    "RuntimeError": RuntimeError,
    "Unplanned": Unplanned,
    "AuthenticationError": errors.AuthenticationError,
    "InvalidRequestError": errors.InvalidRequestError,
    "ContextLengthError": errors.ContextLengthError,
    "ContentFilterError": errors.ContentFilterError,
    "NotFoundError": errors.NotFoundError,
    "ConfigurationError": errors.ConfigurationError,
    "AccessDeniedError": errors.AccessDeniedError,
    "RateLimitError": errors.RateLimitError,
}
"""Errors by name: one that a retry may fix, others of the taxonomy, and some outside it."""
_RETRYABLE = ("RateLimitError",)


@attrs.frozen(kw_only=True)
class Call:
    """One tool call.

    Attributes:
        number: Its number in the case, from 1.
        tool: The tool's name.
        does: The tool's action: ``returns``, ``fails``, ``raises ValueError``, ``nothing``, …
        steps: Number of its suspensions.
        idle: Number of further suspensions that are not counted.
        pre: The hook result at tool:pre, or None.
        post: The hook result at tool:post, or None.
        stops: True if the tool requests a graceful stop while it runs.
        id: The call's id. The order of ids is not the order of calls.
        key: A text in the arguments that identifies the call.
    """

    number: int
    tool: str
    does: str = "returns"
    steps: int = 0
    idle: int = 0
    pre: str | None = None
    post: str | None = None
    stops: bool = False
    id: str
    key: str

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments that the model sends."""
        return {
            "key": 7 if self.does == "misfits" else self.key,
            "note": {"about": [self.key, None]},
        }

    @property
    def new_key(self) -> str:
        """The replacement for `key` in a modify at tool:pre."""
        return f"changed-{self.key}"

    @property
    def mark(self) -> str:
        """A word that only the tool's own result contains."""
        return f"out-{self.key}"

    @property
    def new_mark(self) -> str:
        """The replacement for `mark` in a modify at tool:post."""
        return f"replaced-{self.key}"

    def word(self, event: str) -> str:
        """Return a word that only the hook result for this event of this call contains."""
        return f"{event.replace(':', '-')}-{self.number}x"

    @property
    def is_odd(self) -> bool:
        """Whether the tool returns something other than a ToolResult."""
        return self.does in ("returns None", "returns str")

    @property
    def is_marked(self) -> bool:
        """Whether its result has to contain `mark`."""
        return self.does in (
            "returns",
            "returns object",
            "returns list",
            "returns much",
            "returns blocks",
            "fails",
        )


@attrs.frozen(kw_only=True)
class Answer:
    """One answer of the model.

    Attributes:
        number: Its number in the case, from 1.
        blocks: The content.
        calls: The calls in the content.
        request: The hook result at the provider:request before it. None for none.
        error: The error to raise instead of answering. None to answer.
        times: Number of times that the error is raised before the next answer. 0 for every time.
        stops: ``asked`` to request a graceful stop while the model works, ``told`` to request it at
            provider:response. None for no stop.
        steps: Number of suspensions of the provider.
    """

    number: int
    blocks: list[dict[str, Any]]
    calls: list[Call]
    request: str | None = None
    error: str | None = None
    times: int = 0
    stops: str | None = None
    steps: int = 1

    @property
    def texts(self) -> list[str]:
        """The texts of its text blocks."""
        return [str(block["say"]) for block in self.blocks if "say" in block]

    @property
    def thoughts(self) -> list[str]:
        """The texts of its thinking blocks."""
        return [str(block["think"]) for block in self.blocks if "think" in block]

    @property
    def mark(self) -> str:
        """A word in its texts."""
        return f"say{self.number}x"

    def word(self) -> str:
        """Return a word that only the hook result at the provider:request before it contains."""
        return f"provider-request-{self.number}x"

    def structured(self, *, also: tuple[str, ...] = ("odd",)) -> list[dict[str, Any]]:
        """Return the blocks that are neither text nor calls, as JSON without empty members.

        Args:
            also: Kinds of blocks to include in addition to those that the contract defines.
        """
        kinds = {"think", "sealed", "reason", *also}
        blocks = [block_of(block, self.calls) for block in self.blocks if kinds & block.keys()]
        return [
            {key: value for key, value in to_dict(block).items() if value is not None}
            for block in blocks
        ]

    def response(self) -> ChatResponse:
        """Return the answer as a new ChatResponse."""
        calls = [
            ToolCall(id=call.id, name=call.tool, arguments=call.arguments) for call in self.calls
        ]
        return ChatResponse(
            content=[block_of(block, self.calls) for block in self.blocks],
            tool_calls=calls or None,
            usage=Usage(input_tokens=3, output_tokens=2, total_tokens=5),
            finish_reason="tool_calls" if calls else "stop",
        )

    def exception(self) -> Exception | None:
        """Return the error that the provider raises, or None if it answers."""
        if self.error is None:
            return None
        kind = RAISED[self.error]
        message = f"the provider failed with {self.error}"
        if not issubclass(kind, errors.LLMError):
            return kind(message)
        return kind(message, provider="one", retryable=self.error in _RETRYABLE)


@attrs.frozen(kw_only=True)
class ScriptedTurn:
    """One turn: a prompt and the model's answers.

    Attributes:
        prompt: The prompt.
        answers: The model's answers, in order.
        submit: The hook result at prompt:submit, or None.
    """

    prompt: str
    answers: list[Answer]
    submit: str | None = None

    @property
    def calls(self) -> list[Call]:
        """Every call of the turn."""
        return [call for answer in self.answers for call in answer.calls]


def block_of(block: dict[str, Any], calls: list[Call]) -> ContentBlockUnion:
    """Convert a block of a case to a content block."""
    if "say" in block:
        return TextBlock(text=str(block["say"]))
    if "think" in block:
        return ThinkingBlock(thinking=str(block["think"]), signature=f"seal of {block['think']}")
    if "sealed" in block:
        return RedactedThinkingBlock(data=str(block["sealed"]))
    if "reason" in block:
        return ReasoningBlock(
            content=[{"type": "text", "text": str(block["reason"])}], summary=[str(block["reason"])]
        )
    if "odd" in block:
        return from_dict(
            UnknownBlock, {"type": "newfangled", "payload": {"text": str(block["odd"])}}
        )
    call = next(call for call in calls if call.number == block["number"])
    return ToolCallBlock(id=call.id, name=call.tool, input=call.arguments)


_ANSWER_OPTIONS = ("request", "error", "times", "stops", "steps")


def read_turns(case: dict[str, Any]) -> list[ScriptedTurn]:
    """Read the turns of a case, and number their parts."""
    turns: list[ScriptedTurn] = []
    answers = calls = 0
    for turn in case["turns"]:
        scripted = []
        for answer in turn["answers"]:
            answers += 1
            blocks: list[dict[str, Any]] = []
            own: list[Call] = []
            for block in answer.get("blocks", ()):
                if "call" in block:
                    calls += 1
                    own.append(_call(block, calls, own))
                    blocks.append({"call": block["call"], "number": calls})
                elif "say" in block:
                    blocks.append({"say": f"{block['say']}say{answers}x"})
                else:
                    blocks.append(
                        {
                            key: f"{value}{key}{answers}.{len(blocks)}x"
                            for key, value in block.items()
                        }
                    )
            options = {key: answer[key] for key in _ANSWER_OPTIONS if key in answer}
            scripted.append(Answer(number=answers, blocks=blocks, calls=own, **options))
        submit = turn.get("submit")
        turns.append(ScriptedTurn(prompt=turn["prompt"], answers=scripted, submit=submit))
    return turns


def _call(block: dict[str, Any], number: int, before: list[Call]) -> Call:
    options = {
        key: block[key] for key in ("does", "steps", "idle", "pre", "post", "stops") if key in block
    }
    tool = UNKNOWN_TOOL if options.get("does") == "unknown" else block["call"]
    key = f"key{number}x"
    # This is the same call once more, with another id.
    if block.get("twin") and before:
        twin = before[-1]
        key, tool, options["does"] = twin.key, twin.tool, twin.does
    return Call(
        number=number,
        tool=tool,
        id=f"{block.get('id', 'call_')}{9000 - number}",
        key=key,
        **options,
    )


@attrs.frozen
class LogEntry:
    """One entry of the log.

    Attributes:
        kind: ``event``, ``view``, ``storing``, ``stored``, ``asked``, ``answered``, ``failed``,
            ``started``, ``returned``, ``raised``, ``interrupted``, ``decision``, ``approval`` or
            ``stop``.
        name: The event, the tool, the provider or the role.
        data: A copy of the details.
        line: The line of the loop that led to it, ``file:line``. None if it was not looked for.
    """

    kind: str
    name: str
    data: Any = None
    line: str | None = None


@attrs.define
class RecordedTurn:
    """One turn and its log.

    Attributes:
        script: The script of the turn.
        log: All entries, in order.
        outcome: The outcome of execute. None while it runs.
        is_cancelled: True if the check cancelled it.
        context_failed: True if the context failed as scripted.
        is_limited: True if the model never stops, so that the loop has to.
    """

    script: ScriptedTurn
    log: list[LogEntry] = attrs.field(factory=list)
    outcome: Outcome | None = None
    is_cancelled: bool = False
    context_failed: bool = False
    is_limited: bool = False

    def entries(self, kind: str, name: str | None = None) -> list[tuple[int, LogEntry]]:
        """Return the entries of one kind with their positions."""
        return [
            (index, entry)
            for index, entry in enumerate(self.log)
            if entry.kind == kind and (name is None or entry.name == name)
        ]

    def positions(self, kind: str, name: str | None = None) -> list[int]:
        """Return the positions of the entries of one kind."""
        return [index for index, _ in self.entries(kind, name)]

    @property
    def events(self) -> list[tuple[int, LogEntry]]:
        """The events of the turn."""
        return self.entries("event")

    @property
    def was_stopped(self) -> bool:
        """Whether a graceful stop was requested."""
        return bool(self.positions("stop"))

    @property
    def was_denied(self) -> bool:
        """Whether a hook denied the turn or one of its model calls."""
        return any(
            entry.data["action"] == "deny" and entry.name in _TURN_GATES
            for _, entry in self.entries("decision")
        )

    @property
    def has_failed(self) -> bool:
        """Whether the provider or the context failed on purpose."""
        return bool(self.positions("failed")) or self.context_failed

    @property
    def ends_with_a_failure(self) -> bool:
        """Whether a failure on purpose came after the last answer of the model."""
        answered = max(self.positions("answered"), default=-1)
        return self.context_failed or any(at > answered for at in self.positions("failed"))

    @property
    def went_through(self) -> bool:
        """Whether nothing ended the turn early."""
        return not (
            self.is_cancelled
            or self.was_stopped
            or self.was_denied
            or self.has_failed
            or self.broke_on_odd_result
        )

    @property
    def broke_on_odd_result(self) -> bool:
        """Whether it raised after a tool had returned something other than a ToolResult.

        That is as much the tool's fault.
        """
        odd = any(
            entry.data["call"] is not None and entry.data["call"].is_odd
            for _, entry in self.entries("returned")
        )
        return odd and self.outcome is not None and self.outcome.kind == "raised"

    @property
    def answers(self) -> list[tuple[int, Answer]]:
        """The answers of the model, with their positions."""
        return [(index, entry.data) for index, entry in self.entries("answered")]

    @property
    def calls(self) -> list[Call]:
        """The tool calls in the answers of the model."""
        return [call for _, answer in self.answers for call in answer.calls]

    @property
    def stored_results(self) -> list[tuple[int, str, Any]]:
        """Position, call id and result of each stored tool result."""
        return [
            (at, *result)
            for at, entry in self.entries("stored")
            for result in results_in(entry.data)
        ]

    def next_asked(self, position: int) -> int | None:
        """Return the position of the next model call, or None if there is none."""
        return next((index for index in self.positions("asked") if index > position), None)


_TURN_GATES = ("prompt:submit", "provider:request")


# ── reading JSON ──


def plain(value: Any) -> Any:
    """Copy a value, and convert models in it to JSON."""
    if isinstance(value, Model):
        return to_dict(value)
    if isinstance(value, Mapping):
        return {str(key): plain(member) for key, member in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(member) for member in value]
    return copy_json(value)


def words_of(value: Any) -> str:
    """Return all text in a value, joined, for a search of marks."""
    return "\n".join(_strings(value))


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, member in value.items():
            yield str(key)
            yield from _strings(member)
    elif isinstance(value, (list, tuple)):
        for member in value:
            yield from _strings(member)
    elif value is not None:
        yield json.dumps(value, default=str)


def text_of(content: Any) -> str:
    """Return the text of a message's content, which is a string or the text blocks of a list."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(
            str(block["text"])
            for block in content
            if isinstance(block, Mapping) and "text" in block
        )
    return "" if content is None else words_of(content)


def results_in(message: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the tool results in a stored message as pairs of call id and result.

    They are one message each, or blocks of type ``tool_result`` in any message.
    """
    content = message.get("content")
    blocks = content if isinstance(content, list) else []
    results = [
        (str(block.get("tool_call_id") or block.get("tool_use_id") or ""), block)
        for block in blocks
        if isinstance(block, Mapping) and block.get("type") == "tool_result"
    ]
    if results:
        return results
    if message.get("role") in ("tool", "function"):
        return [(str(message.get("tool_call_id") or ""), content)]
    return []
