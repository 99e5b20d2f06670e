"""Both of OpenAI's APIs as dialects."""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

from amplifier.models import ChatRequest

from .._llm_provider import Call, Conversation, Encoded
from ._chat_decode import ChatReader
from ._chat_encode import ChatStyle, encode_chat
from ._responses_decode import ResponseReader
from ._responses_encode import ResponsesStyle, encode_responses


@final
class ChatDialect:
    """Chat Completions: the older API, spoken by many servers."""

    path = "/chat/completions"
    always_limits = False

    def __init__(self, style: ChatStyle) -> None:
        self._style = style

    def encode(self, conversation: Conversation, request: ChatRequest, call: Call) -> Encoded:
        """Write a request."""
        return encode_chat(conversation, request, call, self._style)

    def reader(self, taken_ids: Iterable[str]) -> ChatReader:
        """A reader for one answer."""
        return ChatReader(taken_ids)


@final
class ResponsesDialect:
    """Responses: the newer API, in which thoughts can be carried on."""

    path = "/responses"
    always_limits = False

    def __init__(self, style: ResponsesStyle) -> None:
        self._style = style

    def encode(self, conversation: Conversation, request: ChatRequest, call: Call) -> Encoded:
        """Write a request."""
        return encode_responses(conversation, request, call, self._style)

    def reader(self, taken_ids: Iterable[str]) -> ResponseReader:
        """A reader for one answer."""
        return ResponseReader(taken_ids)
