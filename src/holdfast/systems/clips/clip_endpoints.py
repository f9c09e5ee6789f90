"""Endpoints for users: add, list, read, retry and delete clips, and stream their changes."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from holdfast.errors import ConflictError, InvalidError, NotFoundError
from holdfast.server import (
    EventFrame,
    EventStreamResponse,
    StreamViewer,
    api_operation,
    encode_event_frames,
    get_client,
    json_response,
    parse_body,
    parse_query,
    require_stream_viewer,
    reserve_stream_slot,
    transaction_as_caller,
)
from holdfast.systems.change_feed import ChangeFeed, ChangeSubscription
from holdfast.systems.change_stream import (
    CLIENT_RECONNECT_FRAME,
    STREAM_PING_INTERVAL_S,
    stream_changed_rows,
)
from holdfast.systems.clips import clip_queries as queries
from holdfast.systems.clips.clip_views import Clip, ClipDetails, build_clip_details, build_clips
from holdfast.systems.request_context import get_systems_schema, require_owner_id
from holdfast.systems.url_field import normalize_url, parse_url_field

CLIPS_API_PATH: Final = "/api/v1/clips"
STATUSES: Final = ("pending", "scraping", "enriching", "done", "failed")
FINAL_STATUSES: Final = ("done", "failed")
MAX_LIST_LIMIT: Final = 200
MAX_TAG_CHARS: Final = 100
ADD_RESPONSES: Final = {
    200: "The user has this clip",
    422: "The URL is not valid",
    429: "Too many clips are waiting",
    507: "The user has too many clips",
}


class AddClipRequest(msgspec.Struct):
    """The URL of a video."""

    video_url: Any


class ClipListQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Filters of the list. `before` is the value of `next` in the previous page."""

    status: str | None = None
    tag: str | None = None
    before: str | None = None
    limit: int = 60


class ClipList(msgspec.Struct, kw_only=True):
    """A page of clips, newest first. `next` is the parameter `before` of the next page."""

    clips: list[Clip]
    next: str | None
    total: int


class ClipEndpoints:
    """HTTP endpoints for the clips of a user."""

    def __init__(self) -> None:
        self._feed = ChangeFeed(queries.list_changed_clips)

    def create_routes(self) -> list[BaseRoute]:
        endpoints: list[tuple[str, str, Any, str, dict[str, Any]]] = [
            (
                *("POST", "", self.add_clip, "Add a video"),
                {"body": AddClipRequest, "response": Clip, "status": 201, "other_responses": ADD_RESPONSES},
            ),
            (
                *("GET", "", self.list_clips, "List your clips"),
                {"query": ClipListQuery, "response": ClipList},
            ),
            (
                *("GET", "/stream", self.stream_changes, "Stream the changes of your clips"),
                {"media_type": "text/event-stream"},
            ),
            (*("GET", "/{id}", self.get_clip, "Get a clip and its transcript"), {"response": ClipDetails}),
            (*("DELETE", "/{id}", self.delete_clip, "Delete a clip and its files"), {"status": 204}),
            (
                *("GET", "/{id}/events", self.stream_clip, "Stream the progress of a clip until it is done"),
                {"media_type": "text/event-stream"},
            ),
            (
                *("POST", "/{id}/retry", self.retry_clip, "Process a failed clip again"),
                {"response": Clip, "status": 202, "other_responses": {409: "The clip has not failed"}},
            ),
        ]
        return [
            Route(
                CLIPS_API_PATH + path,
                api_operation(summary, tag="clips", scope="jobs", **options)(endpoint),
                methods=[method],
            )
            for method, path, endpoint, summary, options in endpoints
        ]

    async def add_clip(self, request: Request) -> Response:
        """Add a video: the row and its message in one transaction. A known URL returns the clip (200)."""
        owner, body = await require_owner_id(request), await parse_body(request, AddClipRequest)
        text, parsed = parse_url_field(body.video_url, "video_url")
        key = hashlib.sha256(normalize_url(text, parsed).encode()).digest()
        schema = get_systems_schema(request)
        async with transaction_as_caller(request, as_service=True) as connection:
            clip_id = await queries.insert_clip(connection, schema, owner, text, key)
            row = await queries.find_clip_by_url(connection, schema, owner, key)
        if row is None:  # deleted by another request at this moment
            raise ConflictError("The clip was deleted.", fix="Add it again.")
        [clip] = await build_clips(get_client(request), [row])
        return json_response(clip, 200 if clip_id is None else 201)

    async def list_clips(self, request: Request) -> Response:
        owner, query = await require_owner_id(request), parse_query(request, ClipListQuery)
        filters = parse_filters(query)
        schema = get_systems_schema(request)
        async with transaction_as_caller(request) as connection:
            rows = await queries.list_clips(connection, schema, owner, filters)
            total = await queries.count_clips(connection, schema, owner)
        has_more, rows = len(rows) > query.limit, rows[: query.limit]
        clips = await build_clips(get_client(request), rows)
        following = f"{clips[-1].created_at.isoformat()}~{clips[-1].id}" if has_more else None
        return json_response(ClipList(clips=clips, next=following, total=total))

    async def get_clip(self, request: Request) -> Response:
        clip = await _load_clip(request)
        async with transaction_as_caller(request) as connection:
            transcript, segments = await queries.find_transcript(
                connection, get_systems_schema(request), clip.id, str(clip.user_id)
            )
        return json_response(build_clip_details(clip, transcript, segments))

    async def delete_clip(self, request: Request) -> Response:
        owner, clip_id = await require_owner_id(request), request.path_params["id"]
        async with transaction_as_caller(request, as_service=True) as connection:
            if not await queries.delete_clip(connection, get_systems_schema(request), clip_id, owner):
                raise build_not_found_error(clip_id)
        return Response(status_code=204)

    async def retry_clip(self, request: Request) -> Response:
        clip = await _load_clip(request)
        if clip.processing_status != "failed":
            raise ConflictError(
                f"Clip {clip.id} has not failed; it is {clip.processing_status}.",
                fix="Retry a clip whose processing_status is failed.",
            )
        async with transaction_as_caller(request, as_service=True) as connection:
            await queries.enqueue_clip(connection, get_systems_schema(request), clip.id, restart=True)
        return json_response(await _load_clip(request), 202)

    async def stream_changes(self, request: Request) -> Response:
        """Stream each changed clip as an event `clip`, until the client disconnects."""
        return await stream_changed_rows(request, self._feed, "clip", build_clips)

    async def stream_clip(self, request: Request) -> Response:
        """Stream `progress` events with the clip, then `end` when it is done or has failed."""
        clip = await _load_clip(request)
        viewer = await require_stream_viewer(request, UUID(str(clip.user_id)))
        release_slot = reserve_stream_slot(request, viewer)
        subscription = self._feed.subscribe(get_client(request), str(clip.user_id), None)

        def close_stream() -> None:
            self._feed.unsubscribe(subscription)
            release_slot()

        frames = _generate_clip_frames(request, viewer, subscription, clip)
        return EventStreamResponse(frames, viewer.headers, close_stream)


