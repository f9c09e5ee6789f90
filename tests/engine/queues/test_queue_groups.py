"""FIFO groups: which messages a grouped read returns, in which order, and when a group is blocked."""

from __future__ import annotations

import json

import pytest
from message_queue_calls import create_queue, read_ids, rolled_back, send_messages

from holdfast.engine.connection import Connection

GROUP_HEADER = "x-pgmq-group"
GROUPED_READ_FUNCTIONS = ["read_grouped", "read_grouped_rr", "read_grouped_head"]


async def send_grouped_messages(conn: Connection, names: str, queue: str = "q") -> None:
    """One message per letter; a dash has no group."""
    await create_queue(conn, queue)
    await send_messages(
        conn, len(names), queue, headers=[None if name == "-" else {GROUP_HEADER: name} for name in names]
    )


@pytest.fixture(params=["walk", "index"])
def indexed(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "index")


async def index(conn: Connection, with_index: bool) -> None:
    if with_index:
        await conn.execute("select pgmq.create_fifo_index('q'); select pgmq.create_fifo_index('q')")


async def test_read_grouped_fills_up_from_the_oldest_groups(conn: Connection, indexed: bool) -> None:
    await send_grouped_messages(conn, "ABABA--")
    await index(conn, indexed)
    for qty, expected in [(1, [1]), (2, [1, 3]), (4, [1, 2, 3, 5]), (10, [1, 2, 3, 4, 5, 6, 7])]:
        async with rolled_back(conn):
            assert await read_ids(conn, qty, how="read_grouped") == expected


async def test_read_grouped_rr_takes_from_all_in_turn(conn: Connection, indexed: bool) -> None:
    await send_grouped_messages(conn, "ABABA--")
    await index(conn, indexed)
    for qty, expected in [(2, [1, 2]), (4, [1, 2, 6, 3]), (10, [1, 2, 6, 3, 4, 7, 5])]:
        async with rolled_back(conn):
            assert await read_ids(conn, qty, how="read_grouped_rr") == expected


async def test_read_grouped_head_takes_one_of_each(conn: Connection, indexed: bool) -> None:
    await send_grouped_messages(conn, "ABABA--C")
    await index(conn, indexed)
    assert await read_ids(conn, 2, how="read_grouped_head") == [1, 2]
    assert await read_ids(conn, 10, how="read_grouped_head") == [6, 8]
    assert await read_ids(conn, 10, how="read_grouped_head") == []


@pytest.mark.parametrize("how", GROUPED_READ_FUNCTIONS)
async def test_a_group_rests_while_its_oldest_message_is_in_flight(
    conn: Connection, how: str, indexed: bool
) -> None:
    await send_grouped_messages(conn, "AABB")
    await index(conn, indexed)
    assert await read_ids(conn, 1, how=how) == [1]
    async with rolled_back(conn):
        assert set(await read_ids(conn, 10, how=how)) == ({3} if how == "read_grouped_head" else {3, 4})
    await conn.fetch("select pgmq.delete('q', 1)")
    assert 2 in await read_ids(conn, 10, how=how)


@pytest.mark.parametrize("how", GROUPED_READ_FUNCTIONS)
@pytest.mark.parametrize("act", ["archive('q', 1)", "delete('q', 1)", "set_vt('q', 1, 0)"])
async def test_finishing_or_giving_back_the_head_frees_the_group(
    conn: Connection, how: str, act: str
) -> None:
    await send_grouped_messages(conn, "AA")
    assert await read_ids(conn, 1, how=how) == [1]
    assert await read_ids(conn, 1, how=how) == []
    await conn.fetch(f"select pgmq.{act}")
    assert await read_ids(conn, 1, how=how) == ([1] if act.startswith("set") else [2])


async def test_a_later_message_in_flight_does_not_stop_its_group(conn: Connection, indexed: bool) -> None:
    await send_grouped_messages(conn, "ABABA--")
    await index(conn, indexed)
    await conn.fetch("select pgmq.set_vt('q', 3, 3600)")
    for how, expected in [("read_grouped", [1, 2, 4, 5, 6, 7]), ("read_grouped_rr", [1, 2, 6, 5, 4, 7])]:
        async with rolled_back(conn):
            assert await read_ids(conn, 10, how=how) == expected


