"""OpenAI's Chat Completions API, which most model servers implement: requests and responses."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, ClassVar, final

import attrs

from amplifier._internal.json import JSON
from amplifier.errors import InvalidRequestError
from amplifier.models import (
    ChatRequest,
    ContentBlockUnion,
    ImageBlock,
    ModelInfo,
    ResponseFormatJson,
    ResponseFormatJsonSchema,
    StreamChunk,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    UnknownBlock,
    to_dict,
)
from amplifier.models.prompts import PDF

from ._conversation import Conversation, Entry, MessageEntry, ToolResultEntry, as_text
from ._wire_format import (
    CallOptions,
    EncodedRequest,
    ModelCatalogue,
    ResponseReader,
    ServiceError,
    SseEvent,
    WireFormat,
    read_json,
    read_json_schema,
)

REASONING_FIELDS = ("reasoning_content", "reasoning")
"""Fields in which servers put a model's reasoning. The official API has no such field."""

# Types of blocks that `amplifier.models` does not define, but this API accepts from the user.
_USER_PARTS = ("image_url", "input_audio", "file", "video_url")

_SEE_BELOW = "[image: see the next message]"


def _messages(entries: list[Entry], *, has_developer: bool) -> list[dict[str, JSON]]:
    """Return the messages in order.

    The API accepts no images in tool results, so they follow in a user message.
    """
    messages: list[dict[str, JSON]] = []
    images: list[dict[str, JSON]] = []
    answers = [
        at
        for at, entry in enumerate(entries)
        if isinstance(entry, MessageEntry) and entry.role == "assistant"
    ]
    last_answer = answers[-1] if answers else -1
    for at, entry in enumerate(entries):
        if isinstance(entry, ToolResultEntry):
            messages.append(_result(entry, images))
            continue
        if images:
            messages.append({"role": "user", "content": images})
            images = []
        is_prompt = entry.role == "user" and at > last_answer
        if (
            message := _message(entry, has_developer=has_developer, is_prompt=is_prompt)
        ) is not None:
            messages.append(message)
    return [*messages, {"role": "user", "content": images}] if images else messages


def _result(result: ToolResultEntry, images: list[dict[str, JSON]]) -> dict[str, JSON]:
    texts: list[str] = []
    for part in result.parts:
        if isinstance(part, TextBlock):
            texts.append(part.text)
        elif isinstance(part, ImageBlock):
            texts.append(_SEE_BELOW)
            images.append(_image(part))
        else:
            texts.append(as_text(to_dict(part)))
    return {"role": "tool", "tool_call_id": result.call_id, "content": "\n".join(texts)}


def _message(
    entry: MessageEntry, *, has_developer: bool, is_prompt: bool
) -> dict[str, JSON] | None:
    if entry.role == "assistant":
        return _assistant(entry.blocks)
    role = "system" if entry.role == "developer" and not has_developer else entry.role
    parts = [
        part for block in entry.blocks if (part := _part(block, is_prompt=is_prompt)) is not None
    ]
    if not parts:
        return None
    if all(part.keys() == {"type", "text"} for part in parts):
        return {"role": role, "content": "\n\n".join(part["text"] for part in parts)}
    return {"role": role, "content": parts}


def _assistant(blocks: list[ContentBlockUnion]) -> dict[str, JSON] | None:
    """Return an assistant message.

    Reasoning is sent in the field in which it was received. Reasoning from other APIs is omitted.
    """
    text = "".join(block.text for block in blocks if isinstance(block, TextBlock))
    calls = [block for block in blocks if isinstance(block, ToolCallBlock)]
    message: dict[str, JSON] = {"role": "assistant", "content": text or None}
    for field in REASONING_FIELDS:
        reasoning = [
            block.thinking
            for block in blocks
            if isinstance(block, ThinkingBlock) and block.extra.get("reasoning_field") == field
        ]
        if reasoning:
            message[field] = "".join(reasoning)
    if calls:
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": as_text(call.input)},
            }
            for call in calls
        ]
    return message if text or calls else None


