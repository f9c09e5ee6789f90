"""Short calls for tests of message queues: create, send, read, count, and expect errors."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from holdfast.engine.connection import Connection

COLUMNS = ["msg_id", "read_ct", "enqueued_at", "last_read_at", "vt", "message", "headers"]
PGMQ_DOCS_PAGE = Path(__file__).parents[2] / "docs" / "reference" / "pgmq.md"


def build_move_to_holdfast_sql() -> str:
    """Return the SQL of the documentation that moves queues from pgmq to Holdfast."""
    return _find_code_block("```sql\n", "do $$")


def build_move_to_pgmq_sql() -> str:
    """Return the SQL of the documentation that moves queue `x` back to pgmq."""
    return _find_code_block("```text\n", "alter schema")


def _find_code_block(fence: str, start: str) -> str:
    text = PGMQ_DOCS_PAGE.read_text(encoding="utf-8").partition(fence + start)[2]
    return start + text.partition("```")[0]


async def create_queue(conn: Connection, name: str = "q") -> str:
    await conn.execute("select pgmq.create($1)", name)
    return name


async def send_messages(
    conn: Connection, count: int = 1, queue: str = "q", headers: Sequence[Any] | None = None
) -> list[int]:
    bodies = [json.dumps({"n": n}) for n in range(1, count + 1)]
    if headers is None:
        rows = await conn.fetch("select * from pgmq.send_batch($1, $2::jsonb[]) as id", queue, bodies)
    else:
        texts = [None if each is None else json.dumps(each) for each in headers]
        rows = await conn.fetch(
            "select * from pgmq.send_batch($1, $2::jsonb[], $3::jsonb[]) as id", queue, bodies, texts
        )
    return [row["id"] for row in rows]


async def read_ids(
    conn: Connection, qty: int | None = 100, vt: int = 60, queue: str = "q", how: str = "read"
) -> list[int]:
    rows = await conn.fetch(f"select msg_id from pgmq.{how}($1, $2, $3)", queue, vt, qty)
    return [row["msg_id"] for row in rows]


async def count_rows(conn: Connection, table: str) -> int:
    value: int = await conn.fetchval(f"select count(*) from pgmq.{table}")
    return value


async def expect_error(conn: Connection, sqlstate: str, sql: str, *arguments: Any) -> str:
    """Run a statement that must fail with this SQLSTATE, and return the error message."""
    with pytest.raises(asyncpg.PostgresError) as caught:
        await conn.fetch(sql, *arguments)
    assert caught.value.sqlstate == sqlstate, caught.value
    return str(caught.value.args[0])


@asynccontextmanager
async def rolled_back(conn: Connection) -> AsyncGenerator[None]:
    """Run the block in a transaction that is rolled back."""
    transaction = conn.transaction()
    await transaction.start()
    try:
        yield
    finally:
        await transaction.rollback()


@asynccontextmanager
async def acting_as(conn: Connection, role: str) -> AsyncGenerator[None]:
    await conn.execute(f"set role {role}")
    try:
        yield
    finally:
        await conn.execute("reset role")
