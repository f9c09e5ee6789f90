"""Reports of many documents: texts, PDFs and recordings, made side by side by workers of any kind.

    app = create_app(settings, **reports.mount())        # or: holdfast api --system reports
    holdfast worker holdfast.systems.reports

`install` makes the views `jobs`, `job_tasks`, `job_artifacts`, the SQL functions with which a worker in any
language takes part, and the limits of the providers. docs/guide/reports.md has the rest.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from holdfast.systems import pages
from holdfast.systems.reports import endpoints
from holdfast.systems.reports.work import (
    QUEUE,
    audio_generation,
    calculating,
    finalizing,
    nuclear_v2,
    pdf_generation,
    text_generation,
)
from holdfast.systems.tables import install_script, is_current
from holdfast.systems.workshop import workshop

__all__ = [
    "audio_generation",
    "calculating",
    "ensure",
    "finalizing",
    "install",
    "lifespan",
    "mount",
    "nuclear_v2",
    "pdf_generation",
    "tasks",
    "text_generation",
    "types",
]

TEXTS_AT_ONCE, RECORDINGS_AT_ONCE = 16, 8
TABLES, MARK = Path(__file__).parent / "tables.sql", "view jobs"
lifespan = workshop
tasks = (calculating, text_generation, pdf_generation, audio_generation, finalizing)
types = (nuclear_v2,)


def mount() -> dict[str, Any]:
    """What `create_app` is to be given: `create_app(settings, **reports.mount())`.

    The routes are at `/api/jobs`, as their clients know them, in front of the API's own of the same paths: a
    user is told of reports in their words, and of all else in ours. The page is at `/reports`.
    """
    page = pages.routes("/reports", Path(__file__).parent / "page")
    return {"routes": [*endpoints.routes(), *page], "tasks": tasks, "types": types}


async def ensure(connection: Any, schema: str = "public") -> None:
    """Install what is missing or was made by another version; otherwise change nothing."""
    if not await is_current(connection, TABLES, schema, MARK):
        await install(connection, schema)


async def install(connection: Any, schema: str = "public") -> None:
    """Make the views, the functions and the limits. Run again, it keeps limits that were tuned."""
    await install_script(connection, TABLES, schema, MARK)
    known = {row["name"] for row in await connection.fetch("select name from holdfast.limit_rules")}
    for name, kind, most in (
        ("texts of a provider", text_generation.name, TEXTS_AT_ONCE),
        ("recordings of a provider", audio_generation.name, RECORDINGS_AT_ONCE),
    ):
        # Per key: when a provider says that it is too much, all that ask it rest.
        if name not in known:
            await connection.execute(
                "select holdfast.put_limit($1, $2, $3, true, $4)", name, QUEUE, kind, most
            )
