"""What the providers on official SDKs share: everything but the wire_format.

`_streams` is what all streaming providers return, `_options` reads the plan, `_mounting` builds and mounts, `_provider` is the provider, `_wire` one HTTP exchange, `_sse` its
events, `_errors` what can go wrong, `_conversation` and `_answer` the two directions in normal form, `_wire_format` what a
service adds to that.
"""

from .conversation import Conversation, Entry, MessageEntry, ResultPart, ToolResultEntry, as_text, read_conversation
from .options import ProviderOptions
from .prices import Prices
from .response_reader import ContentBlocks, ResponseReader, ServiceError, TokenCounts
from .sdk_http_client import Sdk, client_options
from .sdk_provider import EVENTS, SdkProvider
from .sdk_provider_mount import ServiceDefinition, config_fields_of, log_not_mounted, make_info, mount_provider
from .server_sent_events import SseEvent, read_json
from .streams import AnswerStream, AnswerStreams, start_soon_of
from .wire_format import CallOptions, EncodedRequest, ModelCatalogue, ToolChoice, WireFormat, read_json_schema

__all__ = [
    "EVENTS",
    "AnswerStream",
    "AnswerStreams",
    "CallOptions",
    "ContentBlocks",
    "Conversation",
    "EncodedRequest",
    "Entry",
    "MessageEntry",
    "ModelCatalogue",
    "Prices",
    "ProviderOptions",
    "ResponseReader",
    "ResultPart",
    "Sdk",
    "SdkProvider",
    "ServiceDefinition",
    "ServiceError",
    "SseEvent",
    "TokenCounts",
    "ToolChoice",
    "ToolResultEntry",
    "WireFormat",
    "as_text",
    "client_options",
    "config_fields_of",
    "log_not_mounted",
    "make_info",
    "mount_provider",
    "read_conversation",
    "read_json",
    "read_json_schema",
    "start_soon_of",
]
