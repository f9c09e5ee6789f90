"""read, pop, archive, delete and set_vt: affected messages, their order, and the effect of a rollback."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta

import pytest
from message_queue_calls import count_rows, create_queue, expect_error, read_ids, rolled_back, send_messages

from holdfast.engine.connection import Connection, Record


async def fetch_one_row(conn: Connection, sql: str) -> Record:
    row: Record | None = await conn.fetchrow(sql)
    assert row is not None
    return row


async def test_a_read_takes_the_lowest_ids_and_stamps_them(conn: Connection) -> None:
    await create_queue(conn)
    await send_messages(conn, 5)
    rows = await conn.fetch("select *, clock_timestamp() as now from pgmq.read('q', 60, 2)")
    assert [row["msg_id"] for row in rows] == [1, 2]
    for row in rows:
        assert row["read_ct"] == 1
        assert row["vt"] - row["last_read_at"] == timedelta(seconds=60)
        assert timedelta(0) <= row["now"] - row["last_read_at"] < timedelta(seconds=5)
    stored = await conn.fetch("select * from pgmq.q_q where msg_id <= 2 order by msg_id")
    assert [tuple(row) for row in stored] == [tuple(row)[:7] for row in rows]
    assert await read_ids(conn, 10) == [3, 4, 5]
    assert await read_ids(conn, 10) == []


async def test_results_are_in_id_order_whatever_the_order_on_disk(conn: Connection) -> None:
    await create_queue(conn)
    await send_messages(conn, 300)
    await conn.execute("update pgmq.q_q set message = '1' where msg_id % 2 = 0")
    await conn.execute("update pgmq.q_q set message = '2' where msg_id % 3 = 0")
    assert await read_ids(conn, 250) == list(range(1, 251))


async def test_vt_zero_leaves_messages_readable_and_negative_too(conn: Connection) -> None:
    await create_queue(conn)
    await send_messages(conn, 2)
    for vt in (0, -10, -2147483648, 0):
        assert await read_ids(conn, 1, vt) == [1]
    assert await conn.fetchval("select read_ct from pgmq.q_q where msg_id = 1") == 4


async def test_the_longest_vt_is_68_years(conn: Connection) -> None:
    await create_queue(conn)
    await send_messages(conn, 1)
    [row] = await conn.fetch("select * from pgmq.read('q', 2147483647, 1)")
    assert row["vt"].year > datetime.now(UTC).year + 67


@pytest.mark.parametrize("how", ["read", "read_grouped", "read_grouped_rr", "read_grouped_head"])
async def test_quantities(conn: Connection, how: str) -> None:
    await create_queue(conn)
    await send_messages(
        conn, 3, headers=[{"x-pgmq-group": "a"}, {"x-pgmq-group": "b"}, {"x-pgmq-group": "c"}]
    )
    assert await read_ids(conn, 0, how=how) == []
    await expect_error(conn, "2201W", f"select * from pgmq.{how}('q', 1, -1)")
    assert await conn.fetchval("select sum(read_ct) from pgmq.q_q") == 0
    assert await read_ids(conn, None, how=how) == [1, 2, 3]


async def test_pop_quantities(conn: Connection) -> None:
    await create_queue(conn)
    await expect_error(conn, "2201W", "select * from pgmq.pop('q', -1)")
    await send_messages(conn, 5)
    await expect_error(conn, "2201W", "select * from pgmq.pop('q', -1)")
    assert await conn.fetch("select * from pgmq.pop('q', 0)") == []
    rows = await conn.fetch("select * from pgmq.pop('q', null)")
    assert [row["msg_id"] for row in rows] == [1, 2, 3, 4, 5]


async def test_a_null_vt_is_refused_and_takes_nothing(conn: Connection) -> None:
    await create_queue(conn)
    await send_messages(conn, 1)
    await expect_error(conn, "23502", "select * from pgmq.read('q', null, 1)")
    assert await read_ids(conn) == [1]


async def test_rolling_back_undoes_a_read(conn: Connection) -> None:
    await create_queue(conn)
    await send_messages(conn, 3)
    async with rolled_back(conn):
        assert await read_ids(conn, 2) == [1, 2]
        assert await read_ids(conn, 2) == [3]
    assert await read_ids(conn, 2) == [1, 2]
    assert (await fetch_one_row(conn, "select read_ct from pgmq.q_q where msg_id = 1"))["read_ct"] == 1


async def test_readers_do_not_wait_and_share_nothing(conn: Connection, second: Connection) -> None:
    await create_queue(conn)
    await send_messages(conn, 6)
    async with conn.transaction():
        assert await read_ids(conn, 2) == [1, 2]
        await second.execute("set lock_timeout = '100ms'")
        assert await read_ids(second, 2) == [3, 4]
        assert [row[0] for row in await second.fetch("select msg_id from pgmq.pop('q', 1)")] == [5]
        assert await read_ids(second, 10, how="read_grouped_head") == []  # one group, and its head is taken
    assert await read_ids(second, 10) == [6]


async def test_concurrent_readers_take_every_message_once(conn: Connection, second: Connection) -> None:
    await create_queue(conn)
    await send_messages(conn, 2000)

    async def drain(each: Connection) -> list[int]:
        taken: list[int] = []
        while ids := await read_ids(each, 7):
            taken += ids
            await each.fetch("select pgmq.delete('q', $1::bigint[])", ids)
        return taken

    taken = await asyncio.gather(drain(conn), drain(second))
    assert sorted(taken[0] + taken[1]) == list(range(1, 2001))


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("{}", [1, 2, 3, 4]),
        (None, [1, 2, 3, 4]),
        ('{"a": 1}', [1, 2]),
        ('{"a": 1, "b": 2}', [2]),
        ("[7]", [3]),
        ("7", [3]),
        ('"x"', [4]),
        ('{"none": 1}', []),
    ],
)
async def test_the_filter_is_containment(
    conn: Connection, condition: str | None, expected: list[int]
) -> None:
    await create_queue(conn)
    for body in ('{"a": 1}', '{"a": 1, "b": 2}', "[7, 8]", '"x"'):
        await conn.fetch("select pgmq.send('q', $1::jsonb)", body)
    rows = await conn.fetch("select msg_id from pgmq.read('q', 60, 10, $1::jsonb)", condition)
    assert [row[0] for row in rows] == expected
    others = [n for n in (1, 2, 3, 4) if n not in expected]
    assert await read_ids(conn) == others


async def test_pop_returns_the_rows_as_they_were(conn: Connection) -> None:
    await create_queue(conn)
    await send_messages(conn, 3, headers=[{"h": 1}, None, None])
    await conn.fetch("select pgmq.set_vt('q', 2, 60)")
    before = await fetch_one_row(conn, "select * from pgmq.q_q where msg_id = 1")
    assert tuple(await fetch_one_row(conn, "select * from pgmq.pop('q')")) == tuple(before)
    assert [row[0] for row in await conn.fetch("select msg_id from pgmq.pop('q', 5)")] == [3]
    assert await count_rows(conn, "q_q") == 1
    assert await count_rows(conn, "a_q") == 0


async def test_a_rolled_back_pop_or_delete_loses_nothing(conn: Connection) -> None:
    await create_queue(conn)
    await send_messages(conn, 3)
    async with rolled_back(conn):
        assert len(await conn.fetch("select * from pgmq.pop('q', 2)")) == 2
        await conn.fetch("select pgmq.delete('q', 3)")
        assert await read_ids(conn) == []
    assert await read_ids(conn) == [1, 2, 3]


async def test_set_vt_changes_nothing_but_vt(conn: Connection) -> None:
    await create_queue(conn)
    await send_messages(conn, 3)
    await read_ids(conn, 3)
    before = await fetch_one_row(conn, "select * from pgmq.q_q where msg_id = 1")
    after = await fetch_one_row(conn, "select * from pgmq.set_vt('q', 1, 500)")
    assert [tuple(after)[n] for n in (0, 1, 2, 3, 5, 6)] == [tuple(before)[n] for n in (0, 1, 2, 3, 5, 6)]
    assert after["vt"] > before["vt"]
    stamp = datetime(2050, 1, 1, tzinfo=UTC)
    for call in ("1, $1::timestamptz", "array[1], $1::timestamptz"):
        assert await conn.fetchval(f"select vt from pgmq.set_vt('q', {call})", stamp) == stamp
    rows = await conn.fetch("select msg_id from pgmq.set_vt('q', array[3, 2, 99, 2], -1)")
    assert [row[0] for row in rows] == [2, 3]
    assert await read_ids(conn) == [2, 3]
    assert await conn.fetch("select * from pgmq.set_vt('q', 99, 1)") == []
    assert await conn.fetch("select * from pgmq.set_vt('q', null::bigint[], 1)") == []
    await expect_error(conn, "23502", "select * from pgmq.set_vt('q', 1, null::integer)")


async def test_archive_moves_the_whole_row(conn: Connection) -> None:
    await create_queue(conn)
    await send_messages(conn, 2, headers=[{"h": 1}, None])
    await read_ids(conn, 1)
    before = await fetch_one_row(conn, "select * from pgmq.q_q where msg_id = 1")
    assert await conn.fetchval("select pgmq.archive('q', 1)") is True
    after = await fetch_one_row(conn, "select *, clock_timestamp() as now from pgmq.a_q")
    assert {name: after[name] for name in dict(before)} == dict(before)
    assert timedelta(0) <= after["now"] - after["archived_at"] < timedelta(seconds=5)
    assert await conn.fetchval("select pgmq.archive('q', 1)") is False
    assert await count_rows(conn, "a_q") == 1
    assert await count_rows(conn, "q_q") == 1


@pytest.mark.parametrize("act", ["archive", "delete"])
async def test_acting_on_one_and_on_many(conn: Connection, act: str) -> None:
    await create_queue(conn)
    await send_messages(conn, 6)
    await read_ids(conn, 3)  # invisible ones too
    assert await conn.fetchval(f"select pgmq.{act}('q', 1)") is True
    for wrong in ("99", "null::bigint", "1"):
        assert await conn.fetchval(f"select pgmq.{act}('q', {wrong})") is False
    rows = await conn.fetch(f"select pgmq.{act}('q', array[5, 2, 99, 2, null, 4]::bigint[])")
    assert [row[0] for row in rows] == [2, 4, 5]
    for nothing in ("null::bigint[]", "array[]::bigint[]"):
        assert await conn.fetch(f"select * from pgmq.{act}('q', {nothing})") == []
    assert await count_rows(conn, "q_q") == 2
    assert await count_rows(conn, "a_q") == (4 if act == "archive" else 0)


async def test_an_id_that_was_archived_before_is_refused_whole(conn: Connection) -> None:
    """Only possible when people insert ids by hand: the message stays in the queue."""
    await create_queue(conn)
    await send_messages(conn, 2)
    await conn.execute("insert into pgmq.a_q (msg_id, vt) values (1, now())")
    await expect_error(conn, "23505", "select pgmq.archive('q', array[1, 2])")
    assert await count_rows(conn, "q_q") == 2


POLLING_READ_FUNCTIONS = [
    "read_with_poll",
    "read_grouped_with_poll",
    "read_grouped_rr_with_poll",
    "read_grouped_head_with_poll",
]


@pytest.mark.parametrize("how", POLLING_READ_FUNCTIONS)
async def test_polling_returns_at_once_what_is_there_and_nothing_with_no_time(
    conn: Connection, how: str
) -> None:
    await create_queue(conn)
    await send_messages(conn, 1)
    assert await conn.fetch(f"select * from pgmq.{how}('q', 60, 1, 0)") == []
    began = time.monotonic()
    [row] = await conn.fetch(f"select * from pgmq.{how}('q', 60, 1, 30, 10000)")
    assert row["read_ct"] == 1
    assert time.monotonic() - began < 5
    assert await conn.fetch(f"select * from pgmq.{how}('q', 60, 1, null)") == []


@pytest.mark.parametrize("how", POLLING_READ_FUNCTIONS)
async def test_polling_sees_what_others_commit_meanwhile(
    conn: Connection, second: Connection, how: str
) -> None:
    await create_queue(conn)
    began = time.monotonic()
    waiting = asyncio.create_task(conn.fetch(f"select msg_id from pgmq.{how}('q', 60, 1, 30, 20)"))
    asleep = "select wait_event = 'PgSleep' from pg_stat_activity where pid = $1"
    while not await second.fetchval(asleep, conn.get_server_pid()):
        assert time.monotonic() - began < 10
    await send_messages(second, 1)
    assert [row[0] for row in await waiting] == [1]
    assert time.monotonic() - began < 25


async def test_polling_ends_when_its_time_is_over(conn: Connection) -> None:
    await create_queue(conn)
    began = time.monotonic()
    assert await conn.fetch("select * from pgmq.read_with_poll('q', 60, 1, 1, 10000)") == []
    assert 1 <= time.monotonic() - began < 5


async def test_polling_filters(conn: Connection) -> None:
    await create_queue(conn)
    await send_messages(conn, 3)
    rows = await conn.fetch("""select msg_id from pgmq.read_with_poll('q', 60, 9, 5, 100, '{"n": 2}')""")
    assert [row[0] for row in rows] == [2]
