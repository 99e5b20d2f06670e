"""OpenAI's Responses API: requests and responses."""

from __future__ import annotations

from typing import ClassVar, final

import attrs

from amplifier._internal.json import JSON
from amplifier.models import (
    ChatRequest,
    ContentBlockUnion,
    Degradation,
    ImageBlock,
    ReasoningBlock,
    ResponseFormatJson,
    ResponseFormatJsonSchema,
    StreamChunk,
    TextBlock,
    ToolCallBlock,
    UnknownBlock,
    from_dict,
    to_dict,
)

from ._chat_completions import counted, document_name, document_source, image_url
from ._conversation import Conversation, Entry, ResultPart, ToolResultEntry, as_text
from ._wire_format import (
    CallOptions,
    EncodedRequest,
    ResponseReader,
    ServiceError,
    SseEvent,
    WireFormat,
    read_json,
    read_json_schema,
)

_INPUT_PARTS = ("input_file", "input_audio", "input_image")


def _text_format(request: ChatRequest) -> dict[str, JSON] | None:
    if isinstance(request.response_format, ResponseFormatJsonSchema):
        name, schema, strict = read_json_schema(request.response_format)
        envelope: dict[str, JSON] = {"type": "json_schema", "name": name, "schema": schema}
        return {"format": envelope | ({} if strict is None else {"strict": strict})}
    return (
        {"format": {"type": "json_object"}}
        if isinstance(request.response_format, ResponseFormatJson)
        else None
    )


def _items(entry: Entry) -> list[dict[str, JSON]]:
    if isinstance(entry, ToolResultEntry):
        return [
            {
                "type": "function_call_output",
                "call_id": entry.call_id,
                "output": _output(entry.parts),
            }
        ]
    if entry.role == "assistant":
        return [item for block in entry.blocks if (item := _assistant_item(block)) is not None]
    parts = [part for block in entry.blocks if (part := _part(block)) is not None]
    return [{"type": "message", "role": entry.role, "content": parts}] if parts else []


def _assistant_item(block: ContentBlockUnion) -> dict[str, JSON] | None:
    """Return an item of an assistant message, or None for reasoning from another service."""
    match block:
        case TextBlock():
            kind = "refusal" if block.extra.get("refusal") else "output_text"
            content = {"type": kind, "refusal" if kind == "refusal" else "text": block.text}
            phase = {"phase": block.extra["phase"]} if block.extra.get("phase") else {}
            return {"type": "message", "role": "assistant", "content": [content], **phase}
        case ReasoningBlock():
            encrypted = block.extra.get("encrypted_content")
            if not encrypted:
                return None
            item = {"type": "reasoning", "summary": block.summary, "encrypted_content": encrypted}
            if block.extra.get("id"):
                item["id"] = block.extra["id"]
            return item | ({"content": block.content} if block.content else {})
        case ToolCallBlock():
            item_id = {"id": block.extra["item_id"]} if block.extra.get("item_id") else {}
            arguments = as_text(block.input)
            call = {
                "type": "function_call",
                "call_id": block.id,
                "name": block.name,
                "arguments": arguments,
            }
            return call | item_id
        case UnknownBlock():
            return to_dict(block)
        case _:
            return None


def _part(block: ContentBlockUnion) -> dict[str, JSON] | None:
    if isinstance(block, TextBlock):
        return {"type": "input_text", "text": block.text}
    if isinstance(block, ImageBlock):
        detail = block.source.get("detail") or "auto"
        return {"type": "input_image", "image_url": image_url(block), "detail": detail}
    if isinstance(block, UnknownBlock) and block.type == "document":
        return _document(block)
    if isinstance(block, UnknownBlock) and block.type in _INPUT_PARTS:
        return to_dict(block)
    return None


