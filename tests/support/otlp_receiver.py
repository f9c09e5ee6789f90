"""A server that receives traces, metrics and logs over OTLP/HTTP, decoded with the official messages."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class ReceivedSpan:
    """A span with its ids in hexadecimal digits."""

    service: str
    name: str
    trace: str
    id: str
    parent: str


@dataclass
class OtlpReceiver:
    """What has arrived so far."""

    url: str = ""
    spans: list[ReceivedSpan] = field(default_factory=list[ReceivedSpan])
    metrics: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    logs: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])

    def receive(self, path: str, body: bytes) -> None:
        if path == "/v1/traces":
            for group in ExportTraceServiceRequest.FromString(body).resource_spans:
                service = _read_service(group)
                for scope in group.scope_spans:
                    self.spans += [
                        ReceivedSpan(
                            service,
                            span.name,
                            span.trace_id.hex(),
                            span.span_id.hex(),
                            span.parent_span_id.hex(),
                        )
                        for span in scope.spans
                    ]
        elif path == "/v1/metrics":
            for group in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                for scope in group.scope_metrics:
                    self.metrics |= {(_read_service(group), metric.name) for metric in scope.metrics}
        elif path == "/v1/logs":
            for group in ExportLogsServiceRequest.FromString(body).resource_logs:
                for scope in group.scope_logs:
                    service = _read_service(group)
                    self.logs += [(service, record.body.string_value) for record in scope.log_records]

    def find_span(self, name: str) -> ReceivedSpan | None:
        return next((span for span in self.spans if span.name == name), None)


def _read_service(group: Any) -> str:
    attributes = {each.key: each.value.string_value for each in group.resource.attributes}
    return str(attributes["service.name"])


@contextmanager
def run_otlp_receiver() -> Generator[OtlpReceiver]:
    """Receive on a free port while the block runs."""
    receiver = OtlpReceiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            receiver.receive(self.path, body)
            self.send_response(200)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            """Write nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver.url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
