"""Exports over HTTP: ask for one, look at it, watch it, cancel it, fetch it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, cast

import msgspec
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from holdfast import Client
from holdfast.errors import GoneError, NotFoundError
from holdfast.model import Artifact
from holdfast.server.api import acting, identify, operation, require_service, services_of, stream
from holdfast.server.api.bodies import answer, json_body
from holdfast.systems.desk import client_of, file_name, find_file, is_admin, owner_of, schema_of
from holdfast.systems.exports import ordering, records
from holdfast.systems.exports.answers import Stages, fielded, id_in, templates_of
from holdfast.systems.exports.documents import read_resume, samples, title_of
from holdfast.systems.exports.options import BadRequestError, ExportBody, FieldError, read_wanted
from holdfast.systems.exports.templates import DEFAULT

LINK = timedelta(hours=1)
EVENTS = "text/event-stream"


class JobId(msgspec.Struct, rename="camel"):
    job_id: str


class ExportView(msgspec.Struct, rename="camel"):
    id: str
    status: str
    progress: int
    result_url: str | None
    error: str | None


class Routes:
    """The endpoints, with the limits of one user."""

    def __init__(self, limits: ordering.Limits) -> None:
        self._limits = limits

    def routes(self) -> list[BaseRoute]:
        root, make = "/api/v1/export", _described
        refused = {400: "Field errors", 404: "No such document", 429: "Too many", 507: "Storage is full"}
        listed: list[tuple[str, str, Any]] = [
            (
                "POST",
                "/pdf",
                make(
                    self.export,
                    "Export a document",
                    body=ExportBody,
                    answer=JobId,
                    status=202,
                    others=refused,
                ),
            ),
            ("GET", "/job/{id}", make(self.status, "How far an export is", answer=ExportView)),
            ("DELETE", "/job/{id}", make(self.cancel, "Cancel an export, waiting or running")),
            ("GET", "/job/{id}/stream", make(self.stream, "Watch an export", access="anyone", media=EVENTS)),
            ("GET", "/history", make(self.history, "What was exported in the last seven days")),
            ("DELETE", "/history/{id}", make(self.forget, "Delete an exported file")),
            ("GET", "/download/{id}", make(self.download, "Fetch an exported file", status=302)),
            (
                "POST",
                "/cleanup",
                make(self.clean_up, "Delete what expired; for services and administrators"),
            ),
            ("GET", "/documents", make(self.documents, "Your documents")),
            ("POST", "/documents", make(self.add_document, "Add a document", status=201)),
            ("POST", "/samples", make(self.add_samples, "Add the sample documents", status=201)),
        ]
        return [Route(root + path, endpoint, methods=[method]) for method, path, endpoint in listed]

    async def export(self, request: Request) -> Response:
        owner, schema = await owner_of(request), schema_of(request)
        wanted = read_wanted(await json_body(request), templates_of(request), DEFAULT, kind="one")
        async with acting(request) as connection:
            documents = await ordering.documents_of(connection, schema, owner, wanted.documents)
        async with acting(request, as_service=True) as connection:
            made = await ordering.order(connection, schema, owner, documents, wanted, self._limits)
        return answer({"jobId": made[0].job_id}, 202, {"Location": f"/api/v1/export/job/{made[0].job_id}"})

    async def status(self, request: Request) -> Response:
        found = await _export(request)
        return answer(
            {
                "id": found["id"],
                "status": found["status"],
                "progress": found["progress"],
                "resultUrl": found["result_url"],
                "error": found["error_message"] if found["status"] != "completed" else None,
            }
        )

    async def cancel(self, request: Request) -> Response:
        found = await _export(request)
        async with acting(request, as_service=True) as connection:
            done = msgspec.json.decode(
                await connection.fetchval(
                    "select holdfast.cancel_job($1, 'Cancelled by the user.')", found["id"]
                )
            )
        if done["cancelled"]:
            return answer({"message": "Job cancelled", "status": "cancelled"})
        return answer({"message": "Job had ended already", "status": (await _export(request))["status"]})

    async def stream(self, request: Request) -> Response:
        return await stream(request, id_in(request, "export"), encode=Stages())

    async def history(self, request: Request) -> Response:
        owner = await owner_of(request)
        async with acting(request, as_service=True) as connection:
            rows = await records.list_history(connection, schema_of(request), owner)
            used = await records.usage(connection, schema_of(request), owner)
        limits = self._limits
        return answer(
            {
                "history": rows,
                "storage": {"used": used.bytes, "limit": limits.bytes},
                "today": {"used": used.operations, "limit": limits.a_day},
            }
        )

    async def forget(self, request: Request) -> Response:
        owner = await owner_of(request)
        async with acting(request) as connection:
            gone = await records.delete_history(
                connection, schema_of(request), id_in(request, "export"), owner
            )
        if gone is None:
            raise NotFoundError("There is no such export.")
        return Response(status_code=204)

    async def download(self, request: Request) -> Response:
        """Counts the download and leads to a link that lasts an hour; with `?as=json` the link itself."""
        owner, schema, history_id = await owner_of(request), schema_of(request), id_in(request, "export")
        async with acting(request, as_service=True) as connection:
            entry = await records.get_history(connection, schema, history_id, owner)
            if entry is None:
                raise NotFoundError("There is no such export.")
            file = await _file(connection, entry, owner)
            await records.count_download(connection, schema, history_id)
        url = await client_of(request).files.sign(file, LINK)
        if request.query_params.get("as") == "json":
            return answer({"url": url, "fileName": entry.file_name, "expiresIn": int(LINK.total_seconds())})
        return RedirectResponse(url, 302)

    async def clean_up(self, request: Request) -> Response:
        if not is_admin(await identify(request)):
            await require_service(request, "jobs")
        services = services_of(request)
        async with Client(services.database.url.reveal(), settings=services.settings) as client:
            if services.store is not None:
                client.files = client_of(request).files
            return answer({"deleted": await records.clean_up(client, schema_of(request))})

    async def documents(self, request: Request) -> Response:
        owner = await owner_of(request)
        async with acting(request) as connection:
            rows = await records.list_documents(connection, schema_of(request), owner)
        return answer({"documents": rows, "templates": templates_of(request)})

    async def add_document(self, request: Request) -> Response:
        owner, given = await owner_of(request), await json_body(request)
        body = cast("dict[str, Any]", given) if isinstance(given, dict) else {}
        data: Any = body.get("data")
        resume, title = read_resume(data), body.get("title")
        if title is not None and (not isinstance(title, str) or not 0 < len(title.strip()) <= 500):
            raise BadRequestError([FieldError("title", "must be 1 to 500 characters")])
        async with acting(request) as connection:
            shown = title_of(title, data)
            made = await records.add_document(connection, schema_of(request), owner, shown, resume)
        return answer({"id": made, "title": shown}, 201)

    async def add_samples(self, request: Request) -> Response:
        owner = await owner_of(request)
        async with acting(request) as connection:
            ids = [
                await records.add_document(connection, schema_of(request), owner, each.title, each.data)
                for _, each in samples()
            ]
        return answer({"ids": ids}, 201)


def _described(endpoint: Any, summary: str, **more: Any) -> Any:
    return operation(summary, tag="exports", scope="jobs", **more)(fielded(endpoint))


async def _export(request: Request) -> dict[str, Any]:
    owner, job_id = await owner_of(request), id_in(request, "export")
    async with acting(request, as_service=True) as connection:
        found = await records.get_export(connection, schema_of(request), job_id, owner)
    if found is None:
        raise NotFoundError("There is no such export.")
    return found


async def _file(connection: Any, entry: records.Entry, owner: str) -> Artifact:
    file = None
    if not entry.expired:
        file = await find_file(connection, entry.artifact_id, owner)
    if file is None:
        raise GoneError("The export has expired and was deleted.", fix="Export the document again.")
    return msgspec.structs.replace(file, name=file_name(entry.file_name))
