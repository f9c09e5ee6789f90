"""Files over HTTP: what a job left, links to it, many as one ZIP, and the bytes themselves."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any
from urllib.parse import quote
from uuid import UUID

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from holdfast.engine import artifacts, jobs
from holdfast.errors import GoneError, NotFoundError
from holdfast.model import Artifact
from holdfast.server.api.batches import describe_batch
from holdfast.server.api.identity import identify_caller, transaction_as_caller
from holdfast.server.api.json_responses import json_response
from holdfast.server.api.operations import api_operation
from holdfast.server.api.request_parsing import parse_path_uuid, parse_query
from holdfast.server.api.services import AppServices, get_services
from holdfast.server.api.zip_archives import ZipEntry, make_zip_entry, zip_response
from holdfast.storage import ObjectStore
from holdfast.storage.file_names import format_content_disposition
from holdfast.storage.signed_links import LinkGrant, LinkSigner, check_link_lifetime

# A file is shown, if at all, where no script of it can run and nothing of ours can be reached.
SANDBOX = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src 'self' data:; media-src 'self'"
PAGE = 50
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


class ArtifactView(msgspec.Struct, kw_only=True):
    """`url` answers with a redirect to a fresh link."""

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


class ArtifactPage(msgspec.Struct, kw_only=True):
    artifacts: list[ArtifactView]
    next: UUID | None = None


class PageQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    after: UUID | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


class LinkQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    expires_s: Annotated[int, Meta(ge=300, le=3600)] = 3600
    inline: bool = False


class Link(msgspec.Struct, kw_only=True):
    url: str
    expires_at: datetime


class Remade(msgspec.Struct, kw_only=True):
    job_id: UUID
    restarted: int
    status: str


class UsageQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    owner: Annotated[str, Meta(max_length=500)] | None = None


class Figure(msgspec.Struct, kw_only=True):
    used: int
    limit: int | None


class Usage(msgspec.Struct, kw_only=True):
    owner: str | None
    bytes: Figure
    files: Figure
    operations: Figure


def _signer(services: AppServices) -> LinkSigner:
    return LinkSigner.from_settings(services.settings)


async def link_to(request: Request, file: Artifact, expires: timedelta, *, inline: bool = False) -> str:
    """A fresh link for whoever has it: of the store, or to this application where the store makes none."""
    services = get_services(request)
    store = services.get_store()
    if store.can_sign_urls and not inline:
        left = file.expires_at - datetime.now(UTC) if file.expires_at else expires
        return await store.sign_url(
            file.key, max(min(check_link_lifetime(expires), left), timedelta(seconds=1))
        )
    word = _signer(services).sign(file, expires, inline=inline)
    return f"{request.scope.get('root_path', '')}/files/{quote(word)}"


@api_operation(
    "The files that a job left, oldest first",
    tag="files",
    scope="files",
    query=PageQuery,
    response=ArtifactPage,
)
async def of_job(request: Request) -> Response:
    query, job = parse_query(request, PageQuery), parse_path_uuid(request, "id")
    async with transaction_as_caller(request) as connection:
        found = await artifacts.list_artifacts(connection, {"job": job}, after=query.after, limit=query.limit)
        if not found and await jobs.get_job(connection, job) is None:
            raise NotFoundError("There is no such job.")
    following = found[-1].id if len(found) == query.limit else None
    return json_response(ArtifactPage(artifacts=[_view(request, each) for each in found], next=following))


def _view(request: Request, file: Artifact) -> ArtifactView:
    known = {name: getattr(file, name) for name in ArtifactView.__struct_fields__ if name != "url"}
    return ArtifactView(**known, url=f"{request.scope.get('root_path', '')}/api/artifacts/{file.id}")


@api_operation(
    "Fetch a file: a redirect to a fresh link",
    tag="files",
    scope="files",
    query=LinkQuery,
    status=302,
    other_responses={404: "There is no such file", 410: "It has expired, or was deleted"},
)
async def fetch(request: Request) -> Response:
    query = parse_query(request, LinkQuery)
    file = await _fetched(request)
    link = await link_to(request, file, timedelta(seconds=query.expires_s), inline=query.inline)
    return RedirectResponse(link, 302, {"cache-control": "no-store"})


@api_operation(
    "A fresh link to a file, for 5 minutes to an hour",
    tag="files",
    scope="files",
    query=LinkQuery,
    response=Link,
    other_responses={404: "There is no such file", 410: "It has expired, or was deleted"},
)
async def link(request: Request) -> Response:
    query = parse_query(request, LinkQuery)
    file = await _fetched(request)
    span = timedelta(seconds=query.expires_s)
    until = datetime.now(UTC) + span
    url = await link_to(request, file, span, inline=query.inline)
    return json_response(Link(url=url, expires_at=min(until, file.expires_at or until)))


async def _fetched(request: Request) -> Artifact:
    file_id = parse_path_uuid(request, "id")
    async with transaction_as_caller(request) as connection:
        if request.method == "HEAD":
            return await artifacts.get_artifact(connection, file_id)
        return await artifacts.count_artifact_download(connection, file_id)


@api_operation(
    "Delete a file",
    tag="files",
    scope="files",
    status=204,
    other_responses={404: "There is no such file", 410: "It is gone already"},
)
async def delete(request: Request) -> Response:
    file_id = parse_path_uuid(request, "id")
    async with transaction_as_caller(request) as connection:
        await artifacts.get_artifact(connection, file_id)
        await artifacts.delete_artifact(connection, file_id)
    return Response(status_code=204)


@api_operation(
    "Make a file again: run the task anew that saved it",
    tag="files",
    scope="files",
    response=Remade,
    status=202,
    other_responses={404: "Nobody remembers how it was made", 409: "It is being made"},
)
async def remake(request: Request) -> Response:
    async with transaction_as_caller(request) as connection:
        made = await artifacts.regenerate_artifact(connection, parse_path_uuid(request, "id"))
    return json_response(msgspec.convert(made, Remade), 202)


@api_operation(
    "What an owner has, and may have", tag="files", scope="files", query=UsageQuery, response=Usage
)
async def usage(request: Request) -> Response:
    query = parse_query(request, UsageQuery)
    async with transaction_as_caller(request) as connection:
        return json_response(msgspec.convert(await artifacts.get_usage(connection, query.owner), Usage))


@api_operation(
    "All files of a job as a ZIP",
    tag="files",
    scope="files",
    media_type="application/zip",
    other_responses={404: "No such job"},
)
async def zip_of_job(request: Request) -> Response:
    job = parse_path_uuid(request, "id")
    async with transaction_as_caller(request) as connection:
        first = await artifacts.list_artifacts(connection, {"job": job}, limit=PAGE)
        if not first and await jobs.get_job(connection, job) is None:
            raise NotFoundError("There is no such job.")
    return zip_response(_entries(request, {"job": job}, first), f"{job}.zip")


@api_operation(
    "All files of a batch as a ZIP",
    tag="files",
    scope="files",
    media_type="application/zip",
    other_responses={404: "No such batch"},
)
async def zip_of_batch(request: Request) -> Response:
    batch = parse_path_uuid(request, "id")
    async with transaction_as_caller(request) as connection:
        first = await artifacts.list_artifacts(connection, {"batch": batch}, limit=PAGE)
        if await jobs.get_batch(connection, batch) is None:
            raise NotFoundError("There is no such batch.")

    async def about() -> dict[str, Any]:
        async with transaction_as_caller(request) as connection:
            return await describe_batch(connection, batch)

    return zip_response(_entries(request, {"batch": batch}, first), f"{batch}.zip", about)


async def _entries(
    request: Request, where: dict[str, Any], page: Sequence[Artifact]
) -> AsyncGenerator[ZipEntry]:
    """All files, page by page: the archive begins before the last of them is known."""
    services = get_services(request)
    store = services.get_store()
    where = {**where, "owner": (await identify_caller(request)).owner}
    while page:
        for file in page:
            yield make_zip_entry(store, file)
        async with services.database.connection() as connection:
            page = await artifacts.list_artifacts(connection, where, after=page[-1].id, limit=PAGE)


@api_operation(
    "The bytes of a file, for whoever has a link",
    tag="files",
    access="anyone",
    media_type="application/octet-stream",
    other_responses={
        206: "A part",
        404: "No such link",
        410: "The link or the file has expired",
        416: "No such part",
    },
)
async def serve(request: Request) -> Response:
    if request.url.query:
        raise NotFoundError("There is no such link.")
    services = get_services(request)
    grant = _signer(services).verify(request.path_params["signed"])
    async with services.database.connection() as connection:
        file = await artifacts.get_artifact(connection, grant.artifact)
    if file.key != grant.key:
        raise NotFoundError("There is no such link.")
    start, end = _part(request, file)
    headers = _headers(grant, file)
    if (start, end) != (0, file.size):
        headers["content-range"] = f"bytes {start}-{end - 1}/{file.size}"
    if start >= end > 0 or start > file.size:
        return Response(status_code=416, headers={"content-range": f"bytes */{file.size}"})
    headers["content-length"] = str(end - start)
    status = 206 if "content-range" in headers else 200
    if request.method == "HEAD":
        return Response(status_code=status, headers=headers)
    body = _bytes(services.get_store(), file, start, end)
    first = await anext(body, b"")  # so that a store that is away is an answer, not a broken one
    return StreamingResponse(_after(first, body), status, headers)


def _headers(grant: LinkGrant, file: Artifact) -> dict[str, str]:
    return {
        "content-type": grant.content_type,
        "content-disposition": format_content_disposition(grant.name, inline=grant.inline),
        "content-security-policy": SANDBOX,
        "cross-origin-resource-policy": "same-site",
        "cache-control": "private, no-store",
        "accept-ranges": "bytes",
        "etag": f'"{file.sha256}"',
    }


def _part(request: Request, file: Artifact) -> tuple[int, int]:
    """Which bytes are asked for. Several parts at once, and what makes no sense, count as all of it."""
    asked = _RANGE.fullmatch(request.headers.get("range", "").strip())
    condition = request.headers.get("if-range")
    if asked is None or asked[0] == "bytes=-" or condition not in {None, f'"{file.sha256}"'}:
        return 0, file.size
    first, last = asked.groups()
    if not first:
        return max(file.size - int(last), 0) if int(last) else file.size + 1, file.size
    if last and int(last) < int(first):
        return 0, file.size
    start = int(first)
    return (start if start < file.size else file.size + 1), min(
        int(last) + 1 if last else file.size, file.size
    )


async def _bytes(store: ObjectStore, file: Artifact, start: int, end: int) -> AsyncGenerator[bytes]:
    whole = (start, end) == (0, file.size)
    try:
        async with store.open(file.key, start=start, end=None if whole else end) as pieces:
            async for piece in pieces:
                yield piece
    except NotFoundError:
        raise GoneError("The file is gone.") from None


async def _after(first: bytes, rest: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    try:
        yield first
        async for piece in rest:
            yield piece
    finally:
        await rest.aclose()


def routes() -> list[BaseRoute]:
    return [
        Route("/api/jobs/{id}/artifacts", of_job, methods=["GET"]),
        Route("/api/jobs/{id}/zip", zip_of_job, methods=["GET"]),
        Route("/api/batches/{id}/zip", zip_of_batch, methods=["GET"]),
        Route("/api/artifacts/{id}", fetch, methods=["GET"]),
        Route("/api/artifacts/{id}", delete, methods=["DELETE"]),
        Route("/api/artifacts/{id}/link", link, methods=["GET"]),
        Route("/api/artifacts/{id}/remake", remake, methods=["POST"]),
        Route("/api/usage", usage, methods=["GET"]),
        Route("/files/{signed}", serve, methods=["GET"]),
    ]
