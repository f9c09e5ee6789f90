"""Report how far the work on a share is: bytes, speed and phase, twice a second."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final
from uuid import UUID

from holdfast import Client, Ctx
from holdfast.systems.media import share_queries as queries
from holdfast.systems.media.contracts import WorkProgress

REPORT_INTERVAL_S: Final = 0.5
SPEED_WINDOW_S: Final = 3.0


class ShareProgress:
    """Stores the progress of one task. `update` is cheap: the newest value is written from time to time."""

    def __init__(self, ctx: Ctx[Any], client: Client, share_id: UUID, phase: str) -> None:
        self._ctx = ctx
        self._client = client
        self._share_id = share_id
        self._phase = phase
        self._done = 0.0
        self._total: float | None = None
        self._samples: list[tuple[float, float]] = []
        self._changed = asyncio.Event()
        self._writer: asyncio.Task[None] | None = None

    async def __aenter__(self) -> ShareProgress:
        self._writer = asyncio.create_task(self._write_changes())
        return self

    async def __aexit__(self, *exception: object) -> None:
        assert self._writer is not None  # noqa: S101  (set in __aenter__)
        self._writer.cancel()
        await asyncio.gather(self._writer, return_exceptions=True)

    def update(self, progress: WorkProgress) -> None:
        """Take over the newest state of the work."""
        self._done, self._total = progress.done, progress.total
        now = time.monotonic()
        if not self._samples or now - self._samples[-1][0] >= REPORT_INTERVAL_S / 2:
            self._samples.append((now, progress.done))
            while len(self._samples) > 2 and self._samples[0][0] < now - SPEED_WINDOW_S:
                self._samples.pop(0)
        self._changed.set()

    async def store(self) -> None:
        """Write the newest state now."""
        percent = min(100.0, 100 * self._done / self._total) if self._total else None
        self._ctx.progress(percent, 100, phase=self._phase)
        in_bytes = self._phase == "download"
        async with self._client.connection() as connection:
            await queries.put_progress(
                connection,
                self._client.settings.systems_schema,
                self._share_id,
                self._phase,
                queries.ProgressNumbers(
                    done=int(self._done) if in_bytes else 0,
                    total=int(self._total) if in_bytes and self._total else None,
                    speed=self._compute_speed() if in_bytes else None,
                    percent=percent,
                ),
            )

    def _compute_speed(self) -> float | None:
        if len(self._samples) < 2:
            return None
        (start, before), (end, after) = self._samples[0], self._samples[-1]
        return max(0.0, (after - before) / (end - start)) if end > start else None

    async def _write_changes(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self.store()
            except Exception as error:
                # Progress is not worth a failed download.
                self._ctx.log("progress was not stored", level="warning", error=type(error).__name__)
            await asyncio.sleep(REPORT_INTERVAL_S)
