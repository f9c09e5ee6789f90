"""What the tests of message queues share: short ways to send, read and look."""

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
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "pgmq.md"


def moving_here() -> str:
    """How to move from pgmq to ours, as the page tells it."""
    return _block("```sql\n", "do $$")


def moving_back() -> str:
    """And back, for a queue `x`."""
    return _block("```text\n", "alter schema")


def _block(fence: str, start: str) -> str:
    text = PAGE.read_text(encoding="utf-8").partition(fence + start)[2]
    return start + text.partition("```")[0]


async def create(conn: Connection, name: str = "q") -> str:
    await conn.execute("select pgmq.create($1)", name)
    return name


async def send(
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


async def read(
    conn: Connection, qty: int | None = 100, vt: int = 60, queue: str = "q", how: str = "read"
) -> list[int]:
    rows = await conn.fetch(f"select msg_id from pgmq.{how}($1, $2, $3)", queue, vt, qty)
    return [row["msg_id"] for row in rows]


async def count(conn: Connection, table: str) -> int:
    value: int = await conn.fetchval(f"select count(*) from pgmq.{table}")
    return value


async def refused(conn: Connection, sqlstate: str, sql: str, *arguments: Any) -> str:
    """Run a statement that has to fail with this code; the message."""
    with pytest.raises(asyncpg.PostgresError) as caught:
        await conn.fetch(sql, *arguments)
    assert caught.value.sqlstate == sqlstate, caught.value
    return str(caught.value.args[0])


@asynccontextmanager
async def undone(conn: Connection) -> AsyncGenerator[None]:
    """A transaction that is rolled back."""
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
