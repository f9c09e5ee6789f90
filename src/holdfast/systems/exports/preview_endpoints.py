"""Endpoint for document previews: one page as a PNG image, rendered during the request."""

from __future__ import annotations

from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from holdfast.errors import InvalidError, NotFoundError
from holdfast.server import api_operation, get_settings, transaction_as_caller
from holdfast.systems.exports import queries
from holdfast.systems.exports.http_responses import parse_path_id, respond_with_field_errors
from holdfast.systems.exports.resumes import build_template_content, parse_resume
from holdfast.systems.exports.templates import DEFAULT_TEMPLATE, read_template_paths
from holdfast.systems.field_errors import BadRequestError, FieldError
from holdfast.systems.printing import PageLayout, PdfMetadata, PdfRenderer
from holdfast.systems.request_context import get_systems_schema, require_owner_id
from holdfast.systems.worker_state import create_pdf_renderer

MAX_PREVIEW_DOCUMENT_CHARS = 200_000  # rendering a longer document would take too long for a request
MAX_PAGE_NUMBER_DIGITS = 3
PREVIEW_LAYOUT = PageLayout(page_size="Letter", quality="draft")


class PreviewEndpoints:
    """HTTP endpoint for document previews, with one renderer for each set of font folders."""

    def __init__(self) -> None:
        self._renderers: dict[str, PdfRenderer] = {}

    def create_routes(self) -> list[BaseRoute]:
        operation = api_operation(
            "Render a page of a document as PNG", tag="exports", scope="jobs", media_type="image/png"
        )
        endpoint = operation(respond_with_field_errors(self.render_preview_page))
        return [Route("/api/v1/export/preview/{id}", endpoint, methods=["GET"])]

    def _get_pdf_renderer(self, request: Request) -> PdfRenderer:
        settings = get_settings(request)
        if settings.font_folders not in self._renderers:
            self._renderers[settings.font_folders] = create_pdf_renderer(settings)
        return self._renderers[settings.font_folders]

    async def render_preview_page(self, request: Request) -> Response:
        owner, slug = await require_owner_id(request), request.query_params.get("template", DEFAULT_TEMPLATE)
        templates = read_template_paths(get_settings(request).template_folder)
        template, page = templates.get(slug), request.query_params.get("page", "1")
        if template is None:
            raise BadRequestError([FieldError("template", f"must be one of {', '.join(templates)}")])
        if not page.isdigit() or len(page) > MAX_PAGE_NUMBER_DIGITS:
            raise BadRequestError([FieldError("page", "must be a page number from 1 to 999")])
        document_id = parse_path_id(request, "document")
        async with transaction_as_caller(request) as connection:
            document = await queries.find_document(
                connection, get_systems_schema(request), document_id, owner
            )
        if document is None:
            raise NotFoundError(f"Document {document_id} does not exist.")
        images = await self._render_page_images(request, document, templates[slug])
        if not 1 <= int(page) <= len(images):
            count = f"{len(images)} page" if len(images) == 1 else f"{len(images)} pages"
            raise NotFoundError(f"The document has no page {page}; it has {count}.")
        headers = {"X-Page-Count": str(len(images))}
        return Response(images[int(page) - 1], media_type="image/png", headers=headers)

    async def _render_page_images(
        self, request: Request, document: queries.StoredDocument, template: Path
    ) -> list[bytes]:
        resume = parse_resume(document.data)
        content = build_template_content(resume)
        if len(str(content)) > MAX_PREVIEW_DOCUMENT_CHARS:
            raise InvalidError(
                "The document is too long for a preview.", fix="Export the document instead.", field="data"
            )
        metadata = PdfMetadata(title=document.title, author=resume.profile.name, language=resume.language)
        return await self._get_pdf_renderer(request).render_previews(
            template, content, metadata, PREVIEW_LAYOUT
        )
