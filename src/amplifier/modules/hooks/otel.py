"""hooks-otel: traces turns, model calls and tool calls with OpenTelemetry.

This module needs only ``opentelemetry-api``. The application provides the SDK and the exporter.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs

from amplifier.contracts import Coordinator
from amplifier.errors import MissingExtraError
from amplifier.events import (
    CONTENT_BLOCK_DELTA,
    EXECUTION_END,
    EXECUTION_START,
    LLM_REQUEST,
    LLM_RESPONSE,
    PROVIDER_REQUEST,
    TRACE_ROLES,
)
from amplifier.models import HookResult

from .._shared.configuration import flag, option, read_options, text, whole_number

if TYPE_CHECKING:  # belongs to an extra
    from ._otel_spans import SessionSpans

__all__ = ["MODULE", "OtelOptions", "mount", "on_session_ready"]

__amplifier_module_type__ = "hook"

MODULE = "hooks-otel"

_logger = logging.getLogger("amplifier.modules.hooks-otel")

_SCHEMA_URL = "https://opentelemetry.io/schemas/1.44.0"

_CHANNEL = "observability.events"
# The handlers run before gates, because a denial hides an event from later handlers.
_PRIORITY = -1_000_000
_MAX_ATTRIBUTE_CHARS = 256
_NAMES = (
    "provider model attempt max_retries delay error_type retryable status_code repair_count "
    "module_id module_type instance_id reason_code hook_name event seconds on_failure "
    "operation task awaiting cleanup abandoned fatal state grace was_immediate "
    "message_count token_count before_messages after_messages before_tokens after_tokens budget "
    "tier tokens iteration length bytes policy tool_name risk_level remembered level source status "
    "agent sub_session_id depth success"
)
_SHOWN = frozenset(_NAMES.split())
"""The members of payloads that are copied to span events. None contains a prompt or an answer."""


@attrs.frozen(kw_only=True)
class OtelOptions:
    """The configuration of hooks-otel.

    Attributes:
        agent_name: The name of the main session's agent. Child sessions of tool-task have other
            names.
        capture_content: Add prompts, answers, and the arguments and results of tools to spans,
            without secrets.
        max_content_chars: The length at which each captured text is cut.
        events: Add session events that have no span of their own to the current span.
    """

    agent_name: str = option(text, default="amplifier")
    capture_content: bool = option(flag, default=False)
    max_content_chars: int = option(whole_number(1), default=16_384)
    events: bool = option(flag, default=True)


async def mount(
    coordinator: Coordinator, config: dict[str, Any] | None = None
) -> Callable[[], None] | None:
    """Trace the session, if the application has set up OpenTelemetry.

    Returns:
        The cleanup, which ends spans that are still open. None if nothing is traced.

    Raises:
        PlanError: The configuration is wrong.
        MissingExtraError: ``opentelemetry-api`` is not installed.
    """
    options = read_options(OtelOptions, MODULE, config)
    try:
        from opentelemetry import metrics, trace  # noqa: PLC0415 — belongs to an extra
    except ModuleNotFoundError as error:
        raise MissingExtraError(MODULE, extra="otel", missing="opentelemetry-api") from error
    if _is_missing(trace.get_tracer_provider()) and _is_missing(metrics.get_meter_provider()):
        _logger.debug(
            "%s traces nothing, because the application has not set up OpenTelemetry", MODULE
        )
        return None
    from ._otel_spans import REQUEST_MODEL, RESPONSE_MODEL, SessionSpans  # noqa: PLC0415

    spans = SessionSpans(
        coordinator,
        trace.get_tracer("amplifier", schema_url=_SCHEMA_URL),
        metrics.get_meter("amplifier", schema_url=_SCHEMA_URL),
        agent_name=options.agent_name,
        capture_content=options.capture_content,
        max_content_chars=options.max_content_chars,
    )
    registered = [
        _register(coordinator, EXECUTION_START, spans.begin_turn, ("prompt",)),
        _register(coordinator, EXECUTION_END, spans.end_turn, ("response", "status")),
        _register(coordinator, PROVIDER_REQUEST, spans.name_provider, ("provider",)),
        _register(coordinator, CONTENT_BLOCK_DELTA, spans.note_chunk, ()),
        _register(
            coordinator, LLM_REQUEST, lambda data: spans.name_model(data, REQUEST_MODEL), ("model",)
        ),
        _register(
            coordinator,
            LLM_RESPONSE,
            lambda data: spans.name_model(data, RESPONSE_MODEL),
            ("model",),
        ),
    ]
    if options.events:
        registered += _add_events(
            coordinator, spans, (name for name, role in TRACE_ROLES.items() if role == "event")
        )
    registered.append(coordinator.register_step_wrapper(spans.wrap))
    coordinator.session_state[MODULE] = (spans, registered)

    def close() -> None:
        while registered:
            registered.pop()()
        spans.abandon()

    return close


async def on_session_ready(coordinator: Coordinator) -> None:
    """Add the events that other modules announce. All modules are mounted by now."""
    state = coordinator.session_state.get(MODULE)
    if state is None:
        return
    spans, registered = state
    for names in await coordinator.collect_contributions(_CHANNEL):
        if isinstance(names, Iterable) and not isinstance(names, str):
            own = (
                name for name in names if isinstance(name, str) and name and name not in TRACE_ROLES
            )
            registered += _add_events(coordinator, spans, own)


def _add_events(
    coordinator: Coordinator, spans: SessionSpans, events: Iterable[str]
) -> list[Callable[[], None]]:
    return [
        _register(coordinator, event, partial(_add_event, spans, event), _SHOWN)
        for event in dict.fromkeys(events)
    ]


def _add_event(spans: SessionSpans, event: str, data: Mapping[str, object]) -> None:
    spans.add_event(event, _attributes(data))


def _register(
    coordinator: Coordinator,
    event: str,
    handle: Callable[[Mapping[str, object]], None],
    fields: Collection[str],
) -> Callable[[], None]:
    async def handler(_event: str, data: dict[str, Any]) -> HookResult:
        try:
            handle(data)
        # The tracer and meter belong to the application, and payloads may have any form.
        except Exception:
            _logger.exception("%s is not traced", event)
        return HookResult()

    return coordinator.hooks.register(
        event, handler, priority=_PRIORITY, name=MODULE, fields=fields
    )


def _attributes(data: Mapping[str, object]) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    for key in _SHOWN & data.keys():
        value = data[key]
        if isinstance(value, bool | int | float):
            shown[f"amplifier.{key}"] = value
        elif isinstance(value, str):
            shown[f"amplifier.{key}"] = value[:_MAX_ATTRIBUTE_CHARS]
    return shown


def _is_missing(provider: object) -> bool:
    """Return whether the provider is one of the API's own, which trace and measure nothing."""
    return type(provider).__module__.startswith(("opentelemetry.trace", "opentelemetry.metrics"))