async def test_no_key_null_and_no_object_are_one_group_and_empty_text_is_another(conn: Connection) -> None:
    await create_queue(conn)
    await send_messages(
        conn,
        6,
        headers=[None, {GROUP_HEADER: None}, {"other": 1}, [1], {GROUP_HEADER: ""}, {GROUP_HEADER: ""}],
    )
    assert await read_ids(conn, 10, how="read_grouped_head") == [1, 5]


@pytest.mark.parametrize("how", GROUPED_READ_FUNCTIONS)
async def test_a_group_that_another_transaction_holds_is_passed_over(
    conn: Connection, second: Connection, how: str, indexed: bool
) -> None:
    await send_grouped_messages(conn, "AABB")
    await index(conn, indexed)
    await second.execute("set lock_timeout = '100ms'")
    async with conn.transaction():
        assert await read_ids(conn, 1, how=how) == [1]
        assert set(await read_ids(second, 10, how=how)) == ({3} if how == "read_grouped_head" else {3, 4})


async def test_the_same_group_in_two_queues_is_two_groups(conn: Connection, second: Connection) -> None:
    await send_grouped_messages(conn, "A", "one")
    await send_grouped_messages(conn, "A", "two")
    async with conn.transaction():
        assert await read_ids(conn, 1, queue="one", how="read_grouped_rr") == [1]
        assert await read_ids(second, 1, queue="two", how="read_grouped_rr") == [1]


async def test_a_rolled_back_grouped_read_frees_its_groups(conn: Connection) -> None:
    await send_grouped_messages(conn, "AB")
    async with rolled_back(conn):
        assert await read_ids(conn, 10, how="read_grouped") == [1, 2]
    assert await read_ids(conn, 10, how="read_grouped") == [1, 2]


async def count_read_blocks(conn: Connection, how: str, qty: int) -> int:
    plan = await conn.fetchval(
        f"explain (analyze, buffers, format json) select * from pgmq.{how}('q', 60, {qty})"
    )
    top = json.loads(plan)[0]["Plan"]
    return int(top["Shared Hit Blocks"] + top["Shared Read Blocks"])


@pytest.mark.parametrize("how", ["read_grouped_rr", "read_grouped_head"])
async def test_the_cost_of_a_grouped_read_depends_on_its_quantity(conn: Connection, how: str) -> None:
    await create_queue(conn)
    insert = """insert into pgmq.q_q (vt, headers)
                select clock_timestamp(), jsonb_build_object('x-pgmq-group', n % 500)
                from generate_series(1, $1::int) n"""
    await conn.execute(insert, 20000)
    assert await count_read_blocks(conn, how, 10) < 1000  # the whole queue has more than that


async def test_with_the_index_a_blocked_queue_is_searched_group_by_group(conn: Connection) -> None:
    await create_queue(conn)
    await conn.execute(
        """insert into pgmq.q_q (vt, headers)
           select clock_timestamp(), jsonb_build_object('x-pgmq-group', n % 20)
           from generate_series(1, 30000) n"""
    )
    await conn.execute("select pgmq.create_fifo_indexes_all()")
    assert len(await read_ids(conn, 20, how="read_grouped_head")) == 20
    assert await count_read_blocks(conn, "read_grouped", 10) < 1500
    await conn.fetch("select pgmq.delete('q', 7)")
    assert await read_ids(conn, 3, how="read_grouped") == [27, 47, 67]


async def test_the_fifo_indexes_are_made_once(conn: Connection) -> None:
    await create_queue(conn)
    await create_queue(conn, "other")
    await conn.execute("select pgmq.create_fifo_index('q'); select pgmq.create_fifo_indexes_all()")
    kinds = "select indexdef from pg_indexes where indexname like '%fifo_idx' order by indexname"
    index_definitions = [row[0] for row in await conn.fetch(kinds)]
    assert len(index_definitions) == 2
    assert all("USING gin (headers)" in each for each in index_definitions)
