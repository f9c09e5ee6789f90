"""What a worker measures, from the events that it emits, for Prometheus to collect.

docs/operate/metrics.md lists the names. The API uses the same class for its own process.
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
from holdfast.worker.prometheus import CONTENT_TYPE, Counter, Fixed, Gauge, Histogram, Metric, Registry

__all__ = ["CONTENT_TYPE", "Metrics"]

SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 3600)
COUNTS: Final = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)

Fields = Mapping[str, Any]


class Metrics(Registry):
    """Counts from `start` to `stop`. Gauges are given by whoever knows: `add(Gauge(...))`."""

    def __init__(self) -> None:
        self.started = Counter("holdfast_tasks_started_total", "Attempts that began.", ("type", "queue"))
        self.finished = Counter(
            "holdfast_tasks_finished_total",
            "Attempts that ended, by outcome.",
            ("type", "queue", "outcome"),
        )
        self.seconds = Histogram(
            "holdfast_task_seconds", "How long attempts ran.", ("type", "outcome"), SECONDS
        )
        self.waits = Histogram(
            "holdfast_task_wait_seconds",
            "From submit to the first attempt, with any delay that was asked for.",
            ("queue",),
            SECONDS,
        )
        self.lost = Counter(
            "holdfast_leases_lost_total", "Leases that passed to someone else, or were cancelled."
        )
        self.claims = Histogram("holdfast_claimed_tasks", "Tasks that one claim brought.", (), COUNTS)
        self.claim_seconds = Histogram(
            "holdfast_claim_seconds", "Round trips of claims and outcomes.", (), SECONDS
        )
        self.database_errors = Counter(
            "holdfast_database_errors_total", "Calls that did not reach the database."
        )
        self.blocked = Counter(
            "holdfast_loop_blocked_total", "Times that a task kept the event loop from turning.", ("type",)
        )
        self.messages = Counter(
            "holdfast_messages_finished_total",
            "Messages that consumers were done with.",
            ("queue", "outcome"),
        )
        self.message_seconds = Histogram(
            "holdfast_message_seconds", "How long consumers took.", ("queue",), SECONDS
        )
        self.requests = Counter("holdfast_api_requests_total", "Requests answered.", ("method", "status"))
        self.request_seconds = Histogram(
            "holdfast_api_request_seconds", "How long requests took.", ("method",), SECONDS
        )
        own: list[Metric] = [each for each in vars(self).values() if isinstance(each, (Counter, Histogram))]
        super().__init__([*own, *process_metrics()])
        self._stop: Callable[[], None] | None = None
        self._heard: dict[str, Callable[[Fields], None]] = {
            "task.started": self._task_started,
            "task.finished": self._task_finished,
            "task.lease_lost": lambda _: self.lost.add(),
            "worker.claimed": self._claimed,
            "worker.blocked": lambda f: self.blocked.add(str(f.get("name") or "")),
            "database.away": lambda _: self.database_errors.add(),
            "message.finished": self._message_finished,
            "api.request": self._request,
        }

    def start(self) -> None:
        self._stop = self._stop or telemetry.subscribe(self._hear, only=self._heard)

    def stop(self) -> None:
        if self._stop is not None:
            self._stop()
            self._stop = None

    def _hear(self, name: str, fields: dict[str, Any]) -> None:
        listener = self._heard.get(name)
        if listener is not None:
            listener(fields)

    def _task_started(self, fields: Fields) -> None:
        self.started.add(fields["name"], fields["queue"])
        if fields["attempt"] == 1:
            self.waits.observe(fields["queue"], value=max(0.0, time.time() - submitted_at(fields["task"])))

    def _task_finished(self, fields: Fields) -> None:
        self.finished.add(fields["name"], fields["queue"], fields["outcome"])
        self.seconds.observe(fields["name"], fields["outcome"], value=fields["seconds"])

    def _claimed(self, fields: Fields) -> None:
        if fields["wanted"]:
            self.claims.observe(value=fields["got"])
        self.claim_seconds.observe(value=fields["seconds"])

    def _message_finished(self, fields: Fields) -> None:
        self.messages.add(fields["queue"], fields["outcome"])
        self.message_seconds.observe(fields["queue"], value=fields["seconds"])

    def _request(self, fields: Fields) -> None:
        self.requests.add(fields["method"], str(fields["status"]))
        self.request_seconds.observe(fields["method"], value=fields["seconds"])


def submitted_at(task: UUID) -> float:
    """Ids carry the moment they were made, in milliseconds since 1970."""
    return (task.int >> 80) / 1000


def process_metrics() -> list[Metric]:
    """Under the names that every Prometheus library uses."""
    began = time.time()
    return [
        Fixed("holdfast_info", "Which Holdfast this is.", {"version": __version__}),
        Gauge("process_start_time_seconds", "When the process began to measure.", lambda: began),
        Gauge("process_cpu_seconds_total", "CPU time used.", _cpu_seconds, kind="counter"),
        Gauge("process_resident_memory_bytes", "Memory held.", _resident_bytes),
        Gauge("process_open_fds", "Open file descriptors.", _open_files),
        Gauge("process_max_fds", "File descriptors that may be open.", _most_files),
    ]


def _cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system


def _resident_bytes() -> float | None:
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


def _open_files() -> float | None:
    try:
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208  (names only, and quickly)
    except OSError:
        return None


def _most_files() -> float | None:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if most == resource.RLIM_INFINITY else float(most)