def parse_filters(query: ClipListQuery) -> queries.ClipFilter:
    """Check the filters of a list. Raise `InvalidError` (422), which names the field."""
    if not 1 <= query.limit <= MAX_LIST_LIMIT:
        raise InvalidError(f"limit must be from 1 to {MAX_LIST_LIMIT}.", field="limit")
    if query.status is not None and query.status not in STATUSES:
        raise InvalidError(f"status must be one of {', '.join(STATUSES)}.", field="status")
    if query.tag is not None and ("\0" in query.tag or len(query.tag) > MAX_TAG_CHARS):
        raise InvalidError(f"tag must be a text of at most {MAX_TAG_CHARS} characters.", field="tag")
    before: tuple[datetime, str] | None = None
    if query.before is not None:
        time, _, clip_id = query.before.partition("~")
        try:
            before = datetime.fromisoformat(time.replace(" ", "+")), clip_id
        except ValueError:
            before = None
        if before is None or before[0].tzinfo is None or not clip_id or "\0" in clip_id:
            raise InvalidError("before must be the value of `next` of another page.", field="before")
    return queries.ClipFilter(status=query.status, tag=query.tag, before=before, limit=query.limit + 1)


def build_not_found_error(clip_id: str) -> NotFoundError:
    """Return the error for a clip that does not exist or belongs to another user."""
    return NotFoundError(f"Clip {clip_id[:64]!r} does not exist.")


async def _load_clip(request: Request) -> Clip:
    owner, clip_id = await require_owner_id(request), str(request.path_params["id"])
    row = None
    if "\0" not in clip_id:
        async with transaction_as_caller(request) as connection:
            row = await queries.find_clip(connection, get_systems_schema(request), clip_id, owner)
    if row is None:
        raise build_not_found_error(clip_id)
    [clip] = await build_clips(get_client(request), [row])
    return clip


async def _generate_clip_frames(
    request: Request, viewer: StreamViewer, subscription: ChangeSubscription, clip: Clip
) -> AsyncGenerator[bytes]:
    yield CLIENT_RECONNECT_FRAME
    client, schema = get_client(request), get_systems_schema(request)
    number = 0
    while await viewer.has_access():
        event = "end" if clip.processing_status in FINAL_STATUSES else "progress"
        for frame in encode_event_frames([EventFrame(event, msgspec.to_builtins(clip))], number):
            yield frame
        number += 1
        if event == "end":
            return
        row = None
        while row is None:
            rows = await subscription.take_rows(STREAM_PING_INTERVAL_S)
            row = next((each for each in rows if each["id"] == clip.id), None)
            if row is not None or rows:
                continue
            yield b": ping\n\n"
            async with client.connection() as connection:
                if await queries.find_clip(connection, schema, clip.id, str(clip.user_id)) is None:
                    for frame in encode_event_frames([EventFrame("deleted", {"id": clip.id})], number):
                        yield frame
                    return
            if not await viewer.has_access():
                return
        [clip] = await build_clips(client, [row])
