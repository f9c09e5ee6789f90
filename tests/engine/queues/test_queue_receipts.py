"""Messages with receipts: policies, dead letters, peeking, requeueing and maintenance."""

from __future__ import annotations

from datetime import timedelta

import pytest
from message_queue_calls import count_rows, create_queue, expect_error, read_ids, rolled_back, send_messages

from holdfast.engine.connection import Connection
from holdfast.testing import Clock

CALLS_WITH_RECEIPTS = [
    "archive_messages('q', $1::text[])",
    "delete_messages('q', $1::text[])",
    "set_message_vt('q', $1::text[], '1 minute')",
    "fail_messages('q', $1::text[], 'boom')",
]


async def read_receipts(
    conn: Connection, qty: int = 1, vt: timedelta = timedelta(minutes=1), queue: str = "q"
) -> list[str]:
    rows = await conn.fetch("select receipt from holdfast.read_messages($1, $2, $3)", queue, vt, qty)
    return [row["receipt"] for row in rows]


async def test_a_read_hands_out_a_receipt_per_message(conn: Connection) -> None:
    await create_queue(conn)
    await send_messages(conn, 3, headers=[{"h": 1}, None, None])
    rows = await conn.fetch("select * from holdfast.read_messages('q', '1 minute', 2)")
    assert [row["msg_id"] for row in rows] == [1, 2]
    assert list(rows[0].keys())[:7] == [
        *("msg_id", "read_ct", "enqueued_at", "last_read_at", "vt", "message", "headers")
    ]
    assert len({row["receipt"] for row in rows}) == 2
    assert rows[0]["vt"] - rows[0]["last_read_at"] == timedelta(minutes=1)
    assert await read_ids(conn, 10) == [3]


@pytest.mark.parametrize("act", CALLS_WITH_RECEIPTS)
async def test_a_good_receipt_works_once_and_a_stale_one_never(conn: Connection, act: str) -> None:
    await create_queue(conn)
    await send_messages(conn, 1)
    [stale] = await read_receipts(conn, vt=timedelta(0))
    [good] = await read_receipts(conn)
    message = await expect_error(conn, "HF001", f"select * from holdfast.{act}", [stale])
    assert message == "Message 1 of queue q was read again by another reader, or is gone."
    assert await count_rows(conn, "q_q") == 1
    [row] = await conn.fetch(f"select * from holdfast.{act}", [good])
    assert row[0] == 1


@pytest.mark.parametrize("act", CALLS_WITH_RECEIPTS)
async def test_one_stale_receipt_refuses_the_batch_or_is_left_out(conn: Connection, act: str) -> None:
    await create_queue(conn)
    await send_messages(conn, 3)
    receipts = await read_receipts(conn, 3)
    await conn.fetch("select pgmq.delete('q', 2)")
    before = await conn.fetch("select * from pgmq.q_q order by 1")
    await expect_error(conn, "HF001", f"select * from holdfast.{act}", receipts)
    assert await conn.fetch("select * from pgmq.q_q order by 1") == before
    lenient = act[:-1] + ", p_strict => false)"
    rows = await conn.fetch(f"select * from holdfast.{lenient}", receipts)
    assert [row[0] for row in rows] == [1, 3]


@pytest.mark.parametrize("act", CALLS_WITH_RECEIPTS)
async def test_what_is_no_receipt_is_an_argument_error(conn: Connection, act: str) -> None:
    await create_queue(conn)
    for wrong in ("", "1", "1.1", "1.1.1.1", "x.1.1", "1.1.1; drop", "9" * 30 + ".1.1", None):
        await expect_error(conn, "HF004", f"select * from holdfast.{act}", [wrong])
    assert await conn.fetch(f"select * from holdfast.{act}", []) == []
    await expect_error(conn, "HF002", f"select * from holdfast.{act}".replace("'q'", "'nope'"), ["1.1.1"])


async def test_extending_keeps_the_receipt_and_plain_calls_are_not_fenced(conn: Connection) -> None:
    await create_queue(conn)
    await send_messages(conn, 2)
    receipts = await read_receipts(conn, 2)
    for _ in range(3):
        await conn.fetch("select holdfast.set_message_vt('q', $1::text[], '5 minutes')", receipts)
    assert await conn.fetchval("select min(vt) > now() + interval '4 minutes' from pgmq.q_q")
    await conn.fetch("select pgmq.set_vt('q', 1, 0)")
    assert await read_ids(conn, 1) == [1]  # somebody else has it now
    assert await conn.fetchval("select pgmq.archive('q', 1)") is True
    assert [
        row[0] for row in await conn.fetch("select holdfast.archive_messages('q', $1::text[])", receipts[1:])
    ] == [2]


