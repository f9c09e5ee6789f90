"""A small HTTP server for probes of a worker: `/healthz`, `/readyz` and `/metrics`.

It runs in its own thread, so it responds while a task blocks the event loop. `/healthz` fails once the event
loop has not run for a while, which is the moment to restart the process. A C call that holds the GIL blocks
this server too; a probe with a timeout reports that as a failure as well.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Protocol

from holdfast import telemetry
from holdfast.errors import SettingsError
from holdfast.worker.prometheus import METRICS_CONTENT_TYPE

UNHEALTHY_AFTER_LOOP_BLOCKED_S: Final = 30.0
PROBE_CLIENT_TIMEOUT_S: Final = 5


class MonitoredWorker(Protocol):
    """The methods of a worker that the health server calls, from any thread."""

    def get_seconds_since_loop_ran(self) -> float:
        """Return the seconds since the event loop last ran."""
        ...

    def find_unready_reason(self) -> str | None:
        """Return the reason why the worker accepts no work, or None if the worker is ready."""
        ...

    def build_status(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class HealthResponse:
    """The status, body and content type of a response of the health server."""

    status: HTTPStatus
    body: bytes
    content_type: str = "application/json"


class HealthServer:
    """Serves health probes and metrics of a worker. Port 0 selects a free port.

    After `start`, `port` is the selected port.
    """

    def __init__(
        self, host: str, port: int, worker: MonitoredWorker, format_metrics: Callable[[], str]
    ) -> None:
        self.host = host
        self.port = port
        self._worker = worker
        self._format_metrics = format_metrics
        self._server: ThreadingHTTPServer | None = None

    def start(self) -> None:
        try:
            self._server = _QuietHttpServer(
                (self.host, self.port), _build_request_handler(self.build_response)
            )
        except (OSError, OverflowError) as error:
            raise SettingsError(
                f"The health port {self.port} on {self.host} cannot be opened: {error}.",
                fix="Choose another with --health-port, or 0 for a free one.",
                field="health_port",
            ) from error
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, name="health", daemon=True).start()
        telemetry.emit("worker.health_server_started", url=f"http://{self.host}:{self.port}")

    def stop(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()

    def build_response(self, path: str) -> HealthResponse:
        if path == "/healthz":
            blocked_s = self._worker.get_seconds_since_loop_ran()
            unhealthy = blocked_s > UNHEALTHY_AFTER_LOOP_BLOCKED_S
            problem = f"The event loop has not run for {blocked_s:.0f} s." if unhealthy else None
            return self._build_probe_response(problem)
        if path == "/readyz":
            return self._build_probe_response(self._worker.find_unready_reason())
        if path == "/metrics":
            return HealthResponse(HTTPStatus.OK, self._format_metrics().encode(), METRICS_CONTENT_TYPE)
        return HealthResponse(HTTPStatus.NOT_FOUND, b'{"status": "not found"}')

    def _build_probe_response(self, problem: str | None) -> HealthResponse:
        report: dict[str, Any] = {"status": "ok" if problem is None else "unavailable"}
        if problem is not None:
            report["problem"] = problem
        report |= self._worker.build_status()
        status = HTTPStatus.OK if problem is None else HTTPStatus.SERVICE_UNAVAILABLE
        return HealthResponse(status, json.dumps(report, default=str).encode())


class _QuietHttpServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 16

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect or send invalid requests."""


def _build_request_handler(build_response: Callable[[str], HealthResponse]) -> type[BaseHTTPRequestHandler]:
    class ProbeRequestHandler(BaseHTTPRequestHandler):
        timeout = PROBE_CLIENT_TIMEOUT_S
        server_version = "holdfast"
        sys_version = ""

        def do_GET(self) -> None:
            response = build_response(self.path.partition("?")[0])
            self.send_response(response.status)
            self.send_header("Content-Type", response.content_type)
            self.send_header("Content-Length", str(len(response.body)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(response.body)

        do_HEAD = do_GET  # noqa: N815  (the library's name)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            """Do not log probes, which arrive every few seconds."""

    return ProbeRequestHandler
