"""Send traces, metrics and logs of workers and the API over OTLP when the setting `otlp_endpoint` is set.

An application that has set up the OpenTelemetry SDK itself keeps its own providers: they cannot be replaced.
Names of metrics and attributes follow the semantic conventions where there is one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Final

from holdfast import telemetry
from holdfast.cli.log_output import JsonLogFormatter
from holdfast.extras import require_extra
from holdfast.settings import Settings
from holdfast.version import __version__

METRIC_EXPORT_INTERVAL_MS: Final = 15_000
EventFields = dict[str, Any]


@contextmanager
def export_over_otlp(settings: Settings, service: str) -> Generator[None]:
    """Export telemetry of this process while the block runs, and send what is left at its end."""
    if settings.otlp_endpoint is None:
        yield
        return
    with require_extra("The setting otlp_endpoint", "telemetry"):
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415  (an extra)
    resource = Resource.create({"service.name": service, "service.version": __version__})
    endpoint = settings.otlp_endpoint.rstrip("/")
    stops = [
        _export_traces(endpoint, resource),
        _export_metrics(endpoint, resource),
        _export_logs(endpoint, resource),
    ]
    try:
        yield
    finally:
        for stop in stops:
            stop()


def _export_traces(endpoint: str, resource: Any) -> Callable[[], None]:
    from opentelemetry import trace  # noqa: PLC0415
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=f"{endpoint}/v1/traces")))
    trace.set_tracer_provider(provider)
    return provider.shutdown


def _export_metrics(endpoint: str, resource: Any) -> Callable[[], None]:
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter  # noqa: PLC0415
    from opentelemetry.sdk.metrics import MeterProvider  # noqa: PLC0415
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader  # noqa: PLC0415

    exporter = OTLPMetricExporter(endpoint=f"{endpoint}/v1/metrics")
    reader = PeriodicExportingMetricReader(exporter, export_interval_millis=METRIC_EXPORT_INTERVAL_MS)
    provider = MeterProvider(resource=resource, metric_readers=[reader])
    handlers = _build_metric_handlers(provider.get_meter("holdfast"))
    unsubscribe = telemetry.subscribe(lambda name, fields: handlers[name](fields), only=handlers)

    def stop() -> None:
        unsubscribe()
        provider.shutdown()

    return stop


def _build_metric_handlers(meter: Any) -> dict[str, Callable[[EventFields], None]]:
    """Return the function that records each event in its instrument."""
    tasks = meter.create_histogram("holdfast.task.duration", "s", "Run time of attempts.")
    messages = meter.create_histogram("holdfast.message.duration", "s", "Run time of consumers.")
    requests = meter.create_histogram("http.server.request.duration", "s", "Duration of HTTP requests.")
    providers = meter.create_histogram("holdfast.provider.call.duration", "s", "Duration of provider calls.")
    claims = meter.create_histogram("holdfast.claim.duration", "s", "Duration of claims and outcomes.")
    lost = meter.create_counter("holdfast.leases.lost", "{lease}", "Leases that were lost or cancelled.")

    def observe(histogram: Any, *names: str) -> Callable[[EventFields], None]:
        return lambda fields: histogram.record(
            fields["seconds"], {f"holdfast.{name}": str(fields[name]) for name in names}
        )

    def observe_request(fields: EventFields) -> None:
        attributes = {
            "http.request.method": fields["method"],
            "http.response.status_code": fields["status"],
        }
        requests.record(fields["seconds"], attributes)

    return {
        "task.finished": observe(tasks, "name", "queue", "outcome"),
        "message.finished": observe(messages, "queue", "outcome"),
        "provider.call_finished": observe(providers, "kind", "provider", "outcome"),
        "tasks.claimed": observe(claims),
        "api.request_completed": observe_request,
        "task.lease_lost": lambda _: lost.add(1),
    }


def _export_logs(endpoint: str, resource: Any) -> Callable[[], None]:
    from opentelemetry._logs import LogRecord, SeverityNumber  # noqa: PLC0415
    from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter  # noqa: PLC0415
    from opentelemetry.sdk._logs import LoggerProvider  # noqa: PLC0415
    from opentelemetry.sdk._logs.export import BatchLogRecordProcessor  # noqa: PLC0415

    provider = LoggerProvider(resource=resource)
    provider.add_log_record_processor(
        BatchLogRecordProcessor(OTLPLogExporter(endpoint=f"{endpoint}/v1/logs"))
    )
    exported = provider.get_logger("holdfast")
    formatter = JsonLogFormatter()

    class OtlpHandler(logging.Handler):
        """Sends each record with the text that standard error gets, so that secrets are masked alike."""

        def emit(self, record: logging.LogRecord) -> None:
            exported.emit(
                LogRecord(
                    timestamp=int(record.created * 1e9),
                    severity_text=record.levelname,
                    severity_number=SeverityNumber(min(24, max(1, record.levelno // 10 * 4 + 1))),
                    body=formatter.format(record),
                    attributes={"logger": record.name},
                )
            )

    handler = OtlpHandler()
    loggers = (logging.getLogger("holdfast"), logging.getLogger())
    for logger in loggers:
        logger.addHandler(handler)

    def stop() -> None:
        for logger in loggers:
            logger.removeHandler(handler)
        provider.shutdown()

    return stop
