"""An HTTP proxy that fails at chosen requests: a dropped connection, half a response, an error, a delay."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

FAULTS = ("cut", "half", "error", "slow", "hang")


class FaultProxy(ThreadingHTTPServer):
    """Forwards requests to `target_port`. `faults` maps a request number, from 0, to the fault it meets."""

    daemon_threads = True

    def __init__(self, target_port: int) -> None:
        super().__init__(("127.0.0.1", 0), FaultProxyHandler)
        self.target_port = target_port
        self.faults: dict[int, str] = {}
        self.request_count = 0
        self.stopping = threading.Event()
        self._lock = threading.Lock()

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def set_faults(self, faults: dict[int, str] | None = None) -> None:
        """Replace the faults and count requests from 0 again."""
        with self._lock:
            self.faults, self.request_count = faults or {}, 0

    def next_fault(self) -> str | None:
        with self._lock:
            self.request_count += 1
            return self.faults.get(self.request_count - 1)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing: clients that disconnect are expected here."""


class FaultProxyHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FaultProxy

    def _forward(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        fault = self.server.next_fault()
        if fault == "cut":
            self.close_connection = True
            return
        if fault == "hang":
            self.server.stopping.wait(20)
        if fault == "slow":
            self.server.stopping.wait(0.3)
        if fault == "error":
            self.send_response(503)
            self.send_header("content-length", "0")
            self.end_headers()
            return
        target = http.client.HTTPConnection("127.0.0.1", self.server.target_port, timeout=20)
        target.request(self.command, self.path, body, dict(self.headers))
        response = target.getresponse()
        content = response.read()
        target.close()
        self.send_response(response.status)
        for name, value in response.getheaders():
            if name.lower() not in {"transfer-encoding", "connection", "content-length"}:
                self.send_header(name, value)
        length = response.getheader("content-length") if self.command == "HEAD" else str(len(content))
        self.send_header("content-length", length or "0")
        self.end_headers()
        self.wfile.write(content[: len(content) // 2] if fault == "half" else content)
        self.close_connection = fault == "half"

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _forward  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@contextmanager
def run_fault_proxy(target_port: int) -> Generator[FaultProxy]:
    proxy = FaultProxy(target_port)
    thread = threading.Thread(target=proxy.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.stopping.set()
        proxy.shutdown()
        proxy.server_close()
        thread.join()
