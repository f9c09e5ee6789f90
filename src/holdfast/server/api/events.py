"""Live progress of a job or a batch as server-sent events; docs/guide/http-api.md has the format, version 1.

The first frame is a snapshot from which a page can draw everything; after it come the stored events of the
job, each with its stored number as the id, and `end`, after which the server closes. A client that comes back
with `Last-Event-ID` (or `?after=`) is sent what it missed and no snapshot; when that is no longer kept, a
snapshot with `resync`. One that comes back after the end gets 204, which stops a browser's EventSource.

Progress is merged to four frames a second, the last one always sent. Other frames are never merged. A stream
costs no database connection while it is open (see hub.py), ends with the token that opened it, and is counted
against the caps of its user and of the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any
from uuid import UUID

from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from holdfast.engine import jobs
from holdfast.errors import InvalidError, TooManyError
from holdfast.model import ENDED, Json
from holdfast.server.api import frames, tickets
from holdfast.server.api.bodies import found
from holdfast.server.api.frames import Encode
from holdfast.server.api.hub import Happening, Subscription
from holdfast.server.api.services import services_of
from holdfast.server.api.tickets import Viewer
from holdfast.server.api.watched import Read, read_job

PING_SECONDS = 15.0
PROGRESS_SECONDS = 0.25
RETRY_MILLISECONDS = 2000
MISSED = 1000  # more than so many missed events are told as one snapshot


async def stream(
    request: Request,
    job_id: UUID,
    *,
    encode: Encode = frames.encode,
    read: Read = read_job,
    noun: str = "job",
) -> Response:
    """The answer that streams a job, or what `read` reads. `encode` makes frames of another vocabulary."""
    hub = services_of(request).listener
    after = resume_point(request)
    viewer = await tickets.viewer_of(request, job_id)
    release = take_place(request, viewer)
    subscription = hub.subscribe(job_id, read)

    def close() -> None:
        hub.unsubscribe(job_id, subscription)
        release()

    try:
        async with viewer.acting() as connection:
            job = found(await read(connection, job_id), noun)
            missed = await _missed(connection, job, after)
    except BaseException:
        close()
        raise
    if after is not None and job["status"] in ENDED and after >= job["event_seq"]:
        close()
        return Response(status_code=204, headers=viewer.headers)
    if request.method == "HEAD":
        close()
        return Response(media_type=EventStream.media_type, headers=viewer.headers)
    hub.known(job_id, job["event_seq"])
    told = Telling(job, viewer, encode, read)
    return EventStream(told.frames(subscription, after, missed), viewer.headers, close)


def resume_point(request: Request) -> int | None:
    """The last event that the client has, by the header or, for other clients, the query."""
    given = request.headers.get("last-event-id") or request.query_params.get("after")
    if not given:
        return None
    if not given.isascii() or not given.isdigit() or len(given) > 18:
        raise InvalidError("The last event id is a number.", field="after")
    return int(given)


async def _missed(connection: Any, job: dict[str, Json], after: int | None) -> list[Happening] | None:
    """What happened since `after`, complete; None when it has to be told as a snapshot."""
    if after is None or after > job["event_seq"] or job["event_seq"] - after > MISSED:
        return None
    rows = await jobs.job_events(connection, UUID(job["id"]), after=after, limit=MISSED)
    rows = [row for row in rows if row.seq <= job["event_seq"]]
    if [row.seq for row in rows] != list(range(after + 1, job["event_seq"] + 1)):
        return None
    return [Happening(row.seq, row.at, row.kind, row.body or {}) for row in rows]


def take_place(request: Request, viewer: Viewer) -> Callable[[], None]:
    """Take a place among the open streams; what comes back gives it up again."""
    services = services_of(request)
    places = services.listener.places
    most = services.settings.user_streams * (1 if viewer.owner is not None else 10)
    if places.get(viewer.name, 0) >= most or sum(places.values()) >= services.settings.api_streams:
        raise TooManyError("Too many open streams.", fix="Close one first.", retry_after=5)
    places[viewer.name] = places.get(viewer.name, 0) + 1

    def release() -> None:
        if places.get(viewer.name, 0) <= 1:
            places.pop(viewer.name, None)
        else:
            places[viewer.name] -= 1

    return release


class Telling:
    """One stream: what it has sent, and what is to be sent next."""

    def __init__(self, job: dict[str, Json], viewer: Viewer, encode: Encode, read: Read) -> None:
        self._job = job
        self._viewer = viewer
        self._encode = encode
        self._read = read
        self._sent = 0
        self._held: Happening | None = None
        self._progress_at = 0.0

    async def frames(
        self, subscription: Subscription, after: int | None, missed: list[Happening] | None
    ) -> AsyncGenerator[bytes]:
        yield f"retry: {RETRY_MILLISECONDS}\n\n".encode()
        if missed is None:
            yield self._snapshot(resync=after is not None)
        for happening in missed or ():
            for frame in self._tell(happening):
                yield frame
        self._sent = self._job["event_seq"]
        if self._job["status"] in ENDED:
            yield self._end(self._job)
            return
        async for frame in self._live(subscription):
            yield frame

    async def _live(self, subscription: Subscription) -> AsyncIterator[bytes]:
        pinged = time.monotonic()
        while await self._viewer.valid():
            due = pinged + PING_SECONDS
            if self._held is not None:
                due = min(due, self._progress_at + PROGRESS_SECONDS)
            await subscription.wait(min(due, self._viewer.until) - time.monotonic())
            ended = subscription.ended  # read before taking, so that nothing that came before it is left
            for happening in subscription.take():
                for frame in self._take(happening):
                    yield frame
            if subscription.lost:
                subscription.lost = False
                yield await self._start_over()
            for frame in self._release(now=ended is not None):
                yield frame
            if ended is not None:
                yield self._end(ended)
                return
            if time.monotonic() >= pinged + PING_SECONDS:
                pinged = time.monotonic()
                yield b": ping\n\n"

    async def _start_over(self) -> bytes:
        """The client is too slow for every event: tell it where the job stands instead."""
        async with self._viewer.acting() as connection:
            job = await self._read(connection, UUID(self._job["id"]))
        self._job = job or self._job
        self._sent = self._job["event_seq"]
        return self._snapshot(resync=True)

    def _take(self, happening: Happening) -> list[bytes]:
        """A new event: progress is held back for a moment, anything else goes out behind it."""
        if happening.seq <= self._sent:
            return []
        self._sent = happening.seq
        if happening.kind == "progress":
            self._held = happening
            # An encoder may say that each one counts: stages, which are few.
            return self._release(now=getattr(self._encode, "each", False))
        return [*self._release(now=True), *self._tell(happening)]

    def _release(self, *, now: bool) -> list[bytes]:
        held = self._held
        if held is None or not (now or time.monotonic() >= self._progress_at + PROGRESS_SECONDS):
            return []
        self._held = None
        self._progress_at = time.monotonic()
        return self._tell(held)

    def _tell(self, happening: Happening) -> list[bytes]:
        made = self._encode(happening.kind, happening.body, self._job)
        if not self._viewer.sees_all:
            made = [frames.for_users(frame) for frame in made]
        return frames.numbered(made, happening.seq)

    def _snapshot(self, *, resync: bool) -> bytes:
        job = self._viewer.view(self._job)
        body = {"job": job, "artifacts": self._job["files"], "resync": resync}
        return b"".join(frames.numbered(self._encode("snapshot", body, job), self._job["event_seq"]))

    def _end(self, job: dict[str, Json]) -> bytes:
        shown = self._viewer.view(job)
        made = self._encode("end", {"job": shown, "artifacts": job["files"]}, shown)
        return b"".join(frames.numbered(made, max(job["event_seq"], self._sent)))


class EventStream(Response):
    """Sends frames until there are no more or the client is gone, whichever is first; then closes."""

    media_type = "text/event-stream"

    def __init__(
        self, frames: AsyncGenerator[bytes], headers: dict[str, str], close: Callable[[], None]
    ) -> None:
        self._frames = frames
        self._close = close
        self.status_code = 200
        self.background: BackgroundTask | None = None
        no_buffers = {"Cache-Control": "no-cache, no-transform", "X-Accel-Buffering": "no"}
        self.init_headers({**no_buffers, **headers})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.create_task(self._send(send))
        leaving = asyncio.create_task(_gone(receive))
        try:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._close()
            for task in (sending, leaving):
                task.cancel()
            results = await asyncio.gather(sending, leaving, return_exceptions=True)
            await self._frames.aclose()
        for result in results:
            if isinstance(result, Exception) and not isinstance(result, OSError):
                raise result

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async for frame in self._frames:
            await send({"type": "http.response.body", "body": frame, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _gone(receive: Receive) -> None:
    """Until the client has closed its side."""
    with contextlib.suppress(OSError):
        while (await receive())["type"] != "http.disconnect":
            pass
