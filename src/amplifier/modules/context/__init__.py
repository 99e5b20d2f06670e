"""What the built-in contexts share: the conversation in memory, and the view of it that fits a model's window."""

from ._conversation import Conversation, Statistics, checked_copy, require_role
from ._options import ContextOptions
from ._request_messages import announce_events, messages_for_request
from ._token_estimate import count_tokens
from ._tool_call_pairs import call_ids, is_aside, missing_results, open_calls

__all__ = [
    "ContextOptions",
    "Conversation",
    "Statistics",
    "announce_events",
    "call_ids",
    "checked_copy",
    "count_tokens",
    "is_aside",
    "messages_for_request",
    "missing_results",
    "open_calls",
    "require_role",
]
