"""Clients of the HTTP API for tests: tokens, service keys, a server on a port, and an event stream reader."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import jwt
import msgspec
import uvicorn
from starlette.types import ASGIApp

from holdfast.engine import access
from holdfast.engine.connection import Database

SECRET = "a secret for tests that is long enough for every algorithm there is, by far"
ISSUER = "https://issuer.test"


def make_claims(user: str = "ann", **more: Any) -> dict[str, Any]:
    now = int(time.time())
    return {
        "sub": user,
        "iss": ISSUER,
        "aud": "authenticated",
        "iat": now,
        "exp": now + 6 * 3600,
        "role": "authenticated",
        **more,
    }


def make_token(user: str = "ann", **more: Any) -> str:
    return jwt.encode(make_claims(user, **more), SECRET, "HS256")


def bearer_headers(text: str) -> dict[str, str]:
    return {"authorization": f"Bearer {text}"}


async def create_service_key(db: Database, *scopes: str, name: str = "test") -> str:
    key, prefix, digest = access.generate_service_key()
    async with db.connection() as connection:
        await access.create_service_key(
            connection,
            name=name,
            prefix=prefix,
            digest=digest,
            scopes=scopes or (access.ALL_SCOPES_WILDCARD,),
        )
    return key.reveal()


@asynccontextmanager
async def serve_app(app: ASGIApp, **options: Any) -> AsyncGenerator[str]:
    """Serve the application on a local port, in this event loop. Yield its URL."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    config = uvicorn.Config(app, log_config=None, lifespan="on", timeout_graceful_shutdown=1, **options)
    server = uvicorn.Server(config)
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign,assignment]
    running = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await running


@dataclass(frozen=True)
class StreamFrame:
    event: str
    data: Any
    id: str | None


class EventStreamReader:
    """Reads the frames of an open event stream one at a time."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self._lines = response.aiter_lines()

    async def read_next(self, within: float = 30) -> StreamFrame | None:
        """Return the next frame, or None if the server has closed the stream."""
        return await asyncio.wait_for(self._parse_next(), within)

    async def _parse_next(self) -> StreamFrame | None:
        fields: dict[str, str] = {}
        async for line in self._lines:
            if line.startswith(":"):
                continue
            if not line:
                if "event" in fields:
                    return StreamFrame(
                        fields["event"], msgspec.json.decode(fields["data"].encode()), fields.get("id")
                    )
                fields = {}
                continue
            name, _, value = line.partition(": ")
            fields[name] = value
        return None

    async def read_until(self, event: str, within: float = 30) -> list[StreamFrame]:
        """Return all frames up to and including the first with that event name."""
        frames: list[StreamFrame] = []
        while (frame := await self.read_next(within)) is not None:
            frames.append(frame)
            if frame.event == event:
                return frames
        raise AssertionError(f"no {event} in {frames}")


@asynccontextmanager
async def open_event_stream(
    client: httpx.AsyncClient, path: str, headers: dict[str, str] | None = None
) -> AsyncGenerator[EventStreamReader]:
    async with client.stream("GET", path, headers=headers, timeout=60) as response:
        yield EventStreamReader(response)
