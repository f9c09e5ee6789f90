"""What an operator may switch on around a worker: the health port with metrics, and reports to Sentry."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from holdfast.settings import Settings
from holdfast.worker import Worker, sentry
from holdfast.worker.health import HealthServer
from holdfast.worker.metrics import Metrics
from holdfast.worker.prometheus import Gauge


@contextmanager
def watched_over(worker: Worker, settings: Settings) -> Generator[None]:
    """As the settings say, while the worker runs."""
    stop_reports = sentry.report_to(settings.sentry_dsn)
    metrics, server = Metrics(), None
    try:
        if settings.health_port is not None:
            metrics.add(*_gauges(worker))
            metrics.start()
            server = HealthServer(settings.health_host, settings.health_port, worker, metrics.text)
            server.start()
        yield
    finally:
        if server is not None:
            server.stop()
        metrics.stop()
        stop_reports()


def _gauges(worker: Worker) -> list[Gauge]:
    return [
        Gauge("holdfast_tasks_running", "Attempts that run now.", lambda: worker.about()["running"]),
        Gauge("holdfast_slots", "Attempts that may run at once.", lambda: worker.about()["slots"]),
        Gauge("holdfast_loop_lag_seconds", "How late the event loop was lately.", lambda: worker.lag),
        Gauge(
            "holdfast_outbox_outcomes",
            "Outcomes that the database has not answered.",
            lambda: worker.outbox_depth,
        ),
        Gauge("holdfast_ready", "Whether it takes work.", lambda: float(worker.unready() is None)),
    ]
