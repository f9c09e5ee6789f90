"""From a request to a job: whose document, how much may still be used, and then all of it or nothing.

Counting, submitting and writing the request down are one transaction, which begins by locking the user's
line of the day: requests of one user are taken one after the other, so the limits hold exactly.
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
from holdfast.errors import NotFoundError, QuotaError, TooManyError
from holdfast.systems.exports import records
from holdfast.systems.exports.options import Wanted
from holdfast.systems.exports.work import export_pdf

_submitter = Client()  # opens nothing: every submission is on a connection of ours
MB = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Of one user. Exports beyond those that run at once wait their turn."""

    a_day: int = 100
    bytes: int = 100 * MB
    waiting: int = 50


@dataclass(frozen=True)
class Ordered:
    job_id: UUID
    document: records.Document
    created: bool


async def documents_of(
    connection: Any, schema: str, owner: str, wanted: Sequence[UUID]
) -> list[records.Document]:
    """Read as the user, so that row-level security has its say too."""
    found: list[records.Document] = []
    for document_id in wanted:
        document = await records.find_document(connection, schema, document_id, owner)
        if document is None:
            raise NotFoundError("There is no such document.", field="documentId")
        found.append(document)
    return found


async def order(
    connection: Any,
    schema: str,
    owner: str,
    documents: list[records.Document],
    wanted: Wanted,
    limits: Limits,
) -> list[Ordered]:
    """Submit an export of each document, on a transaction of the service.

    What takes time comes before the submissions: a worker that they wake finds nothing until the commit.
    """
    used = await records.usage(connection, schema, owner)
    _check_room(used, limits)
    waiting = await records.unfinished(connection, schema, owner)
    made = [await _submitted(connection, schema, owner, document, wanted) for document in documents]
    fresh = sum(each.created for each in made)
    if used.operations + fresh > limits.a_day:
        raise TooManyError(
            f"{used.operations} of {limits.a_day} exports were made today.",
            fix="Try again tomorrow.",
            retry_after=_until_tomorrow(),
        )
    if fresh and waiting + fresh > limits.waiting:
        raise TooManyError(
            f"More than {limits.waiting} of your exports wait already.",
            fix="Wait for some of them to finish.",
            retry_after=30,
        )
    if fresh:
        await records.count_operations(connection, schema, owner, used.day, fresh)
    return made


async def _submitted(
    connection: Any, schema: str, owner: str, document: records.Document, wanted: Wanted
) -> Ordered:
    call = export_pdf(document.id, wanted.template, wanted.options)
    handle = await _submitter.submit(
        call, owner=owner, unique=same(document, wanted), limit_key=owner, on=connection
    )
    if handle.created:
        request = (document.id, wanted.template, wanted.options)
        await records.write_request(connection, schema, handle.id, owner, request)
    return Ordered(handle.id, document, handle.created)


def same(document: records.Document, wanted: Wanted) -> str:
    """What makes two requests the same while the first has not ended: text, template and options."""
    said = msgspec.json.encode(
        [document.id, document.version, wanted.template, wanted.options], order="sorted"
    )
    return f"export:{hashlib.sha256(said).hexdigest()}"


def _check_room(used: records.Usage, limits: Limits) -> None:
    if used.bytes >= limits.bytes:
        raise QuotaError(
            f"Storage quota exceeded ({used.bytes / MB:.2f}MB / {limits.bytes / MB:.0f}MB).",
            fix="Delete old exports to continue.",
        )


def _until_tomorrow() -> float:
    now = datetime.now(UTC)
    tomorrow = datetime.combine(now.date() + timedelta(days=1), time(), UTC)
    return (tomorrow - now).total_seconds()