def _part(block: ContentBlockUnion, *, is_prompt: bool) -> dict[str, JSON] | None:
    if isinstance(block, TextBlock):
        return {"type": "text", "text": block.text}
    if isinstance(block, ImageBlock):
        return _image(block)
    if isinstance(block, UnknownBlock) and block.type == "document":
        return _document(block, is_prompt=is_prompt)
    if isinstance(block, UnknownBlock) and block.type in _USER_PARTS:
        return to_dict(block)
    return None


def _document(block: UnknownBlock, *, is_prompt: bool) -> dict[str, JSON]:
    """Return a PDF as a file, and any other document as a note, because the API rejects others.

    Raises:
        InvalidRequestError: A document other than a PDF is part of the prompt.
    """
    name, source = document_name(block), document_source(block)
    if source.get("media_type") == PDF and isinstance(source.get("data"), str):
        return {
            "type": "file",
            "file": {"filename": name, "file_data": f"data:{PDF};base64,{source['data']}"},
        }
    if source.get("type") == "text" and isinstance(source.get("data"), str):
        return {"type": "text", "text": source["data"]}
    kind = source.get("url") or source.get("media_type") or sorted(source)
    if is_prompt and source.get("type") in ("base64", "url"):
        raise InvalidRequestError(
            f"the document {name!r} ({kind!r:.80}) cannot be sent: "
            "the Chat Completions API accepts only PDF files as base64"
        )
    return {
        "type": "text",
        "text": f"[document {name!r} left out: this service takes PDF files only]",
    }


def document_name(block: UnknownBlock) -> str:
    """Return the name of a document, or a default, because the APIs require one."""
    title = block.extra.get("title")
    return title if isinstance(title, str) and title else "document.pdf"


def document_source(block: UnknownBlock) -> dict[str, JSON]:
    """Return the source of a document, or an empty dict if the block has none."""
    source = block.extra.get("source")
    return source if isinstance(source, dict) else {}


def _image(block: ImageBlock) -> dict[str, JSON]:
    detail = block.source.get("detail")
    return {
        "type": "image_url",
        "image_url": {"url": image_url(block), **({"detail": detail} if detail else {})},
    }


def _response_format(request: ChatRequest) -> dict[str, JSON] | None:
    if isinstance(request.response_format, ResponseFormatJsonSchema):
        name, schema, strict = read_json_schema(request.response_format)
        envelope: dict[str, JSON] = {"name": name, "schema": schema}
        return {
            "type": "json_schema",
            "json_schema": envelope | ({} if strict is None else {"strict": strict}),
        }
    return (
        {"type": "json_object"} if isinstance(request.response_format, ResponseFormatJson) else None
    )


def image_url(block: ImageBlock) -> str:
    """Return the URL of an image. Base64 data becomes a data URL.

    Raises:
        InvalidRequestError: The source has neither data nor a URL.
    """
    source = block.source
    url = source.get("url") or source.get("image_url")
    if isinstance(url, str):
        return url
    data = source.get("data")
    if isinstance(data, str):
        return f"data:{source.get('media_type') or 'image/png'};base64,{data}"
    raise InvalidRequestError(
        f"an image's source has neither url nor data, only {sorted(source)}; "
        "expected base64 data or a URL"
    )


def counted(usage: dict[str, JSON], *, input_name: str, output_name: str) -> dict[str, int | None]:
    """Return the service's token counts under our names.

    Args:
        usage: The counts as the service reports them.
        input_name: The API's word for input.
        output_name: The API's word for output.
    """
    input_details = usage.get(f"{input_name}_tokens_details") or {}
    output_details = usage.get(f"{output_name}_tokens_details") or {}
    return {
        "input_tokens": usage.get(f"{input_name}_tokens") or 0,
        "output_tokens": usage.get(f"{output_name}_tokens") or 0,
        "cache_read_tokens": input_details.get(
            "cached_tokens", usage.get("prompt_cache_hit_tokens")
        ),
        "cache_write_tokens": input_details.get("cache_write_tokens"),
        "reasoning_tokens": output_details.get("reasoning_tokens"),
    }


