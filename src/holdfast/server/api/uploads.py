"""Files from workers in other languages: one request a file, fenced by the lease like everything they write.

The bytes go to the store as they come. The file is visible with the success of its task, and swept without
it.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from holdfast.engine import artifacts
from holdfast.errors import HoldfastError
from holdfast.model import Artifact
from holdfast.server.api.external_workers import LeaseText, lease_of
from holdfast.server.api.identity import transaction_as_caller
from holdfast.server.api.json_responses import json_response
from holdfast.server.api.operations import api_operation
from holdfast.server.api.request_parsing import parse_path_name, parse_query
from holdfast.server.api.services import get_store
from holdfast.storage.content import ContentReader, discard_object, merge_metadata, upload_content
from holdfast.storage.file_names import check_file_name, resolve_content_type


class UploadQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    lease: LeaseText
    kind: Annotated[str, Meta(min_length=1, max_length=100)] = "file"
    ttl_s: Annotated[float, Meta(gt=0, le=315360000)] | None = None


@api_operation(
    "Save a file of a running task",
    tag="worker",
    access="service",
    scope="worker",
    query=UploadQuery,
    body=bytes,
    request_media_type="application/octet-stream",
    response=Artifact,
    status=201,
    other_responses={409: "The lease has passed to someone else: stop", 507: "The quota is used up"},
)
async def save(request: Request) -> Response:
    query = parse_query(request, UploadQuery)
    lease, store = lease_of(request, query.lease), get_store(request)
    name = check_file_name(parse_path_name(request))
    given = request.headers.get("content-type")
    content_type = resolve_content_type(name, None if given == "application/octet-stream" else given)
    file = {"name": name, "kind": query.kind, "content_type": content_type, "ttl_s": query.ttl_s}
    async with transaction_as_caller(request) as connection:
        staged = await artifacts.stage(connection, lease, file)
    reader = ContentReader(request.stream())
    reader.max_bytes = staged.most_bytes
    await upload_content(store, staged.key, reader, name=name, content_type=content_type)
    try:
        async with transaction_as_caller(request) as connection:
            made = await artifacts.record(
                connection,
                staged.id,
                lease,
                size=reader.byte_count,
                sha256=reader.sha256,
                meta=merge_metadata(reader.media_metadata, None),
            )
    except HoldfastError as problem:
        if problem.sqlstate:  # the engine has said no; anything else may have been recorded
            await discard_object(store, staged.key)
        raise
    return json_response(made, 201)


def routes() -> list[BaseRoute]:
    return [Route("/api/tasks/{id}/artifacts/{name}", save, methods=["PUT"])]
