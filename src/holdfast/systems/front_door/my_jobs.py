"""Endpoints of the page of a user's jobs: a list over all systems, and a stream of the progress."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from holdfast.server import (
    Caller,
    EventFrame,
    EventStreamResponse,
    StreamViewer,
    api_operation,
    encode_event_frames,
    get_client,
    json_response,
    parse_query,
    redact_job,
    require_stream_viewer,
    reserve_stream_slot,
    transaction_as_caller,
)
from holdfast.systems.front_door.job_feed import JobFeed, JobRow, JobWatch, WorkChanges, list_user_items
from holdfast.systems.page_routes import SystemPage, list_pages
from holdfast.systems.request_context import get_systems_schema, require_owner_id
from holdfast.systems.user_items import UserItem

MY_JOBS_API_PATH = "/api/v1/my/jobs"
STREAM_PING_INTERVAL_S = 15.0
CLIENT_RECONNECT_FRAME = b"retry: 2000\n\n"  # milliseconds


class MyJobsQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Query parameters of a page of jobs. `before` is the `next` value of the previous page."""

    before: UUID | None = None
    limit: Annotated[int, Meta(ge=1, le=200)] = 50


class MyJob(msgspec.Struct, kw_only=True, rename="camel"):
    """A job as its user reads it. `page` is the path of the system's page, `title` what the job makes."""

    id: UUID
    title: str
    page: str | None
    status: str
    percent: float | None
    message: str | None
    error: str | None
    created_at: datetime
    finished_at: datetime | None
    can_cancel: bool
    can_retry: bool


class MyJobsPage(msgspec.Struct, kw_only=True):
    """A page of jobs, newest first. Send `next` as `before` to get the next page; it is null on the last.

    `items` are the newest bookmarks, clips and other work that is not a job. Only the first page has them.
    """

    jobs: list[MyJob]
    items: list[UserItem]
    next: UUID | None


class MyJobsEndpoints:
    """The list and the stream. One feed serves all open pages of the process."""

    def __init__(self) -> None:
        self._feed = JobFeed()

    def create_routes(self) -> list[BaseRoute]:
        """Create the routes of the user's jobs."""
        list_operation = api_operation(
            "List your jobs of all systems",
            tag="my jobs",
            scope="jobs",
            query=MyJobsQuery,
            response=MyJobsPage,
        )
        stream_operation = api_operation(
            "Stream the progress of your jobs", tag="my jobs", scope="jobs", media_type="text/event-stream"
        )
        return [
            Route(MY_JOBS_API_PATH, list_operation(self.list_jobs), methods=["GET"]),
            Route(f"{MY_JOBS_API_PATH}/stream", stream_operation(self.stream_jobs), methods=["GET"]),
        ]

    async def list_jobs(self, request: Request) -> Response:
        owner, query = await require_owner_id(request), parse_query(request, MyJobsQuery)
        async with transaction_as_caller(request) as connection:
            text = await connection.fetchval(
                "select holdfast.list_jobs_page($1, $2, $3)",
                *(msgspec.json.encode({"owner": owner}).decode(), query.before, query.limit),
            )
            schema, pages = get_systems_schema(request), list_pages(request)
            items = [] if query.before else await list_user_items(connection, schema, [owner], pages)
        page = msgspec.json.decode(text)
        jobs = build_my_jobs(page["rows"], owner, pages)
        next_before = UUID(page["next"]) if page["next"] else None
        return json_response(MyJobsPage(jobs=jobs, items=items, next=next_before))

    async def stream_jobs(self, request: Request) -> Response:
        """Stream events: `jobs` has the newest jobs, then those that have changed; `items` has all items."""
        owner = await require_owner_id(request)
        viewer = await require_stream_viewer(request, UUID(owner))
        release_slot = reserve_stream_slot(request, viewer)
        watch = self._feed.watch(get_client(request), owner, list_pages(request))

        def close_stream() -> None:
            self._feed.unwatch(watch)
            release_slot()

        frames = _generate_job_frames(viewer, watch, list_pages(request))
        return EventStreamResponse(frames, viewer.headers, close_stream)


async def _generate_job_frames(
    viewer: StreamViewer, watch: JobWatch, pages: Sequence[SystemPage]
) -> AsyncGenerator[bytes]:
    yield CLIENT_RECONNECT_FRAME
    yield b": connected\n\n"
    while await viewer.has_access():
        changes = await watch.take_changes(STREAM_PING_INTERVAL_S)
        if changes is None:
            yield b": ping\n\n"
            continue
        for frame in encode_event_frames(_build_frames(changes, watch.owner, pages), None):
            yield frame


def _build_frames(changes: WorkChanges, owner: str, pages: Sequence[SystemPage]) -> list[EventFrame]:
    frames: list[EventFrame] = []
    if changes.jobs:
        jobs = build_my_jobs(changes.jobs, owner, pages)
        frames.append(EventFrame("jobs", {"jobs": msgspec.to_builtins(jobs)}))
    if changes.items is not None:
        frames.append(EventFrame("items", {"items": msgspec.to_builtins(changes.items)}))
    return frames


def build_my_jobs(rows: Sequence[JobRow], owner: str, pages: Sequence[SystemPage]) -> list[MyJob]:
    """Build the views of jobs of the engine. Errors are those that a user may read."""
    page_by_type = {job_type: page for page in pages for job_type in page.job_titles}
    return [
        _build_my_job(redact_job(row, Caller("user", owner)), page_by_type.get(row["type"])) for row in rows
    ]


def _build_my_job(job: dict[str, Any], page: SystemPage | None) -> MyJob:
    status: str = job["status"]
    progress: dict[str, Any] = job["progress"] or {}
    error: dict[str, Any] = job["error"] or {}
    return MyJob(
        id=UUID(job["id"]),
        title=page.job_titles[job["type"]] if page else job["type"].replace("_", " ").capitalize(),
        page=page.path if page else None,
        status=status,
        percent=100 if status == "succeeded" else progress.get("percent"),
        message=progress.get("message") or progress.get("phase"),
        error=error.get("message"),
        created_at=msgspec.convert(job["created_at"], datetime),
        finished_at=msgspec.convert(job["finished_at"], datetime | None),
        can_cancel=status in ("queued", "running"),
        can_retry=status in ("failed", "partial", "cancelled"),
    )
