"""What the providers on official SDKs share: everything but the dialect.

`_streams` is what all streaming providers return, `_options` reads the plan, `_mounting` builds and mounts, `_provider` is the provider, `_wire` one HTTP exchange, `_sse` its
events, `_errors` what can go wrong, `_conversation` and `_answer` the two directions in normal form, `_dialect` what a
service adds to that.
"""

from ._answer import AnswerReader, Blocks, Consumed, ServiceError
from ._conversation import Conversation, Entry, Part, Result, Words, as_text, read_conversation
from ._dialect import Call, Catalogue, Dialect, Encoded, ToolChoice, read_schema
from ._mounting import Service, common_fields, decline, make_info, mount_service
from ._options import ProviderOptions, choice, limit, number, optional, read_options, text
from ._prices import Prices
from ._provider import EVENTS, SdkProvider
from ._sse import ServerEvent, read_json
from ._streams import AnswerStream, AnswerStreams, start_soon_of
from ._wire import Sdk, client_options

__all__ = [
    "EVENTS",
    "AnswerReader",
    "AnswerStream",
    "AnswerStreams",
    "Blocks",
    "Call",
    "Catalogue",
    "Consumed",
    "Conversation",
    "Dialect",
    "Encoded",
    "Entry",
    "Part",
    "Prices",
    "ProviderOptions",
    "Result",
    "Sdk",
    "SdkProvider",
    "ServerEvent",
    "Service",
    "ServiceError",
    "ToolChoice",
    "Words",
    "as_text",
    "choice",
    "client_options",
    "common_fields",
    "decline",
    "limit",
    "make_info",
    "mount_service",
    "number",
    "optional",
    "read_conversation",
    "read_json",
    "read_options",
    "read_schema",
    "start_soon_of",
    "text",
]
