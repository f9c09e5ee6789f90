"""The client `pgmq` of PyPI on our schema, and our functions on pgmq's own SQL.

Both come from the package `pgmq`. It is used where the environment has it, and installed into a scratch
environment of this run otherwise, once for all test processes.
"""

from __future__ import annotations

import asyncio
import fcntl
import importlib.util
import subprocess
import sys
import venv
from collections.abc import AsyncGenerator
from pathlib import Path

import asyncpg
import pytest
from message_queue_calls import acting_as, build_move_to_holdfast_sql, count_rows, read_ids, send_messages

from holdfast.engine import install, schema
from holdfast.engine.connection import Connection
from holdfast.engine.schema import FunctionFile, SchemaFiles
from holdfast.settings import Secret, Settings

CLIENT_SCRIPT = Path(__file__).parents[2] / "support" / "pgmq_client.py"
CLIENT_PACKAGES = ["pgmq==1.1.4", "psycopg[binary,pool]", "asyncpg", "sqlalchemy[asyncio]"]
REQUIRED_MODULES = ("pgmq", "psycopg_pool", "sqlalchemy", "greenlet")
PRINT_PGMQ_SQL = "from pgmq import get_embedded_install_sql; print(get_embedded_install_sql())"


@pytest.fixture(scope="session")
def python(settings: Settings) -> Path:
    """An interpreter that can import the client."""
    if all(importlib.util.find_spec(name) for name in REQUIRED_MODULES):
        return Path(sys.executable)
    folder = settings.home / "pgmq-client"
    with (settings.home / "pgmq-client.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "made").exists():
            venv.create(folder, with_pip=True)
            subprocess.run(
                [folder / "bin" / "python", "-m", "pip", "install", "-q", *CLIENT_PACKAGES], check=True
            )
            (folder / "made").touch()
    return folder / "bin" / "python"


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["sync", "async", "sqlalchemy", "sqlalchemy-async"])
async def test_the_clients_documented_calls_work(url: Secret, python: Path, variant: str) -> None:
    process = await asyncio.create_subprocess_exec(
        python, CLIENT_SCRIPT, url.reveal(), variant, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    output, _ = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, output.decode()


@pytest.fixture
async def theirs(empty_url: Secret, template: str, python: Path) -> AsyncGenerator[Connection]:
    """A database with pgmq's own SQL, a queue, and messages in every state."""
    sql = subprocess.run([python, "-c", PRINT_PGMQ_SQL], check=True, capture_output=True, text=True).stdout
    conn = await asyncpg.connect(empty_url.reveal())
    await conn.execute(sql)
    await conn.execute("select pgmq.create('q'); select pgmq.enable_notify_insert('q', 0)")
    await send_messages(conn, 4)
    assert await read_ids(conn, 1, 3600) == [1]
    await conn.fetch("select pgmq.archive('q', 2)")
    yield conn
    await conn.close()


@pytest.mark.slow
async def test_our_additions_work_on_pgmqs_own_sql(
    theirs: Connection, empty_url: Secret, settings: Settings
) -> None:
    await install.migrate_database(empty_url, settings)
    assert (
        await theirs.fetchval(
            "select to_regprocedure('pgmq._read_messages(text,float8,integer,jsonb,timestamptz)')"
        )
        is None
    )
    for what in ("schema pgmq", "all tables in schema pgmq", "all sequences in schema pgmq"):
        await theirs.execute(f"grant all on {what} to holdfast_owner")
    await theirs.execute(
        "select holdfast.put_message_policy('q', 1); select holdfast.enable_message_wakeups('q')"
    )
    rows = await theirs.fetch("select msg_id, receipt from holdfast.read_messages('q', '1 minute', 2)")
    assert [row["msg_id"] for row in rows] == [3, 4]
    first, second = ([row["receipt"]] for row in rows)
    await theirs.fetch("select holdfast.set_message_vt('q', $1::text[], '1 minute')", first)
    await theirs.fetch("select holdfast.archive_messages('q', $1::text[])", first)
    [row] = await theirs.fetch("select * from holdfast.fail_messages('q', $1::text[], 'boom')", second)
    assert row["outcome"] == "dead"
    await theirs.fetch("select holdfast.tick_messages()")
    assert (await count_rows(theirs, "q_q"), await count_rows(theirs, "a_q")) == (1, 3)
    assert len(await theirs.fetch("select * from holdfast.requeue_messages('q')")) == 1
    assert await theirs.fetchval("select * from pgmq_public.send('q', '1')") == 6


@pytest.mark.slow
async def test_moving_from_pgmqs_sql_to_ours_keeps_the_messages(
    theirs: Connection, empty_url: Secret, settings: Settings
) -> None:
    before = await theirs.fetch("select * from pgmq.q_q order by 1")
    await theirs.execute(build_move_to_holdfast_sql())
    await install.migrate_database(empty_url, settings)
    assert await theirs.fetch("select * from pgmq.q_q order by 1") == before
    ambiguous = (
        "select count(*) from pg_proc where pronamespace = 'pgmq'::regnamespace"
        " and proname in ('read', 'pop') and pronargdefaults > 0"
    )
    assert await theirs.fetchval(ambiguous) == 0
    assert await theirs.fetchval("select count(*) from pg_proc where proname = '_read:_q'") == 1
    assert await send_messages(theirs, 1) == [5]  # their trigger, our function
    assert await read_ids(theirs) == [3, 4, 5]
    await theirs.execute("select pgmq.set_vt('q', 1, 0)")
    assert await read_ids(theirs) == [1]
    assert await count_rows(theirs, "a_q") == 1


@pytest.mark.slow
async def test_moving_back_to_pgmq_keeps_the_messages(conn: Connection, python: Path) -> None:
    """As documented: set ours aside, install theirs, copy."""
    await conn.execute("select pgmq.create('q')")
    await send_messages(conn, 4)
    await read_ids(conn, 1, 3600)
    await conn.fetch("select pgmq.archive('q', 2)")
    before = await conn.fetch("select * from pgmq.q_q order by 1")
    sql = subprocess.run([python, "-c", PRINT_PGMQ_SQL], check=True, capture_output=True, text=True).stdout
    await conn.execute("drop schema pgmq_public cascade; alter schema pgmq rename to pgmq_before")
    await conn.execute(sql)
    await conn.execute("select pgmq.create('q')")
    await conn.execute("insert into pgmq.q_q overriding system value select * from pgmq_before.q_q")
    await conn.execute("insert into pgmq.a_q select * from pgmq_before.a_q")
    await conn.execute(
        "select setval('pgmq.q_q_msg_id_seq', (select last_value from pgmq_before.q_q_msg_id_seq))"
    )
    assert await conn.fetch("select * from pgmq.q_q order by 1") == before
    assert await send_messages(conn, 1) == [5]
    assert sorted(await read_ids(conn)) == [3, 4, 5]


async def test_an_upgrade_lets_workers_use_the_queues_that_are_there(
    conn: Connection, url: Secret, settings: Settings
) -> None:
    """As an earlier version made them, or other hands: with row security, and nothing that opens it."""
    await conn.execute("select pgmq.create('Old one')")
    await send_messages(conn, 2, "old one")
    for table in ("q_old one", "a_old one"):
        await conn.execute(
            f"""drop policy holdfast_worker on pgmq."{table}"; drop policy service_role on pgmq."{table}";
                revoke all on pgmq."{table}" from holdfast_worker, service_role"""
        )
    packaged = schema.load_packaged_schema()
    renewed = (*packaged.functions, FunctionFile("zzz.sql", "-- one more\nselect 1;"))
    await install.migrate_database(url, settings, files=SchemaFiles(packaged.migrations, renewed))
    async with acting_as(conn, "holdfast_worker"):
        [first, second] = await conn.fetch("select receipt from holdfast.read_messages('old one', '1 h', 2)")
        await conn.execute("select holdfast.archive_messages('old one', $1)", [first[0]])
        await conn.execute("select holdfast.delete_messages('old one', $1)", [second[0]])
        assert len(await conn.fetch("select * from holdfast.peek_messages('old one', 9, 'archive')")) == 1
