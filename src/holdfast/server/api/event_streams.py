"""Stream the events of a job or batch as server-sent events.

docs/guide/http-api.md describes the format.

The first frame is a snapshot from which a page can draw everything. Then follow the stored events of the job,
each with its stored number as the id, and `end`, after which the server closes the stream. A client that
reconnects with `Last-Event-ID` (or `?after=`) receives the events that it missed, without a snapshot. If
these events are no longer stored, it receives a snapshot with `resync`. A client that reconnects after the
end gets 204, which stops a browser's EventSource.

Progress is merged to four frames per second; the last progress is always sent. Other frames are never merged.
An open stream uses no database connection (see event_hub.py), ends when the token that opened it expires, and
counts against the limits of its user and of the process.
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
from holdfast.errors import InvalidError, TooManyRequestsError
from holdfast.model import ENDED_STATUSES, Json
from holdfast.server.api.event_frames import (
    FrameBuilder,
    build_job_frames,
    encode_event_frames,
    redact_event_frame,
)
from holdfast.server.api.event_hub import EventSubscription, StoredStreamEvent
from holdfast.server.api.json_responses import ensure_exists
from holdfast.server.api.services import get_services
from holdfast.server.api.stream_sources import JobOrBatchReader, read_job_with_files
from holdfast.server.api.stream_tickets import StreamViewer, require_stream_viewer

STREAM_PING_INTERVAL_S = 15.0
MIN_PROGRESS_FRAME_INTERVAL_S = 0.25
CLIENT_RECONNECT_DELAY_MS = 2000
MAX_REPLAYED_EVENTS = 1000  # a client that missed more events gets a snapshot instead
SERVICE_STREAM_LIMIT_FACTOR = 10  # a service may open this many times as many streams as a user
STREAM_LIMIT_RETRY_AFTER_S = 5


async def stream_events(
    request: Request,
    job_id: UUID,
    *,
    build_frames: FrameBuilder = build_job_frames,
    read: JobOrBatchReader = read_job_with_files,
    noun: str = "job",
) -> Response:
    """Return a response that streams the events of a job as server-sent events.

    `build_frames` converts events to frames, if you want another format than that of the API. Progress is
    merged to four frames per second unless it has an attribute `merge_progress` that is False. `read` reads
    something else than a job, and `noun` names it in the 404 response.

    >>> from starlette.requests import Request
    >>> from starlette.responses import Response
    >>> from holdfast.server import EventFrame, api_operation, parse_path_uuid, stream_events
    >>> def build_percent_frames(kind, body, job):
    ...     return [EventFrame("percent", body.get("percent"))] if kind == "progress" else []
    >>> @api_operation("Watch a job", tag="jobs", access="anyone", media_type="text/event-stream")
    ... async def watch(request: Request) -> Response:
    ...     return await stream_events(request, parse_path_uuid(request), build_frames=build_percent_frames)
    """
    hub = get_services(request).event_hub
    after = parse_last_event_id(request)
    viewer = await require_stream_viewer(request, job_id)
    release_slot = reserve_stream_slot(request, viewer)
    subscription = hub.subscribe(job_id, read)

    def close_stream() -> None:
        subscription.close()
        release_slot()

    try:
        async with viewer.transaction() as connection:
            job = ensure_exists(await read(connection, job_id), f"{noun.capitalize()} {job_id}")
            missed = await _read_missed_events(connection, job, after)
    except BaseException:
        close_stream()
        raise
    if after is not None and job["status"] in ENDED_STATUSES and after >= job["event_seq"]:
        close_stream()
        return Response(status_code=204, headers=viewer.headers)
    if request.method == "HEAD":
        close_stream()
        return Response(media_type=EventStreamResponse.media_type, headers=viewer.headers)
    hub.start_delivery_after(job_id, job["event_seq"])
    session = EventStreamSession(job, viewer, build_frames, read)
    return EventStreamResponse(
        session.generate_frames(subscription, after, missed), viewer.headers, close_stream
    )


def parse_last_event_id(request: Request) -> int | None:
    """Return the number of the last event that the client received, or None for a new client.

    The number comes from the header `Last-Event-ID` or the query parameter `after`. Raise `InvalidError`
    (422) for other text.

    >>> from starlette.requests import Request
    >>> from holdfast.server import parse_last_event_id
    >>> def is_reconnect(request: Request) -> bool:
    ...     return parse_last_event_id(request) is not None
    """
    text = request.headers.get("last-event-id") or request.query_params.get("after")
    if not text:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise InvalidError("The last event id must be a number.", field="after")
    return int(text)


async def _read_missed_events(
    connection: Any, job: dict[str, Json], after: int | None
) -> list[StoredStreamEvent] | None:
    """Return all events after number `after`, or None if the client needs a snapshot."""
    if after is None or after > job["event_seq"] or job["event_seq"] - after > MAX_REPLAYED_EVENTS:
        return None
    rows = await jobs.list_job_events(connection, UUID(job["id"]), after=after, limit=MAX_REPLAYED_EVENTS)
    rows = [row for row in rows if row.seq <= job["event_seq"]]
    if [row.seq for row in rows] != list(range(after + 1, job["event_seq"] + 1)):
        return None
    return [StoredStreamEvent(row.seq, row.at, row.kind, row.body or {}) for row in rows]


def reserve_stream_slot(request: Request, viewer: StreamViewer) -> Callable[[], None]:
    """Count a new stream against the stream limits. Return the function that releases the slot.

    Raise `TooManyRequestsError` (429) if too many streams are open. `stream_events` calls this function. Call
    it yourself before you return an `EventStreamResponse`.

    >>> from uuid import UUID
    >>> from starlette.requests import Request
    >>> from starlette.responses import Response
    >>> from holdfast.server import EventStreamResponse, require_stream_viewer, reserve_stream_slot
    >>> async def watch(request: Request, job_id: UUID) -> Response:
    ...     viewer = await require_stream_viewer(request, job_id)
    ...     release_slot = reserve_stream_slot(request, viewer)
    ...
    ...     async def frames():
    ...         yield b": hello\\n\\n"
    ...
    ...     return EventStreamResponse(frames(), viewer.headers, release_slot)
    """
    services = get_services(request)
    open_streams = services.event_hub.open_streams
    max_streams = services.settings.user_streams * (
        1 if viewer.owner is not None else SERVICE_STREAM_LIMIT_FACTOR
    )
    too_many_of_viewer = open_streams.get(viewer.name, 0) >= max_streams
    if too_many_of_viewer or sum(open_streams.values()) >= services.settings.api_streams:
        raise TooManyRequestsError(
            "Too many open event streams.", fix="Close one first.", retry_after=STREAM_LIMIT_RETRY_AFTER_S
        )
    open_streams[viewer.name] = open_streams.get(viewer.name, 0) + 1

    def release_slot() -> None:
        if open_streams.get(viewer.name, 0) <= 1:
            open_streams.pop(viewer.name, None)
        else:
            open_streams[viewer.name] -= 1

    return release_slot


def subscribe_to_job_events(request: Request, job_id: UUID, *, after: int) -> EventSubscription:
    """Subscribe to the events of a job that follow the event number `after`.

    Close the subscription when you no longer need it. `after` is the `event_seq` of the job as you read it.
    Read the job again after subscribing, so that no event is missed. The function does not check whether the
    caller may see the job.

    >>> from uuid import UUID
    >>> from starlette.requests import Request
    >>> from holdfast.server import subscribe_to_job_events
    >>> async def wait_for_end(request: Request, job_id: UUID, event_seq: int) -> None:
    ...     subscription = subscribe_to_job_events(request, job_id, after=event_seq)
    ...     try:
    ...         while subscription.ended is None:
    ...             await subscription.wait_for_event(15)
    ...             subscription.take_events()
    ...     finally:
    ...         subscription.close()
    """
    hub = get_services(request).event_hub
    subscription = hub.subscribe(job_id)
    hub.start_delivery_after(job_id, after)
    return subscription


class EventStreamSession:
    """State of one open event stream: the last sent event and the delayed progress."""

    def __init__(
        self, job: dict[str, Json], viewer: StreamViewer, build_frames: FrameBuilder, read: JobOrBatchReader
    ) -> None:
        self._job = job
        self._viewer = viewer
        self._build_frames = build_frames
        self._read = read
        self._last_seq = 0
        self._delayed_progress: StoredStreamEvent | None = None
        self._progress_sent_at = 0.0
        self._merge_progress: bool = getattr(build_frames, "merge_progress", True)

    async def generate_frames(
        self, subscription: EventSubscription, after: int | None, missed: list[StoredStreamEvent] | None
    ) -> AsyncGenerator[bytes]:
        """Yield the encoded frames of the stream until the job ends or the viewer loses access."""
        yield f"retry: {CLIENT_RECONNECT_DELAY_MS}\n\n".encode()
        if missed is None:
            yield self._encode_snapshot_frame(resync=after is not None)
        for event in missed or ():
            for frame in self._encode_stored_event(event):
                yield frame
        self._last_seq = self._job["event_seq"]
        if self._job["status"] in ENDED_STATUSES:
            yield self._encode_end_frame(self._job)
            return
        async for frame in self._generate_live_frames(subscription):
            yield frame

    async def _generate_live_frames(self, subscription: EventSubscription) -> AsyncIterator[bytes]:
        pinged_at = time.monotonic()
        while await self._viewer.has_access():
            wake_at = pinged_at + STREAM_PING_INTERVAL_S
            if self._delayed_progress is not None:
                wake_at = min(wake_at, self._progress_sent_at + MIN_PROGRESS_FRAME_INTERVAL_S)
            await subscription.wait_for_event(min(wake_at, self._viewer.expires_at) - time.monotonic())
            ended = (
                subscription.ended
            )  # read before taking the events, so that all events before it are taken
            for event in subscription.take_events():
                for frame in self._encode_or_delay_event(event):
                    yield frame
            if subscription.overflowed:
                subscription.overflowed = False
                yield await self._encode_resync_snapshot()
            for frame in self._encode_delayed_progress(now=ended is not None):
                yield frame
            if ended is not None:
                yield self._encode_end_frame(ended)
                return
            if time.monotonic() >= pinged_at + STREAM_PING_INTERVAL_S:
                pinged_at = time.monotonic()
                yield b": ping\n\n"

    async def _encode_resync_snapshot(self) -> bytes:
        """Read the job again and encode a snapshot, for a client that is too slow to receive every event."""
        async with self._viewer.transaction() as connection:
            job = await self._read(connection, UUID(self._job["id"]))
        self._job = job or self._job
        self._last_seq = self._job["event_seq"]
        return self._encode_snapshot_frame(resync=True)

    def _encode_or_delay_event(self, event: StoredStreamEvent) -> list[bytes]:
        """Encode the frames of an event. A progress event may be delayed until the next other event."""
        if event.seq <= self._last_seq:
            return []
        self._last_seq = event.seq
        if event.kind == "progress":
            self._delayed_progress = event
            return self._encode_delayed_progress(now=not self._merge_progress)
        return [*self._encode_delayed_progress(now=True), *self._encode_stored_event(event)]

    def _encode_delayed_progress(self, *, now: bool) -> list[bytes]:
        progress = self._delayed_progress
        if progress is None or not (
            now or time.monotonic() >= self._progress_sent_at + MIN_PROGRESS_FRAME_INTERVAL_S
        ):
            return []
        self._delayed_progress = None
        self._progress_sent_at = time.monotonic()
        return self._encode_stored_event(progress)

    def _encode_stored_event(self, event: StoredStreamEvent) -> list[bytes]:
        frames = self._build_frames(event.kind, event.body, self._job)
        if not self._viewer.is_service:
            frames = [redact_event_frame(frame) for frame in frames]
        return encode_event_frames(frames, event.seq)

    def _encode_snapshot_frame(self, *, resync: bool) -> bytes:
        job = self._viewer.redact_job(self._job)
        body = {"job": job, "artifacts": self._job["files"], "resync": resync}
        frames = self._build_frames("snapshot", body, job)
        return b"".join(encode_event_frames(frames, self._job["event_seq"]))

    def _encode_end_frame(self, job: dict[str, Json]) -> bytes:
        redacted = self._viewer.redact_job(job)
        frames = self._build_frames("end", {"job": redacted, "artifacts": job["files"]}, redacted)
        return b"".join(encode_event_frames(frames, max(job["event_seq"], self._last_seq)))


class EventStreamResponse(Response):
    """A response that streams encoded frames until the last frame or until the client disconnects.

    The response calls `close` once when the stream ends, also after an error.

    >>> from holdfast.server import EventStreamResponse
    >>> async def frames():
    ...     yield b"event: progress\\ndata: {}\\n\\n"
    >>> response = EventStreamResponse(frames(), {}, close=lambda: None)
    """

    media_type = "text/event-stream"

    def __init__(
        self, frames: AsyncGenerator[bytes], headers: dict[str, str], close: Callable[[], None]
    ) -> None:
        self._frames = frames
        self._close = close
        self.status_code = 200
        self.background: BackgroundTask | None = None
        no_buffering = {"Cache-Control": "no-cache, no-transform", "X-Accel-Buffering": "no"}
        self.init_headers({**no_buffering, **headers})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.create_task(self._send_frames(send))
        disconnect = asyncio.create_task(_wait_for_disconnect(receive))
        try:
            await asyncio.wait({sending, disconnect}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._close()
            for task in (sending, disconnect):
                task.cancel()
            results = await asyncio.gather(sending, disconnect, return_exceptions=True)
            await self._frames.aclose()
        for result in results:
            if isinstance(result, Exception) and not isinstance(result, OSError):
                raise result

    async def _send_frames(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async for frame in self._frames:
            await send({"type": "http.response.body", "body": frame, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _wait_for_disconnect(receive: Receive) -> None:
    with contextlib.suppress(OSError):
        while (await receive())["type"] != "http.disconnect":
            pass
