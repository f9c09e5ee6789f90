"""Multi-document report system: texts, PDFs and audio, generated in parallel.

    app = create_app(settings, **reports.mount())        # or: holdfast api --system reports
    holdfast worker holdfast.systems.reports

`install` creates the views `jobs`, `job_tasks` and `job_artifacts`, the SQL functions for external workers,
and the limits of the providers. See docs/guide/reports.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from holdfast.systems import AppArguments
from holdfast.systems.page_routes import create_page_routes
from holdfast.systems.reports.report_endpoints import create_report_routes
from holdfast.systems.reports.report_tasks import (
    REPORT_QUEUE,
    audio_generation,
    calculating,
    finalizing,
    nuclear_v2,
    pdf_generation,
    report_cleanup,
    text_generation,
)
from holdfast.systems.reports.upload_endpoints import create_upload_routes
from holdfast.systems.tables import is_script_installed, run_install_script
from holdfast.systems.worker_state import systems_lifespan

__all__ = [
    "audio_generation",
    "calculating",
    "finalizing",
    "install",
    "install_if_needed",
    "job_types",
    "lifespan",
    "mount",
    "nuclear_v2",
    "pdf_generation",
    "report_cleanup",
    "tasks",
    "text_generation",
]

MAX_RUNNING_TEXT_TASKS, MAX_RUNNING_AUDIO_TASKS = 16, 8
PACKAGE_FOLDER = Path(__file__).parent
TABLES_SCRIPT, VERSIONED_RELATION = PACKAGE_FOLDER / "tables", "view jobs"
lifespan = systems_lifespan
tasks = (calculating, text_generation, pdf_generation, audio_generation, finalizing, report_cleanup)
job_types = (nuclear_v2,)


def mount() -> AppArguments:
    """Return the routes, tasks and job types of the report application, as keyword arguments of `create_app`.

    Example: `create_app(settings, **reports.mount())`.

    The routes have the same paths as the API's own routes, `/api/jobs`, and take precedence. Users receive
    reports in the format of the report contract, and all other jobs in the format of the API. The page is at
    `/reports`.
    """
    routes = [
        *create_report_routes(),
        *create_upload_routes(),
        *create_page_routes(
            "/reports",
            PACKAGE_FOLDER / "page",
            "Reports",
            summary="Let a book about two people be written, printed and read aloud.",
            job_titles={nuclear_v2.name: "Report"},
        ),
    ]
    return {"routes": routes, "tasks": tasks, "job_types": job_types}


async def install_if_needed(connection: Any, schema: str = "public") -> None:
    """Install the report system, unless its current version is already installed in the schema."""
    if not await is_script_installed(connection, TABLES_SCRIPT, schema, VERSIONED_RELATION):
        await install(connection, schema)


async def install(connection: Any, schema: str = "public") -> None:
    """Create the views, functions and limits of the report system. Keep changed limits."""
    await run_install_script(connection, TABLES_SCRIPT, schema, VERSIONED_RELATION)
    existing = {row["name"] for row in await connection.fetch("select name from holdfast.limit_rules")}
    for name, task_type, max_running in (
        ("texts of a provider", text_generation.name, MAX_RUNNING_TEXT_TASKS),
        ("recordings of a provider", audio_generation.name, MAX_RUNNING_AUDIO_TASKS),
    ):
        # The limits are per key: when a provider limits the rate, all tasks that use it pause.
        if name not in existing:
            await connection.execute(
                "select holdfast.put_limit($1, $2, $3, true, $4)", name, REPORT_QUEUE, task_type, max_running
            )
