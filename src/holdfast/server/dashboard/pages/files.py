"""Files that jobs made: what is in them, who made them, how long they stay, what they cost."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from datetime import timedelta
from typing import Any
from urllib.parse import quote
from uuid import UUID

from starlette.exceptions import HTTPException
from starlette.responses import Response, StreamingResponse

from holdfast.engine import artifacts, insight, jobs
from holdfast.errors import InvalidError, NotFoundError, StorageError
from holdfast.model import Artifact
from holdfast.server.api.batches import batch_told
from holdfast.server.api.files import store_of
from holdfast.server.api.zips import ZipEntry, entry_of, zip_response
from holdfast.server.dashboard.previews import preview_of
from holdfast.server.dashboard.registry import deed, download, screen
from holdfast.server.dashboard.site import Deed, Page, Site, View
from holdfast.storage import Store

LIMIT = 50
AWAY = "The store of files does not answer."
PAGE = 200
KEEP = {"1 day": 1, "7 days": 7, "30 days": 30, "1 year": 365, "for ever": None}
# Nothing in a file may run or reach anything. PDF viewers of browsers are plug-ins: no sandbox lets them in.
_SAFELY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'self'"


@screen("/files", "artifact.view")
async def files(view: View) -> Page:
    found = await insight.files_page(view.connection, owner=view.tenant, before=view.before)
    rows = found["files"]
    following = rows[-1]["id"] if len(rows) == LIMIT else None
    return Page("files.html", "Files", {**found, "next": following})


async def _visible(view: View) -> Artifact:
    found = await artifacts.get_artifact(view.connection, view.uuid())
    if not view.owns(found.owner):
        raise HTTPException(404, "There is no such file.")
    return found


@screen("/files/{id}", "artifact.view")
async def one(view: View) -> Page:
    file = await _visible(view)
    shown, trouble = None, ""
    if view.may("artifact.download"):
        try:
            shown = await preview_of(store_of(view.site.services), file)
        except (StorageError, NotFoundError) as problem:
            trouble = "The store does not have it any more." if isinstance(problem, NotFoundError) else AWAY
    return Page(
        "file.html", file.name, {"file": file, "shown": shown, "trouble": trouble, "keep": KEEP}, live=False
    )


@download("/files/{id}/preview", "artifact.download")
async def preview(view: View) -> Response:
    """The bytes for the browser's own viewers, with our word for their type."""
    store, file = store_of(view.site.services), await _visible(view)
    found = await preview_of(store, file)
    if found is None or found.kind == "text":
        raise HTTPException(404, "There is no preview of this file.")
    sandbox = "" if found.kind == "pdf" else "; sandbox"
    return StreamingResponse(
        _pieces(store, file.key),
        media_type=found.media_type,
        headers={
            "content-disposition": "inline",
            "content-length": str(file.size),
            "content-security-policy": _SAFELY + sandbox,
            "x-frame-options": "SAMEORIGIN",
        },
    )


@deed("/files/{id}/keep", "artifact.keep")
async def keep(asked: Deed) -> tuple[str, str]:
    found, chosen = await _visible(asked.view), asked.needed("span")
    if chosen not in KEEP:
        raise InvalidError("Choose how long.", field="span")
    days = KEEP[chosen]
    until = await artifacts.keep_artifact(
        asked.connection, found.id, None if days is None else timedelta(days=days)
    )
    await asked.audit("artifact.keep", found.id, name=found.name, until=until and until.isoformat())
    lasts = "for ever" if until is None else f"until {until:%Y-%m-%d %H:%M} UTC"
    return f"/files/{found.id}", f"{found.name} is kept {lasts}."


@download("/files/{id}/content", "artifact.download")
async def content(view: View) -> Response:
    """Always as an attachment and never with a type that a browser would run."""
    store = store_of(view.site.services)
    found = await _visible(view)
    await artifacts.count_download(view.connection, found.id)
    name = quote(found.name.rpartition("/")[2], safe="")
    return StreamingResponse(
        _pieces(store, found.key),
        media_type="application/octet-stream",
        headers={
            "content-disposition": f"attachment; filename*=UTF-8''{name}",
            "content-length": str(found.size),
            "content-security-policy": "sandbox; default-src 'none'",
        },
    )


async def _pieces(store: Store, key: str) -> AsyncGenerator[bytes]:
    async with store.open(key) as pieces:
        async for piece in pieces:
            yield piece


@download("/batches/{id}/zip", "artifact.download")
async def zip_of_batch(view: View) -> Response:
    """All files of a batch, written while they are read, with a manifest."""
    batch = await jobs.get_batch(view.connection, view.uuid())
    if batch is None or not view.owns(batch["owner"]):
        raise HTTPException(404, "There is no such batch.")
    where = {"batch": batch["id"]}
    first = await artifacts.list_artifacts(view.connection, where, limit=PAGE)

    async def about() -> dict[str, Any]:
        async with view.site.transaction() as connection:
            return await batch_told(connection, UUID(batch["id"]))

    return zip_response(_entries(view.site, where, first), f"{batch['id']}.zip", about)


async def _entries(site: Site, where: dict[str, str], page: Sequence[Artifact]) -> AsyncGenerator[ZipEntry]:
    while page:
        for file in page:
            yield entry_of(store_of(site.services), file)
        async with site.transaction() as connection:
            page = await artifacts.list_artifacts(connection, where, after=page[-1].id, limit=PAGE)


@deed("/files/{id}/delete", "artifact.delete")
async def delete(asked: Deed) -> tuple[str, str]:
    found = await _visible(asked.view)
    done = await artifacts.delete_artifact(asked.connection, found.id)
    await asked.audit("artifact.delete", found.id, name=found.name, changed=done)
    return "/files", f"{found.name} is deleted."
