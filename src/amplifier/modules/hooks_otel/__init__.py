"""hooks-otel: turns, model calls and tool calls as OpenTelemetry spans and metrics, by the GenAI semantic conventions.

_conventions  every name and number of the conventions, in one table
_options      the configuration
_content      what is asked and answered, in the form of the conventions, without secrets
_metrics      the instruments
_spans        begins and ends the spans of one session
_mount        registers the step wrapper and the handlers, if the application has set up OpenTelemetry

Needs ``opentelemetry-api`` and nothing else of OpenTelemetry: SDK and exporter are the application's.
"""

from ._mount import mount, on_session_ready

__all__ = ["mount", "on_session_ready"]

__amplifier_module_type__ = "hook"
