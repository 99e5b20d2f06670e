"""A collector for OTLP over HTTP: takes traces and metrics as protobuf, with the official message classes."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


class OtlpReceiver:
    """What arrived so far.

    Attributes:
        spans: All spans, in the order of arrival.
        services: The names of the services that sent them.
        metrics: The names of all metrics.
    """

    def __init__(self) -> None:
        self.url = ""
        self.spans: list[Any] = []
        self.services: set[str] = set()
        self.metrics: set[str] = set()

    def receive(self, path: str, body: bytes) -> bytes | None:
        """Take one request; None for an unknown path."""
        if path == "/v1/traces":
            traces = ExportTraceServiceRequest.FromString(body)
            for resource in traces.resource_spans:
                attributes = {
                    item.key: item.value.string_value for item in resource.resource.attributes
                }
                self.services.add(attributes["service.name"])
                self.spans += [span for scope in resource.scope_spans for span in scope.spans]
            return bytes(ExportTraceServiceResponse().SerializeToString())
        if path == "/v1/metrics":
            metrics = ExportMetricsServiceRequest.FromString(body)
            for scraped in metrics.resource_metrics:
                self.metrics |= {
                    metric.name for scope in scraped.scope_metrics for metric in scope.metrics
                }
            return bytes(ExportMetricsServiceResponse().SerializeToString())
        return None

    def tree(self, parent: bytes = b"") -> list[Any]:
        """The spans as ``[name, *children]``, in the order of their start."""
        children = sorted(
            (span for span in self.spans if span.parent_span_id == parent),
            key=lambda span: span.start_time_unix_nano,
        )
        return [[span.name, *self.tree(span.span_id)] for span in children]


@contextmanager
def running_receiver(*, silent: bool = False) -> Iterator[OtlpReceiver]:
    """Start a receiver on a free port and end it.

    Args:
        silent: Take connections and never answer.
    """
    receiver = OtlpReceiver()
    over = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if silent:
                over.wait()
                return
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            assert self.headers["Content-Type"] == "application/x-protobuf"
            answer = receiver.receive(self.path, body)
            self.send_response(200 if answer is not None else 404)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(answer or b"")))
            self.end_headers()
            self.wfile.write(answer or b"")

        def log_message(self, *words: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield receiver
    finally:
        over.set()
        server.shutdown()
        server.server_close()
        thread.join()
