"""Send messages: every overload, every type of body, every invalid argument."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from message_queue_calls import count_rows, create_queue, expect_error, read_ids, rolled_back, send_messages

from holdfast.engine.connection import Connection

FAR_FUTURE = datetime(2099, 1, 1, tzinfo=UTC)


async def fetch_one_value(conn: Connection, call: str, *arguments: object) -> object:
    return await conn.fetchval(f"select * from {call}", *arguments)


async def list_message_rows(conn: Connection) -> list[tuple[object, ...]]:
    records = await conn.fetch("select message::text, headers::text from pgmq.q_q order by msg_id")
    return [tuple(row) for row in records]


async def read_message_delay(conn: Connection, msg_id: int) -> timedelta:
    """How long after its transaction a message becomes visible."""
    value: timedelta = await conn.fetchval("select vt - enqueued_at from pgmq.q_q where msg_id = $1", msg_id)
    return value


async def test_each_overload_of_send(conn: Connection) -> None:
    await create_queue(conn)
    assert await fetch_one_value(conn, "pgmq.send('q', '{\"a\": 1}')") == 1
    assert await fetch_one_value(conn, "pgmq.send('q', '2', '{\"h\": 1}'::jsonb)") == 2
    assert await fetch_one_value(conn, "pgmq.send('q', '3', 60)") == 3
    assert await fetch_one_value(conn, "pgmq.send('q', '4', $1::timestamptz)", FAR_FUTURE) == 4
    assert await fetch_one_value(conn, "pgmq.send('q', '5', '{\"h\": 2}'::jsonb, 60)") == 5
    assert await fetch_one_value(conn, "pgmq.send('q', '6', null::jsonb, $1::timestamptz)", FAR_FUTURE) == 6
    assert await list_message_rows(conn) == [
        ('{"a": 1}', None),
        ("2", '{"h": 1}'),
        ("3", None),
        ("4", None),
        ("5", '{"h": 2}'),
        ("6", None),
    ]
    assert timedelta(0) <= await read_message_delay(conn, 1) < timedelta(seconds=5)
    for msg_id in (3, 5):
        assert timedelta(seconds=60) <= await read_message_delay(conn, msg_id) < timedelta(seconds=65)
    records = await conn.fetch("select msg_id from pgmq.q_q where vt = $1", FAR_FUTURE)
    assert [row[0] for row in records] == [4, 6]
    assert await read_ids(conn) == [1, 2]


async def test_each_overload_of_send_batch(conn: Connection) -> None:
    await create_queue(conn)
    bodies, heads = "array['1','2']::jsonb[]", "array['{\"h\": 1}', null]::jsonb[]"
    later = "'2099-01-01Z'::timestamptz"
    overloads = [
        bodies,
        f"{bodies}, {heads}",
        f"{bodies}, 60",
        f"{bodies}, {later}",
        f"{bodies}, {heads}, 60",
        f"{bodies}, {heads}, {later}",
    ]
    for place, arguments in enumerate(overloads):
        records = await conn.fetch(f"select * from pgmq.send_batch('q', {arguments})")
        assert [row[0] for row in records] == [2 * place + 1, 2 * place + 2]
    with_headers = "select array_agg(msg_id order by msg_id) from pgmq.q_q where headers is not null"
    assert await conn.fetchval(with_headers) == [3, 9, 11]
    assert await read_ids(conn) == [1, 2, 3, 4]


async def test_a_batch_keeps_the_order_of_its_array_and_pairs_headers_by_place(conn: Connection) -> None:
    await create_queue(conn)
    bodies = [json.dumps(n) for n in range(2000, 0, -1)]
    heads = [json.dumps({"n": n}) if n % 3 else None for n in range(2000, 0, -1)]
    records = await conn.fetch(
        "select * from pgmq.send_batch('q', $1::jsonb[], $2::jsonb[]) with ordinality as t (id, place)",
        bodies,
        heads,
    )
    assert [(row[0], row[1]) for row in records] == [(n, n) for n in range(1, 2001)]
    wrong = """select count(*) from pgmq.q_q where message::int <> 2001 - msg_id
               or coalesce((headers ->> 'n')::int, 2001 - msg_id) <> 2001 - msg_id
               or (headers is null) <> ((2001 - msg_id) % 3 = 0)"""
    assert await conn.fetchval(wrong) == 0


@pytest.mark.parametrize(
    "body", ["null", "1", "-1.5", "true", '"text"', "[]", "[1, [2]]", "{}", '"\\u00fc\\ud83d\\ude00"']
)
async def test_any_json_is_a_message(conn: Connection, body: str) -> None:
    await create_queue(conn)
    await fetch_one_value(conn, "pgmq.send('q', $1::jsonb)", body)
    [row] = await conn.fetch("select message from pgmq.read('q', 0, 1)")
    assert json.loads(row["message"]) == json.loads(body)


async def test_null_is_a_message_too(conn: Connection) -> None:
    await create_queue(conn)
    assert await fetch_one_value(conn, "pgmq.send('q', null::jsonb)") == 1
    await conn.fetch("select * from pgmq.send_batch('q', array[null, '1']::jsonb[])")
    records = await conn.fetch("select msg_id, message from pgmq.read('q', 60, 10)")
    assert [tuple(row) for row in records] == [(1, None), (2, None), (3, "1")]
    assert await conn.fetchval("select count(*) from pgmq.archive('q', array[1, 2, 3])") == 3


async def test_a_message_of_64_megabytes_goes_through(conn: Connection) -> None:
    await create_queue(conn)
    big = json.dumps("x" * (64 * 1024 * 1024))
    assert await fetch_one_value(conn, "pgmq.send('q', $1::jsonb)", big) == 1
    length = "select length(message #>> '{}') from pgmq.read('q', 60, 1)"
    assert await conn.fetchval(length) == 64 * 1024 * 1024
    assert await conn.fetchval("select pgmq.archive('q', 1)")
    assert await conn.fetchval("select length(message #>> '{}') from pgmq.a_q") == 64 * 1024 * 1024


async def test_a_message_that_jsonb_cannot_hold_is_refused_and_nothing_is_stored(conn: Connection) -> None:
    await create_queue(conn)
    await expect_error(
        conn, "54000", "select pgmq.send('q', to_jsonb(array_fill(repeat('x', 1000), array[300000])))"
    )
    await expect_error(conn, "22P05", "select pgmq.send('q', '\"\\u0000\"'::jsonb)")
    assert await count_rows(conn, "q_q") == 0


@pytest.mark.parametrize("delay", [-5, -2147483648, 0])
async def test_a_delay_in_the_past_is_allowed(conn: Connection, delay: int) -> None:
    await create_queue(conn)
    await fetch_one_value(conn, "pgmq.send('q', '1', $1::integer)", delay)
    await fetch_one_value(conn, "pgmq.send('q', '1', '1970-01-01Z'::timestamptz)")
    assert await read_ids(conn) == [1, 2]


async def test_the_longest_delay_is_68_years(conn: Connection) -> None:
    await create_queue(conn)
    await fetch_one_value(conn, "pgmq.send('q', '1', 2147483647)")
    await fetch_one_value(conn, "pgmq.send('q', '1', 'infinity'::timestamptz)")
    assert await read_ids(conn) == []
    assert (await read_message_delay(conn, 1)).days > 365 * 68 - 1


async def test_a_null_delay_is_a_null_vt(conn: Connection) -> None:
    await create_queue(conn)
    for call in ("send('q', '1', null::integer)", "send('q', '1', null::timestamptz)"):
        assert '"vt"' in await expect_error(conn, "23502", f"select pgmq.{call}")
    await expect_error(conn, "23502", "select pgmq.send_batch('q', array['1']::jsonb[], null::integer)")


@pytest.mark.parametrize("msgs", ["null::jsonb[]", "array[]::jsonb[]"])
@pytest.mark.parametrize("rest", ["", ", null::jsonb[]", ", array[]::jsonb[]", ", 1", ", now()"])
async def test_a_batch_needs_messages(conn: Connection, msgs: str, rest: str) -> None:
    await create_queue(conn)
    message = await expect_error(conn, "P0001", f"select pgmq.send_batch('q', {msgs}{rest})")
    assert message == "msgs cannot be NULL or empty"


@pytest.mark.parametrize(
    ("heads", "length"), [("array['{}']", 1), ("array['{}','{}','{}']", 3), ("array[]", 0)]
)
async def test_headers_have_the_length_of_the_messages(conn: Connection, heads: str, length: int) -> None:
    await create_queue(conn)
    call = f"select pgmq.send_batch('q', array['1','2']::jsonb[], {heads}::jsonb[])"
    message = await expect_error(conn, "P0001", call)
    assert message == f"headers array length ({length}) must match msgs array length (2)"
    assert await count_rows(conn, "q_q") == 0


async def test_enqueued_at_is_the_start_of_the_transaction_and_vt_the_clock(conn: Connection) -> None:
    await create_queue(conn)
    async with conn.transaction():
        began = await conn.fetchval("select now()")
        await send_messages(conn, 1)
        [row] = await conn.fetch("select enqueued_at, vt from pgmq.q_q")
        assert row["enqueued_at"] == began < row["vt"]


async def test_a_rolled_back_send_leaves_no_message_and_a_gap(conn: Connection) -> None:
    await create_queue(conn)
    async with rolled_back(conn):
        await send_messages(conn, 2)
    assert await read_ids(conn) == []
    assert await send_messages(conn, 1) == [3]
    assert await read_ids(conn) == [3]
