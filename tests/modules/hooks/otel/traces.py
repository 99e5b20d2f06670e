"""OpenTelemetry set up in this process for one test: what was traced and measured."""

from __future__ import annotations

from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider

Tree = list[Any]
"""A span as ``[name, error.type or status, *children]``; children in the order of their names."""


class Traces(SpanProcessor):
    """Keeps every span from its start on, so that one without an end is seen."""

    def __init__(self) -> None:
        self.started: list[Span] = []
        self.ended: list[ReadableSpan] = []
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(self)
        self._reader = InMemoryMetricReader()
        self.meters = MeterProvider([self._reader], shutdown_on_exit=False)

    def on_start(self, span: Span, parent_context: Any = None) -> None:
        self.started.append(span)

    def on_end(self, span: ReadableSpan) -> None:
        self.ended.append(span)

    def clear(self) -> None:
        self.started, self.ended = [], []

    def named(self, name: str) -> ReadableSpan:
        """The only span of a name."""
        [found] = [span for span in self.ended if span.name == name]
        return found

    def tree(self) -> list[Tree]:
        """All spans; a test that compares trees compares names, statuses and parents."""
        return self._below(None)

    def _below(self, parent: int | None) -> list[Tree]:
        children = [
            span for span in self.ended if (span.parent.span_id if span.parent else None) == parent
        ]
        found = [
            [span.name, _outcome(span), *self._below(span.context.span_id)] for span in children
        ]
        return sorted(found, key=str)

    def problems(self) -> list[str]:
        """Spans without an end, and spans whose parent is not there or ended before them."""
        found = [
            f"{span.name} has no end"
            for span in self.started
            if span not in self.ended and not _is_ended(span)
        ]
        known = {span.context.span_id: span for span in self.ended}
        for span in self.ended:
            if span.parent is None:
                continue
            parent = known.get(span.parent.span_id)
            if parent is None:
                found.append(f"{span.name} is an orphan")
            elif (span.end_time or 0) > (parent.end_time or 0):
                found.append(f"{span.name} ended after its parent {parent.name}")
        return found

    def metrics(self) -> dict[str, list[tuple[dict[str, Any], int, float]]]:
        """The points of each metric: attributes, count, sum."""
        return {
            metric.name: [
                (dict(point.attributes), point.count, point.sum)
                for point in metric.data.data_points
            ]
            for metric in self.instruments()
        }

    def instruments(self) -> list[Any]:
        """Return all metrics with what has been recorded."""
        data: Any = self._reader.get_metrics_data()
        return [
            metric
            for resource in (() if data is None else data.resource_metrics)
            for scope in resource.scope_metrics
            for metric in scope.metrics
        ]


def _is_ended(span: Span) -> bool:
    return span.end_time is not None


def _outcome(span: ReadableSpan) -> str:
    attributes = span.attributes or {}
    return str(attributes.get("error.type", span.status.status_code.name.lower()))
