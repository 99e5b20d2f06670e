"""The instruments of the conventions."""

from __future__ import annotations

from collections.abc import Mapping

from opentelemetry.metrics import Meter

from amplifier.models import Usage

from ._conventions import (
    CHAT,
    EXECUTE_TOOL,
    EXECUTE_TOOL_DURATION,
    INVOKE_AGENT,
    INVOKE_AGENT_DURATION,
    OPERATION_DURATION,
    SECONDS_BUCKETS,
    TOKEN_BUCKETS,
    TOKEN_TYPE,
    TOKEN_USAGE,
)

Attributes = Mapping[str, str]

_DURATIONS = {
    CHAT: (OPERATION_DURATION, "Duration of a model call, with its retries"),
    INVOKE_AGENT: (INVOKE_AGENT_DURATION, "Duration of a turn of an agent"),
    EXECUTE_TOOL: (EXECUTE_TOOL_DURATION, "Duration of a tool call"),
}


class Metrics:
    """Records durations and token counts."""

    def __init__(self, meter: Meter) -> None:
        self._tokens = meter.create_histogram(
            TOKEN_USAGE,
            unit="{token}",
            description="Tokens of a model call",
            explicit_bucket_boundaries_advisory=TOKEN_BUCKETS,
        )
        self._durations = {
            operation: meter.create_histogram(
                name, unit="s", description=description, explicit_bucket_boundaries_advisory=SECONDS_BUCKETS
            )
            for operation, (name, description) in _DURATIONS.items()
        }

    def record_duration(self, operation: str, seconds: float, attributes: Attributes) -> None:
        """Record how long a turn, a model call or a tool call took."""
        self._durations[operation].record(seconds, attributes)

    def record_tokens(self, usage: Usage, attributes: Attributes) -> None:
        """Record what a model call consumed."""
        self._tokens.record(usage.input_tokens, {**attributes, TOKEN_TYPE: "input"})
        self._tokens.record(usage.output_tokens, {**attributes, TOKEN_TYPE: "output"})
