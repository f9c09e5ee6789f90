"""Receive the files that external workers save for their tasks.

The content is streamed to the object store. The file becomes visible when its task succeeds. If the task does
not succeed, the file is deleted.
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
from holdfast.server.api.external_workers import LEASE_LOST_RESPONSE, LeaseText, parse_lease
from holdfast.server.api.identity import transaction_as_caller
from holdfast.server.api.json_responses import json_response
from holdfast.server.api.operations import api_operation
from holdfast.server.api.request_parsing import parse_path_name, parse_query
from holdfast.server.api.services import get_store
from holdfast.storage.content import ContentReader, discard_object, merge_file_metadata, upload_content
from holdfast.storage.file_names import check_file_name, resolve_content_type


class UploadFileQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Query parameters for saving a file of a running task.

    `lease` is the lease of the task. The file expires after `ttl_s` seconds. The default is no expiry.
    """

    lease: LeaseText
    kind: Annotated[str, Meta(min_length=1, max_length=100)] = "file"
    ttl_s: Annotated[float, Meta(gt=0, le=315360000)] | None = None


@api_operation(
    "Save a file of a running task",
    tag="external workers",
    access="service",
    scope="worker",
    query=UploadFileQuery,
    body=bytes,
    request_media_type="application/octet-stream",
    response=Artifact,
    status=201,
    other_responses={**LEASE_LOST_RESPONSE, 507: "The owner's storage quota is exceeded"},
)
async def upload_file(request: Request) -> Response:
    query = parse_query(request, UploadFileQuery)
    lease, store = parse_lease(request, query.lease), get_store(request)
    name = check_file_name(parse_path_name(request))
    header = request.headers.get("content-type")
    content_type = resolve_content_type(name, None if header == "application/octet-stream" else header)
    file = {"name": name, "kind": query.kind, "content_type": content_type, "ttl_s": query.ttl_s}
    async with transaction_as_caller(request) as connection:
        staged = await artifacts.stage_artifact(connection, lease, file)
    reader = ContentReader(request.stream())
    reader.max_bytes = staged.max_bytes
    await upload_content(store, staged.key, reader, name=name, content_type=content_type)
    try:
        async with transaction_as_caller(request) as connection:
            artifact = await artifacts.record_artifact_upload(
                connection,
                staged.id,
                lease,
                size=reader.byte_count,
                sha256=reader.sha256,
                meta=merge_file_metadata(reader.media_metadata, None),
            )
    except HoldfastError as error:
        if error.sqlstate:  # the engine rejected the file; after any other error it may have been recorded
            await discard_object(store, staged.key)
        raise
    return json_response(artifact, 201)


def build_upload_routes() -> list[BaseRoute]:
    return [Route("/api/tasks/{id}/artifacts/{name}", upload_file, methods=["PUT"])]
