"""A running media system for tests: the API on a port, users, a worker, and websites with media."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import httpx
from api_clients import bearer_headers, make_token
from web_servers import RecordedRequest, WebServer

from holdfast import Client
from holdfast.engine.connection import Database
from holdfast.systems import media
from holdfast.systems.media.worker_state import MediaWorkerState, run_download_starter
from holdfast.testing import wait_until
from holdfast.worker.runtime import WorkerRuntime

SHARES_PATH = "/api/v1/shares"
WAIT_TIMEOUT = timedelta(seconds=60)


def make_video_bytes(size: int = 300_000) -> bytes:
    """Return bytes that begin like an MP4 file and differ at every position."""
    head = b"\x00\x00\x00\x20ftypisom\x00\x00\x02\x00isomiso2avc1mp41"
    body = b"".join(number.to_bytes(4, "big") for number in range(size // 4 + 1))
    return (head + body)[:size]


class MediaSite:
    """A website with one media file. Set the attributes to make it misbehave."""

    def __init__(self, content: bytes, content_type: str = "video/mp4") -> None:
        self.content = content
        self.content_type = content_type
        self.ranges = True
        self.cut_after: list[int] = []  # how many bytes each of the next responses has before it breaks
        self.status: list[int] = []  # the status of each of the next responses
        self.headers: dict[str, str] = {"ETag": '"1"'}
        self.stalled = asyncio.Event()  # set when a response waits
        self.stall_after: int | None = None
        self.resume = asyncio.Event()
        self.declared_length: int | None = None
        self.declares_length = True

    async def respond(self, request: RecordedRequest, writer: asyncio.StreamWriter) -> None:
        if self.status and (status := self.status.pop(0)) != 200:
            head = f"HTTP/1.1 {status} X\r\nContent-Length: 0\r\n"
            head += "".join(f"{name}: {value}\r\n" for name, value in self.headers.items())
            writer.write(f"{head}Connection: close\r\n\r\n".encode())
            return
        start = 0
        if self.ranges and (text := request.headers.get("range")):
            start = int(text.removeprefix("bytes=").rstrip("-"))
        body = self.content[start:]
        if start and not body:
            writer.write(
                f"HTTP/1.1 416 X\r\nContent-Range: bytes */{len(self.content)}\r\nContent-Length: 0\r\n"
                "Connection: close\r\n\r\n".encode()
            )
            return
        self._write_head(writer, start, len(body))
        cut = self.cut_after.pop(0) if self.cut_after else None
        if self.stall_after is not None and start < self.stall_after:
            writer.write(body[: self.stall_after - start])
            await writer.drain()
            self.stalled.set()
            await self.resume.wait()
            body = body[self.stall_after - start :]
        writer.write(body if cut is None else body[:cut])
        await writer.drain()

    def _write_head(self, writer: asyncio.StreamWriter, start: int, length: int) -> None:
        declared = length if self.declared_length is None else self.declared_length - start
        headers = {
            "Content-Type": self.content_type,
            **({"Content-Length": str(declared)} if self.declares_length else {}),
            **({"Accept-Ranges": "bytes"} if self.ranges else {}),
            **self.headers,
        }
        status = 200
        if start:
            status = 206
            headers["Content-Range"] = f"bytes {start}-{start + declared - 1}/{start + declared}"
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        writer.write(f"HTTP/1.1 {status} X\r\n{lines}Connection: close\r\n\r\n".encode())


@dataclass
class MediaUser:
    """A user with a token, and the requests that the user sends."""

    http: httpx.AsyncClient
    plan: str | None = None
    id: str = field(default_factory=lambda: str(uuid.uuid4()))

    @property
    def headers(self) -> dict[str, str]:
        claims: dict[str, Any] = {"app_metadata": {"plan": self.plan}} if self.plan else {}
        return bearer_headers(make_token(self.id, **claims))

    async def get(self, path: str, **options: Any) -> httpx.Response:
        return await self.http.get(path, headers=self.headers | options.pop("headers", {}), **options)

    async def post(self, path: str, body: Any = None) -> httpx.Response:
        return await self.http.post(path, json=body, headers=self.headers)

    async def delete(self, path: str) -> httpx.Response:
        return await self.http.delete(path, headers=self.headers)

    async def share(self, url: str, **options: Any) -> dict[str, Any]:
        response = await self.post(SHARES_PATH, {"url": url, **options})
        assert response.status_code in (200, 202), response.text
        share: dict[str, Any] = response.json()
        return share

    async def get_share(self, share_id: str) -> dict[str, Any]:
        response = await self.get(f"{SHARES_PATH}/{share_id}")
        assert response.status_code == 200, response.text
        share: dict[str, Any] = response.json()
        return share

    async def wait_for(self, share_id: str, *statuses: str) -> dict[str, Any]:
        """Wait until the download has one of these statuses."""

        async def find_share() -> dict[str, Any] | None:
            share = await self.get_share(share_id)
            assert share["download_status"] in statuses or share["download_status"] != "failed", share
            return share if share["download_status"] in statuses else None

        try:
            share: dict[str, Any] = await wait_until(find_share, within=WAIT_TIMEOUT)
        except AssertionError as error:
            raise AssertionError(await self.get_share(share_id)) from error
        return share

    async def wait_until_finished(self, share_id: str, within: timedelta = WAIT_TIMEOUT) -> dict[str, Any]:
        async def find_share() -> dict[str, Any] | None:
            share = await self.get_share(share_id)
            return share if share["finished"] else None

        share: dict[str, Any] = await wait_until(find_share, within=within)
        return share

    async def download(self, share_id: str, **headers: str) -> httpx.Response:
        link = await self.get(f"{SHARES_PATH}/{share_id}/file")
        assert link.status_code == 302, link.text
        return await self.http.get(link.headers["location"], headers=headers)


@dataclass
class MediaHarness:
    """The media system, installed and served."""

    db: Database
    http: httpx.AsyncClient

    @property
    def url(self) -> str:
        return str(self.http.base_url).rstrip("/")

    def create_user(self, plan: str | None = None) -> MediaUser:
        return MediaUser(self.http, plan)

    async def fetch(self, query: str, *args: Any) -> list[Any]:
        async with self.db.connection() as connection:
            return list(await connection.fetch(query, *args))

    async def fetchval(self, query: str, *args: Any) -> Any:
        async with self.db.connection() as connection:
            return await connection.fetchval(query, *args)

    async def count_stored_objects(self) -> int:
        """Sweep what is not needed, and count the files in the store."""
        async with Client(self.db.url.reveal(), settings=self.db.settings) as client:
            await client.files.sweep()
            return sum([len(page) async for page in client.files.store.list()])

    @asynccontextmanager
    async def run_worker(self, concurrency: int = 10) -> AsyncGenerator[MediaWorkerState]:
        """Run a worker in this event loop."""
        async with Client(self.db.url.reveal(), settings=self.db.settings) as client:
            state = MediaWorkerState(client)
            tasks = {task.name: task for task in media.tasks}
            worker = WorkerRuntime(self.db, tasks, concurrency=concurrency, state=state, grace=timedelta(0))
            stop = asyncio.Event()
            running = asyncio.create_task(worker.run(stop))
            try:
                async with run_download_starter(state):
                    yield state
            finally:
                stop.set()
                with contextlib.suppress(asyncio.CancelledError):
                    await running
                await state.close()


def media_url(server: WebServer, name: str = "video.mp4") -> str:
    return f"{server.url}/{name}"
