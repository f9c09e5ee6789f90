"""pgmq as a real extension: Holdfast on top of it, the move to ours, and the move back.

The extension's SQL is the one that the PyPI package `pgmq` carries. PostgreSQL 18 finds extensions in any
folder (`extension_control_path`), so nothing has to be put into the server's own files.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncGenerator, Generator
from importlib import resources
from pathlib import Path

import asyncpg
import pytest
from message_queue_calls import (
    build_move_to_holdfast_sql,
    build_move_to_pgmq_sql,
    count_rows,
    read_ids,
    send_messages,
)

from holdfast.engine import doctor, install
from holdfast.engine.connection import Connection
from holdfast.settings import Secret, Settings

PGMQ_VERSION = "1.13.0"
EXTENSION_CONTROL_FILE = f"""comment = 'a message queue'
default_version = '{PGMQ_VERSION}'
schema = 'pgmq'
relocatable = false
"""
FIND_OUR_READ_FUNCTION = (
    "select to_regprocedure('pgmq._read_messages(text,float8,integer,jsonb,timestamptz)') is not null"
)


@pytest.fixture(scope="module")
def shared() -> Generator[Path]:
    """A folder with the extension in it, readable for the server, whoever it runs as."""
    with tempfile.TemporaryDirectory(prefix="holdfast-pgmq-") as name:
        folder = Path(name) / "extension"
        folder.mkdir(mode=0o755)
        folder.parent.chmod(0o755)
        (folder / "pgmq.control").write_text(EXTENSION_CONTROL_FILE, encoding="utf-8")
        sql = (resources.files("pgmq") / "sql" / "pgmq.sql").read_text(encoding="utf-8")
        (folder / f"pgmq--{PGMQ_VERSION}.sql").write_text(sql, encoding="utf-8")
        yield folder.parent


async def extended(conn: Connection, shared: Path) -> None:
    if conn.get_server_version().major < 18:
        pytest.skip("extensions from any folder come with PostgreSQL 18")
    await conn.execute(f"set extension_control_path = '$system:{shared}'; create extension pgmq")


async def fill_queue(conn: Connection) -> list[asyncpg.Record]:
    """Messages in every state: in flight, archived, waiting."""
    await conn.execute("select pgmq.create('q')")
    await send_messages(conn, 4)
    assert await read_ids(conn, 1, 3600) == [1]
    await conn.fetch("select pgmq.archive('q', 2)")
    return await list_stored_messages(conn)


async def list_stored_messages(conn: Connection) -> list[asyncpg.Record]:
    return [*await conn.fetch("table pgmq.q_q order by 1"), *await conn.fetch("table pgmq.a_q order by 1")]


@pytest.fixture
async def theirs(empty_url: Secret, template: str, shared: Path) -> AsyncGenerator[Connection]:
    """A database that has pgmq as an extension and nothing of ours. The template made the roles."""
    conn = await asyncpg.connect(empty_url.reveal())
    await extended(conn, shared)
    yield conn
    await conn.close()


async def test_the_extension_is_used_and_only_what_is_missing_is_added(
    theirs: Connection, empty_url: Secret, settings: Settings
) -> None:
    before = await fill_queue(theirs)
    await install.migrate_database(empty_url, settings)
    assert not await theirs.fetchval(FIND_OUR_READ_FUNCTION)
    findings = {finding.check: finding for finding in await doctor.run_doctor_checks(empty_url, settings)}
    assert findings["extensions"].text.startswith(f"pgmq {PGMQ_VERSION} provides the message queues")
    assert await list_stored_messages(theirs) == before
    for what in ("schema pgmq", "all tables in schema pgmq", "all sequences in schema pgmq"):
        await theirs.execute(f"grant all on {what} to holdfast_owner")
    [row] = await theirs.fetch("select msg_id, receipt from holdfast.read_messages('q', '1 minute', 1)")
    await theirs.fetch("select holdfast.archive_messages('q', $1::text[])", [row["receipt"]])
    assert row["msg_id"] == 3
    assert await theirs.fetchval("select * from pgmq_public.send('q', '{}')") == 5


async def test_moving_from_the_extension_to_ours_keeps_the_messages(
    theirs: Connection, empty_url: Secret, settings: Settings
) -> None:
    before = await fill_queue(theirs)
    await theirs.execute(build_move_to_holdfast_sql())
    assert await theirs.fetchval("select count(*) from pg_extension where extname = 'pgmq'") == 0
    await install.migrate_database(empty_url, settings)
    assert await theirs.fetchval(FIND_OUR_READ_FUNCTION)
    assert await list_stored_messages(theirs) == before
    assert await send_messages(theirs, 1) == [5]
    assert await read_ids(theirs) == [3, 4, 5]
    await theirs.execute("select pgmq.set_vt('q', 1, 0)")
    assert await read_ids(theirs) == [1]


async def test_moving_on_top_of_the_extension_and_then_off_it_keeps_the_messages(
    theirs: Connection, empty_url: Secret, settings: Settings
) -> None:
    """Holdfast was there already, beside the extension: the same steps, and its additions go on working."""
    before = await fill_queue(theirs)
    await install.migrate_database(empty_url, settings)
    await theirs.execute(build_move_to_holdfast_sql())
    await install.migrate_database(empty_url, settings)
    assert await theirs.fetchval(FIND_OUR_READ_FUNCTION)
    assert await list_stored_messages(theirs) == before
    rows = await theirs.fetch("select msg_id from holdfast.read_messages('q', '1 minute', 5)")
    assert [row["msg_id"] for row in rows] == [3, 4]


async def test_moving_from_ours_to_the_extension_keeps_the_messages(
    conn: Connection, url: Secret, settings: Settings, shared: Path
) -> None:
    """Word for word as the page tells; a migrate after it takes theirs as it is."""
    if conn.get_server_version().major < 18:
        pytest.skip("extensions from any folder come with PostgreSQL 18")
    before = await fill_queue(conn)
    await conn.execute(f"set extension_control_path = '$system:{shared}'")
    await conn.execute(build_move_to_pgmq_sql().replace("'x'", "'q'").replace("_x", "_q"))
    assert await list_stored_messages(conn) == before
    await install.migrate_database(url, settings)
    assert not await conn.fetchval(FIND_OUR_READ_FUNCTION)
    for what in ("schema pgmq", "all tables in schema pgmq", "all sequences in schema pgmq"):
        await conn.execute(f"grant all on {what} to holdfast_owner")
    assert await list_stored_messages(conn) == before
    assert await send_messages(conn, 1) == [5]
    assert sorted(await read_ids(conn)) == [3, 4, 5]
    assert await count_rows(conn, "a_q") == 1
    assert await conn.fetchval("select * from pgmq_public.send('q', '{}')") == 6
    [row] = await conn.fetch("select msg_id from holdfast.read_messages('q', '1 minute', 1)")
    assert row["msg_id"] == 6
