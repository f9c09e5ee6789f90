"""The page docs/reference/access.md: complete, and equal to the catalogue of a database with every system."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from holdfast.engine.connection import Connection
from holdfast.server import create_app
from holdfast.server.api.openapi import list_declared_operations
from holdfast.settings import Settings
from holdfast.systems import mount

ROOT = Path(__file__).parents[2]
ACCESS_PAGE = ROOT / "docs" / "reference" / "access.md"
LIST_RIGHTS = """
select c.relname::text as name, n.nspname::text as schema,
  array(select p from unnest('{SELECT,INSERT,UPDATE,DELETE}'::text[]) p
    where has_table_privilege($1, c.oid, p)
      or p <> 'DELETE' and has_any_column_privilege($1, c.oid, p)) as rights,
  array(select a.attname::text from pg_attribute a where a.attrelid = c.oid and a.attnum > 0
    and not a.attisdropped and has_column_privilege($1, c.oid, a.attnum, 'SELECT') order by 1) as columns
from pg_class c join pg_namespace n on n.oid = c.relnamespace
where n.nspname in ('holdfast', 'public') and c.relkind in ('r', 'p', 'v', 'm') and not c.relispartition
order by 1
"""


@pytest.fixture(scope="module")
def reference() -> Any:
    return importlib.import_module("scripts.reference_access")


@pytest.fixture
async def rights(conn: Connection, reference: Any) -> list[Any]:
    """The rights of users on every table and view, with every system installed."""
    for name in reference.list_system_routes():
        await importlib.import_module(f"holdfast.systems.{name}").install(conn)
    rows = await conn.fetch(LIST_RIGHTS, "authenticated")
    return [row for row in rows if row["rights"]]


async def test_the_page_lists_the_columns_of_the_engine_that_users_read(
    rights: list[Any], reference: Any
) -> None:
    granted = {row["name"]: list(row["columns"]) for row in rows_of(rights, "holdfast")}
    listed = {table: sorted(names) for table, names in reference.list_readable_columns().items()}
    assert granted == listed
    assert {right for row in rows_of(rights, "holdfast") for right in row["rights"]} == {"SELECT"}


async def test_the_page_lists_the_tables_of_systems_that_users_reach(
    rights: list[Any], reference: Any
) -> None:
    granted = {row["name"]: ", ".join(row["rights"]).lower() for row in rows_of(rights, "public")}
    listed = {
        name: text for relations in reference.SYSTEM_RELATIONS.values() for name, text in relations.items()
    }
    assert granted == listed


async def test_anonymous_callers_reach_no_table(conn: Connection, rights: list[Any]) -> None:
    assert rights
    rows = await conn.fetch(LIST_RIGHTS, "anon")
    assert [row["name"] for row in rows if row["rights"]] == []


def rows_of(rights: list[Any], schema: str) -> list[Any]:
    return [row for row in rights if row["schema"] == schema]


def test_the_page_lists_every_route_of_the_product(settings: Settings, reference: Any) -> None:
    systems = [
        importlib.import_module(f"holdfast.systems.{name}").mount() for name in reference.list_system_routes()
    ]
    app = create_app(settings, database=object(), **mount(*systems))  # type: ignore[arg-type]
    page = ACCESS_PAGE.read_text(encoding="utf-8")
    missing = [
        f"{method.upper()} {path}"
        for path, method, _ in list_declared_operations(app.routes)
        if f"| `{method.upper()} {path}` |" not in page
    ]
    assert missing == []
