"""A small HTTP server for those who watch over workers: `/healthz`, `/readyz` and `/metrics`.

It runs in a thread of its own, so it answers while a task blocks the event loop, and then says so: `/healthz`
fails once the loop has not turned for a while, which is the moment to restart the process. Only a C call that
keeps the GIL keeps it silent too, which a probe with a time limit sees as the same thing.
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
from holdfast.worker.prometheus import CONTENT_TYPE

LOOP_SECONDS: Final = 30.0
CLIENT_SECONDS: Final = 5


class Watched(Protocol):
    """What the server asks its worker, from its own thread."""

    def late(self) -> float:
        """Seconds since the loop was seen turning, beyond what is usual."""
        ...

    def unready(self) -> str | None:
        """Why no work would be taken now; None: it would."""
        ...

    def about(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Answer:
    status: HTTPStatus
    body: bytes
    content_type: str = "application/json"


class HealthServer:
    """`port` 0 takes a free one; `port` tells which it is once started."""

    def __init__(self, host: str, port: int, worker: Watched, text: Callable[[], str]) -> None:
        self.host = host
        self.port = port
        self._worker = worker
        self._text = text
        self._server: ThreadingHTTPServer | None = None

    def start(self) -> None:
        try:
            self._server = _Server((self.host, self.port), _answering(self.answer))
        except (OSError, OverflowError) as problem:
            raise SettingsError(
                f"The health port {self.port} on {self.host} cannot be opened: {problem}.",
                fix="Choose another with --health-port, or 0 for a free one.",
                field="health_port",
            ) from problem
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, name="health", daemon=True).start()
        telemetry.emit("worker.health_started", url=f"http://{self.host}:{self.port}")

    def stop(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()

    def answer(self, path: str) -> Answer:
        if path == "/healthz":
            late = self._worker.late()
            wrong = f"the loop has not turned for {late:.0f} s" if late > LOOP_SECONDS else None
            return self._told(wrong)
        if path == "/readyz":
            return self._told(self._worker.unready())
        if path == "/metrics":
            return Answer(HTTPStatus.OK, self._text().encode(), CONTENT_TYPE)
        return Answer(HTTPStatus.NOT_FOUND, b'{"status": "not found"}')

    def _told(self, wrong: str | None) -> Answer:
        told: dict[str, Any] = {"status": "ok" if wrong is None else "unavailable"}
        if wrong is not None:
            told["why"] = wrong
        told |= self._worker.about()
        status = HTTPStatus.OK if wrong is None else HTTPStatus.SERVICE_UNAVAILABLE
        return Answer(status, json.dumps(told, default=str).encode())


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 16

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Somebody hung up, or sent nonsense: nothing to tell anybody."""


def _answering(answer: Callable[[str], Answer]) -> type[BaseHTTPRequestHandler]:
    class Answering(BaseHTTPRequestHandler):
        timeout = CLIENT_SECONDS
        server_version = "holdfast"
        sys_version = ""

        def do_GET(self) -> None:
            told = answer(self.path.partition("?")[0])
            self.send_response(told.status)
            self.send_header("Content-Type", told.content_type)
            self.send_header("Content-Length", str(len(told.body)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(told.body)

        do_HEAD = do_GET  # noqa: N815  (the library's name)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            """Probes come every few seconds; they are no news."""

    return Answering
