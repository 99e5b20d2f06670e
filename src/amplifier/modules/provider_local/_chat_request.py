"""A request as the server takes it: OpenAI's chat form. Pure; below `_provider`.

A chat template of a small model knows few roles. So system messages at the beginning become one; a later one, which many
templates refuse, is told as a note in the user's place. What the model cannot read (thoughts of other models, images) is
left out, and the encoding says what.
"""

from __future__ import annotations

import json
from typing import Any

import attrs

from amplifier.models import (
    ChatRequest,
    ImageBlock,
    Message,
    ResponseFormatJsonSchema,
    TextBlock,
    ToolCall,
    ToolResultBlock,
    ToolSpec,
    UnknownBlock,
)

from .._local_answers import calls_in
from ._options import Options

NO_RESULT = "[no result: the call was interrupted]"


@attrs.frozen
class Encoded:
    """What goes over the wire.

    Attributes:
        body: The JSON.
        repaired: Ids of calls that had no result in the request and got a note for one.
        omitted: Types of blocks that were left out.
    """

    body: dict[str, Any]
    repaired: tuple[str, ...]
    omitted: tuple[str, ...]


def encode(request: ChatRequest, options: Options) -> Encoded:
    """Encode a request, which is not changed."""
    writing = _Writing()
    for message in request.messages:
        writing.add(message)
    writing.answer_open_calls()
    body: dict[str, Any] = {
        "messages": writing.messages or [{"role": "user", "content": ""}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": request.max_output_tokens or options.max_tokens,
    }
    optional = {
        "temperature": request.temperature if request.temperature is not None else options.temperature,
        "top_p": request.top_p,
        "stop": request.stop or None,
        "seed": options.seed,
        "response_format": _response_format(request),
    }
    body |= {key: value for key, value in optional.items() if value is not None}
    if request.tools and options.offer_tools and request.tool_choice != "none":
        body["tools"] = [_tool(spec) for spec in request.tools]
        if request.tool_choice is not None:
            body["tool_choice"] = request.tool_choice
    return Encoded(body, tuple(writing.repaired), tuple(dict.fromkeys(writing.omitted)))


class _Writing:
    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.repaired: list[str] = []
        self.omitted: list[str] = []
        self._open: dict[str, ToolCall] = {}

    def add(self, message: Message) -> None:
        results = self._results(message)
        for call_id, text in results.items():
            self._open.pop(call_id, None)
            self.messages.append({"role": "tool", "tool_call_id": call_id, "content": text})
        if results and (message.role in ("tool", "function") or not self._text(message)):
            return
        self.answer_open_calls()
        if message.role in ("system", "developer"):
            self._add_system(self._text(message))
        elif message.role == "assistant":
            self._add_assistant(message)
        else:
            self._add_text("user", self._text(message))

    def answer_open_calls(self) -> None:
        for call_id in self._open:
            self.messages.append({"role": "tool", "tool_call_id": call_id, "content": NO_RESULT})
            self.repaired.append(call_id)
        self._open = {}

    def _add_system(self, text: str) -> None:
        if not self.messages:
            self.messages.append({"role": "system", "content": text})
        elif self.messages[-1]["role"] == "system":
            self.messages[-1]["content"] += f"\n\n{text}"
        else:
            self._add_text("user", f"[note from the system]\n{text}")

    def _add_assistant(self, message: Message) -> None:
        calls = calls_in(message)
        if not calls:
            self._add_text("assistant", self._text(message))
            return
        self._open = {call.id: call for call in calls}
        made = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(call.arguments, default=str)},
            }
            for call in calls
        ]
        self.messages.append({"role": "assistant", "content": self._text(message), "tool_calls": made})

    def _add_text(self, role: str, text: str) -> None:
        last = self.messages[-1] if self.messages else {}
        if last.get("role") == role and "tool_calls" not in last:  # templates want the roles to take turns
            last["content"] = f"{last['content']}\n\n{text}"
        else:
            self.messages.append({"role": role, "content": text})

    def _text(self, message: Message) -> str:
        if isinstance(message.content, str):
            return _clean(message.content)
        texts = []
        for block in message.content:
            if isinstance(block, TextBlock):
                texts.append(block.text)
            elif isinstance(block, ImageBlock | UnknownBlock):
                self.omitted.append(block.type)
                texts.append(f"[{block.type} left out: this model reads text only]")
        return _clean("\n".join(texts))

    def _results(self, message: Message) -> dict[str, str]:
        if isinstance(message.content, list):
            blocks = [block for block in message.content if isinstance(block, ToolResultBlock)]
            if blocks:
                return {block.tool_call_id: _clean(_output(block.output)) for block in blocks}
        if message.role in ("tool", "function") and message.tool_call_id:
            return {message.tool_call_id: self._text(message)}
        return {}


def _output(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _clean(text: str) -> str:
    """Text that is UTF-8: a lone surrogate cannot go over the wire."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _tool(spec: ToolSpec) -> dict[str, Any]:
    function = {"name": spec.name, "description": spec.description or "", "parameters": spec.parameters}
    return {"type": "function", "function": function}


def _response_format(request: ChatRequest) -> dict[str, Any] | None:
    asked = request.response_format
    if asked is None or asked.type == "text":
        return None
    if not isinstance(asked, ResponseFormatJsonSchema):
        return {"type": "json_object"}
    # Some callers give the schema, others what OpenAI wraps around it.
    inner = asked.json_schema.get("schema")
    schema = inner if isinstance(inner, dict) and "type" not in asked.json_schema else asked.json_schema
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}
