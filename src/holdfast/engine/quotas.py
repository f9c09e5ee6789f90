"""Set and check the quotas of owners: stored bytes, files, operations and unfinished jobs."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.engine.connection import Connection
from holdfast.engine.jobs import SubmitResult
from holdfast.engine.json_rows import JsonObject, decode_object


async def put_quota(
    connection: Connection,
    owner: str | None = None,
    *,
    size: int | None = None,
    files: int | None = None,
    operations: int | None = None,
) -> None:
    """Set the quota of an owner, or the default quota if `owner` is None. A limit of None is unlimited."""
    await connection.execute("select holdfast.put_quota($1, $2, $3, $4)", owner, size, files, operations)


async def get_owner_usage(connection: Connection, owner: str | None = None) -> JsonObject:
    """Return {owner, bytes: {used, limit}, files: {used, limit}, operations: {used, limit}}."""
    return decode_object(await connection.fetchval("select holdfast.get_owner_usage($1)", owner))


async def submit_within_job_limit(
    connection: Connection, job: bytes, owner: str, max_unfinished: int
) -> SubmitResult:
    """Submit a job, or raise TooManyRequestsError if the owner has `max_unfinished` unfinished jobs.

    The check and the submission are one call, so two submissions at once cannot exceed the limit.
    """
    call = "select holdfast.submit_within_job_limit($1, $2, $3)"
    text = await connection.fetchval(call, job.decode(), owner, max_unfinished)
    return msgspec.json.decode(text, type=SubmitResult)


async def submit_as_role(
    connection: Connection,
    job: bytes,
    role: str | None,
    claims: bytes,
    *,
    max_unfinished: int,
    owner: str | None = None,
    only_public: bool = False,
) -> SubmitResult:
    """Take a role, set the claims of a token (JSON) and submit a job, in one statement.

    With an owner, the role is that of a service, and the job is submitted as by `submit_within_job_limit`, or
    as by `submit_public_job`.
    """
    text = await connection.fetchval(
        "select holdfast.submit_as_role($1, $2, $3, $4, $5, $6)",
        *(role, claims.decode(), max_unfinished, job.decode(), owner, only_public),
    )
    return msgspec.json.decode(text, type=SubmitResult)


async def submit_together(
    connection: Connection,
    jobs: Sequence[tuple[bytes, str | None]],
    role: str | None,
    claims: bytes,
    *,
    max_unfinished: int,
) -> list[SubmitResult | None]:
    """Submit jobs with their owners as `submit_as_role` does, all in one transaction.

    The result of a job is None if it must be submitted alone, because that may wait or fail.
    """
    texts = await connection.fetchval(
        "select holdfast.submit_together($1, $2, $3, $4::text[]::jsonb[], $5)",
        *(role, claims.decode(), max_unfinished),
        [job.decode() for job, _ in jobs],
        [owner for _, owner in jobs],
    )
    return [None if text is None else msgspec.json.decode(text, type=SubmitResult) for text in texts]


async def submit_public_job(
    connection: Connection, job: bytes, owner: str, max_unfinished: int
) -> SubmitResult:
    """Submit a job as `submit_within_job_limit` does, or raise RefusedError if its type is not public."""
    call = "select holdfast.submit_public_job($1, $2, $3)"
    text = await connection.fetchval(call, job.decode(), owner, max_unfinished)
    return msgspec.json.decode(text, type=SubmitResult)
