"""A running clip system for tests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from system_harness import SystemHarness, SystemUser

CLIPS_PATH = "/api/v1/clips"
INGEST_SECRET = "a secret for the database webhook of the tests"


@dataclass
class ClipsHarness(SystemHarness):
    """The clip system, served on a port."""

    async def add(self, user: SystemUser, url: str) -> dict[str, Any]:
        response = await user.post(CLIPS_PATH, {"video_url": url})
        assert response.status_code in (200, 201), response.text
        return dict(response.json())

    async def get(self, user: SystemUser, clip_id: str) -> dict[str, Any]:
        return dict((await user.get(f"{CLIPS_PATH}/{clip_id}")).json())

    async def fetch(self, query: str, *arguments: Any) -> list[Any]:
        async with self.db.connection() as connection:
            return list(await connection.fetch(query, *arguments))

    async def count_messages(self, queue: str = "scrape_jobs", place: str = "q") -> int:
        [row] = await self.fetch(f"select count(*) from pgmq.{place}_{queue}")
        return int(row[0])
