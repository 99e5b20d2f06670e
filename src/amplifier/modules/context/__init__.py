"""Shared parts of the built-in contexts: the conversation and its compacted view."""

from ._compaction import SOURCE, Compaction, as_dict, from_record
from ._conversation import Conversation, checked_copy, require_role
from ._entries import (
    CORRECTION,
    STEERING,
    call_ids,
    count_tokens,
    is_aside,
    missing_results,
    open_calls,
)
from ._shared_context import ContextOptions, SharedContext, Statistics

__all__ = [
    "CORRECTION",
    "SOURCE",
    "STEERING",
    "Compaction",
    "ContextOptions",
    "Conversation",
    "SharedContext",
    "Statistics",
    "as_dict",
    "call_ids",
    "checked_copy",
    "count_tokens",
    "from_record",
    "is_aside",
    "missing_results",
    "open_calls",
    "require_role",
]
