"""What providers share whose answers are made here and not by a model: told as a stream, with events, ids and an estimate."""

from ._pieces import calls_in, estimate_tokens, estimated_usage, fresh_id, pieces_of, used_ids
from ._provider import Answer, CannedProvider

__all__ = [
    "Answer",
    "CannedProvider",
    "calls_in",
    "estimate_tokens",
    "estimated_usage",
    "fresh_id",
    "pieces_of",
    "used_ids",
]
