"""Endpoint that receives the files of external workers which have no key, by a link with a secret."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from holdfast.errors import NotFoundError, QuotaExceededError
from holdfast.server import api_operation, get_client, get_store, json_response
from holdfast.systems.request_context import get_systems_schema
from holdfast.systems.tables import qualify_tables

UPLOAD_API_PATH = "/api/report-uploads"
MAX_SECRET_CHARS = 64


def create_upload_routes() -> list[BaseRoute]:
    """Create the route that receives files of external workers."""
    operation = api_operation(
        "Upload a file of a report task by a link of create_upload_link",
        tag="reports",
        access="anyone",
        body=bytes,
        request_media_type="application/octet-stream",
        status=201,
    )
    return [Route(f"{UPLOAD_API_PATH}/{{secret}}", operation(receive_file), methods=["PUT"])]


class _MeasuredContent:
    """The chunks of a request body, with their size and checksum once they were read."""

    def __init__(self, request: Request, max_bytes: int | None) -> None:
        self._request = request
        self._max_bytes = max_bytes
        self._digest = hashlib.sha256()
        self.size = 0

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._request.stream():
            self.size += len(chunk)
            if self._max_bytes is not None and self.size > self._max_bytes:
                raise QuotaExceededError("The file is larger than what is left of the owner's storage quota.")
            self._digest.update(chunk)
            if chunk:
                yield chunk


async def receive_file(request: Request) -> Response:
    """Store the body as the file of the link. The file counts once its row is in `job_artifacts`."""
    secret = request.path_params["secret"][:MAX_SECRET_CHARS]
    upload = await _find_upload(request, secret)
    content, store = _MeasuredContent(request, upload["max_bytes"]), get_store(request)
    await store.put(upload["object_key"], content, content_type=upload["content_type"])
    query = qualify_tables("select {}.record_upload($1, $2, $3)", get_systems_schema(request))
    async with get_client(request).transaction() as connection:
        recorded = await connection.fetchval(query, secret, content.size, content.sha256)
    if not recorded:
        raise NotFoundError("The upload link was used already.")
    return json_response({"name": upload["name"], "size": content.size, "sha256": content.sha256}, 201)


async def _find_upload(request: Request, secret: str) -> dict[str, Any]:
    query = qualify_tables("select * from {}.find_upload($1)", get_systems_schema(request))
    async with get_client(request).transaction() as connection:
        row = await connection.fetchrow(query, secret) if secret.isalnum() else None
    if row is None:
        raise NotFoundError("The upload link is not valid, was used or has expired.")
    return dict(row)