async def test_archiving_with_a_receipt_keeps_the_whole_row(conn: Connection) -> None:
    await create_queue(conn)
    await send_messages(conn, 1, headers=[{"h": 1}])
    receipts = await read_receipts(conn)
    before = await conn.fetchrow("select * from pgmq.q_q")
    await conn.fetch("select holdfast.archive_messages('q', $1::text[])", receipts)
    after = await conn.fetchrow(
        "select msg_id, read_ct, enqueued_at, last_read_at, vt, message, headers from pgmq.a_q"
    )
    assert before is not None
    assert after is not None
    assert tuple(after) == tuple(before)


async def test_finishing_rolls_back_with_the_callers_transaction(conn: Connection) -> None:
    await create_queue(conn)
    await send_messages(conn, 1)
    receipts = await read_receipts(conn)
    async with rolled_back(conn):
        await conn.fetch("select holdfast.delete_messages('q', $1::text[])", receipts)
    assert await count_rows(conn, "q_q") == 1
    await conn.fetch("select holdfast.delete_messages('q', $1::text[])", receipts)


async def test_our_reads_follow_the_movable_clock(conn: Connection, clock: Clock) -> None:
    await create_queue(conn)
    await send_messages(conn, 1)
    assert len(await read_receipts(conn, vt=timedelta(hours=1))) == 1
    assert await read_receipts(conn) == []
    await clock.advance(timedelta(hours=1, seconds=1))
    assert len(await read_receipts(conn)) == 1


async def test_the_visibility_comes_from_the_policy_unless_given(conn: Connection) -> None:
    await create_queue(conn)
    await send_messages(conn, 2)
    await conn.execute("select holdfast.put_message_policy('q', p_vt => '2 hours')")
    [row] = await conn.fetch("select * from holdfast.read_messages('q')")
    assert row["vt"] - row["last_read_at"] == timedelta(hours=2)
    [row] = await conn.fetch("select * from holdfast.read_messages('q', '1.5 seconds')")
    assert row["vt"] - row["last_read_at"] == timedelta(seconds=1.5)


async def test_back_off_doubles_up_to_its_cap(conn: Connection, clock: Clock) -> None:
    await create_queue(conn)
    await send_messages(conn, 1)
    await conn.execute(
        "select holdfast.put_message_policy('q', p_backoff => '10 seconds', p_backoff_cap => '1 minute')"
    )
    for expected in (10, 20, 40, 60, 60):
        receipts = await read_receipts(conn)
        [row] = await conn.fetch(
            "select *, holdfast.now() as now from holdfast.fail_messages('q', $1::text[])", receipts
        )
        assert (row["msg_id"], row["outcome"]) == (1, "retry")
        assert 0.85 * expected <= (row["vt"] - row["now"]).total_seconds() <= 1.1 * expected
        assert await read_receipts(conn) == []
        await clock.advance(timedelta(seconds=1.15 * expected))


async def test_a_message_that_failed_too_often_is_a_dead_letter_with_its_error(conn: Connection) -> None:
    await create_queue(conn)
    await send_messages(conn, 1, headers=[{"h": 1}])
    await conn.execute("select holdfast.put_message_policy('q', 2, 'q_dead', p_backoff => '0')")
    [row] = await conn.fetch(
        "select * from holdfast.fail_messages('q', $1::text[], 'first')", await read_receipts(conn)
    )
    assert row["outcome"] == "retry"
    [row] = await conn.fetch(
        "select * from holdfast.fail_messages('q', $1::text[], 'second')", await read_receipts(conn)
    )
    assert (row["outcome"], row["vt"]) == ("dead", None)
    assert await count_rows(conn, "q_q") == 0
    note = await conn.fetchrow(
        "select message, headers -> 'x-holdfast-dead' ->> 'error', headers ->> 'h' from pgmq.q_q_dead"
    )
    assert note is not None
    assert tuple(note) == ('{"n": 1}', "second", "1")


async def test_without_a_dead_letter_queue_it_is_archived_with_its_error(conn: Connection) -> None:
    await create_queue(conn)
    await send_messages(conn, 1)
    await conn.execute("select holdfast.put_message_policy('q', 1)")
    await conn.fetch(
        "select * from holdfast.fail_messages('q', $1::text[], $2)", await read_receipts(conn), "x" * 10000
    )
    assert await conn.fetchval("select length(headers #>> '{x-holdfast-dead,error}') from pgmq.a_q") == 4000
    assert [
        row["msg_id"] for row in await conn.fetch("select * from holdfast.peek_messages('q', 9, 'dead')")
    ] == [1]


