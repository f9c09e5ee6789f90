"""Partitioned queues on the real pg_partman, where the server has it: Debian's PostgreSQL 15 in CI."""

from __future__ import annotations

import os

import asyncpg
import pytest
from message_queue_calls import acting_as, count_rows, create_queue, expect_error, read_ids, send_messages

from holdfast.engine.connection import Connection

READ_PARTMAN_VERSION = "select default_version from pg_available_extensions where name = 'pg_partman'"


@pytest.fixture
async def partman(conn: Connection) -> Connection:
    version = await conn.fetchval(READ_PARTMAN_VERSION)
    if version is None:
        if os.environ.get("CI") and conn.get_server_version().major == 15:
            pytest.fail("scripts/postgres15.sh installs pg_partman, and it is not there")
        pytest.skip("this server has no pg_partman")
    await conn.execute("create schema partman; create extension pg_partman schema partman")
    return conn


async def count_partitions(conn: Connection, table: str) -> int:
    row_count: int = await conn.fetchval(
        "select count(*) from pg_inherits where inhparent = to_regclass($1)", f"pgmq.{table}"
    )
    return row_count


async def test_a_queue_partitioned_by_id(partman: Connection) -> None:
    await partman.execute("select pgmq.create_partitioned('Parts', '100', '1000', 2)")
    await partman.execute("select pgmq.create_partitioned('parts', '100', '1000', 2)")  # repeatable
    [row] = await partman.fetch("select * from pgmq.list_queues()")
    assert (row["queue_name"], row["is_partitioned"], row["is_unlogged"]) == ("Parts", True, False)
    assert await count_partitions(partman, "q_parts") >= 3
    assert await count_partitions(partman, "a_parts") >= 3
    assert await send_messages(partman, 250, "parts") == list(range(1, 251))
    assert await count_rows(partman, "q_parts_p100") == 100
    assert await read_ids(partman, 150, 60, "parts") == list(range(1, 151))
    archived = await partman.fetch("select pgmq.archive('parts', array[1, 100, 101]::bigint[])")
    assert [row[0] for row in archived] == [1, 100, 101]
    assert await count_rows(partman, "a_parts") == 3
    assert await partman.fetchval("select pgmq.delete('parts', 102)") is True
    popped = await partman.fetch("select msg_id from pgmq.pop('parts', 60)")
    assert [row[0] for row in popped] == list(range(151, 211))
    assert (
        await read_ids(partman, 1, 60, "parts", how="read_grouped") == []
    )  # the head of its group is in flight
    async with acting_as(partman, "holdfast_worker"):
        [rows] = await partman.fetch("select receipt from holdfast.read_messages('parts')")
        await partman.execute("select holdfast.archive_messages('parts', $1)", [rows["receipt"]])
    assert await count_rows(partman, "a_parts") == 4


async def test_messages_without_a_partition_wait_for_maintenance(
    partman: Connection,
) -> None:
    await partman.execute("select pgmq.create_partitioned('parts', '100', '200', 1)")
    await send_messages(partman, 800, "parts")
    row = await partman.fetchrow("select * from pgmq.metrics('parts')")
    assert row is not None
    assert row["queue_length"] == 800
    assert row["default_partition_length"] > 400
    assert len(await read_ids(partman, 800, 0, "parts")) == 800
    await partman.execute("call partman.partition_data_proc('pgmq.q_parts')")
    await partman.execute("select partman.run_maintenance('pgmq.q_parts')")
    row = await partman.fetchrow("select * from pgmq.metrics('parts')")
    assert row is not None
    assert row["default_partition_length"] == 0
    assert row["queue_length"] < 800, "the oldest are over their retention"
    assert 800 in await read_ids(partman, 800, 60, "parts")


async def test_a_queue_partitioned_by_time(partman: Connection) -> None:
    await partman.execute("select pgmq.create_partitioned('days', '1 day', '7 days')")
    assert await send_messages(partman, 3, "days") == [1, 2, 3]
    assert await read_ids(partman, 3, 60, "days") == [1, 2, 3]
    key = "select pg_get_partkeydef('pgmq.q_days'::regclass), pg_get_partkeydef('pgmq.a_days'::regclass)"
    assert tuple(await partman.fetchrow(key) or ()) == ("RANGE (enqueued_at)", "RANGE (archived_at)")


async def test_dropping_leaves_nothing_behind(partman: Connection) -> None:
    await partman.execute("select pgmq.create_partitioned('sliced')")
    assert await partman.fetchval("select count(*) from partman.part_config") == 2
    assert await partman.fetchval("select pgmq.drop_queue('sliced')") is True
    assert await partman.fetchval("select count(*) from partman.part_config") == 0
    left = "select relname from pg_class where relname like '%sliced%'"
    assert await partman.fetch(left) == []


async def test_an_archive_is_partitioned_later_without_loss(partman: Connection) -> None:
    await create_queue(partman)
    await send_messages(partman, 50)
    await partman.fetch("select pgmq.archive('q', array(select generate_series(1, 50)::bigint))")
    await partman.execute("select pgmq.convert_archive_partitioned('q', '100', '1000')")
    assert await count_partitions(partman, "a_q") >= 3
    assert await count_rows(partman, "a_q") == 50
    assert await count_rows(partman, "a_q_old") == 50
    await partman.execute("select pgmq.convert_archive_partitioned('q', '100', '1000')")  # a notice


async def test_bad_arguments_leave_nothing_behind(partman: Connection) -> None:
    message = await expect_error(
        partman, "P0001", "select pgmq.create_partitioned('parts', '100', '1000', 0)"
    )
    assert message == "premake must be at least 1, got: 0"
    await expect_error(partman, "P0001", "select pgmq.create_partitioned($1)", "n" * 48)
    for interval in ("soon", "-1", "0"):
        with pytest.raises(asyncpg.PostgresError):  # in pg_partman's own words
            await partman.execute("select pgmq.create_partitioned('parts', $1)", interval)
    assert await partman.fetch("select * from pgmq.list_queues()") == []
    assert await partman.fetchval("select to_regclass('pgmq.q_parts')") is None
