"""Document export: documents become PDF files, one by one or in batches, with progress, history and limits.

    app = create_app(settings, **exports.mount())        # or: holdfast api --system exports
    holdfast worker holdfast.systems.exports

`install` makes the tables (`documents`, `export_history`, the view `export_jobs`, ...) and the limits: three
exports at once per user, twenty in total. docs/guide/exports.md has the rest.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from starlette.routing import BaseRoute

from holdfast.systems import pages
from holdfast.systems.exports.batches import Batches
from holdfast.systems.exports.endpoints import Routes
from holdfast.systems.exports.ordering import Limits
from holdfast.systems.exports.previews import Previews
from holdfast.systems.exports.work import QUEUE, export_cleanup, export_pdf
from holdfast.systems.tables import install_script, is_current
from holdfast.systems.workshop import workshop

__all__ = [
    "Limits",
    "ensure",
    "export_cleanup",
    "export_pdf",
    "install",
    "lifespan",
    "mount",
    "routes",
    "tasks",
    "types",
]

PER_USER = 3
IN_TOTAL = 20
TABLES, MARK = Path(__file__).parent / "tables.sql", "table documents"
lifespan = workshop
tasks = (export_pdf, export_cleanup)
types = ()


def routes(limits: Limits | None = None) -> list[BaseRoute]:
    """The routes of the contract, and the page at /exports."""
    chosen = limits or Limits()
    made = [*Routes(chosen).routes(), *Batches(chosen).routes(), *Previews().routes()]
    return [*made, *pages.routes("/exports", Path(__file__).parent / "page")]


def mount(limits: Limits | None = None) -> dict[str, Any]:
    """What `create_app` is to be given: `create_app(settings, **exports.mount())`."""
    return {"routes": routes(limits), "tasks": tasks, "types": types}


async def ensure(connection: Any, schema: str = "public") -> None:
    """Install what is missing or was made by another version; otherwise change nothing."""
    if not await is_current(connection, TABLES, schema, MARK):
        await install(connection, schema)


async def install(connection: Any, schema: str = "public") -> None:
    """Make the tables and the limits. Run again, it keeps what is there, limits that were tuned included."""
    await install_script(connection, TABLES, schema, MARK)
    known = {row["name"] for row in await connection.fetch("select name from holdfast.limit_rules")}
    for name, per_key, most in (("exports of one user", True, PER_USER), ("exports", False, IN_TOTAL)):
        if name not in known:
            await connection.execute(
                "select holdfast.put_limit($1, $2, $3, $4, $5)", name, QUEUE, export_pdf.name, per_key, most
            )
