"""HTTP client and tokens for benchmarks of the API."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from urllib.parse import urlsplit

import jwt

JWT_SECRET = "a secret for the bench that is long enough for the algorithm"
JWT_ISSUER = "https://bench.test"
SERVICE_KEY = "a service key for the bench, long enough"


def create_user_token(user: str) -> str:
    now = int(time.time())
    return jwt.encode(
        {"sub": user, "iss": JWT_ISSUER, "aud": "authenticated", "exp": now + 36_000}, JWT_SECRET, "HS256"
    )


class HttpConnection:
    """A minimal HTTP client connection that uses little CPU time."""

    def __init__(self, base: str) -> None:
        self._host, self._port = urlsplit(base).hostname, urlsplit(base).port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def request(self, method: str, path: str, token: str, body: bytes = b"") -> tuple[int, bytes]:
        """Send a request with a bearer token. Return the status and the body of the response."""
        if self._streams is None:
            self._streams = await asyncio.open_connection(self._host, self._port)
        reader, writer = self._streams
        writer.write(
            f"{method} {path} HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {token}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(
            (
                int(line.split(b":")[1])
                for line in head.split(b"\r\n")
                if line.lower().startswith(b"content-length")
            ),
            0,
        )
        return int(head[9:12]), await reader.readexactly(length)

    async def read_events(self, path: str, token: str) -> AsyncGenerator[tuple[str, int | None, float]]:
        """Yield the type, the sequence number and the time of arrival of each event of a stream."""
        reader, writer = await asyncio.open_connection(self._host, self._port, limit=1 << 20)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {token}\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        if head[9:12] != b"200":
            raise RuntimeError(head.decode())
        event, number = "", None
        try:
            while line := await reader.readline():
                text = line.decode().strip()
                if text.startswith("event: "):
                    event = text[7:]
                elif text.startswith("id: "):
                    number = int(text[4:])
                elif text.startswith("data: "):
                    yield event, number, time.time()
                    event, number = "", None
        finally:
            writer.close()


def read_cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process has used, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
