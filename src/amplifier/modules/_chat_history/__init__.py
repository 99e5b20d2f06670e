"""What the built-in contexts share: the conversation in memory, and the view of it that fits a model's window."""

from .conversation import Conversation, Entry, Statistics, checked_copy, require_role
from .message_selection import select_messages
from .options import ContextOptions
from .request_messages import announce_events, messages_for_request
from .shortening import shorten
from .token_estimate import count_tokens
from .tool_call_pairs import call_ids, owed_calls, result_ids

__all__ = [
    "ContextOptions",
    "Conversation",
    "Entry",
    "Statistics",
    "announce_events",
    "call_ids",
    "checked_copy",
    "count_tokens",
    "messages_for_request",
    "owed_calls",
    "require_role",
    "result_ids",
    "select_messages",
    "shorten",
]
