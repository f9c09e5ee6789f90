"""Endpoints for files of jobs: list, link, delete, regenerate, usage, ZIP archives."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any
from uuid import UUID

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from holdfast.engine import artifacts, jobs, quotas
from holdfast.errors import NotFoundError
from holdfast.model import Artifact
from holdfast.server.api.audit import record_service_action
from holdfast.server.api.batches import build_batch_manifest
from holdfast.server.api.file_links import create_file_link
from holdfast.server.api.identity import identify_caller, transaction_as_caller
from holdfast.server.api.json_responses import json_response
from holdfast.server.api.operations import api_operation
from holdfast.server.api.request_parsing import parse_path_uuid, parse_query
from holdfast.server.api.services import get_services
from holdfast.server.api.zip_archives import ZipEntry, make_zip_entry, zip_response
from holdfast.storage.public_links import build_public_link

FILES_PER_ZIP_QUERY = 50
_FILE_ENDPOINT_OPTIONS: dict[str, Any] = {"tag": "files", "scope": "files"}
_FILE_NOT_FOUND_RESPONSES = {404: "The file does not exist", 410: "The file has expired or was deleted"}


class ArtifactView(msgspec.Struct, kw_only=True):
    """A file of a job. `url` redirects to a signed link to the content."""

    id: UUID
    job_id: UUID
    task_id: UUID | None
    kind: str
    name: str
    content_type: str
    size: int
    sha256: str
    meta: dict[str, Any]
    downloads: int
    created_at: datetime
    expires_at: datetime | None
    url: str


class ArtifactListPage(msgspec.Struct, kw_only=True):
    """A page of files, of a job or of an owner.

    Send `next` as `after` (files of a job) or as `before` (files of an owner) to get the next page. `next` is
    null on the last page.
    """

    artifacts: list[ArtifactView]
    next: UUID | None = None


class ArtifactListQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Query parameters for a page of files. `after` is the `next` value of the previous page."""

    after: UUID | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


class OwnedFilesQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Query parameters for a page of the files of an owner.

    `before` is the `next` value of the previous page. Only services may set `owner`; users see their
    own files.
    """

    owner: Annotated[str, Meta(max_length=500)] | None = None
    before: UUID | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


class FileLinkQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Query parameters of a link to a file.

    The link works for `expires_s` seconds. With `inline`, browsers show the file instead of saving it.
    """

    expires_s: Annotated[int, Meta(ge=300, le=3600)] = 3600
    inline: bool = False


class FileLink(msgspec.Struct, kw_only=True):
    """A signed link. Anyone who has the link can download the file until `expires_at`."""

    url: str
    expires_at: datetime


class FileRegeneration(msgspec.Struct, kw_only=True):
    """Result of regenerating a file: the job, its status, and how many of its tasks run again."""

    job_id: UUID
    restarted: int
    status: str


class OwnerUsageQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Query parameters of the usage report. Only services may set `owner`; users see their own usage."""

    owner: Annotated[str, Meta(max_length=500)] | None = None


class QuotaUsage(msgspec.Struct, kw_only=True):
    """The used amount of one quota and its limit. A null limit means unlimited."""

    used: int
    limit: int | None


class OwnerUsage(msgspec.Struct, kw_only=True):
    """The quotas of an owner and their use. `operations` counts the jobs that were submitted today (UTC)."""

    owner: str | None
    bytes: QuotaUsage
    files: QuotaUsage
    operations: QuotaUsage


@api_operation(
    "List the files of a job, oldest first",
    query=ArtifactListQuery,
    response=ArtifactListPage,
    **_FILE_ENDPOINT_OPTIONS,
)
async def list_job_files(request: Request) -> Response:
    query, job_id = parse_query(request, ArtifactListQuery), parse_path_uuid(request)
    async with transaction_as_caller(request) as connection:
        files = await artifacts.list_artifacts(
            connection, {"job": job_id}, after=query.after, limit=query.limit
        )
        if not files and await jobs.get_job(connection, job_id) is None:
            raise NotFoundError(f"Job {job_id} does not exist.")
    next_after = files[-1].id if len(files) == query.limit else None
    views = [_build_artifact_view(request, file) for file in files]
    return json_response(ArtifactListPage(artifacts=views, next=next_after))


def _build_artifact_view(request: Request, file: Artifact) -> ArtifactView:
    fields = {name: getattr(file, name) for name in ArtifactView.__struct_fields__ if name != "url"}
    return ArtifactView(
        **fields, url=build_public_link(get_services(request).settings, f"/api/artifacts/{file.id}")
    )


@api_operation(
    "List your files, newest first",
    query=OwnedFilesQuery,
    response=ArtifactListPage,
    **_FILE_ENDPOINT_OPTIONS,
)
async def list_owned_files(request: Request) -> Response:
    query = parse_query(request, OwnedFilesQuery)
    async with transaction_as_caller(request) as connection:
        files = await artifacts.list_artifacts(
            connection, {"owner": query.owner, "before": query.before}, limit=query.limit
        )
    next_before = files[-1].id if len(files) == query.limit else None
    views = [_build_artifact_view(request, file) for file in files]
    return json_response(ArtifactListPage(artifacts=views, next=next_before))


@api_operation(
    "Download a file: redirect to a new signed link",
    query=FileLinkQuery,
    status=302,
    other_responses=_FILE_NOT_FOUND_RESPONSES,
    **_FILE_ENDPOINT_OPTIONS,
)
async def redirect_to_file(request: Request) -> Response:
    query = parse_query(request, FileLinkQuery)
    file = await _get_file_and_count_download(request)
    lifetime = timedelta(seconds=query.expires_s)
    url = await create_file_link(request, file, lifetime, inline=query.inline)
    return RedirectResponse(url, 302, {"cache-control": "no-store"})


@api_operation(
    "Create a signed link to a file that is valid for 5 minutes to 1 hour",
    query=FileLinkQuery,
    response=FileLink,
    other_responses=_FILE_NOT_FOUND_RESPONSES,
    **_FILE_ENDPOINT_OPTIONS,
)
async def create_download_link(request: Request) -> Response:
    query = parse_query(request, FileLinkQuery)
    file = await _get_file_and_count_download(request)
    lifetime = timedelta(seconds=query.expires_s)
    expires_at = datetime.now(UTC) + lifetime
    url = await create_file_link(request, file, lifetime, inline=query.inline)
    return json_response(FileLink(url=url, expires_at=min(expires_at, file.expires_at or expires_at)))


async def _get_file_and_count_download(request: Request) -> Artifact:
    """Return the file with the id in the path, and count a download unless the method is HEAD."""
    file_id = parse_path_uuid(request)
    if (await identify_caller(request)).kind == "user":
        async with transaction_as_caller(request) as connection:
            await artifacts.get_artifact(connection, file_id)  # 404 or 410 if the user cannot see it
    async with transaction_as_caller(request, as_service=True) as connection:
        if request.method == "HEAD":
            return await artifacts.get_artifact(connection, file_id)
        return await artifacts.increment_artifact_downloads(connection, file_id)


@api_operation(
    "Delete a file",
    status=204,
    other_responses={404: "The file does not exist", 410: "The file was deleted before"},
    **_FILE_ENDPOINT_OPTIONS,
)
async def delete_file(request: Request) -> Response:
    file_id = parse_path_uuid(request)
    async with transaction_as_caller(request) as connection:
        await artifacts.get_artifact(connection, file_id)
        await artifacts.delete_artifact(connection, file_id)
        await record_service_action(request, connection, "artifact.delete", file_id)
    return Response(status_code=204)


@api_operation(
    "Regenerate a file by running its task again",
    response=FileRegeneration,
    status=202,
    other_responses={
        404: "The task that saved the file is no longer stored",
        409: "The file is being regenerated already",
    },
    **_FILE_ENDPOINT_OPTIONS,
)
async def regenerate_file(request: Request) -> Response:
    file_id = parse_path_uuid(request)
    async with transaction_as_caller(request) as connection:
        regeneration = await artifacts.regenerate_artifact(connection, file_id)
        await record_service_action(request, connection, "artifact.regenerate", file_id)
    return json_response(msgspec.convert(regeneration, FileRegeneration), 202)


@api_operation(
    "Get the quotas of an owner and their use",
    query=OwnerUsageQuery,
    response=OwnerUsage,
    **_FILE_ENDPOINT_OPTIONS,
)
async def get_owner_usage(request: Request) -> Response:
    query = parse_query(request, OwnerUsageQuery)
    async with transaction_as_caller(request) as connection:
        usage = await quotas.get_owner_usage(connection, query.owner)
    return json_response(msgspec.convert(usage, OwnerUsage))


@api_operation(
    "Download all files of a job as a ZIP archive",
    media_type="application/zip",
    other_responses={404: "The job does not exist"},
    **_FILE_ENDPOINT_OPTIONS,
)
async def download_job_zip(request: Request) -> Response:
    job_id = parse_path_uuid(request)
    filters = {"job": job_id, "owner": (await identify_caller(request)).owner}
    first_page = await _list_zipped_files(request, filters)
    if not first_page:
        async with transaction_as_caller(request) as connection:
            if await jobs.get_job(connection, job_id) is None:
                raise NotFoundError(f"Job {job_id} does not exist.")
    return zip_response(_generate_zip_entries(request, filters, first_page), f"{job_id}.zip")


@api_operation(
    "Download all files of a batch as a ZIP archive",
    media_type="application/zip",
    other_responses={404: "The batch does not exist"},
    **_FILE_ENDPOINT_OPTIONS,
)
async def download_batch_zip(request: Request) -> Response:
    batch_id = parse_path_uuid(request)
    owner = (await identify_caller(request)).owner
    async with transaction_as_caller(request) as connection:
        if await jobs.get_batch(connection, batch_id) is None:
            raise NotFoundError(f"Batch {batch_id} does not exist.")

    async def build_manifest_fields() -> dict[str, Any]:
        async with transaction_as_caller(request, as_service=True) as connection:
            return await build_batch_manifest(connection, batch_id, owner)

    filters = {"batch": batch_id, "owner": owner}
    entries = _generate_zip_entries(request, filters, await _list_zipped_files(request, filters))
    return zip_response(entries, f"{batch_id}.zip", build_manifest_fields)


async def _list_zipped_files(
    request: Request, filters: dict[str, Any], after: UUID | None = None
) -> list[Artifact]:
    """List a page of files with their object keys, which users may not read. `filters` names the owner."""
    async with transaction_as_caller(request, as_service=True) as connection:
        return await artifacts.list_artifacts(connection, filters, after=after, limit=FILES_PER_ZIP_QUERY)


async def _generate_zip_entries(
    request: Request, filters: dict[str, Any], first_page: Sequence[Artifact]
) -> AsyncGenerator[ZipEntry]:
    """Yield the ZIP entries of all matching files. Files are read page by page while the archive is sent."""
    store = get_services(request).get_store()
    page = first_page
    while page:
        for file in page:
            yield make_zip_entry(store, file)
        page = await _list_zipped_files(request, filters, page[-1].id)


def build_file_routes() -> list[BaseRoute]:
    return [
        Route("/api/jobs/{id}/artifacts", list_job_files, methods=["GET"]),
        Route("/api/jobs/{id}/zip", download_job_zip, methods=["GET"]),
        Route("/api/batches/{id}/zip", download_batch_zip, methods=["GET"]),
        Route("/api/artifacts", list_owned_files, methods=["GET"]),
        Route("/api/artifacts/{id}", redirect_to_file, methods=["GET"]),
        Route("/api/artifacts/{id}", delete_file, methods=["DELETE"]),
        Route("/api/artifacts/{id}/link", create_download_link, methods=["GET"]),
        Route("/api/artifacts/{id}/regenerate", regenerate_file, methods=["POST"]),
        Route("/api/usage", get_owner_usage, methods=["GET"]),
    ]
