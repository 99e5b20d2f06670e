"""Shared by providers that make their answers in this process: streaming, events, tool-call ids and a token estimate."""

from ._answer_provider import Answer, LocalAnswerProvider
from ._text_pieces import pieces_of
from ._token_estimate import estimate_tokens, estimated_usage
from ._tool_call_ids import calls_in, fresh_id, used_ids

__all__ = [
    "Answer",
    "LocalAnswerProvider",
    "calls_in",
    "estimate_tokens",
    "estimated_usage",
    "fresh_id",
    "pieces_of",
    "used_ids",
]
