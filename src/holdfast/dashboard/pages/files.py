"""Files that jobs made: who made them, how long they stay, what they cost."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from urllib.parse import quote

from starlette.exceptions import HTTPException
from starlette.responses import Response, StreamingResponse

from holdfast.api.files import store_of
from holdfast.api.zips import ZipEntry, entry_of, zip_response
from holdfast.dashboard.registry import deed, download, screen
from holdfast.dashboard.site import Deed, Page, Site, View
from holdfast.engine import artifacts, insight, jobs
from holdfast.model import Artifact
from holdfast.storage import Store

LIMIT = 50
PAGE = 200


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
    return zip_response(_entries(view.site, where, first), f"{batch['id']}.zip")


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