async def test_a_message_whose_readers_die_becomes_a_dead_letter_after_max_reads(conn: Connection) -> None:
    await create_queue(conn)
    await send_messages(conn, 5)
    await conn.execute("select holdfast.put_message_policy('q', 2, 'q_dead')")
    for _ in range(2):
        assert len(await read_receipts(conn, 3, timedelta(0))) == 3
    assert [receipt.split(".")[0] for receipt in await read_receipts(conn, 3, timedelta(0))] == ["4", "5"]
    assert await count_rows(conn, "q_q_dead") == 3


async def test_maintenance_moves_exhausted_messages_of_plain_readers_to_dead_letters(
    conn: Connection,
) -> None:
    await create_queue(conn)
    await send_messages(conn, 3)
    await conn.execute("select holdfast.put_message_policy('q', 2, 'q_dead')")
    for _ in range(2):
        await read_ids(conn, 2, 0)
    assert await conn.fetchval("select holdfast.tick_messages(1) ->> 'dead_lettered'") == "1"
    assert await conn.fetchval("select holdfast.tick_messages() ->> 'dead_lettered'") == "1"
    assert await conn.fetchval("select holdfast.tick_messages() ->> 'dead_lettered'") == "0"
    assert (await count_rows(conn, "q_q"), await count_rows(conn, "q_q_dead")) == (1, 2)


async def test_maintenance_prunes_the_archive_in_steps(conn: Connection, clock: Clock) -> None:
    await create_queue(conn)
    await create_queue(conn, "kept")
    for queue in ("q", "kept"):
        await send_messages(conn, 5, queue)
        await conn.fetch("select pgmq.archive($1, array[1, 2, 3, 4, 5])", queue)
    await conn.execute("select holdfast.put_message_policy('q', p_archive_retention => '1 day')")
    assert await conn.fetchval("select holdfast.tick_messages() ->> 'pruned'") == "0"
    await clock.advance(timedelta(days=1, seconds=1))
    assert (
        await conn.fetchval("select holdfast.tick_messages(3)")
        == '{"more": true, "pruned": 3, "dead_lettered": 0}'
    )
    assert await conn.fetchval("select holdfast.tick_messages(3) ->> 'pruned'") == "2"
    assert (await count_rows(conn, "a_q"), await count_rows(conn, "a_kept")) == (0, 5)


async def test_peeking_takes_nothing(conn: Connection) -> None:
    await create_queue(conn)
    await send_messages(conn, 5)
    await read_ids(conn, 1)
    await conn.fetch("select pgmq.archive('q', 2)")
    before = await conn.fetch("select * from pgmq.q_q order by 1")
    rows = await conn.fetch("select * from holdfast.peek_messages('q', 3)")
    assert [row["msg_id"] for row in rows] == [1, 3, 4]
    rows = await conn.fetch("select * from holdfast.peek_messages('q', 3, p_after => 4)")
    assert [row["msg_id"] for row in rows] == [5]
    rows = await conn.fetch("select * from holdfast.peek_messages('q', 3, 'archive')")
    assert [row["msg_id"] for row in rows] == [2]
    assert await conn.fetch("select * from pgmq.q_q order by 1") == before
    await expect_error(conn, "HF004", "select * from holdfast.peek_messages('q', 3, 'moon')")
    await expect_error(conn, "HF002", "select * from holdfast.peek_messages('nope')")


@pytest.mark.parametrize("dead_queue", ["q_dead", None])
async def test_dead_letters_go_back_as_they_were(conn: Connection, dead_queue: str | None) -> None:
    await create_queue(conn)
    await send_messages(conn, 3, headers=[{"h": 1}, [7], None])
    await conn.execute("select holdfast.put_message_policy('q', 1, $1)", dead_queue)
    await conn.fetch(
        "select * from holdfast.fail_messages('q', $1::text[], 'boom')", await read_receipts(conn, 3)
    )
    await conn.fetch("select pgmq.send('q', '\"archived\"')")
    await conn.fetch("select pgmq.archive('q', 4)")
    rows = await conn.fetch("select * from holdfast.requeue_messages('q', p_limit => 2)")
    assert [tuple(row) for row in rows] == [(1, 5), (2, 6)]
    assert [tuple(row) for row in await conn.fetch("select * from holdfast.requeue_messages('q')")] == [
        (3, 7)
    ]
    assert await conn.fetch("select * from holdfast.requeue_messages('q')") == []
    rows = await conn.fetch("select read_ct, message, headers from pgmq.q_q order by msg_id")
    assert [tuple(row) for row in rows] == [
        (0, '{"n": 1}', '{"h": 1}'),
        (0, '{"n": 2}', "[7]"),
        (0, '{"n": 3}', None),
    ]
    assert await count_rows(conn, "a_q") == 1


