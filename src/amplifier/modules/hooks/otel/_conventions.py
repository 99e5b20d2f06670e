"""The configuration of hooks-otel, and every name and number of the semantic conventions in one table; needs no extra."""

from __future__ import annotations

from typing import Final

import attrs

from ..._shared.configuration import flag, option, text, whole_number

MODULE = "hooks-otel"
SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.44.0"


@attrs.frozen(kw_only=True)
class OtelOptions:
    """The configuration of hooks-otel.

    Attributes:
        agent_name: The name of the main session's agent; child sessions of tool-task have their own.
        capture_content: Whether spans have what is asked and answered, with secrets removed.
        max_content_chars: The length at which one captured content is cut.
        events: Whether events of the session that are no spans are added to its spans.
    """

    agent_name: str = option(text, default="amplifier")
    capture_content: bool = option(flag, default=False)
    max_content_chars: int = option(whole_number(1), default=16_384)
    events: bool = option(flag, default=True)


INVOKE_AGENT: Final = "invoke_agent"
CHAT: Final = "chat"
EXECUTE_TOOL: Final = "execute_tool"
"""Operations; a span is named after its operation and the agent, model or tool."""

# ── attributes ───────────────────────────────────────────────────────────────────────────────────

OPERATION_NAME: Final = "gen_ai.operation.name"
PROVIDER_NAME: Final = "gen_ai.provider.name"
CONVERSATION_ID: Final = "gen_ai.conversation.id"
AGENT_NAME: Final = "gen_ai.agent.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
RESPONSE_MODEL: Final = "gen_ai.response.model"
RESPONSE_ID: Final = "gen_ai.response.id"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
TOOL_NAME: Final = "gen_ai.tool.name"
TOOL_TYPE: Final = "gen_ai.tool.type"
TOOL_DESCRIPTION: Final = "gen_ai.tool.description"
TOOL_CALL_ID: Final = "gen_ai.tool.call.id"
SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"
TOKEN_TYPE: Final = "gen_ai.token.type"
ERROR_TYPE: Final = "error.type"

REQUEST_SETTINGS: Final = {
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "max_output_tokens": "gen_ai.request.max_tokens",
    "stop": "gen_ai.request.stop_sequences",
    "stream": "gen_ai.request.stream",
}
"""Fields of a request."""

USAGE: Final = {
    "input_tokens": "gen_ai.usage.input_tokens",
    "output_tokens": "gen_ai.usage.output_tokens",
    "cache_read_tokens": "gen_ai.usage.cache_read.input_tokens",
    "cache_write_tokens": "gen_ai.usage.cache_creation.input_tokens",
    "reasoning_tokens": "gen_ai.usage.reasoning.output_tokens",
}
"""Fields of the usage of a response."""

INPUT_MESSAGES: Final = "gen_ai.input.messages"
OUTPUT_MESSAGES: Final = "gen_ai.output.messages"
SYSTEM_INSTRUCTIONS: Final = "gen_ai.system_instructions"
TOOL_CALL_ARGUMENTS: Final = "gen_ai.tool.call.arguments"
TOOL_CALL_RESULT: Final = "gen_ai.tool.call.result"
"""Content, which is captured only if the configuration asks for it."""

TURN_NUMBER: Final = "amplifier.turn"
ITERATION: Final = "amplifier.iteration"
RESUMED: Final = "amplifier.resumed"
PARENT_SESSION: Final = "amplifier.session.parent_id"

CANCELLED: Final = "cancelled"
ABANDONED: Final = "abandoned"
OTHER_ERROR: Final = "_OTHER"
"""Values of ``error.type`` where no class of an error is known; the last one is that of the conventions."""

# ── metrics ──────────────────────────────────────────────────────────────────────────────────────

TOKEN_USAGE: Final = "gen_ai.client.token.usage"
OPERATION_DURATION: Final = "gen_ai.client.operation.duration"
INVOKE_AGENT_DURATION: Final = "gen_ai.invoke_agent.duration"
EXECUTE_TOOL_DURATION: Final = "gen_ai.execute_tool.duration"
FIRST_CHUNK: Final = "gen_ai.client.operation.time_to_first_chunk"
NEXT_CHUNK: Final = "gen_ai.client.operation.time_per_output_chunk"
INFERENCE_CALLS: Final = "gen_ai.invoke_agent.inference_calls"
TOOL_CALLS: Final = "gen_ai.invoke_agent.tool_calls"

CACHE_HIT_RATE: Final = "amplifier.client.cache_hit_rate"

TOKEN_BUCKETS: Final = tuple(4**exponent for exponent in range(14))
SHARE_BUCKETS: Final = tuple(tenth / 10 for tenth in range(11))
CALLS_BUCKETS: Final = tuple(2**exponent for exponent in range(10))
SECONDS_BUCKETS: Final = tuple(0.01 * 2**exponent for exponent in range(14))
