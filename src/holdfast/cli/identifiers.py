"""Parse ids from the command line. A job can be given by the first digits of its id."""

from __future__ import annotations

from uuid import UUID

from holdfast.engine import job_detail
from holdfast.engine.connection import Connection
from holdfast.errors import ConflictError, InvalidError, NotFoundError

MIN_ID_PREFIX_CHARS = 4
MAX_LISTED_JOB_IDS = 5


async def resolve_job_id(connection: Connection, text: str) -> UUID:
    """Return the id of the only job whose id equals `text` or starts with it."""
    try:
        return UUID(text)
    except ValueError:
        pass
    is_hexadecimal = set(text.lower()) <= set("0123456789abcdef-")
    if len(text.replace("-", "")) < MIN_ID_PREFIX_CHARS or not is_hexadecimal:
        raise InvalidError(
            f"{text!r} is not a job id.",
            fix=f"Give the whole id, or at least its first {MIN_ID_PREFIX_CHARS} digits.",
            field="id",
        )
    matches = await job_detail.find_jobs_by_id_prefix(connection, text, limit=MAX_LISTED_JOB_IDS + 1)
    if not matches:
        raise NotFoundError(f"No job id starts with {text}.", field="id")
    if len(matches) > 1:
        listed = ", ".join(str(job_id) for job_id in matches[:MAX_LISTED_JOB_IDS])
        raise ConflictError(f"More than one job id starts with {text}: {listed}.", fix="Give more digits.")
    return matches[0]


def parse_uuid(text: str, noun: str) -> UUID:
    """Parse a UUID. Raise `InvalidError` that names `noun`, such as "batch", if the text is invalid."""
    try:
        return UUID(text)
    except ValueError:
        raise InvalidError(f"{text!r} is not a {noun} id.", fix="An id is a UUID.", field="id") from None
