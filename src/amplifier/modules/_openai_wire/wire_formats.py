"""Both of OpenAI's APIs as dialects."""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

from amplifier.models import ChatRequest

from .._llm_provider import CallOptions, Conversation, EncodedRequest
from .chat_completions import ChatStyle, encode_chat
from .chat_completions_reader import ChatCompletionsReader
from .responses_api import ResponsesStyle, encode_responses
from .responses_api_reader import ResponsesApiReader


@final
class ChatCompletions:
    """Chat Completions: the older API, spoken by many servers."""

    path = "/chat/completions"
    always_limits = False

    def __init__(self, style: ChatStyle) -> None:
        self._style = style

    def encode(self, conversation: Conversation, request: ChatRequest, call: CallOptions) -> EncodedRequest:
        """Write a request."""
        return encode_chat(conversation, request, call, self._style)

    def reader(self, taken_ids: Iterable[str]) -> ChatCompletionsReader:
        """A reader for one answer."""
        return ChatCompletionsReader(taken_ids)


@final
class ResponsesApi:
    """Responses: the newer API, in which thoughts can be carried on."""

    path = "/responses"
    always_limits = False

    def __init__(self, style: ResponsesStyle) -> None:
        self._style = style

    def encode(self, conversation: Conversation, request: ChatRequest, call: CallOptions) -> EncodedRequest:
        """Write a request."""
        return encode_responses(conversation, request, call, self._style)

    def reader(self, taken_ids: Iterable[str]) -> ResponsesApiReader:
        """A reader for one answer."""
        return ResponsesApiReader(taken_ids)
