"""hooks-otel: turns, model calls and tool calls as OpenTelemetry spans and metrics, by the GenAI semantic conventions.

`_conventions` has the names of the conventions and the configuration, `_spans` begins and ends the spans of one session, `_mount`
registers it if the application has set up OpenTelemetry. Needs ``opentelemetry-api`` and nothing else of OpenTelemetry: SDK and
exporter are the application's.
"""

from ._mount import mount, on_session_ready

__all__ = ["mount", "on_session_ready"]

__amplifier_module_type__ = "hook"
