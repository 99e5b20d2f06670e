"""What the built-in contexts share: the conversation in memory, and the view of it that fits a model's window."""

from ._conversation import Conversation, Entry, Statistics, checked_copy, require_role
from ._options import ContextOptions
from ._pairs import call_ids, owed_calls, result_ids
from ._requests import announce_events, messages_for_request
from ._shorten import shorten
from ._tokens import count_tokens
from ._view import choose

__all__ = [
    "ContextOptions",
    "Conversation",
    "Entry",
    "Statistics",
    "announce_events",
    "call_ids",
    "checked_copy",
    "choose",
    "count_tokens",
    "messages_for_request",
    "owed_calls",
    "require_role",
    "result_ids",
    "shorten",
]
