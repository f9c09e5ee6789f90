"""Find the secrets of jobs, to mask them in texts for people who may not see them."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from holdfast.engine.connection import Connection
from holdfast.engine.json_rows import fetch_objects
from holdfast.redaction import SECRET_NAME_IN_JSON_REGEX, SecretMasker


async def load_secret_maskers(connection: Connection, job_ids: Iterable[UUID]) -> dict[UUID, SecretMasker]:
    """Return a masker for each job that knows the secrets of all its payloads.

    A job is missing if its secrets cannot be known: it was deleted, or its payloads are too large. Its texts
    must be hidden then.
    """
    rows = await fetch_objects(
        connection,
        "select holdfast.list_secret_payloads($1, $2)",
        sorted(set(job_ids)),
        SECRET_NAME_IN_JSON_REGEX,
    )
    maskers: dict[UUID, SecretMasker] = {}
    for row in rows:
        if not (row["exists"] and row["complete"]):
            continue
        masker = maskers[UUID(row["job"])] = SecretMasker()
        for payload in row["payloads"]:
            masker.collect_secrets(payload["value"], payload["schema"])
        # A field that the schema of a later payload marks may be in an earlier one too.
        for payload in row["payloads"]:
            masker.collect_secrets(payload["value"])
    return maskers
