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
from holdfast.server.api.bodies import answer, name_in, query_of
from holdfast.server.api.files import store_of
from holdfast.server.api.identity import acting
from holdfast.server.api.operations import operation
from holdfast.server.api.services import services_of
from holdfast.server.api.tasks import LeaseText, lease_of
from holdfast.storage.contents import Reader, discard, merged, upload
from holdfast.storage.names import check_name, type_of


class UploadQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    lease: LeaseText
    kind: Annotated[str, Meta(min_length=1, max_length=100)] = "file"
    ttl_s: Annotated[float, Meta(gt=0, le=315360000)] | None = None


@operation(
    "Save a file of a running task",
    tag="worker",
    access="service",
    scope="worker",
    query=UploadQuery,
    body=bytes,
    takes="application/octet-stream",
    answer=Artifact,
    status=201,
    others={409: "The lease has passed to someone else: stop", 507: "The quota is used up"},
)
async def save(request: Request) -> Response:
    query = query_of(request, UploadQuery)
    lease, store = lease_of(request, query.lease), store_of(services_of(request))
    name = check_name(name_in(request))
    given = request.headers.get("content-type")
    content_type = type_of(name, None if given == "application/octet-stream" else given)
    file = {"name": name, "kind": query.kind, "content_type": content_type, "ttl_s": query.ttl_s}
    async with acting(request) as connection:
        staged = await artifacts.stage(connection, lease, file)
    reader = Reader(request.stream())
    reader.most = staged.most_bytes
    await upload(store, staged.key, reader, name=name, content_type=content_type)
    try:
        async with acting(request) as connection:
            made = await artifacts.record(
                connection,
                staged.id,
                lease,
                size=reader.count,
                sha256=reader.sha256,
                meta=merged(reader.facts, None),
            )
    except HoldfastError as problem:
        if problem.sqlstate:  # the engine has said no; anything else may have been recorded
            await discard(store, staged.key)
        raise
    return answer(made, 201)


def routes() -> list[BaseRoute]:
    return [Route("/api/tasks/{id}/artifacts/{name}", save, methods=["PUT"])]
