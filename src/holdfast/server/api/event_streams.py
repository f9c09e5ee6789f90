"""Stream the events of a job or batch as server-sent events.

docs/guide/http-api.md describes the format.

The first frame is a snapshot from which a page can draw everything. Then follow the stored events of the job,
each with its stored number as the id, and `end`, after which the server closes the stream. A client that
reconnects with `Last-Event-ID` (or `?after=`) receives the events that it missed, without a snapshot. If
these events are no longer stored, it receives a snapshot with `resync`. A client that reconnects after the
end gets 204, which stops a browser's EventSource.

An open stream uses no database connection (see event_hub.py) and counts against the limits of its user and of
the process. It ends with the token or key that opened it: within a second after a key is revoked, the client
receives `access_ended` and the stream closes. The client cannot reconnect with the same token or key.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from typing import Any
from uuid import UUID

from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from holdfast.engine import jobs
from holdfast.errors import InvalidError, TooManyRequestsError
from holdfast.model import ENDED_STATUSES, Json
from holdfast.server.api.event_frames import EndFrameBuilder, FrameBuilder, build_job_frames
from holdfast.server.api.event_hub import EventSubscription, StoredStreamEvent
from holdfast.server.api.event_session import EventStreamSession
from holdfast.server.api.json_responses import ensure_exists
from holdfast.server.api.services import get_services
from holdfast.server.api.stream_sources import JobOrBatchReader, read_job_with_files
from holdfast.server.api.stream_tickets import (
    STREAM_VIEWER_SCOPE_KEY,
    StreamViewer,
    require_stream_viewer,
)

MAX_REPLAYED_EVENTS = 1000  # a client that missed more events gets a snapshot instead
SERVICE_STREAM_LIMIT_FACTOR = 10  # a service may open this many times as many streams as a user
STREAM_LIMIT_RETRY_AFTER_S = 5
LAST_FRAME_TIMEOUT_S = 1.0  # a client that does not read must not keep a stream open to which it has no right


async def stream_events(
    request: Request,
    job_id: UUID,
    *,
    build_frames: FrameBuilder = build_job_frames,
    build_end_frames: EndFrameBuilder | None = None,
    read: JobOrBatchReader = read_job_with_files,
    noun: str = "job",
) -> Response:
    """Return a response that streams the events of a job as server-sent events.

    `build_frames` converts events to frames, if you want another format than that of the API. Progress is
    merged to four frames per second unless it has an attribute `merge_progress` that is False.
    `build_end_frames` is an asynchronous function that builds the last frames instead, from the job and its
    files, for example with links to the files. `read` reads something else than a job, and `noun` names it
    in the 404 response.

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
    if job["status"] in ENDED_STATUSES and after == job["event_seq"]:  # only the frame `end` has this id
        close_stream()
        return Response(status_code=204, headers=viewer.headers)
    if request.method == "HEAD":
        close_stream()
        return Response(media_type=EventStreamResponse.media_type, headers=viewer.headers)
    hub.start_delivery_after(job_id, job["event_seq"])
    session = EventStreamSession(job, viewer, build_frames, read, build_end_frames)
    return EventStreamResponse(
        session.generate_frames(subscription, after, missed),
        viewer.headers,
        close_stream,
        build_last_frame=session.encode_access_end_frame,
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


class EventStreamResponse(Response):
    """A response that streams encoded frames until the last frame or until the client disconnects.

    The response calls `close` once when the stream ends, also after an error. If `require_stream_viewer`
    authenticated the request, the stream also ends when the viewer loses access. `build_last_frame` is then
    called with the reason, `expired` or `revoked`, and the frame that it returns is sent last.

    >>> from holdfast.server import EventStreamResponse
    >>> async def frames():
    ...     yield b"event: progress\\ndata: {}\\n\\n"
    >>> response = EventStreamResponse(frames(), {}, close=lambda: None)
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        frames: AsyncGenerator[bytes],
        headers: dict[str, str],
        close: Callable[[], None],
        *,
        build_last_frame: Callable[[str], bytes] | None = None,
    ) -> None:
        self._frames = frames
        self._close = close
        self._build_last_frame = build_last_frame
        self.status_code = 200
        self.background: BackgroundTask | None = None
        no_buffering = {"Cache-Control": "no-cache, no-transform", "X-Accel-Buffering": "no"}
        self.init_headers({**no_buffering, **headers})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        viewer: StreamViewer | None = scope.get(STREAM_VIEWER_SCOPE_KEY)
        sending = asyncio.create_task(self._send_frames(send))
        disconnect = asyncio.create_task(_wait_for_disconnect(receive))
        access_end = asyncio.create_task(_wait_for_access_end(viewer))
        try:
            await asyncio.wait({sending, disconnect, access_end}, return_when=asyncio.FIRST_COMPLETED)
            if access_end.done() and not sending.done() and not disconnect.done():
                await self._end_without_access(sending, send, access_end.result())
        finally:
            self._close()
            for task in (sending, disconnect, access_end):
                task.cancel()
            results = await asyncio.gather(sending, disconnect, access_end, return_exceptions=True)
            await self._frames.aclose()
        for result in results:
            if isinstance(result, Exception) and not isinstance(result, OSError):
                raise result

    async def _send_frames(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async for frame in self._frames:
            await send({"type": "http.response.body", "body": frame, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _end_without_access(self, sending: asyncio.Task[None], send: Send, reason: str) -> None:
        """Stop sending frames, send the last frame and close the stream.

        A frame is written as a whole after the server has waited for a slow client, so no frame is cut.
        """
        sending.cancel()
        await asyncio.wait({sending})
        frame = b"" if self._build_last_frame is None else self._build_last_frame(reason)
        with contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(LAST_FRAME_TIMEOUT_S):
                await send({"type": "http.response.body", "body": frame, "more_body": False})


async def _wait_for_disconnect(receive: Receive) -> None:
    with contextlib.suppress(OSError):
        while (await receive())["type"] != "http.disconnect":
            pass


async def _wait_for_access_end(viewer: StreamViewer | None) -> str:
    """Wait until the viewer loses access, and return why. Without a viewer, wait for ever."""
    if viewer is None:
        return str(await asyncio.get_running_loop().create_future())
    with viewer.watch_access():
        return await viewer.wait_for_access_end()