async def test_archived_messages_go_back_by_id(conn: Connection) -> None:
    await create_queue(conn)
    await send_messages(conn, 4, headers=[{"h": 1}, None, None, None])
    await conn.fetch("select pgmq.archive('q', array[1, 2, 3])")
    rows = await conn.fetch("select * from holdfast.requeue_messages('q', 'archive', array[3, 1, 99])")
    assert [tuple(row) for row in rows] == [(1, 5), (3, 6)]
    assert await conn.fetchval("select headers from pgmq.q_q where msg_id = 5") == '{"h": 1}'
    assert await count_rows(conn, "a_q") == 1
    assert await read_ids(conn) == [4, 5, 6]
    await expect_error(conn, "HF004", "select * from holdfast.requeue_messages('q', 'moon')")


async def test_policies_are_checked_and_found_under_any_spelling(conn: Connection) -> None:
    await create_queue(conn, "Q")
    await conn.execute("select holdfast.put_message_policy('q', 3, 'Dead')")
    row = await conn.fetchrow("select * from holdfast.get_message_policy('Q')")
    assert row is not None
    assert (row["max_reads"], row["dead_letter_queue"]) == (3, "dead")
    for wrong in ("-1", "0", "1, 'Q'", "1, p_backoff => '-1 s'", "1, p_vt => '0'", "1, p_vt => null"):
        await expect_error(conn, "HF004", f"select holdfast.put_message_policy('Q', {wrong})")
    await expect_error(conn, "HF002", "select holdfast.put_message_policy('nope', 1)")
    assert await conn.fetchval("select holdfast.delete_message_policy('Q')") is True
    assert await conn.fetchval("select holdfast.delete_message_policy('Q')") is False
    assert await conn.fetchval("select max_reads from holdfast.get_message_policy('Q')") is None


async def test_message_metrics_count_every_state(conn: Connection) -> None:
    await create_queue(conn)
    await conn.execute("select holdfast.put_message_policy('q', 1, 'q_dead')")
    await send_messages(conn, 6)
    await conn.fetch("select pgmq.send('q', '1', 3600)")
    receipts = await read_receipts(conn, 3)
    await conn.fetch("select * from holdfast.fail_messages('q', $1::text[])", receipts[:1])
    await conn.fetch("select holdfast.archive_messages('q', $1::text[])", receipts[1:2])
    row = await conn.fetchrow("select * from holdfast.list_message_metrics('Q')")
    assert row is not None
    names = ("queue_name", "total", "visible", "in_flight", "delayed", "archived", "dead", "sent")
    assert tuple(row[name] for name in names) == ("q", 5, 3, 1, 1, 1, 1, 7)
    assert row["oldest_age"] >= timedelta(0)
    assert len(await conn.fetch("select * from holdfast.list_message_metrics()")) == 2
    await expect_error(conn, "HF002", "select * from holdfast.list_message_metrics('nope')")


async def test_workers_may_do_all_of_it_and_api_roles_none(conn: Connection) -> None:
    await create_queue(conn)
    await send_messages(conn, 2)
    await conn.execute("select holdfast.put_message_policy('q', 1, 'q_dead')")
    await conn.execute("set role holdfast_worker")
    receipts = await read_receipts(conn, 2)
    await conn.fetch("select holdfast.set_message_vt('q', $1::text[], '1 minute')", receipts)
    await conn.fetch("select holdfast.archive_messages('q', $1::text[])", receipts[:1])
    await conn.fetch("select * from holdfast.fail_messages('q', $1::text[], 'x')", receipts[1:])
    await conn.fetch("select * from holdfast.peek_messages('q')")
    await conn.fetch("select * from holdfast.requeue_messages('q')")
    await conn.fetch("select * from holdfast.list_message_metrics()")
    await conn.fetch("select holdfast.tick_messages()")
    await conn.execute(
        "select holdfast.enable_message_wakeups('q'); select holdfast.register_sleeping_reader('q')"
    )
    await conn.execute("set role authenticated")
    await expect_error(conn, "42501", "select * from holdfast.read_messages('q')")
    await conn.execute("reset role")
