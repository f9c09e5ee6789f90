"""Optional monitoring of a worker: the health port with metrics, and error reports to Sentry."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager

from holdfast import telemetry
from holdfast.settings import Settings
from holdfast.tracing import get_tracing
from holdfast.worker import sentry
from holdfast.worker.health import HealthServer
from holdfast.worker.metrics import ProcessMetrics
from holdfast.worker.prometheus import Gauge
from holdfast.worker.runtime import WorkerRuntime


@contextmanager
def monitor_worker(worker: WorkerRuntime, settings: Settings) -> Generator[None]:
    """Serve health probes and metrics, and report errors to Sentry, while the block runs."""
    stop_error_reports = sentry.start_error_reports(settings.sentry_dsn)
    stop_provider_spans = _trace_provider_calls(settings)
    metrics, server = ProcessMetrics(), None
    try:
        if settings.health_port is not None:
            metrics.add(*_build_gauges(worker))
            metrics.start()
            server = HealthServer(settings.health_host, settings.health_port, worker, metrics.format_text)
            server.start()
        yield
    finally:
        if server is not None:
            server.stop()
        metrics.stop()
        stop_provider_spans()
        stop_error_reports()


def _trace_provider_calls(settings: Settings) -> Callable[[], None]:
    """Add spans of provider calls to the traces of attempts, whose context emits the event."""
    tracing = get_tracing(settings.tracing)
    if tracing is None:
        return lambda: None
    return telemetry.subscribe(tracing.record_provider_call, only=["provider.call_finished"])


def _build_gauges(worker: WorkerRuntime) -> list[Gauge]:
    return [
        Gauge(
            "holdfast_tasks_running", "Attempts that are running.", lambda: worker.build_status()["running"]
        ),
        Gauge(
            "holdfast_slots",
            "Maximum number of attempts that run at the same time.",
            lambda: worker.build_status()["slots"],
        ),
        Gauge(
            "holdfast_loop_lag_seconds", "How late the event loop ran recently.", lambda: worker.loop_lag_s
        ),
        Gauge(
            "holdfast_outbox_outcomes",
            "Outcomes that the database has not accepted yet.",
            lambda: worker.unconfirmed_outcome_count,
        ),
        Gauge(
            "holdfast_ready",
            "1 if the worker accepts work, else 0.",
            lambda: float(worker.find_unready_reason() is None),
        ),
    ]