def _document(block: UnknownBlock) -> dict[str, JSON]:
    source = document_source(block)
    if isinstance(source.get("url"), str):
        return {"type": "input_file", "file_url": source["url"]}
    data = source.get("data")
    if source.get("type") == "text" and isinstance(data, str):
        return {"type": "input_text", "text": data}
    if source.get("type") != "base64" or not isinstance(data, str):
        return {
            "type": "input_text",
            "text": f"[document {document_name(block)!r} left out: it has neither data nor a URL]",
        }
    encoded = f"data:{source.get('media_type')};base64,{data}"
    return {"type": "input_file", "filename": document_name(block), "file_data": encoded}


def _output(parts: list[ResultPart]) -> str | list[dict[str, JSON]]:
    if all(isinstance(part, TextBlock) for part in parts):
        return "\n".join(part.text for part in parts if isinstance(part, TextBlock))
    return [_part(part) or {"type": "input_text", "text": as_text(to_dict(part))} for part in parts]


_OUR_TYPE = {"function_call": "tool_call"}
_BLOCK_DELTAS = (
    "response.function_call_arguments.delta",
    "response.reasoning_summary_text.delta",
    "response.reasoning_text.delta",
)
_TEXT_DELTAS = ("response.output_text.delta", "response.refusal.delta")
_ENDS = ("response.completed", "response.incomplete")


@final
class ResponsesApiReader(ResponseReader):
    """Reads one response. Its blocks are made from finished items. Deltas are only passed on."""

    def read_event(self, event: SseEvent) -> list[StreamChunk]:
        """Read one event. Unknown types are ignored."""
        if event.data.strip() == "[DONE]":
            return []
        data = read_json(event.data)
        kind = data.get("type") or event.name or ""
        if kind == "error" or data.get("error"):
            raise ServiceError(data)
        if kind == "response.failed":
            raise ServiceError(data["response"])
        if kind == "response.output_item.added":
            return self._start(data["output_index"], data["item"])
        if kind in _BLOCK_DELTAS:
            return self.blocks.add(data["output_index"], data["delta"])
        if kind in _TEXT_DELTAS:
            return self._add_text(
                (data["output_index"], data.get("content_index", 0)), data["delta"]
            )
        if kind == "response.output_item.done":
            return self._end(data["output_index"], data["item"])
        if kind in _ENDS:
            self.is_over = True
            self._read_metadata(data["response"])
        return []

    def read_body(self, body: dict[str, JSON]) -> list[StreamChunk]:
        """Read a response that was not streamed."""
        if body.get("error"):
            raise ServiceError(body)
        chunks: list[StreamChunk] = []
        if not isinstance(body["output"], list):
            raise TypeError(f"output is not a list but {body['output']!r:.80}")
        for index, item in enumerate(body["output"]):
            chunks += self._start(index, item)
            chunks += self._end(index, item)
        self._read_metadata(body)
        return chunks

    def _read_metadata(self, response: dict[str, JSON]) -> None:
        self.model = response.get("model")
        if response.get("id"):
            self.metadata["response_id"] = response["id"]
        details = response.get("incomplete_details") or {}
        self.finish_reason = details.get("reason") or response.get("status") or "completed"
        if response.get("usage"):
            self.counted = counted(response["usage"], input_name="input", output_name="output")

    def _start(self, index: int, item: dict[str, JSON]) -> list[StreamChunk]:
        # The parts of a message are the blocks.
        if item["type"] == "message":
            return []
        kind: str = item["type"]
        tool = item.get("name") if kind == "function_call" else None
        return [self.blocks.start(index, _OUR_TYPE.get(kind, kind), tool)]

    def _add_text(self, key: tuple[int, int], text: str) -> list[StreamChunk]:
        chunks = [] if key in self.blocks else [self.blocks.start(key, "text")]
        return chunks + self.blocks.add(key, text)

    def _end(self, index: int, item: dict[str, JSON]) -> list[StreamChunk]:
        if item["type"] == "message":
            return [
                chunk
                for number, part in enumerate(item["content"])
                for chunk in self._end_part((index, number), part, item)
            ]
        chunks = [] if index in self.blocks else self._start(index, item)
        if item["type"] == "function_call":
            arguments = item.get("arguments") or self.blocks.text(index)
            more = {"item_id": item["id"]} if item.get("id") else {}
            return chunks + self.end_call(
                index, item.get("call_id"), item["name"], arguments, **more
            )
        return [*chunks, self.blocks.end(index, _block(item))]

    def _end_part(
        self, key: tuple[int, int], part: dict[str, JSON], item: dict[str, JSON]
    ) -> list[StreamChunk]:
        more = {name: item[name] for name in ("phase",) if item.get(name)}
        more |= {name: part[name] for name in ("annotations",) if part.get(name)}
        if part["type"] == "refusal":
            more["refusal"] = True
        block = TextBlock(text=part.get("text") or part.get("refusal") or "", **more)
        if not block.text and key not in self.blocks:
            return []
        chunks = [] if key in self.blocks else [self.blocks.start(key, "text")]
        return [*chunks, self.blocks.end(key, block)]


