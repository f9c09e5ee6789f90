"""Batches of exports: up to ten documents at once, watched together and fetched as one ZIP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any
from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from holdfast.errors import GoneError, NotFoundError
from holdfast.server.api import acting, operation, services_of
from holdfast.server.api.bodies import answer, json_body
from holdfast.server.api.events import EventStream, resume_point, take_place
from holdfast.server.api.frames import Frame, numbered
from holdfast.server.api.hub import Subscription
from holdfast.server.api.tickets import Viewer, viewer_of
from holdfast.server.api.zips import ZipEntry, entry_of, zip_response
from holdfast.systems.desk import client_of, file_name, find_file, owner_of, schema_of
from holdfast.systems.exports import ordering, records
from holdfast.systems.exports.answers import ENDED, fielded, id_in, templates_of
from holdfast.systems.exports.options import BatchBody, read_wanted
from holdfast.systems.exports.templates import DEFAULT

ROOT = "/api/v1/export/batch"
PING_SECONDS = 15.0


class Batches:
    def __init__(self, limits: ordering.Limits) -> None:
        self._limits = limits

    def routes(self) -> list[BaseRoute]:
        def make(endpoint: Any, summary: str, **more: Any) -> Any:
            return operation(summary, tag="exports", scope="jobs", **more)(fielded(endpoint))

        events, zipped = "text/event-stream", "application/zip"
        listed: list[tuple[str, str, Any]] = [
            ("POST", "", make(self.start, "Export up to ten documents", body=BatchBody, status=202)),
            ("GET", "/{id}", make(self.status, "How far a batch is")),
            ("GET", "/{id}/stream", make(self.stream, "Watch a batch", media=events)),
            ("GET", "/{id}/download", make(self.download, "A batch as ZIP", media=zipped)),
        ]
        return [Route(f"{ROOT}{path}", endpoint, methods=[method]) for method, path, endpoint in listed]

    async def start(self, request: Request) -> Response:
        owner, schema = await owner_of(request), schema_of(request)
        wanted = read_wanted(await json_body(request), templates_of(request), DEFAULT, kind="batch")
        async with acting(request) as connection:
            documents = await ordering.documents_of(connection, schema, owner, wanted.documents)
        async with acting(request, as_service=True) as connection:
            made = await ordering.order(connection, schema, owner, documents, wanted, self._limits)
            items = [(each.job_id, each.document.id, each.document.title) for each in made]
            batch = await records.open_batch(connection, schema, owner, items)
        jobs = [{"jobId": job, "documentId": document} for job, document, _ in items]
        return answer({"batchId": batch, "jobs": jobs}, 202, {"Location": f"/api/v1/export/batch/{batch}"})

    async def status(self, request: Request) -> Response:
        return answer(shown(id_in(request, "batch"), await _items(request)))

    async def stream(self, request: Request) -> Response:
        """`progress` at once and after each change, then `completed`. Each frame tells all, and is numbered:
        who comes back with the last number is sent what is newer.
        """
        batch, items, after = id_in(request, "batch"), await _items(request), resume_point(request)
        if after is not None and after >= _number(items) and _over(items):
            return Response(status_code=204)
        viewer, hub = await viewer_of(request, batch), services_of(request).listener
        release = take_place(request, viewer)
        watched = {row["job_id"]: hub.subscribe(row["job_id"]) for row in items}
        for row in items:
            hub.known(row["job_id"], row["event_seq"])

        def close() -> None:
            for job, subscription in watched.items():
                hub.unsubscribe(job, subscription)
            release()

        return EventStream(_frames(request, viewer, watched, after), {}, close)

    async def download(self, request: Request) -> Response:
        """The ZIP, streamed. An incomplete batch is told as 206; `?partial=true` gives what there is."""
        batch, items = id_in(request, "batch"), await _items(request)
        ready = [row for row in items if row["status"] == "completed" and row["artifact_id"]]
        if len(ready) < len(items) and request.query_params.get("partial") != "true":
            told = {
                "completedCount": len(ready),
                "totalCount": len(items),
                "completedJobs": [row["job_id"] for row in ready],
            }
            return answer(told, 206)
        owner, store = await owner_of(request), client_of(request).files.store
        entries: list[ZipEntry] = []
        async with acting(request, as_service=True) as connection:
            for row in ready:
                file = await find_file(connection, row["artifact_id"], owner)
                if file is not None:
                    entries.append(entry_of(store, file, file_name(f"{row['title']}.pdf")))
        if not entries:
            raise GoneError("The files of this batch have expired.", fix="Export the documents again.")
        return zip_response(entries, f"resumes-{batch}.zip")


async def _frames(
    request: Request, viewer: Viewer, watched: dict[UUID, Subscription], after: int | None
) -> AsyncGenerator[bytes]:
    yield b"retry: 2000\n\n"
    batch, sent = id_in(request, "batch"), -1 if after is None else after
    while await viewer.valid():
        items = await _items(request)
        now, number = shown(batch, items), _number(items)
        frames = [Frame("progress", now)] if number > sent else []
        if _over(items):
            frames = [Frame("progress", now), Frame("completed", {**now, "resultUrl": _zip_path(batch)})]
        for frame in numbered(frames, number):
            yield frame
        if _over(items):
            return
        sent = max(sent, number)
        if not await _news([watched[row["job_id"]] for row in items if row["status"] not in ENDED]):
            yield b": ping\n\n"


def _number(items: list[dict[str, Any]]) -> int:
    """Of the state of a batch: how much has happened to its exports. It only ever grows."""
    return sum(row["event_seq"] + (row["status"] in ENDED) for row in items)


def _over(items: list[dict[str, Any]]) -> bool:
    return all(row["status"] in ENDED for row in items)


async def _news(subscriptions: list[Subscription]) -> bool:
    """Until one of the exports has changed."""
    waiting = [asyncio.ensure_future(each.wait(PING_SECONDS)) for each in subscriptions]
    try:
        done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        return any(each.result() for each in done)
    finally:
        for each in waiting:
            each.cancel()
        for subscription in subscriptions:
            subscription.take()


async def _items(request: Request) -> list[dict[str, Any]]:
    owner = await owner_of(request)
    async with acting(request, as_service=True) as connection:
        found = await records.get_batch(connection, schema_of(request), id_in(request, "batch"), owner)
    if not found:
        raise NotFoundError("There is no such batch.")
    return found


def shown(batch: UUID, items: list[dict[str, Any]]) -> dict[str, Any]:
    """Overall progress is completed / total; each document has its own beside it."""
    completed = sum(row["status"] == "completed" for row in items)
    ended = sum(row["status"] in ENDED for row in items)
    return {
        "batchId": str(batch),
        "status": "completed"
        if completed == len(items)
        else "failed"
        if ended == len(items)
        else "processing",
        "progress": round(100 * completed / len(items)),
        "completedCount": completed,
        "totalCount": len(items),
        "jobs": [
            {
                "jobId": str(row["job_id"]),
                "documentId": str(row["document_id"]),
                "title": row["title"],
                "status": row["status"],
                "progress": row["progress"],
                "resultUrl": row["result_url"],
                "error": row["error_message"] if row["status"] in ("failed", "cancelled") else None,
            }
            for row in items
        ],
    }


def _zip_path(batch: UUID) -> str:
    return f"{ROOT}/{batch}/download"
