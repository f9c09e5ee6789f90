"""Files that jobs made: who made them, how long they stay, what they cost."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from urllib.parse import quote

from starlette.exceptions import HTTPException
from starlette.responses import Response, StreamingResponse

from holdfast.dashboard.registry import deed, download, screen
from holdfast.dashboard.site import Deed, Page, View
from holdfast.engine import artifacts, insight
from holdfast.model import Artifact
from holdfast.storage import Store

LIMIT = 50


@screen("/files", "artifact.view")
async def files(view: View) -> Page:
    found = await insight.files_page(view.connection, owner=view.tenant, before=view.before)
    rows = found["files"]
    following = rows[-1]["id"] if len(rows) == LIMIT else None
    return Page(
        "files.html", "Files", {**found, "next": following, "stored": view.site.services.store is not None}
    )


async def _visible(view: View) -> Artifact:
    found = await artifacts.get_artifact(view.connection, view.uuid())
    if not view.owns(found.owner):
        raise HTTPException(404, "There is no such file.")
    return found


@download("/files/{id}/content", "artifact.download")
async def content(view: View) -> Response:
    """Always as an attachment and never with a type that a browser would run."""
    store = view.site.services.store
    if store is None:
        raise HTTPException(404, "This server has no store of files.")
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


@deed("/files/{id}/delete", "artifact.delete")
async def delete(asked: Deed) -> tuple[str, str]:
    found = await _visible(asked.view)
    done = await artifacts.delete_artifact(asked.connection, found.id)
    await asked.audit("artifact.delete", found.id, name=found.name, changed=done)
    return "/files", f"{found.name} is deleted."