def _block(item: dict[str, JSON]) -> ContentBlockUnion:
    if item["type"] == "reasoning":
        kept = {
            name: item[name] for name in ("id", "encrypted_content", "status") if item.get(name)
        }
        return ReasoningBlock(
            content=item.get("content") or [], summary=item.get("summary") or [], **kept
        )
    # An item of another type is kept as received.
    block: ContentBlockUnion = from_dict(ContentBlockUnion, item)
    return block


# Requests forbid the service to store anything. So every request contains the whole conversation,
# with the model's reasoning in encrypted form.


@final
@attrs.frozen(kw_only=True)
class ResponsesApi(WireFormat):
    """The Responses API, the newer of OpenAI's two, which accepts reasoning from earlier turns.

    Attributes:
        reasoning_summary: The level of detail of a summary of the reasoning. None requests none.
        parallel_tool_calls: A parameter that is sent together with tools. None omits it.
    """

    path: ClassVar[str] = "/responses"
    reader: ClassVar[type[ResponseReader]] = ResponsesApiReader
    count_path: ClassVar[str | None] = "/responses/input_tokens"

    reasoning_summary: str | None = None
    parallel_tool_calls: bool | None = None

    def encode(
        self, conversation: Conversation, request: ChatRequest, call: CallOptions
    ) -> EncodedRequest:
        """Encode a request as JSON."""
        items = [item for entry in conversation.entries for item in _items(entry)]
        encoded = EncodedRequest(
            {"model": call.model, "input": items, "store": False, "stream": True}
        )
        body = encoded.body
        body["include"] = ["reasoning.encrypted_content"]
        if request.tools:
            body["tools"] = [
                {
                    "type": "function",
                    "name": spec.name,
                    "description": spec.description or "",
                    "parameters": spec.parameters,
                    # The service's default is true, which few schemas satisfy.
                    "strict": bool(spec.extra.get("strict", False)),
                }
                for spec in request.tools
            ]
            if call.tool_choice is not None:
                choice = call.tool_choice
                body["tool_choice"] = (
                    {"type": "function", "name": choice[0]} if isinstance(choice, tuple) else choice
                )
            if self.parallel_tool_calls is not None:
                body["parallel_tool_calls"] = self.parallel_tool_calls
        reasoning = {"effort": call.reasoning_effort, "summary": self.reasoning_summary}
        optional = {
            "max_output_tokens": call.max_tokens,
            "temperature": call.temperature,
            "top_p": call.top_p,
            "reasoning": {name: value for name, value in reasoning.items() if value is not None}
            or None,
            "text": _text_format(request),
        }
        body |= {name: value for name, value in optional.items() if value is not None}
        if request.stop:
            encoded.degradations.append(
                Degradation(
                    requested="stop",
                    actual="not sent",
                    reason="the Responses API has no stop sequences",
                )
            )
        return encoded
