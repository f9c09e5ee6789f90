"""Document export system: documents to PDF, one by one or in batches, with progress, history and limits.

    app = create_app(settings, **exports.mount())        # or: holdfast api --system exports
    holdfast worker holdfast.systems.exports

`install` creates the tables (`documents`, `export_history`, the view `export_jobs`, ...) and the limits:
three exports at once per user, and twenty in total. See docs/guide/exports.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from starlette.routing import BaseRoute

from holdfast import JobType
from holdfast.systems import AppArguments
from holdfast.systems.exports.batch_endpoints import BatchEndpoints
from holdfast.systems.exports.export_endpoints import ExportEndpoints
from holdfast.systems.exports.export_tasks import EXPORT_QUEUE, export_cleanup, export_pdf
from holdfast.systems.exports.preview_endpoints import PreviewEndpoints
from holdfast.systems.exports.submission import ExportLimits
from holdfast.systems.page_routes import create_page_routes
from holdfast.systems.tables import is_script_installed, run_install_script
from holdfast.systems.worker_state import systems_lifespan

__all__ = [
    "ExportLimits",
    "create_export_routes",
    "export_cleanup",
    "export_pdf",
    "install",
    "install_if_needed",
    "job_types",
    "lifespan",
    "mount",
    "tasks",
]

MAX_RUNNING_EXPORTS_PER_USER = 3
MAX_RUNNING_EXPORTS = 20
PACKAGE_FOLDER = Path(__file__).parent
TABLES_SCRIPT, VERSIONED_RELATION = PACKAGE_FOLDER / "tables.sql", "table documents"
lifespan = systems_lifespan
tasks = (export_pdf, export_cleanup)
job_types: tuple[JobType[Any], ...] = ()


def create_export_routes(limits: ExportLimits | None = None) -> list[BaseRoute]:
    """Create the routes of the export API and of the web page at /exports."""
    limits = limits or ExportLimits()
    return [
        *ExportEndpoints(limits).create_routes(),
        *BatchEndpoints(limits).create_routes(),
        *PreviewEndpoints().create_routes(),
        *create_page_routes(
            "/exports",
            PACKAGE_FOLDER / "page",
            "Document export",
            summary="Turn your documents into PDF files, one by one or in batches.",
            job_titles={export_pdf.name: "Document as PDF"},
        ),
    ]


def mount(limits: ExportLimits | None = None) -> AppArguments:
    """Return the routes, tasks and job types of the export application, as keyword arguments of `create_app`.

    Example: `create_app(settings, **exports.mount())`.
    """
    return {"routes": create_export_routes(limits), "tasks": tasks, "job_types": job_types}


async def install_if_needed(connection: Any, schema: str = "public") -> None:
    """Install the export system, unless its current version is already installed in the schema."""
    if not await is_script_installed(connection, TABLES_SCRIPT, schema, VERSIONED_RELATION):
        await install(connection, schema)


async def install(connection: Any, schema: str = "public") -> None:
    """Create the tables and limits of the export system. Keep existing rows and changed limits."""
    await run_install_script(connection, TABLES_SCRIPT, schema, VERSIONED_RELATION)
    existing = {row["name"] for row in await connection.fetch("select name from holdfast.limit_rules")}
    for name, per_key, max_running in (
        ("exports of one user", True, MAX_RUNNING_EXPORTS_PER_USER),
        ("exports", False, MAX_RUNNING_EXPORTS),
    ):
        if name not in existing:
            await connection.execute(
                "select holdfast.put_limit($1, $2, $3, $4, $5)",
                *(name, EXPORT_QUEUE, export_pdf.name, per_key, max_running),
            )
