"""A look before an export: one page of a document as an image, drawn while you wait."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from holdfast.errors import InvalidError, NotFoundError
from holdfast.server.api import acting, operation, services_of
from holdfast.systems.desk import owner_of, schema_of
from holdfast.systems.exports import records
from holdfast.systems.exports.answers import fielded, id_in
from holdfast.systems.exports.documents import printable, read_resume
from holdfast.systems.exports.options import BadRequestError, FieldError
from holdfast.systems.exports.templates import DEFAULT, templates_in
from holdfast.systems.printing import Layout, Meta, Press
from holdfast.systems.workshop import make_press

MOST_BYTES = 200_000  # a longer document is not drawn while somebody waits


class Previews:
    def __init__(self) -> None:
        self._made: dict[str, Press] = {}

    def routes(self) -> list[BaseRoute]:
        described = operation("A page of a document as PNG", tag="exports", scope="jobs", media="image/png")
        return [Route("/api/v1/export/preview/{id}", described(fielded(self.page)), methods=["GET"])]

    def _press(self, request: Request) -> Press:
        settings = services_of(request).settings
        if settings.font_folders not in self._made:
            self._made[settings.font_folders] = make_press(settings)
        return self._made[settings.font_folders]

    async def page(self, request: Request) -> Response:
        owner, slug = await owner_of(request), request.query_params.get("template", DEFAULT)
        known = templates_in(services_of(request).settings.template_folder)
        template, number = known.get(slug), request.query_params.get("page", "1")
        if template is None or not number.isdigit() or len(number) > 3:
            raise BadRequestError([FieldError("template", f"must be one of {', '.join(known)}")])
        async with acting(request) as connection:
            found = await records.find_document(
                connection, schema_of(request), id_in(request, "document"), owner
            )
        if found is None:
            raise NotFoundError("There is no such document.")
        resume = read_resume(found.data)
        content = printable(resume)
        if len(str(content)) > MOST_BYTES:
            raise InvalidError("The document is too long for a preview.", fix="Export it.", field="data")
        meta = Meta(title=found.title, author=resume.profile.name, language=resume.language)
        pages = await self._press(request).previews(
            template, content, meta, Layout(page_size="Letter", quality="draft")
        )
        if not 1 <= int(number) <= len(pages):
            raise NotFoundError("The document has no such page.")
        return Response(
            pages[int(number) - 1], media_type="image/png", headers={"X-Page-Count": str(len(pages))}
        )