_DONE = "[DONE]"


@attrs.define
class _Call:
    id: str | None
    name: str


# Some servers deviate from the API. They send calls without an index, the same index for all calls,
# the name with every piece, arguments as an object, no usage, or no end mark. The reader accepts
# all of these.


@final
class ChatCompletionsReader(ResponseReader):
    """Reads one completion."""

    def __init__(self, taken_ids: Iterable[str] = ()) -> None:
        super().__init__(taken_ids)
        self._open_field: str | None = None
        self._calls: dict[int, _Call] = {}
        self._by_index: dict[Any, int] = {}

    def read_event(self, event: SseEvent) -> list[StreamChunk]:
        """Read one chunk."""
        if event.data.strip() == _DONE:
            self.is_over = True
            return self.end_of_stream()
        data = read_json(event.data)
        if data.get("error") or event.name == "error":
            raise ServiceError(data)
        self._read_metadata(data)
        chunks: list[StreamChunk] = []
        for choice in (data.get("choices") or ())[:1]:
            chunks += self._read_delta(choice.get("delta") or {})
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
        return chunks

    def read_body(self, body: dict[str, JSON]) -> list[StreamChunk]:
        """Read a completion that was not streamed."""
        if body.get("error"):
            raise ServiceError(body)
        self._read_metadata(body)
        choice = body["choices"][0]
        chunks = self._read_delta(choice["message"])
        self.finish_reason = choice.get("finish_reason") or "stop"
        return chunks + self.end_of_stream()

    def end_of_stream(self) -> list[StreamChunk]:
        """Complete every block. The end mark may be missing if there was a finish reason."""
        super().end_of_stream()
        chunks = self._end_text()
        for number, call in self._calls.items():
            key = ("call", number)
            chunks += self.end_call(key, call.id, call.name, self.blocks.text(key))
        self._calls = {}
        return chunks

    def _read_metadata(self, data: dict[str, JSON]) -> None:
        self.model = data.get("model") or self.model
        for name, member in (("response_id", "id"), ("system_fingerprint", "system_fingerprint")):
            if data.get(member):
                self.metadata[name] = data[member]
        if data.get("usage"):
            self.counted = counted(data["usage"], input_name="prompt", output_name="completion")

    def _read_delta(self, delta: dict[str, JSON]) -> list[StreamChunk]:
        chunks: list[StreamChunk] = []
        for field in (*REASONING_FIELDS, "content", "refusal"):
            text = delta.get(field)
            if isinstance(text, str) and text:
                chunks += self._add_text(field, text)
        for piece in delta.get("tool_calls") or ():
            chunks += self._add_call(piece)
        return chunks

    def _add_text(self, field: str, text: str) -> list[StreamChunk]:
        chunks: list[StreamChunk] = []
        if self._open_field != field:
            chunks += self._end_text()
            self._open_field = field
            chunks.append(
                self.blocks.start("text", "thinking" if field in REASONING_FIELDS else "text")
            )
        return chunks + self.blocks.add("text", text)

    def _end_text(self) -> list[StreamChunk]:
        field, self._open_field = self._open_field, None
        if field is None:
            return []
        text = self.blocks.text("text")
        more: dict[str, JSON] = {}
        # The next request sends the reasoning back in the same field.
        if field in REASONING_FIELDS:
            more = {"reasoning_field": field}
            return [self.blocks.end("text", ThinkingBlock(thinking=text, **more))]
        if field == "refusal":
            more = {"refusal": True}
        return [self.blocks.end("text", TextBlock(text=text, **more))]

    def _add_call(self, piece: dict[str, JSON]) -> list[StreamChunk]:
        function = piece.get("function") or {}
        index, call_id, name = piece.get("index"), piece.get("id"), function.get("name")
        number = self._by_index.get(index) if index is not None else max(self._calls, default=None)
        known = None if number is None else self._calls[number]
        is_new = known is None or bool(call_id and known.id and call_id != known.id)
        chunks: list[StreamChunk] = []
        if is_new or number is None or known is None:
            chunks += self._end_text()
            number = len(self._calls)
            known = self._calls[number] = _Call(call_id, name or "")
            self._by_index[index] = number
            chunks.append(self.blocks.start(("call", number), "tool_call", name))
        known.id = known.id or call_id
        known.name = known.name or name or ""
        arguments = function.get("arguments")
        if arguments is not None and not isinstance(arguments, str):
            arguments = json.dumps(arguments)
        return chunks + (self.blocks.add(("call", number), arguments) if arguments else [])


