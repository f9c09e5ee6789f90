"""Prometheus metrics of one process, computed from its telemetry events.

docs/operate/metrics.md lists the names. Workers and the HTTP API use the same class.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from holdfast import telemetry
from holdfast.version import __version__
from holdfast.worker.prometheus import (
    METRICS_CONTENT_TYPE,
    Counter,
    Gauge,
    Histogram,
    InfoMetric,
    Metric,
    MetricRegistry,
)
from holdfast.worker.provider_metrics import ProviderMetrics

__all__ = ["METRICS_CONTENT_TYPE", "ProcessMetrics"]

DURATION_BUCKETS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 3600)
COUNT_BUCKETS: Final = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)

EventFields = Mapping[str, Any]


class ProcessMetrics(MetricRegistry):
    """Collects the Prometheus metrics of one process from its telemetry events.

    It counts events between `start` and `stop`. Add gauges with `add(Gauge(...))`.
    """

    def __init__(self) -> None:
        self.started = Counter("holdfast_tasks_started_total", "Attempts that started.", ("type", "queue"))
        self.finished = Counter(
            "holdfast_tasks_finished_total",
            "Attempts that ended, by outcome.",
            ("type", "queue", "outcome"),
        )
        self.seconds = Histogram(
            "holdfast_task_seconds", "Run time of attempts.", ("type", "outcome"), DURATION_BUCKETS_S
        )
        self.waits = Histogram(
            "holdfast_task_wait_seconds",
            "Time from submit to the first attempt, including a requested delay.",
            ("queue",),
            DURATION_BUCKETS_S,
        )
        self.lost = Counter("holdfast_leases_lost_total", "Leases that were lost or cancelled.")
        self.refused_outcomes = Counter("holdfast_outcomes_refused_total", "Outcomes that were not recorded.")
        self.claims = Histogram("holdfast_claimed_tasks", "Tasks received per claim.", (), COUNT_BUCKETS)
        self.claim_seconds = Histogram(
            "holdfast_claim_seconds",
            "Duration of round trips for claims and outcomes.",
            (),
            DURATION_BUCKETS_S,
        )
        self.database_errors = Counter(
            "holdfast_database_errors_total", "Outages: times the database became unreachable."
        )
        self.blocked = Counter(
            "holdfast_loop_blocked_total", "Times a task blocked the event loop.", ("type",)
        )
        self.messages = Counter(
            "holdfast_messages_finished_total", "Messages finished, by outcome.", ("queue", "outcome")
        )
        self.message_seconds = Histogram(
            "holdfast_message_seconds", "Run time of consumers.", ("queue",), DURATION_BUCKETS_S
        )
        self.requests = Counter(
            "holdfast_api_requests_total", "HTTP requests, by method and status.", ("method", "status")
        )
        self.request_seconds = Histogram(
            "holdfast_api_request_seconds", "Duration of HTTP requests.", ("method",), DURATION_BUCKETS_S
        )
        own_metrics: list[Metric] = [m for m in vars(self).values() if isinstance(m, (Counter, Histogram))]
        provider_metrics = ProviderMetrics()
        super().__init__([*own_metrics, *provider_metrics.metrics, *build_process_metrics()])
        self._stop: Callable[[], None] | None = None
        self._event_handlers: dict[str, Callable[[EventFields], None]] = {
            "task.started": self._record_task_started,
            "task.finished": self._record_task_finished,
            "task.lease_lost": lambda _: self.lost.add(),
            "tasks.claimed": self._record_claim,
            "worker.event_loop_blocked": lambda f: self.blocked.add(str(f.get("name") or "")),
            "outcome.refused": lambda _: self.refused_outcomes.add(),
            "database.connection_failed": lambda _: self.database_errors.add(),
            "message.finished": self._record_message_finished,
            "api.request_completed": self._record_http_request,
            "provider.call_finished": provider_metrics.record_call,
        }

    def start(self) -> None:
        self._stop = self._stop or telemetry.subscribe(self._handle_event, only=self._event_handlers)

    def stop(self) -> None:
        if self._stop is not None:
            self._stop()
            self._stop = None

    def _handle_event(self, name: str, fields: dict[str, Any]) -> None:
        handler = self._event_handlers.get(name)
        if handler is not None:
            handler(fields)

    def _record_task_started(self, fields: EventFields) -> None:
        self.started.add(fields["name"], fields["queue"])
        if fields["attempt"] == 1:
            self.waits.observe(
                fields["queue"], value=max(0.0, time.time() - read_submit_time(fields["task"]))
            )

    def _record_task_finished(self, fields: EventFields) -> None:
        self.finished.add(fields["name"], fields["queue"], fields["outcome"])
        self.seconds.observe(fields["name"], fields["outcome"], value=fields["seconds"])

    def _record_claim(self, fields: EventFields) -> None:
        if fields["requested"]:
            self.claims.observe(value=fields["claimed"])
        self.claim_seconds.observe(value=fields["seconds"])

    def _record_message_finished(self, fields: EventFields) -> None:
        self.messages.add(fields["queue"], fields["outcome"])
        self.message_seconds.observe(fields["queue"], value=fields["seconds"])

    def _record_http_request(self, fields: EventFields) -> None:
        self.requests.add(fields["method"], str(fields["status"]))
        self.request_seconds.observe(fields["method"], value=fields["seconds"])


def read_submit_time(task_id: UUID) -> float:
    """Return when a task was submitted, in seconds since 1970, from the timestamp in its UUIDv7 id."""
    return (task_id.int >> 80) / 1000


def build_process_metrics() -> list[Metric]:
    """Build metrics of CPU, memory and open files, with the standard Prometheus names."""
    started_at = time.time()
    return [
        InfoMetric("holdfast_info", "Version of Holdfast.", {"version": __version__}),
        Gauge(
            "process_start_time_seconds",
            "Time when the process started to collect metrics.",
            lambda: started_at,
        ),
        Gauge("process_cpu_seconds_total", "CPU time used.", _read_cpu_seconds, kind="counter"),
        Gauge("process_resident_memory_bytes", "Resident memory.", _read_resident_bytes),
        Gauge("process_open_fds", "Open file descriptors.", _count_open_files),
        Gauge("process_max_fds", "Maximum number of open file descriptors.", _read_max_open_files),
    ]


def _read_cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system


def _read_resident_bytes() -> float | None:
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


def _count_open_files() -> float | None:
    try:
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208  (faster than pathlib)
    except OSError:
        return None


def _read_max_open_files() -> float | None:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if limit == resource.RLIM_INFINITY else float(limit)
