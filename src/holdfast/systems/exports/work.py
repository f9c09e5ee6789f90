"""The work: one document becomes one PDF file and one line of history, or neither.

The file is stored first and seen by nobody; then, in one transaction that proves the lease, the history is
written and the task succeeds, which makes the file visible. A worker that dies anywhere leaves nothing behind
that counts: the next attempt starts over, and what was stored is swept.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import msgspec

from holdfast import Ctx, Reject, RetryPolicy, schedule, task
from holdfast.errors import InvalidError, QuotaError
from holdfast.model import Artifact
from holdfast.systems.exports import records
from holdfast.systems.exports.documents import Resume, printable, read_resume
from holdfast.systems.exports.options import ExportOptions
from holdfast.systems.exports.templates import DEFAULT, templates_in
from holdfast.systems.printing import Meta, Printed
from holdfast.systems.workshop import Workshop

QUEUE = "exports"
KEPT = timedelta(days=7)
# 60 s * 2^(n-1), at most an hour, jittered by a fifth; five attempts in all.
RETRY = RetryPolicy(retries=4, base=timedelta(seconds=60), cap=timedelta(hours=1), jitter=0.2)


class Exported(msgspec.Struct, frozen=True, kw_only=True):
    """What a finished export answers; the file itself is in the history."""

    history: UUID
    size: int
    pages: int


@task(queue=QUEUE, retry=RETRY, timeout=timedelta(minutes=5), lease=timedelta(seconds=30))
async def export_pdf(
    ctx: Ctx[Workshop],
    document_id: UUID,
    template: str = DEFAULT,
    options: ExportOptions = ExportOptions(),  # noqa: B008  (frozen)
) -> Exported:
    """One document as PDF. Progress: 25 fetched, 50 laid out, 75 printed, 90 stored."""
    work = ctx.state
    document = await _fetched(ctx, work, document_id)
    await ctx.report(25, phase="fetched", message="Document fetched")
    resume = _checked(document)
    await ctx.report(50, phase="rendered", message="Template filled")
    printed = await _printed(work, document, resume, template, options)
    await ctx.report(75, phase="pdf", message="PDF made")
    file = await _stored(ctx, document_id, printed)
    await ctx.report(90, phase="stored", message="File stored")
    exported = Exported(history=UUID(ctx.job_id), size=file.size, pages=printed.pages)
    database = await work.client.open()
    async with database.transaction() as connection:
        made = records.Made(document, template, file, printed.pages, KEPT)
        await records.write_history(connection, work.schema, UUID(ctx.job_id), str(ctx.owner), made)
        await ctx.complete(connection, exported)
    return exported


async def _fetched(ctx: Ctx[Workshop], work: Workshop, document_id: UUID) -> records.Document:
    database = await work.client.open()
    async with database.connection() as connection:
        found = await records.find_document(connection, work.schema, document_id, str(ctx.owner))
    if found is None:
        raise Reject("The document does not exist any more.")
    return found


def _checked(document: records.Document) -> Resume:
    try:
        return read_resume(document.data)
    except InvalidError as problem:
        # Names the field, never what it holds.
        raise Reject(f"{problem.message.rstrip('.')} (at {problem.field}).") from None


async def _printed(
    work: Workshop, document: records.Document, resume: Resume, template: str, options: ExportOptions
) -> Printed:
    path = templates_in(work.client.settings.template_folder).get(template)
    if path is None:
        raise Reject(f"There is no template {template!r}.")
    meta = Meta(
        title=document.title,
        author=resume.profile.name,
        subject="Résumé",
        keywords=tuple(resume.keywords),
        language=resume.language,
        at=datetime.now(UTC),
    )
    try:
        return await work.press.pdf(path, printable(resume), meta, options.layout, standard=options.standard)
    except InvalidError as problem:
        raise Reject(str(problem)) from problem


async def _stored(ctx: Ctx[Workshop], document_id: UUID, printed: Printed) -> Artifact:
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")[:-3]
    try:
        return await ctx.save(
            f"{document_id}_{stamp}.pdf",
            printed.pdf,
            "application/pdf",
            kind="exports",
            ttl=KEPT,
            meta={"pages": printed.pages},
        )
    except QuotaError as problem:
        raise Reject(problem.message) from problem


@schedule("0 2 * * *", name="export cleanup")
@task(queue=QUEUE, retries=2)
async def export_cleanup(ctx: Ctx[Workshop]) -> int:
    """Delete exports whose week is over, files first."""
    return await records.clean_up(ctx.state.client, ctx.state.schema)
