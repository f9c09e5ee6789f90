"""Events of jobs and batches for any number of streams, at the cost of two connections.

One connection of the process listens, and one at a time of the pool reads, however many streams are open. A
stream subscribes first and reads where the job stands afterwards; what it is handed from then on begins
before that point and it drops what it knows already, so nothing falls between. Notifications only say where
to look. A glance at all watched jobs twice a second is what makes the stream complete, behind a pooler too,
and it is slowed down when it would take more than a twentieth of the time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections import deque
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from holdfast import telemetry
from holdfast.engine import access
from holdfast.engine.connection import Database
from holdfast.engine.listen import Listener
from holdfast.errors import HoldfastError
from holdfast.model import ENDED
from holdfast.server.api.watched import Read, read_job
from holdfast.settings import Settings

CHANNEL = "holdfast_events"
GLANCE_SECONDS = 0.5
SHARE = 20  # a glance may take one part in so many of the time
RENEW_SECONDS = 45.0
AT_ONCE = 500  # events of one job read in one go
ENDS = ("job", "batch")  # kinds of events that may tell of an end
_log = logging.getLogger("holdfast.server.api")
WAITING = 1000  # events a slow stream may fall behind before it has to start over


@dataclass(frozen=True, slots=True)
class Happening:
    """One stored event of a job."""

    seq: int
    at: datetime
    kind: str
    body: dict[str, Any]


class Subscription:
    """The events of one job for one stream, in order. `ended` is the job as it is when it has ended."""

    def __init__(self) -> None:
        self._waiting: deque[Happening] = deque()
        self._news = asyncio.Event()
        self.lost = False
        self.ended: dict[str, Any] | None = None

    def push(self, happening: Happening) -> None:
        if len(self._waiting) >= WAITING:
            self._waiting.clear()
            self.lost = True
        self._waiting.append(happening)
        self._news.set()

    def end(self, job: dict[str, Any]) -> None:
        self.ended = job
        self._news.set()

    def take(self) -> list[Happening]:
        taken = list(self._waiting)
        self._waiting.clear()
        self._news.clear()
        return taken

    async def wait(self, seconds: float) -> bool:
        """Until there is something to take; False when there was nothing for so long."""
        if self._waiting or self.ended is not None:
            return True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(seconds, 0)):
                await self._news.wait()
        return bool(self._waiting) or self.ended is not None


@dataclass
class Watched:
    """What somebody looks at. `at` is the last event handed out, None until a reader said."""

    read: Read
    at: int | None = None
    streams: set[Subscription] = field(default_factory=set[Subscription])
    ended: dict[str, Any] | None = None


class Hub:
    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self._settings = settings
        self._name = f"api-{secrets.token_hex(8)}"
        self.places: dict[str, int] = {}  # open streams by caller
        self._watched: dict[UUID, Watched] = {}
        self._dirty: set[UUID] = set()
        self._rung = asyncio.Event()
        self._listener: Listener | None = None
        self._loop: asyncio.Task[None] | None = None
        self._announced: frozenset[UUID] = frozenset()
        self._announced_at = 0.0

    @property
    def streams(self) -> int:
        return sum(len(watched.streams) for watched in self._watched.values())

    def subscribe(self, job_id: UUID, read: Read = read_job) -> Subscription:
        subscription = Subscription()
        self._watched.setdefault(job_id, Watched(read)).streams.add(subscription)
        if self._loop is None or self._loop.done():
            self._loop = asyncio.create_task(self._run(), name="event streams")
        self._rung.set()
        return subscription

    def known(self, job_id: UUID, seq: int) -> None:
        """A stream has read the job up to `seq`: what comes after that is to be handed out."""
        watched = self._watched.get(job_id)
        if watched is not None and watched.at is None:
            watched.at = seq
        self._mark(job_id)

    def unsubscribe(self, job_id: UUID, subscription: Subscription) -> None:
        watched = self._watched.get(job_id)
        if watched is not None:
            watched.streams.discard(subscription)
            if not watched.streams:
                del self._watched[job_id]
                self._dirty.discard(job_id)

    async def changed(self, job_id: UUID, seq: int, seconds: float) -> bool:
        """Wait until the job has an event after `seq` or has ended; False when it was too long."""
        subscription = self.subscribe(job_id)
        try:
            self.known(job_id, seq)
            return await subscription.wait(seconds)
        finally:
            self.unsubscribe(job_id, subscription)

    async def stop(self) -> None:
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.cancel()
            await asyncio.wait({loop})
        await self._stop_listening()

    def _mark(self, job_id: UUID) -> None:
        self._dirty.add(job_id)
        self._rung.set()

    def _heard(self, payload: str) -> None:
        if not payload:
            self._dirty.update(self._watched)
            self._rung.set()
            return
        with contextlib.suppress(ValueError):
            job_id = UUID(payload)
            if job_id in self._watched:
                self._mark(job_id)

    async def _run(self) -> None:
        """While somebody watches. Nothing is awaited between the last look and the end: nobody is missed."""
        while self._watched:
            await self._serve()

    async def _serve(self) -> None:
        """Errors of the database cost time, not the streams."""
        self._listener = Listener(self._database.url, self._settings, {CHANNEL: self._heard})
        self._listener.start()
        glanced, pause = 0.0, GLANCE_SECONDS
        try:
            while self._watched:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._rung.wait()
                self._rung.clear()
                try:
                    began = time.monotonic()
                    async with self._database.connection() as connection:
                        await self._announce(connection)
                        if began - glanced >= pause:
                            await self._glance(connection)
                            glanced = time.monotonic()
                            pause = max(GLANCE_SECONDS, SHARE * (glanced - began))
                        await self._deliver(connection)
                except HoldfastError as problem:
                    telemetry.emit("database.away", error=str(problem), retry_in=pause)
                    await self._rest(pause)
                except Exception:
                    _log.exception("event streams: unexpected")
                    await self._rest(pause)
        finally:
            await self._stop_listening()

    async def _rest(self, pause: float) -> None:
        self._dirty.update(self._watched)
        await asyncio.sleep(pause)

    async def _stop_listening(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            await listener.stop()

    async def _announce(self, connection: Any) -> None:
        """Say which jobs are watched, when that changed or is about to be forgotten."""
        now, watched = time.monotonic(), frozenset(self._watched)
        if watched != self._announced or now - self._announced_at > RENEW_SECONDS:
            await access.watch_jobs(connection, self._name, sorted(watched))
            self._announced, self._announced_at = watched, now

    async def _glance(self, connection: Any) -> None:
        looked_at = [job_id for job_id, watched in self._watched.items() if watched.ended is None]
        for seen in await access.glance(connection, looked_at):
            watched = self._watched.get(seen.id)
            if watched is None or watched.at is None:
                continue
            if seen.seq > watched.at:
                self._dirty.add(seen.id)
            elif seen.status in ENDED:
                await self._end(connection, seen.id)

    async def _deliver(self, connection: Any) -> None:
        """Read what is new of every job that rang, in one call, and hand it to the streams."""
        rung, self._dirty = self._dirty, set()
        after = {i: w.at for i in rung if (w := self._watched.get(i)) is not None and w.at is not None}
        if not after:
            return
        found = await access.watched_events(connection, list(after), list(after.values()), AT_ONCE)
        counts: dict[UUID, int] = {}
        over: set[UUID] = set()
        for job_id, seq, at, kind, body in found:
            counts[job_id] = counts.get(job_id, 0) + 1
            watched = self._watched.get(job_id)
            if watched is None or watched.at is None or seq <= watched.at:
                continue
            watched.at = seq
            for stream in watched.streams:
                stream.push(Happening(seq, at, kind, body))
            if kind in ENDS:
                (over.add if body.get("status") in ENDED else over.discard)(job_id)
        for job_id, count in counts.items():
            if count >= AT_ONCE:  # the end is told behind what is still to be read
                self._mark(job_id)
            elif job_id in over:
                await self._end(connection, job_id)

    async def _end(self, connection: Any, job_id: UUID) -> None:
        watched = self._watched.get(job_id)
        job = None if watched is None else await watched.read(connection, job_id)
        if watched is not None and job is not None and job["status"] in ENDED:
            watched.ended = job
            for stream in watched.streams:
                stream.end(job)
