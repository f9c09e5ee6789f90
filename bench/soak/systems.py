"""The systems and webhooks of the soak run: a local site, and users who ask for exports, reports and more.

Bookmarks are left out: each needs a browser, whose memory would hide what the worker uses.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import asyncpg
import httpx

from bench.media import MP4_HEAD, SHARES_PATH
from bench.system_processes import JWT_ISSUER, JWT_SECRET, create_user_headers
from bench.systems import EXPORT_ROOT, REPORT_PARAMS, BenchmarkUser
from holdfast import Client
from holdfast.cli.api import import_system
from holdfast.engine import webhooks as engine_webhooks
from holdfast.webhooks import generate_webhook_secret

SYSTEM_NAMES = ("exports", "reports", "media", "clips")
# The tasks of exports and reports run in one worker; media and clips have their own lifespans.
SYSTEM_WORKERS = {
    "documents": "holdfast.devtools.demo_systems",
    "media": "holdfast.systems.media",
    "clips": "holdfast.systems.clips",
}
PAUSES_S = {"exports": 3.0, "reports": 120.0, "media": 5.0, "clips": 5.0}
FILE_BYTES = 500_000
TRANSCRIPT = [{"text": f"Sentence {n} about ships and the wind.", "startMs": n * 4000} for n in range(30)]
COUNT_ENDED = """
select (select count(*) from shares where download_status = 'completed') as media,
       (select count(*) from clipnest_videos where processing_status = 'done') as clips,
       (select count(*) from shares where download_status = 'failed')
         + (select count(*) from clipnest_videos where processing_status = 'failed') as failed
"""


@dataclass
class LocalSite:
    """What the systems read from the network, and the receiver of webhooks."""

    address: str = ""
    deliveries: int = 0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            if head.startswith("POST /hook"):
                length = next(line for line in head.lower().splitlines() if line.startswith("content-length"))
                await reader.readexactly(int(length.partition(":")[2]))
                self.deliveries += 1
            kind, body = self._build_response(head.split(" ")[1])
            status = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
            writer.write(status.encode() + b"Connection: close\r\n\r\n" + body)
            await writer.drain()
        writer.close()

    @staticmethod
    def _build_response(path: str) -> tuple[str, bytes]:
        if ".mp4" in path and path.startswith("/file"):
            return "video/mp4", MP4_HEAD + random.randbytes(FILE_BYTES)
        answer = {"success": True, "title": "A video", "transcript": TRANSCRIPT}
        return "application/json", json.dumps(answer).encode()


@asynccontextmanager
async def serve_local_site() -> AsyncGenerator[LocalSite]:
    site = LocalSite()
    server = await asyncio.start_server(site.answer, "127.0.0.1", 0)
    site.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield site


async def install_systems(url: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        for name in SYSTEM_NAMES:
            await import_system(name).install(connection)
    finally:
        await connection.close()


def build_system_environment(site: LocalSite) -> dict[str, str]:
    return {
        "HOLDFAST_JWT_SECRET": JWT_SECRET,
        "HOLDFAST_JWT_ISSUER": JWT_ISSUER,
        "HOLDFAST_EGRESS_ALLOW": site.address,
        "HOLDFAST_SCRAPING_URL": f"http://{site.address}",
        "HOLDFAST_CLIPS_SOURCES": "scraping",
        "HOLDFAST_API_RATE": "100000",
        "HOLDFAST_API_BURST": "100000",
    }


async def create_soak_webhook(client: Client, site: LocalSite, task_type: str) -> None:
    """Have every end of this type of task delivered to the local site."""
    async with client.connection() as connection:
        await engine_webhooks.create_webhook(
            connection,
            url=f"http://{site.address}/hook",
            events=["job.succeeded", "job.failed"],
            secret=generate_webhook_secret(),
            types=[task_type],
        )


@dataclass
class SystemLoad:
    """Users of the systems. Each request is by a new user, so that no daily quota ends the run."""

    http: httpx.AsyncClient
    site: LocalSite
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("exports", "reports"), 0))
    number: int = 0

    @property
    def loads(self) -> Mapping[str, Callable[[], Awaitable[None]]]:
        return {
            "exports": self._export, "reports": self._write_report,
            "media": self._share_file, "clips": self._add_clip,
        }  # fmt: skip

    async def run_forever(self, system: str) -> None:
        while True:
            self.number += 1
            await self.loads[system]()
            await asyncio.sleep(PAUSES_S[system] * random.uniform(0.5, 1.5))

    async def _export(self) -> None:
        user = BenchmarkUser(self.http)
        documents = await user.add_documents()
        job = (await user.post(f"{EXPORT_ROOT}/pdf", {"documentId": documents["amara"]}))["jobId"]
        await user.read_stream(f"{EXPORT_ROOT}/job/{job}/stream", "completed", "failed")
        status = await self._get(f"{EXPORT_ROOT}/job/{job}", user.headers)
        self.counts["exports"] += status["status"] == "completed"

    async def _write_report(self) -> None:
        user = BenchmarkUser(self.http)
        job = (await user.post("/api/jobs/start", {"type": "nuclear_v2", "params": REPORT_PARAMS}))["id"]
        await user.read_stream(f"/api/jobs/{job}/stream", "complete", "failed")
        self.counts["reports"] += 1

    async def _share_file(self) -> None:
        body = {"url": f"http://{self.site.address}/file/{self.number}.mp4", "transcribe": False}
        await self._post(SHARES_PATH, body)

    async def _add_clip(self) -> None:
        await self._post("/api/v1/clips", {"video_url": f"https://example.com/watch/{self.number}"})

    async def _post(self, path: str, body: Any) -> None:
        response = await self.http.post(path, json=body, headers=create_user_headers())
        response.raise_for_status()

    async def _get(self, path: str, headers: Mapping[str, str]) -> Any:
        response = await self.http.get(path, headers=headers)
        response.raise_for_status()
        return response.json()

    async def count_ended(self, client: Client) -> dict[str, int]:
        """Return how much work of each system has ended, and how much of media and clips failed."""
        async with client.connection() as connection:
            row = await connection.fetchrow(COUNT_ENDED)
        return {**self.counts, **dict(row or {}), "deliveries": self.site.deliveries}
