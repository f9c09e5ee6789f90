"""Redactors of jobs: they know the secrets of all payloads of a job before a page shows its texts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any
from uuid import UUID

from holdfast.definitions.job_types import JobType
from holdfast.definitions.payloads import build_type_schema
from holdfast.engine.secret_payloads import load_secret_maskers
from holdfast.server.dashboard.redaction import PayloadRedactor
from holdfast.server.dashboard.site import PageRequest

Row = Mapping[str, Any]


async def create_job_redactors(request: PageRequest, job_ids: Iterable[Any]) -> dict[str, PayloadRedactor]:
    """Create a redactor for each job. Texts of a job whose secrets cannot be known are hidden."""
    texts = {str(job_id) for job_id in job_ids}
    user = request.user
    if user.can("payload.secret") or not user.can("payload.view"):
        return {text: PayloadRedactor(user) for text in texts}
    maskers = await load_secret_maskers(request.connection, map(UUID, texts))
    return {text: PayloadRedactor(user, maskers.get(UUID(text))) for text in texts}


async def create_job_redactor(request: PageRequest, job: Row) -> PayloadRedactor:
    """Create the redactor of one job."""
    return (await create_row_redactors(request, [job]))[str(job["id"])]


async def create_row_redactors(request: PageRequest, jobs: Sequence[Row]) -> dict[str, PayloadRedactor]:
    """Create a redactor for each row of a list of jobs. It knows the schema of the job's parameters too."""
    redactors = await create_job_redactors(request, (job["id"] for job in jobs))
    job_types = request.site.services.job_types
    for job in jobs:
        job_type = job_types.get(job["type"])
        schema = _build_params_schema(job_type) if job_type else None
        redactors[str(job["id"])].collect_secrets(job.get("params"), schema)
    return redactors


async def redact_error_groups(request: PageRequest, groups: Sequence[Row]) -> list[dict[str, Any]]:
    """Return error groups without the secrets of the jobs whose errors they show."""
    redactors = await create_job_redactors(request, (group["newest_job"] for group in groups))
    return [
        {**group, "message": redactors[str(group["newest_job"])].redact_text(group.get("message"))}
        for group in groups
    ]


@lru_cache(maxsize=1000)
def _build_params_schema(job_type: JobType[Any]) -> Mapping[str, Any] | None:
    return build_type_schema(job_type.params)
