"""Code shared by the providers on official SDKs: everything but the wire format of a service.

`conversation` normalises requests, `wire_format` is the interface to a service's JSON, `response_reader` collects responses,
`sdk_http_client` sends requests, `error_mapping` maps failures to the error taxonomy, `streams` is what ``stream()`` returns.
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
