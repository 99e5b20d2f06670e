"""What the built-in contexts share: the conversation in memory, and the view of it that fits a model's window."""

from .conversation import Conversation, Statistics, checked_copy, copies, require_role
from .options import ContextOptions
from .request_messages import announce_events, messages_for_request
from .stored_message import MessageView, StoredMessage, share, shared_form
from .token_estimate import count_tokens
from .tool_call_pairs import is_aside, missing_results, open_calls

__all__ = [
    "ContextOptions",
    "Conversation",
    "MessageView",
    "Statistics",
    "StoredMessage",
    "announce_events",
    "checked_copy",
    "copies",
    "count_tokens",
    "is_aside",
    "messages_for_request",
    "missing_results",
    "open_calls",
    "require_role",
    "share",
    "shared_form",
]
