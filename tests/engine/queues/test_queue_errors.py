"""The last error of a message: readable while the message is retried, deleted with the message."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from message_queue_calls import acting_as, create_queue, expect_error, send_messages

from holdfast.engine.connection import Connection
from holdfast.engine.messages import consumers as consuming
from holdfast.engine.messages import queues
from holdfast.testing import Clock

MINUTE = timedelta(minutes=1)


async def read_receipts(conn: Connection, qty: int = 1) -> list[str]:
    await conn.execute("update pgmq.q_q set vt = '1970-01-01'")
    rows = await conn.fetch("select receipt from holdfast.read_messages('q', '1 minute', $1)", qty)
    return [row["receipt"] for row in rows]


async def read_message_errors(conn: Connection) -> dict[int, str | None]:
    return {m.id: m.error for m in await queues.peek_messages(conn, "Q", 100, "queue", None)}


async def count_stored_errors(conn: Connection) -> int:
    count: int = await conn.fetchval("select count(*) from holdfast.message_errors")
    return count


async def fail_messages(
    conn: Connection, receipts: list[str], error: str | None = "ValueError: no"
) -> list[Any]:
    return list(
        await conn.fetch("select * from holdfast.fail_messages('Q', $1::text[], $2)", receipts, error)
    )


async def test_the_last_error_is_readable_while_the_message_is_retried(conn: Connection) -> None:
    await create_queue(conn)
    await send_messages(conn, 3)
    await fail_messages(conn, await read_receipts(conn, 2), "first")
    await fail_messages(conn, await read_receipts(conn, 1), "x" * 5000)
    assert await read_message_errors(conn) == {1: "x" * 4000, 2: "first", 3: None}
    [one, _, three] = await queues.peek_messages(conn, "q", 3, "queue", None)
    assert one.failed_at is not None
    assert three.failed_at is None
    columns = await conn.fetch("select * from pgmq.q_q where headers is not null")
    assert columns == [], "the headers are the sender's"


async def test_nothing_is_kept_for_a_stale_receipt_or_without_words(conn: Connection) -> None:
    await create_queue(conn)
    await send_messages(conn)
    old = await read_receipts(conn)
    new = await read_receipts(conn)
    await expect_error(conn, "HF001", "select holdfast.fail_messages('q', $1::text[], 'late')", old)
    assert await consuming.fail_messages(conn, "q", old, "late") == {}
    await fail_messages(conn, new, None)
    assert await count_stored_errors(conn) == 0


@pytest.mark.parametrize("how", ["archive", "delete"])
async def test_a_message_that_succeeds_in_the_end_leaves_no_error(conn: Connection, how: str) -> None:
    await create_queue(conn)
    await send_messages(conn)
    await fail_messages(conn, await read_receipts(conn))
    assert await count_stored_errors(conn) == 1
    await conn.execute(f"select holdfast.{how}_messages('q', $1)", await read_receipts(conn))
    assert await count_stored_errors(conn) == 0


async def test_a_dead_letter_tells_its_error_and_the_one_before(conn: Connection) -> None:
    await create_queue(conn)
    await conn.execute("select holdfast.put_message_policy('q', 2, 'graves')")
    await send_messages(conn, 2)
    await fail_messages(conn, await read_receipts(conn, 2), "first")
    receipts = await read_receipts(conn, 2)
    await fail_messages(conn, receipts[:1], "second")
    await fail_messages(conn, receipts[1:], "first")
    dead = await queues.peek_messages(conn, "q", 5, "dead", None)
    assert [m.error for m in dead] == ["second", "first"]
    notes: list[Any] = [m.headers["x-holdfast-dead"] for m in dead if isinstance(m.headers, dict)]
    assert [note.get("error_before") for note in notes] == ["first", None]
    assert await count_stored_errors(conn) == 0


async def test_a_queue_made_anew_inherits_no_errors(conn: Connection) -> None:
    await create_queue(conn)
    await send_messages(conn)
    await fail_messages(conn, await read_receipts(conn))
    await conn.execute("select pgmq.drop_queue('q')")
    await create_queue(conn)
    assert await send_messages(conn) == [1]
    assert await read_message_errors(conn) == {1: None}


async def test_maintenance_deletes_errors_of_messages_that_plain_calls_removed(
    conn: Connection, clock: Clock
) -> None:
    await create_queue(conn)
    await create_queue(conn, "other")
    await send_messages(conn, 3)
    await send_messages(conn, 1, "other")
    await fail_messages(conn, await read_receipts(conn, 3))
    [receipt] = await conn.fetchrow("select receipt from holdfast.read_messages('other')") or []
    await conn.execute("select holdfast.fail_messages('other', array[$1], 'no')", receipt)
    await conn.execute(
        "select pgmq.delete('q', 1); select pgmq.archive('q', 2); select pgmq.drop_queue('other')"
    )
    await conn.execute("select holdfast.tick_messages()")
    assert await count_stored_errors(conn) == 4, "not before an hour is over"
    await clock.advance(timedelta(hours=2))
    for _ in range(4):
        await conn.execute("select holdfast.tick_messages(1)")
    assert await count_stored_errors(conn) == 1
    assert await read_message_errors(conn) == {3: "ValueError: no"}


async def test_a_retry_creates_no_dead_letter(conn: Connection) -> None:
    """For whoever died with the message in its hands: the next reader buries it, and tells."""
    await create_queue(conn)
    await conn.execute("select holdfast.put_message_policy('q', 1, p_backoff => '1 minute')")
    await send_messages(conn)
    assert await consuming.retry_messages(conn, "q", await read_receipts(conn), "WorkerLost") == {1}
    assert await read_message_errors(conn) == {1: "WorkerLost"}
    rest = await conn.fetchval("select vt - now() from pgmq.q_q")
    assert MINUTE * 0.8 < rest < MINUTE * 1.2


async def test_errors_are_for_workers_and_services(conn: Connection) -> None:
    await create_queue(conn)
    await send_messages(conn)
    async with acting_as(conn, "holdfast_worker"):
        [receipt] = await conn.fetchrow("select receipt from holdfast.read_messages('q')") or []
        await fail_messages(conn, [receipt])
        assert await read_message_errors(conn) == {1: "ValueError: no"}
        await expect_error(conn, "42501", "select * from holdfast.message_errors")
    async with acting_as(conn, "authenticated"):
        await expect_error(conn, "42501", "select * from holdfast.get_message_error('q', 1, now())")