@final
@attrs.frozen(kw_only=True)
class ConfiguredModels(ModelCatalogue):
    """The catalogue of a server with unknown models. Their properties come from the configuration.

    Attributes:
        context_window: The context window of every model.
        max_tokens: The limit on output tokens of every model.
    """

    context_window: int
    max_tokens: int

    def look_up(self, model: str) -> ModelInfo:
        """Return a model with the configured properties."""
        return ModelInfo(
            id=model,
            display_name=model,
            context_window=self.context_window,
            max_output_tokens=self.max_tokens,
            capabilities=["tools", "streaming"],
        )

    def listed(self, item: dict[str, JSON]) -> ModelInfo:
        """Read an item of the server's list. Some servers include the context window."""
        model = self.look_up(item["id"])
        window = (
            item.get("max_model_len")
            or item.get("context_length")
            or (item.get("meta") or {}).get("n_ctx")
        )
        if isinstance(window, int) and window > 0:
            model.context_window = window
        return model


@attrs.frozen(kw_only=True)
class ChatCompletions(WireFormat):
    """The Chat Completions API, the older of OpenAI's two, which many servers implement.

    Attributes:
        max_tokens_field: The name of the limit on output tokens.
        has_developer: Whether the server accepts the role ``developer``.
        parallel_tool_calls: A parameter that is sent together with tools. None omits it.
        seed: A parameter of the request. None omits it.
    """

    path: ClassVar[str] = "/chat/completions"
    reader: ClassVar[type[ResponseReader]] = ChatCompletionsReader

    max_tokens_field: str = "max_tokens"
    has_developer: bool = False
    parallel_tool_calls: bool | None = None
    seed: int | None = None

    def encode(
        self, conversation: Conversation, request: ChatRequest, call: CallOptions
    ) -> EncodedRequest:
        """Encode a request as JSON."""
        messages = _messages(conversation.entries, has_developer=self.has_developer)
        body: dict[str, JSON] = {"model": call.model, "messages": messages}
        if request.tools:
            body["tools"] = [
                {
                    "type": "function",
                    "function": {
                        "name": spec.name,
                        "description": spec.description or "",
                        "parameters": spec.parameters,
                        **({"strict": spec.extra["strict"]} if "strict" in spec.extra else {}),
                    },
                }
                for spec in request.tools
            ]
            choice = call.tool_choice
            if choice is not None:
                body["tool_choice"] = (
                    {"type": "function", "function": {"name": choice[0]}}
                    if isinstance(choice, tuple)
                    else choice
                )
            if self.parallel_tool_calls is not None:
                body["parallel_tool_calls"] = self.parallel_tool_calls
        optional = {
            self.max_tokens_field: call.max_tokens,
            "temperature": call.temperature,
            "top_p": call.top_p,
            "reasoning_effort": call.reasoning_effort,
            "stop": list(request.stop) if request.stop else None,
            "seed": self.seed,
            "response_format": _response_format(request),
        }
        body |= {name: value for name, value in optional.items() if value is not None}
        return EncodedRequest(body | {"stream": True, "stream_options": {"include_usage": True}})
