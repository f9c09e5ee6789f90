"""Read hints: a wrong hint costs time but never a message, however the message got below the hint."""

from __future__ import annotations

import json
import random
import time
from datetime import timedelta

import pytest
from message_queue_calls import acting_as, count_rows, create_queue, read_ids, rolled_back, send_messages

from holdfast.engine.connection import Connection
from holdfast.testing import wait_until


async def read_hints(conn: Connection) -> tuple[int, int]:
    """Cursor and floor."""
    rows = [
        await conn.fetchval(f"select coalesce(pg_sequence_last_value('pgmq.{letter}_q'::regclass), 0)")
        for letter in "cf"
    ]
    return rows[0], rows[1]


async def read_and_delete_messages(conn: Connection, messages: int, batch: int = 100) -> None:
    for _ in range(messages // batch):
        ids = await read_ids(conn, batch)
        assert len(ids) == batch
        await conn.fetch("select pgmq.delete('q', $1::bigint[])", ids)


async def wait_for_floor_above(conn: Connection, above: int) -> None:
    """Read and delete until the floor has moved above an id."""

    async def step() -> bool:
        await send_messages(conn, 10)
        await read_and_delete_messages(conn, 10, 10)
        return (await read_hints(conn))[1] > above

    await wait_until(step, what="the floor moves")


async def wait_for_readable_message(conn: Connection, expected: int, within: float = 5) -> None:
    async def look() -> bool:
        return expected in await read_ids(conn, 5)

    await wait_until(look, within=timedelta(seconds=within), what=f"message {expected} is found")


async def count_read_blocks(conn: Connection, qty: int = 10) -> int:
    """Blocks that one read touches: the honest measure of what it walks over."""
    plan = await conn.fetchval(
        f"explain (analyze, buffers, format json) select * from pgmq.read('q', 60, {qty})"
    )
    top = json.loads(plan)[0]["Plan"]
    return int(top["Shared Hit Blocks"] + top["Shared Read Blocks"])


async def test_cursor_and_floor_follow_what_is_consumed(conn: Connection) -> None:
    await create_queue(conn)
    await send_messages(conn, 3000)
    await read_and_delete_messages(conn, 2000)
    cursor, floor = await read_hints(conn)
    assert 1900 <= cursor <= 2001
    assert floor <= cursor
    await wait_for_floor_above(conn, 2000)


async def test_reads_do_not_walk_over_what_an_old_snapshot_keeps(
    conn: Connection, second: Connection
) -> None:
    await create_queue(conn)
    await send_messages(conn, 6000)
    async with second.transaction(isolation="repeatable_read"):
        await second.fetchval("select count(*) from pgmq.q_q")
        await read_and_delete_messages(conn, 1000)
        early = min([await count_read_blocks(conn) for _ in range(5)])
        await read_and_delete_messages(conn, 4000)
        late = min([await count_read_blocks(conn) for _ in range(5)])
        assert late < early + 200  # without the cursor: some 5000 more
        assert await second.fetchval("select count(*) from pgmq.q_q") == 6000


async def test_reads_do_not_walk_over_thousands_in_flight(conn: Connection) -> None:
    await create_queue(conn)
    await send_messages(conn, 6000)
    await read_ids(conn, 5000, 3600)
    costs = [await count_read_blocks(conn) for _ in range(5)]
    assert min(costs) < 600


async def test_a_message_whose_time_is_over_comes_back_before_younger_ones(conn: Connection) -> None:
    await create_queue(conn)
    await send_messages(conn, 2000)
    assert await read_ids(conn, 1, 0) == [1]
    assert len(await read_ids(conn, 1000, 3600)) == 1000
    await conn.execute("update pgmq.q_q set vt = clock_timestamp() + interval '50 ms' where msg_id = 3")

    async def look() -> bool:
        ids = await read_ids(conn, 1, 3600)
        return ids == [3]

    await wait_until(look, within=timedelta(seconds=5), what="redelivery in front of waiting messages")


async def test_a_vt_set_into_the_past_by_hand_is_found(conn: Connection) -> None:
    await create_queue(conn)
    await send_messages(conn, 5000)
    while await read_ids(conn, 1000, 3600):
        pass
    assert await read_ids(conn) == []
    await conn.execute("update pgmq.q_q set vt = '1970-01-01' where msg_id = 77")
    await wait_for_readable_message(conn, 77)


async def test_a_vt_set_while_another_session_sweeps_is_found(conn: Connection, second: Connection) -> None:
    await create_queue(conn)
    await send_messages(conn, 5000)
    while await read_ids(conn, 1000, 3600):
        pass
    async with second.transaction():
        await second.execute("update pgmq.q_q set vt = '1970-01-01' where msg_id = 77")
        until = time.monotonic() + 0.3
        while time.monotonic() < until:
            assert await read_ids(conn) == []
    await wait_for_readable_message(conn, 77)


async def test_a_sender_that_commits_late_is_found_behind_the_cursor(
    conn: Connection, second: Connection
) -> None:
    await create_queue(conn)
    await send_messages(conn, 100)
    late = second.transaction()
    await late.start()
    assert await send_messages(second, 1) == [101]
    await send_messages(conn, 3000)
    await read_and_delete_messages(conn, 3000)
    cursor, floor = await read_hints(conn)
    assert cursor > 2000
    assert floor <= 101  # its transaction still runs
    await late.commit()
    await wait_for_readable_message(conn, 101)


async def test_the_floor_waits_for_a_sender_that_keeps_its_transaction_open(
    conn: Connection, second: Connection
) -> None:
    await create_queue(conn)
    await send_messages(conn, 400)
    late = second.transaction()
    await late.start()
    assert await send_messages(second, 1) == [401]
    until = time.monotonic() + 1
    while time.monotonic() < until:
        await send_messages(conn, 100)
        await read_and_delete_messages(conn, 100)
    assert (await read_hints(conn))[1] <= 401
    await late.commit()
    await wait_for_readable_message(conn, 401)


async def test_a_rolled_back_delete_leaves_the_message_where_readers_find_it(
    conn: Connection, second: Connection
) -> None:
    await create_queue(conn)
    await send_messages(conn, 3000)
    await read_and_delete_messages(conn, 500)
    async with rolled_back(second):
        for _ in range(20):  # reads and deletes in one transaction, believing its own deletes
            ids = await read_ids(second, 100)
            await second.fetch("select pgmq.delete('q', $1::bigint[])", ids)
    seen: set[int] = set()

    async def drain() -> bool:
        ids = await read_ids(conn, 100, 3600)
        seen.update(ids)
        return len(seen) == 2500

    await wait_until(drain, within=timedelta(seconds=10), what="everything is delivered")
    assert seen == set(range(501, 3001))


async def test_a_message_inserted_below_the_floor_is_found(conn: Connection) -> None:
    await create_queue(conn)
    await send_messages(conn, 2000)
    await read_and_delete_messages(conn, 2000)
    await wait_for_floor_above(conn, 1500)
    await conn.execute("insert into pgmq.q_q (msg_id, vt) overriding system value values (7, now())")
    await wait_for_readable_message(conn, 7, within=15)


async def test_hints_beyond_the_last_id_are_discarded(conn: Connection) -> None:
    """After a restore, or truncate restart identity, the ids lie far below the hints."""
    await create_queue(conn)
    await send_messages(conn, 3000)
    await read_and_delete_messages(conn, 2000)
    await conn.execute("truncate pgmq.q_q restart identity")
    assert await send_messages(conn, 3) == [1, 2, 3]
    assert await read_ids(conn) == [1, 2, 3]
    await conn.execute("select setval('pgmq.c_q', 1000000), setval('pgmq.f_q', 1000000)")
    assert await send_messages(conn, 1) == [4]
    assert await read_ids(conn) == [4]


async def test_wrong_hints_hide_no_message(conn: Connection) -> None:
    """Somebody who may set sequences sets them all: to the end of the queue, and to the end of time."""
    await create_queue(conn)
    await send_messages(conn, 1000)
    await conn.execute(
        "select setval('pgmq.c_q', 1001), setval('pgmq.f_q', 1001), setval('pgmq.z_q', 9e18::bigint)"
    )
    assert await read_ids(conn, 2) == [1, 2]


async def test_api_roles_cannot_touch_the_hints(conn: Connection) -> None:
    await create_queue(conn)
    for role in ("anon", "authenticated"):
        for letter in "cfz":
            right = f"select has_sequence_privilege('{role}', 'pgmq.{letter}_q', 'update, select, usage')"
            assert not await conn.fetchval(right)


async def test_row_security_that_hides_nothing_costs_a_reader_nothing(conn: Connection) -> None:
    await create_queue(conn)
    await send_messages(conn, 6000)
    await read_ids(conn, 5000, 3600)
    before = min([await count_read_blocks(conn) for _ in range(5)])
    async with acting_as(conn, "holdfast_worker"):
        assert await conn.fetchval("select row_security_active('pgmq.q_q')")
        assert (
            min([await count_read_blocks(conn) for _ in range(5)]) < before + 50
        )  # from the lowest id: 140 more
        assert await read_ids(conn, 1000) == list(range(5101, 6001))


@pytest.mark.parametrize(
    "policies",
    [
        "create policy part on pgmq.q_q to anon using (msg_id > 100)",
        """create policy whole on pgmq.q_q to anon using (true);
           create policy less on pgmq.q_q as restrictive using (msg_id > 100)""",
        """create policy whole on pgmq.q_q to authenticated using (true);
           create policy part on pgmq.q_q to anon using (msg_id > 100)""",
        """create policy whole on pgmq.q_q for update to anon using (true);
           create policy part on pgmq.q_q for select to anon using (msg_id > 100)""",
    ],
)
async def test_a_reader_that_sees_some_rows_moves_no_hint(conn: Connection, policies: str) -> None:
    await create_queue(conn)
    await conn.execute("grant all on pgmq.q_q, pgmq.c_q, pgmq.f_q, pgmq.z_q to anon")
    await conn.execute(policies)
    await send_messages(conn, 1000)
    async with acting_as(conn, "anon"):
        assert await read_ids(conn, 2) == [101, 102]
    assert await read_hints(conn) == (0, 0)
    assert await read_ids(conn, 2) == [1, 2]


async def test_no_hints_at_all_is_only_slower(conn: Connection) -> None:
    await create_queue(conn)
    await send_messages(conn, 500)
    await read_and_delete_messages(conn, 200)
    await conn.execute("drop sequence pgmq.c_q, pgmq.f_q, pgmq.z_q")
    assert await read_ids(conn, 3) == [201, 202, 203]
    assert await read_ids(conn, 1, how="read_grouped_head") == []
    await create_queue(conn)
    assert await read_ids(conn, 3) == [204, 205, 206]


async def test_a_reader_with_an_older_snapshot_moves_no_hint(conn: Connection, second: Connection) -> None:
    await create_queue(conn)
    async with second.transaction(isolation="repeatable_read"):
        await second.fetchval("select count(*) from pgmq.q_q")
        await send_messages(conn, 400)
        before = await read_hints(conn)
        assert await read_ids(second) == []
        assert await read_hints(conn) == before
    assert await read_ids(conn, 2) == [1, 2]


async def test_a_filtered_read_hides_nothing_from_others(conn: Connection) -> None:
    await create_queue(conn)
    await send_messages(conn, 2000)
    rows = await conn.fetch("""select msg_id from pgmq.read('q', 60, 10, '{"n": 1500}')""")
    assert [row[0] for row in rows] == [1500]
    assert await read_ids(conn, 2) == [1, 2]


async def test_thousands_of_delayed_messages_do_not_slow_a_poll_and_come_in_time(conn: Connection) -> None:
    await create_queue(conn)
    await conn.execute(
        "insert into pgmq.q_q (vt) select clock_timestamp() + interval '1 hour' from generate_series(1, 5000)"
    )
    assert await read_ids(conn) == []
    assert min([await count_read_blocks(conn) for _ in range(5)]) < 600
    await conn.execute("update pgmq.q_q set vt = clock_timestamp() where msg_id = 4321")
    await wait_for_readable_message(conn, 4321)


@pytest.mark.parametrize("seed", range(4))
async def test_any_mixture_of_acts_loses_and_repeats_nothing(
    conn: Connection, second: Connection, seed: int
) -> None:
    """Random sends, reads, deletes, give-backs, rollbacks, late commits; at the end all was delivered."""
    draw = random.Random(seed)
    await create_queue(conn)
    finished: set[int] = set()
    open_send = None
    for _ in range(150):
        act = draw.choice(["send", "send", "read", "read", "read", "undone", "back", "late"])
        if act == "send":
            await send_messages(conn, draw.choice([1, 10, 300]))
        elif act == "late":
            if open_send is None:
                open_send = second.transaction()
                await open_send.start()
                await send_messages(second, draw.choice([1, 50]))
            else:
                await (open_send.commit() if draw.random() < 0.7 else open_send.rollback())
                open_send = None
        elif act == "undone":
            async with rolled_back(conn):
                for _ in range(draw.randint(1, 5)):
                    ids = await read_ids(conn, 100)
                    await conn.fetch("select pgmq.delete('q', $1::bigint[])", ids)
        else:
            ids = await read_ids(conn, draw.choice([1, 100, 400]))
            assert not finished & set(ids)
            if act == "back":
                await conn.fetch("select pgmq.set_vt('q', $1::bigint[], 0)", ids)
            else:
                gone = await conn.fetch("select pgmq.delete('q', $1::bigint[])", ids)
                finished.update(row[0] for row in gone)
    if open_send is not None:
        await open_send.commit()

    async def drained() -> bool:
        ids = await read_ids(conn, 1000)
        assert not finished & set(ids)
        finished.update(ids)
        await conn.fetch("select pgmq.delete('q', $1::bigint[])", ids)
        return await count_rows(conn, "q_q") == 0

    await wait_until(drained, within=timedelta(seconds=15), what="the queue is empty")
