"""The tasks of the export system: render one document as PDF, and delete expired exports.

`export_pdf` first stores the file, which is not visible yet. Then one transaction checks the lease, adds the
history entry and completes the task, which makes the file visible. If the worker dies at any point, neither
file nor history entry becomes visible: the next attempt starts over, and the sweep deletes what was stored.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import msgspec

from holdfast import Artifact, Ctx, Reject, RetryPolicy, schedule, task
from holdfast.errors import InvalidError, QuotaExceededError
from holdfast.systems.exports import queries
from holdfast.systems.exports.export_requests import ExportOptions
from holdfast.systems.exports.resumes import Resume, build_template_content, parse_resume
from holdfast.systems.exports.templates import DEFAULT_TEMPLATE, read_template_paths
from holdfast.systems.printing import PdfMetadata, RenderedPdf
from holdfast.systems.worker_state import SystemsWorkerState

EXPORT_QUEUE = "exports"
# The delay before retry n is 60 s * 2^(n-1), at most one hour, with 20 % jitter. There are five attempts in
# total.
EXPORT_RETRY_POLICY = RetryPolicy(retries=4, base=timedelta(seconds=60), cap=timedelta(hours=1), jitter=0.2)


class ExportResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an export job. `history` is the id of the history entry of the exported file."""

    history: UUID
    size: int
    pages: int


@task(
    queue=EXPORT_QUEUE, retry=EXPORT_RETRY_POLICY, timeout=timedelta(minutes=5), lease=timedelta(seconds=30)
)
async def export_pdf(
    ctx: Ctx[SystemsWorkerState],
    document_id: UUID,
    template: str = DEFAULT_TEMPLATE,
    options: ExportOptions = ExportOptions(),  # noqa: B008  (frozen)
) -> ExportResult:
    """Export one document as a PDF file.

    Progress in percent: 25 document fetched, 50 template filled, 75 PDF rendered, 90 file stored.
    """
    state, started_at = ctx.state, datetime.now(UTC)
    document = await _fetch_document(ctx, document_id)
    await ctx.report(25, phase="fetched", message="Document fetched")
    resume = _parse_document_data(document)
    await ctx.report(50, phase="rendered", message="Template filled")
    rendered = await _render_document(state, document, resume, template, options)
    await ctx.report(75, phase="pdf", message="PDF rendered")
    file = await _save_pdf_file(ctx, document_id, rendered)
    await ctx.report(90, phase="stored", message="File stored")
    job_id = UUID(ctx.job_id)
    result = ExportResult(history=job_id, size=file.size, pages=rendered.page_count)
    async with state.client.transaction() as connection:
        exported = queries.ExportedFile(
            document=document,
            template=template,
            file=file,
            page_count=rendered.page_count,
            retention=state.client.settings.export_retention,
            attempt=ctx.attempt,
            started_at=started_at,
        )
        await queries.add_history_entry(connection, state.schema, job_id, str(ctx.owner), exported)
        await ctx.complete(connection, result)
    return result


async def _fetch_document(ctx: Ctx[SystemsWorkerState], document_id: UUID) -> queries.StoredDocument:
    async with ctx.state.client.connection() as connection:
        document = await queries.find_document(connection, ctx.state.schema, document_id, str(ctx.owner))
    if document is None:
        raise Reject("The document was deleted.")
    return document


def _parse_document_data(document: queries.StoredDocument) -> Resume:
    try:
        return parse_resume(document.data)
    except InvalidError as error:
        # The message names the field and never contains its value.
        raise Reject(f"{error.message.rstrip('.')} (at {error.field}).") from None


async def _render_document(
    state: SystemsWorkerState,
    document: queries.StoredDocument,
    resume: Resume,
    template: str,
    options: ExportOptions,
) -> RenderedPdf:
    path = read_template_paths(state.client.settings.template_folder).get(template)
    if path is None:
        raise Reject(f"The template {template!r} does not exist.")
    metadata = PdfMetadata(
        title=document.title,
        author=resume.profile.name,
        subject="Résumé",
        keywords=tuple(resume.keywords),
        language=resume.language,
        created_at=datetime.now(UTC),
    )
    content = build_template_content(resume)
    try:
        return await state.renderer.render_pdf(
            path, content, metadata, options.layout, standard=options.standard
        )
    except InvalidError as error:
        raise Reject(str(error)) from error


async def _save_pdf_file(ctx: Ctx[SystemsWorkerState], document_id: UUID, rendered: RenderedPdf) -> Artifact:
    timestamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")[:-3]
    try:
        return await ctx.save(
            f"{document_id}_{timestamp}.pdf",
            rendered.pdf,
            "application/pdf",
            kind="exports",
            ttl=ctx.state.client.settings.export_retention,
            meta={"pages": rendered.page_count},
        )
    except QuotaExceededError as error:
        raise Reject(error.message) from error


@schedule("0 2 * * *", name="export cleanup")
@task(queue=EXPORT_QUEUE, retries=2)
async def export_cleanup(ctx: Ctx[SystemsWorkerState]) -> int:
    """Delete exports that are older than the setting `export_retention`, and their files."""
    return await queries.delete_expired_exports(ctx.state.client, ctx.state.schema)
