"""A server that receives what sentry-sdk sends, by the protocol of envelopes."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import brotli  # type: ignore[import-untyped]

# sentry-sdk chooses Brotli if it is installed.
DECODERS: dict[str | None, Callable[[bytes], bytes]] = {
    None: bytes, "gzip": gzip.decompress, "br": brotli.decompress,
}  # fmt: skip


@dataclass
class SentryServer:
    """What was received. With `answer` set to another status, everything is refused."""

    port: int
    answer: int = 200
    items: list[tuple[str, dict[str, Any]]] = field(default_factory=list[tuple[str, dict[str, Any]]])
    refused: int = 0

    @property
    def dsn(self) -> str:
        return f"http://key@127.0.0.1:{self.port}/1"

    def list_check_ins(self, slug: str) -> list[dict[str, Any]]:
        return [body for kind, body in self.items if kind == "check_in" and body["monitor_slug"] == slug]

    def receive(self, envelope: bytes) -> None:
        """Read an envelope: a line for itself, then for each item a line and its content."""
        _, _, rest = envelope.partition(b"\n")
        while rest:
            line, _, rest = rest.partition(b"\n")
            header = json.loads(line)
            length = header.get("length", rest.find(b"\n") if b"\n" in rest else len(rest))
            if header["type"] in {"check_in", "event"}:
                self.items.append((header["type"], json.loads(rest[:length])))
            rest = rest[length + 1 :]


@contextmanager
def run_sentry_server() -> Generator[SentryServer]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            body = DECODERS[self.headers.get("content-encoding")](body)
            if state.answer == 200 and self.path == "/api/1/envelope/":
                state.receive(body)
            else:
                state.refused += 1
            self.send_response(state.answer)
            self.send_header("content-length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state = SentryServer(server.server_port)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
