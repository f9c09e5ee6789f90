"""One batch: its progress, its jobs and a ZIP archive of their files."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any
from uuid import UUID

from starlette.exceptions import HTTPException
from starlette.responses import Response

from holdfast.engine import artifacts, batches, jobs, search
from holdfast.formatting import format_count
from holdfast.model import Artifact
from holdfast.server.api.batches import build_batch_manifest
from holdfast.server.api.zip_archives import ZipEntry, make_zip_entry, zip_response
from holdfast.server.dashboard.registry import register_action, register_download, register_page
from holdfast.server.dashboard.site import ActionRequest, DashboardPage, DashboardSite, PageRequest

MAX_CANCELLED_JOBS_PER_REQUEST = 1000  # one request cancels in one transaction
ZIP_FILES_PER_QUERY = 200


async def _get_batch_or_404(request: PageRequest) -> dict[str, Any]:
    batch = await jobs.get_batch(request.connection, request.parse_id())
    if batch is None or not request.can_see_owner(batch["owner"]):
        raise HTTPException(
            404, f"Batch {request.parse_id()} does not exist, or you do not have access to it."
        )
    return batch


@register_page("/batches/{id}", "batch.view")
async def show_batch(request: PageRequest) -> DashboardPage:
    batch = await _get_batch_or_404(request)
    result = await search.search_jobs(
        request.connection, f"batch:{request.parse_id()}", before=request.before_id
    )
    states = await batches.list_batch_states(request.connection, [batch])
    values = {"batch": batch, "result": result, "state": states[str(batch["id"])]}
    return DashboardPage("batch.html", f"Batch {batch['name'] or ''}", values)


@register_action("/batches/{id}/cancel", "jobs.cancel")
async def cancel_batch(action: ActionRequest) -> tuple[str, str]:
    batch = await _get_batch_or_404(action.request)
    reason = action.get_text("reason") or None
    count = await jobs.cancel_jobs(
        action.connection, {"batch": batch["id"]}, reason, limit=MAX_CANCELLED_JOBS_PER_REQUEST
    )
    await action.record_audit("batch.cancel", batch["id"], jobs=count)
    more = " There may be more: cancel again." if count == MAX_CANCELLED_JOBS_PER_REQUEST else ""
    return f"/batches/{batch['id']}", f"{format_count(count, 'job')} cancelled.{more}"


@register_download("/batches/{id}/zip", "artifact.download")
async def download_batch_zip(request: PageRequest) -> Response:
    """Stream all files of a batch as a ZIP archive with a manifest."""
    batch = await _get_batch_or_404(request)
    where = {"batch": batch["id"]}
    first_page = await artifacts.list_artifacts(request.connection, where, limit=ZIP_FILES_PER_QUERY)

    async def load_zip_manifest() -> dict[str, Any]:
        async with request.site.transaction() as connection:
            return await build_batch_manifest(connection, UUID(batch["id"]))

    entries = _iterate_zip_entries(request.site, where, first_page)
    return zip_response(entries, f"{batch['id']}.zip", load_zip_manifest)


async def _iterate_zip_entries(
    site: DashboardSite, where: dict[str, str], page: Sequence[Artifact]
) -> AsyncGenerator[ZipEntry]:
    while page:
        for file in page:
            yield make_zip_entry(site.services.get_store(), file)
        async with site.transaction() as connection:
            page = await artifacts.list_artifacts(
                connection, where, after=page[-1].id, limit=ZIP_FILES_PER_QUERY
            )
