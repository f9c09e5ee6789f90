"""An HTTP server in front of another one that fails at the request it was told to."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

FAULTS = ("cut", "half", "error", "slow", "hang")


class Front(ThreadingHTTPServer):
    """`faults` says what becomes of which request, counted from 0; without an entry it passes."""

    daemon_threads = True

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", 0), Passing)
        self.behind = port
        self.faults: dict[int, str] = {}
        self.count = 0
        self.released = threading.Event()
        self.counting = threading.Lock()

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def tell(self, faults: dict[int, str] | None = None) -> None:
        with self.counting:
            self.faults, self.count = faults or {}, 0

    def next_fault(self) -> str | None:
        with self.counting:
            self.count += 1
            return self.faults.get(self.count - 1)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A caller that went away is what we are here for."""


class Passing(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Front

    def _pass(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        fault = self.server.next_fault()
        if fault == "cut":
            self.close_connection = True
            return
        if fault == "hang":
            self.server.released.wait(20)
        if fault == "slow":
            self.server.released.wait(0.3)
        if fault == "error":
            self.send_response(503)
            self.send_header("content-length", "0")
            self.end_headers()
            return
        behind = http.client.HTTPConnection("127.0.0.1", self.server.behind, timeout=20)
        behind.request(self.command, self.path, body, dict(self.headers))
        answer = behind.getresponse()
        content = answer.read()
        behind.close()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in {"transfer-encoding", "connection", "content-length"}:
                self.send_header(name, value)
        length = answer.getheader("content-length") if self.command == "HEAD" else str(len(content))
        self.send_header("content-length", length or "0")
        self.end_headers()
        self.wfile.write(content[: len(content) // 2] if fault == "half" else content)
        self.close_connection = fault == "half"

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@contextmanager
def front(port: int) -> Generator[Front]:
    server = Front(port)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.released.set()
        server.shutdown()
        server.server_close()
        thread.join()
