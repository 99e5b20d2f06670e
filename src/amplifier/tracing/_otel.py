"""Export the traces and metrics of a process to a collector with OTLP over HTTP."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from amplifier.errors import MissingExtraError, PlanError

_REQUEST_SECONDS = 3.0
# A run waits this long at its end for a collector that does not answer.
_FLUSH_SECONDS = 5.0


@contextmanager
def export_traces(url: str | None, warn: Callable[[str], None]) -> Iterator[None]:
    """Set up OpenTelemetry for this process, and send the remaining data within bounds at its end.

    Args:
        url: The collector, such as ``http://localhost:4318``, or None to send nothing.
        warn: Function that shows a warning.

    Raises:
        PlanError: The text is not the URL of a collector.
        MissingExtraError: The exporter is not installed.
    """
    if url is None:
        yield
        return
    base = _base(url)
    try:
        from opentelemetry import metrics, trace  # noqa: PLC0415  # belongs to an extra
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter  # noqa: PLC0415
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
        from opentelemetry.sdk.metrics import MeterProvider  # noqa: PLC0415
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader  # noqa: PLC0415
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            "sending traces to a collector", extra="otel", missing=str(error.name)
        ) from error
    has_name = os.environ.get("OTEL_SERVICE_NAME")
    resource = Resource.create({} if has_name else {"service.name": "amplifier"})
    tracers = TracerProvider(resource=resource, shutdown_on_exit=False)
    spans = OTLPSpanExporter(f"{base}/v1/traces", timeout=_REQUEST_SECONDS)
    tracers.add_span_processor(BatchSpanProcessor(spans))
    values = OTLPMetricExporter(f"{base}/v1/metrics", timeout=_REQUEST_SECONDS)
    reader = PeriodicExportingMetricReader(values)
    meters = MeterProvider([reader], resource=resource, shutdown_on_exit=False)
    trace.set_tracer_provider(tracers)
    metrics.set_meter_provider(meters)
    try:
        yield
    finally:
        # Daemon threads are used because a collector that never answers must not keep the process
        # alive.
        providers = (tracers, meters)
        threads = [threading.Thread(target=part.shutdown, daemon=True) for part in providers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(_FLUSH_SECONDS)
        if any(thread.is_alive() for thread in threads):
            warn(
                f"the collector at {base} did not accept everything within {_FLUSH_SECONDS:g} s; "
                "the trace may be incomplete"
            )


def _base(url: str) -> str:
    parts = urlsplit(url)
    is_address = parts.scheme in ("http", "https") and parts.hostname
    if not is_address or parts.username or parts.query or parts.fragment:
        problem = (
            "expected the URL of a collector for OTLP over HTTP without user name and query, "
            "for example http://localhost:4318; headers go into the variable "
            f"OTEL_EXPORTER_OTLP_HEADERS; got {url!r}"
        )
        raise PlanError([("otel", problem)], subject="traces cannot be sent")
    return url.rstrip("/").removesuffix("/v1/traces")
