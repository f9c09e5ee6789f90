"""Submit export jobs: load the documents, enforce the limits of the user, and submit all jobs or none.

Counting, submitting and recording the requests happen in one transaction, which first locks the user's usage
row of the day. Requests of one user are therefore processed one by one, and the limits are exact.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from typing import Any
from uuid import UUID

import msgspec

from holdfast import Client
from holdfast.errors import NotFoundError, QuotaExceededError, TooManyRequestsError
from holdfast.systems.exports import queries
from holdfast.systems.exports.export_requests import ExportRequest
from holdfast.systems.exports.export_tasks import export_pdf

_client = Client()  # opens no connection: every job is submitted on the connection of the request
BYTES_PER_MB = 1024 * 1024
QUEUE_FULL_RETRY_AFTER_S = 30


@dataclass(frozen=True, kw_only=True)
class ExportLimits:
    """Export limits of each user: exports per day, stored bytes and waiting exports."""

    exports_per_day: int = 100
    storage_bytes: int = 100 * BYTES_PER_MB
    max_waiting: int = 50


@dataclass(frozen=True)
class SubmittedExport:
    """A submitted export job. `created` is False if the same export was already waiting or running."""

    job_id: UUID
    document: queries.StoredDocument
    created: bool


async def load_documents(
    connection: Any, schema: str, owner: str, document_ids: Sequence[UUID]
) -> list[queries.StoredDocument]:
    """Load the documents of a user. The connection must act as the user, for row-level security."""
    documents: list[queries.StoredDocument] = []
    for document_id in document_ids:
        document = await queries.find_document(connection, schema, document_id, owner)
        if document is None:
            raise NotFoundError(f"Document {document_id} does not exist.", field="documentId")
        documents.append(document)
    return documents


async def submit_exports(
    connection: Any,
    schema: str,
    owner: str,
    documents: list[queries.StoredDocument],
    request: ExportRequest,
    limits: ExportLimits,
) -> list[SubmittedExport]:
    """Submit one export job for each document, in a transaction that acts as the service.

    All slow queries run before the first submission, because a submission wakes up workers that cannot see
    the job before the commit.
    """
    usage = await queries.lock_export_usage(connection, schema, owner)
    _check_storage_quota(usage, limits)
    waiting = await queries.count_unfinished_exports(connection, schema, owner)
    exports = [await _submit_export(connection, schema, owner, document, request) for document in documents]
    created = sum(export.created for export in exports)
    if usage.operations + created > limits.exports_per_day:
        raise TooManyRequestsError(
            f"You have used {usage.operations} of {limits.exports_per_day} exports today.",
            fix="Try again tomorrow.",
            retry_after=_compute_seconds_until_tomorrow(),
        )
    if created and waiting + created > limits.max_waiting:
        raise TooManyRequestsError(
            f"More than {limits.max_waiting} of your exports are waiting.",
            fix="Wait until some of them have finished.",
            retry_after=QUEUE_FULL_RETRY_AFTER_S,
        )
    if created:
        await queries.add_to_daily_exports(connection, schema, owner, usage.day, created)
    return exports


async def _submit_export(
    connection: Any, schema: str, owner: str, document: queries.StoredDocument, request: ExportRequest
) -> SubmittedExport:
    call = export_pdf(document.id, request.template, request.options)
    unique_key = compute_export_unique_key(document, request)
    job = await _client.submit(call, owner=owner, unique=unique_key, limit_key=owner, on=connection)
    if job.created:
        await queries.add_export_request(
            connection, schema, job.id, owner, document.id, request.template, request.options
        )
    return SubmittedExport(job.id, document, job.created)


def compute_export_unique_key(document: queries.StoredDocument, request: ExportRequest) -> str:
    """Compute the unique key of an export from document version, template and options."""
    identity = [document.id, document.version, request.template, request.options]
    return f"export:{hashlib.sha256(msgspec.json.encode(identity, order='sorted')).hexdigest()}"


def _check_storage_quota(usage: queries.UserExportUsage, limits: ExportLimits) -> None:
    if usage.bytes >= limits.storage_bytes:
        used, limit = usage.bytes / BYTES_PER_MB, limits.storage_bytes / BYTES_PER_MB
        raise QuotaExceededError(
            f"Storage quota exceeded ({used:.2f}MB / {limit:.0f}MB).", fix="Delete old exports to continue."
        )


def _compute_seconds_until_tomorrow() -> float:
    now = datetime.now(UTC)
    tomorrow = datetime.combine(now.date() + timedelta(days=1), time(), UTC)
    return (tomorrow - now).total_seconds()
