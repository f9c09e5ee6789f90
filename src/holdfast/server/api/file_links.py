"""Create signed links to files, and serve files to everyone who has a signed link."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from holdfast.engine import artifacts
from holdfast.errors import GoneError, NotFoundError
from holdfast.model import Artifact
from holdfast.server.api.operations import api_operation
from holdfast.server.api.services import AppServices, get_services
from holdfast.storage import ObjectStore
from holdfast.storage.file_names import format_content_disposition
from holdfast.storage.public_links import build_public_link
from holdfast.storage.signed_links import FileLinkSigner, SignedFileLink, check_link_lifetime

# A file that a browser shows runs no script and cannot reach anything of this origin.
FILE_SECURITY_POLICY = (
    "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src 'self' data:; media-src 'self'"
)
_RANGE_HEADER_PATTERN = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


def _create_link_signer(services: AppServices) -> FileLinkSigner:
    return FileLinkSigner.from_settings(services.settings)


async def create_file_link(
    request: Request, file: Artifact, lifetime: timedelta, *, inline: bool = False
) -> str:
    """Create a signed link to a file, to the object store or to this application.

    The link leads to this application if the object store cannot sign URLs.
    """
    services = get_services(request)
    store = services.get_store()
    if store.can_sign_urls and not inline:
        remaining = file.expires_at - datetime.now(UTC) if file.expires_at else lifetime
        lifetime = max(min(check_link_lifetime(lifetime), remaining), timedelta(seconds=1))
        return await store.sign_url(file.key, lifetime)
    signed = _create_link_signer(services).create_token(file, lifetime, inline=inline)
    return build_public_link(services.settings, f"/files/{quote(signed)}")


@api_operation(
    "Download the content of a file with a signed link",
    tag="files",
    access="public",
    media_type="application/octet-stream",
    other_responses={
        206: "The requested part of the content",
        404: "The link is not valid",
        410: "The link or the file has expired",
        416: "The requested part does not exist",
    },
)
async def serve_signed_file(request: Request) -> Response:
    if request.url.query:
        raise NotFoundError("The download link is not valid.")
    services = get_services(request)
    grant = _create_link_signer(services).verify_token(request.path_params["signed"])
    async with services.database.connection() as connection:
        file = await artifacts.get_artifact(connection, grant.artifact)
    if file.key != grant.key:
        raise NotFoundError("The download link is not valid.")
    start, end = _parse_byte_range(request, file)
    headers = _build_file_headers(grant, file)
    if (start, end) != (0, file.size):
        headers["content-range"] = f"bytes {start}-{end - 1}/{file.size}"
    if start >= end > 0 or start > file.size:
        return Response(status_code=416, headers={"content-range": f"bytes */{file.size}"})
    headers["content-length"] = str(end - start)
    status = 206 if "content-range" in headers else 200
    if request.method == "HEAD":
        return Response(status_code=status, headers=headers)
    chunks = _read_file_chunks(services.get_store(), file, start, end)
    return StreamingResponse(await read_first_chunk(chunks), status, headers)


def _build_file_headers(grant: SignedFileLink, file: Artifact) -> dict[str, str]:
    return {
        "content-type": grant.content_type,
        "content-disposition": format_content_disposition(grant.name, inline=grant.inline),
        "content-security-policy": FILE_SECURITY_POLICY,
        "cross-origin-resource-policy": "same-site",
        "cache-control": "private, no-store",
        "accept-ranges": "bytes",
        "etag": f'"{file.sha256}"',
    }


def _parse_byte_range(request: Request, file: Artifact) -> tuple[int, int]:
    """Return the start and end of the byte range that the `Range` header requests.

    Without a valid single range, return the range of the whole file. A range beyond the end of the file
    starts after its last byte.
    """
    match = _RANGE_HEADER_PATTERN.fullmatch(request.headers.get("range", "").strip())
    condition = request.headers.get("if-range")
    if match is None or match[0] == "bytes=-" or condition not in {None, f'"{file.sha256}"'}:
        return 0, file.size
    first, last = match.groups()
    if not first:  # the last bytes of the file
        return max(file.size - int(last), 0) if int(last) else file.size + 1, file.size
    if last and int(last) < int(first):
        return 0, file.size
    start = int(first) if int(first) < file.size else file.size + 1
    return start, min(int(last) + 1 if last else file.size, file.size)


async def _read_file_chunks(
    store: ObjectStore, file: Artifact, start: int, end: int
) -> AsyncGenerator[bytes]:
    whole = (start, end) == (0, file.size)
    try:
        async with store.open(file.key, start=start, end=None if whole else end) as chunks:
            async for chunk in chunks:
                yield chunk
    except NotFoundError:
        raise GoneError("The file was deleted.") from None


async def read_first_chunk(chunks: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    """Read the first chunk of a file and return the whole file.

    Before the response starts, a missing file or an unavailable store can still become an error response.
    """
    return _prepend_chunk(await anext(chunks, b""), chunks)


async def _prepend_chunk(first: bytes, chunks: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    try:
        yield first
        async for chunk in chunks:
            yield chunk
    finally:
        await chunks.aclose()


def build_signed_file_routes() -> list[BaseRoute]:
    return [Route("/files/{signed}", serve_signed_file, methods=["GET"])]
