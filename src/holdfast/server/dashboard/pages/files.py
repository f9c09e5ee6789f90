"""The file pages: files that jobs created, with previews, retention and storage per owner."""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator
from datetime import timedelta
from urllib.parse import quote

from starlette.exceptions import HTTPException
from starlette.responses import Response, StreamingResponse

from holdfast.engine import artifacts
from holdfast.errors import InvalidError, NotFoundError, StorageError
from holdfast.model import Artifact
from holdfast.server.api.file_links import read_first_chunk
from holdfast.server.dashboard.file_previews import FilePreview, load_file_preview
from holdfast.server.dashboard.registry import register_action, register_download, register_page
from holdfast.server.dashboard.site import ActionRequest, DashboardPage, PageRequest
from holdfast.storage import ObjectStore

FILES_PER_PAGE = 50
MAX_THUMBNAIL_BYTES = 1_000_000  # the browser reads the whole file, up to fifty on a page
RETENTION_OPTIONS_DAYS = {"1 day": 1, "7 days": 7, "30 days": 30, "1 year": 365, "Forever": None}
_EMPTY_PICTURE = base64.b64decode("R0lGODlhAQABAAAAACH5BAEKAAEALAAAAAABAAEAAAICTAEAOw==")
# A previewed file may not run scripts or load anything. The PDF viewers of browsers do not work in a sandbox.
_PREVIEW_CSP = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'self'"


@register_page("/files", "artifact.view", reads_replica=True)
async def list_files(request: PageRequest) -> DashboardPage:
    overview = await artifacts.get_files_overview(
        request.connection, owner=request.tenant, before=request.before_id
    )
    files = overview["files"]
    next_id = files[-1]["id"] if len(files) == FILES_PER_PAGE else None
    return DashboardPage("files.html", "Files", {**overview, "next": next_id})


async def _get_file_or_404(request: PageRequest) -> Artifact:
    file = await artifacts.get_artifact(request.connection, request.parse_id())
    if not request.can_see_owner(file.owner):
        raise HTTPException(404, f"File {file.id} does not exist, or you do not have access to it.")
    return file


@register_page("/files/{id}", "artifact.view")
async def show_file(request: PageRequest) -> DashboardPage:
    file = await _get_file_or_404(request)
    preview, preview_error = None, ""
    if request.can("artifact.download"):
        try:
            preview = await load_file_preview(request.site.services.get_store(), file)
        except NotFoundError:
            preview_error = "The object store no longer has this file."
        except StorageError:
            preview_error = "The object store does not respond."
    return DashboardPage(
        "file.html",
        file.name,
        {
            "file": file,
            "preview": preview,
            "preview_error": preview_error,
            "retentions": RETENTION_OPTIONS_DAYS,
        },
        live=False,
    )


@register_download("/files/{id}/preview", "artifact.download")
async def preview_file(request: PageRequest) -> Response:
    """Send a file for display in the browser, with the detected media type, never the declared one."""
    store, file = request.site.services.get_store(), await _get_file_or_404(request)
    preview = await load_file_preview(store, file)
    if preview is None or preview.kind == "text":
        raise HTTPException(404, "This file has no preview.")
    return await _send_preview(store, file, preview)


@register_download("/files/{id}/thumbnail", "artifact.download")
async def show_thumbnail(request: PageRequest) -> Response:
    """Send a small image file for a list, or an empty picture for a file that is lost or no image.

    An error would be a broken picture in the list, and a line in the console of the browser.
    """
    store, file = request.site.services.get_store(), await _get_file_or_404(request)
    try:
        preview = await load_file_preview(store, file) if file.size <= MAX_THUMBNAIL_BYTES else None
        if preview is not None and preview.kind == "image":
            return await _send_preview(store, file, preview)
    except (NotFoundError, StorageError):
        pass
    return Response(_EMPTY_PICTURE, media_type="image/gif", headers={"content-security-policy": "sandbox"})


async def _send_preview(store: ObjectStore, file: Artifact, preview: FilePreview) -> Response:
    sandbox = "" if preview.kind == "pdf" else "; sandbox"
    return StreamingResponse(
        await read_first_chunk(_read_file_chunks(store, file.key)),
        media_type=preview.media_type,
        headers={
            "content-disposition": "inline",
            "content-length": str(file.size),
            "content-security-policy": _PREVIEW_CSP + sandbox,
            "x-frame-options": "SAMEORIGIN",
        },
    )


@register_download("/files/{id}/content", "artifact.download")
async def download_file(request: PageRequest) -> Response:
    """Send a file as an attachment, with a media type that browsers do not execute."""
    store, file = request.site.services.get_store(), await _get_file_or_404(request)
    content = await read_first_chunk(_read_file_chunks(store, file.key))
    await artifacts.increment_artifact_downloads(request.connection, file.id)
    name = quote(file.name.rpartition("/")[2], safe="")
    return StreamingResponse(
        content,
        media_type="application/octet-stream",
        headers={
            "content-disposition": f"attachment; filename*=UTF-8''{name}",
            "content-length": str(file.size),
            "content-security-policy": "sandbox; default-src 'none'",
        },
    )


async def _read_file_chunks(store: ObjectStore, key: str) -> AsyncGenerator[bytes]:
    async with store.open(key) as chunks:
        async for chunk in chunks:
            yield chunk


@register_action("/files/{id}/keep", "artifact.keep")
async def set_file_retention(action: ActionRequest) -> tuple[str, str]:
    file, retention = await _get_file_or_404(action.request), action.get_required_text("span")
    if retention not in RETENTION_OPTIONS_DAYS:
        raise InvalidError("Choose how long to keep the file.", field="span")
    days = RETENTION_OPTIONS_DAYS[retention]
    until = await artifacts.set_artifact_ttl(
        action.connection, file.id, None if days is None else timedelta(days=days)
    )
    await action.record_audit("artifact.keep", file.id, name=file.name, until=until and until.isoformat())
    expiry = "does not expire" if until is None else f"expires on {until:%Y-%m-%d at %H:%M} UTC"
    return f"/files/{file.id}", f"{file.name} {expiry}."


@register_action("/files/{id}/delete", "artifact.delete")
async def delete_file(action: ActionRequest) -> tuple[str, str]:
    file = await _get_file_or_404(action.request)
    deleted = await artifacts.delete_artifact(action.connection, file.id)
    await action.record_audit("artifact.delete", file.id, name=file.name, changed=deleted)
    return "/files", f"{file.name} deleted."
