"""Parse ids from the command line. A job can be given by the first or last digits of its id."""

from __future__ import annotations

import re
from uuid import UUID

from holdfast.engine import job_detail
from holdfast.engine.connection import Connection
from holdfast.errors import ConflictError, InvalidError, NotFoundError

MIN_SHORT_ID_DIGITS = 4
MAX_LISTED_JOB_IDS = 5
ELLIPSIS = re.compile(r"…|\.{2,}")


async def resolve_job_id(connection: Connection, text: str) -> UUID:
    """Return the id of the only job with this id or short id.

    A short id is the form that Holdfast prints (`019a1e38…d5d14`), the first digits or the last digits.
    """
    try:
        return UUID(text)
    except ValueError:
        pass
    first, last = _split_short_id(text)
    matches = await _find_jobs(connection, first, last)
    if not matches and not last:
        matches = await _find_jobs(connection, "", first)
    if not matches:
        raise NotFoundError(f"No job id starts or ends with {text}.", field="id")
    if len(matches) > 1:
        listed = ", ".join(str(job_id) for job_id in matches[:MAX_LISTED_JOB_IDS])
        raise ConflictError(
            f"More than one job matches {text}: {listed}.",
            fix="Give the last digits, which differ between jobs of the same minute.",
        )
    return matches[0]


def _split_short_id(text: str) -> tuple[str, str]:
    first, *rest = ELLIPSIS.split(text.strip())
    last = rest[0] if rest else ""
    digits = (first + last).replace("-", "").lower()
    if len(digits) < MIN_SHORT_ID_DIGITS or not set(digits) <= set("0123456789abcdef") or len(rest) > 1:
        raise InvalidError(
            f"{text!r} is not a job id.",
            fix=f"Give the whole id, or at least {MIN_SHORT_ID_DIGITS} of its first or last digits.",
            field="id",
        )
    return first, last


async def _find_jobs(connection: Connection, first: str, last: str) -> list[UUID]:
    return await job_detail.find_jobs_by_short_id(connection, first, last, limit=MAX_LISTED_JOB_IDS + 1)


def parse_uuid(text: str, noun: str) -> UUID:
    """Parse a UUID. Raise `InvalidError` that names `noun`, such as "batch", if the text is invalid."""
    try:
        return UUID(text)
    except ValueError:
        raise InvalidError(
            f"{text!r} is not a {noun} id.",
            fix=f"Give the whole id of the {noun}: 32 hexadecimal digits.",
            field="id",
        ) from None
