"""Insert notifications of pgmq, and the wakeups of Holdfast, which need fewer notifications."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest
from message_queue_calls import create_queue, expect_error, read_ids, rolled_back, send_messages

from holdfast.engine.connection import Connection
from holdfast.testing import wait_until


class ChannelListener:
    def __init__(self, conn: Connection) -> None:
        self.conn = conn
        self.notifications: list[str] = []

    async def on(self, channel: str) -> None:
        await self.conn.add_listener(
            channel, lambda _c, _p, name, payload: self.notifications.append(f"{name}|{payload}")
        )

    async def count(self, sender: Connection) -> int:
        """How many were heard, once a notification of our own has come after all others."""
        done = asyncio.Event()
        await self.conn.add_listener("the_end", lambda *_: done.set())
        await sender.execute("notify the_end")
        await asyncio.wait_for(done.wait(), 10)
        return len(self.notifications)


@pytest.fixture
async def ears(second: Connection) -> AsyncGenerator[ChannelListener]:
    yield ChannelListener(second)
    await second.reset()


async def test_one_notification_with_empty_payload_per_transaction_at_commit(
    conn: Connection, ears: ChannelListener
) -> None:
    await create_queue(conn)
    await conn.execute("select pgmq.enable_notify_insert('q', 0)")
    await ears.on("pgmq.q_q.INSERT")
    async with rolled_back(conn):
        await send_messages(conn, 1)
    assert await ears.count(conn) == 0
    await send_messages(conn, 3)
    await send_messages(conn, 1)
    assert await ears.count(conn) == 2
    assert ears.notifications[0] == "pgmq.q_q.INSERT|"
    await conn.execute("insert into pgmq.q_q (vt) values (now())")
    assert await ears.count(conn) == 3


async def test_at_most_one_per_interval(conn: Connection, ears: ChannelListener) -> None:
    await create_queue(conn)
    await conn.execute("select pgmq.enable_notify_insert('q', 3600000)")
    await ears.on("pgmq.q_q.INSERT")
    for _ in range(5):
        await send_messages(conn, 1)
    assert await ears.count(conn) == 1
    await conn.execute("select pgmq.update_notify_insert('q', 3600000)")  # starts anew
    await send_messages(conn, 1)
    assert await ears.count(conn) == 2
    await conn.execute("select pgmq.update_notify_insert('q', 1)")
    await send_messages(conn, 1)

    async def again() -> bool:
        await send_messages(conn, 1)
        return await ears.count(conn) >= 4

    await wait_until(again, what="the interval of a millisecond passes")


async def test_a_name_with_capitals_is_notified_as_given(conn: Connection, ears: ChannelListener) -> None:
    await create_queue(conn, "MyQueue")
    await conn.execute("select pgmq.enable_notify_insert('MyQueue', 0)")
    await ears.on("pgmq.q_MyQueue.INSERT")
    await send_messages(conn, 1, "myqueue")
    assert await ears.count(conn) == 1


async def test_disabling_is_repeatable_and_ends_it(conn: Connection, ears: ChannelListener) -> None:
    await create_queue(conn)
    await conn.execute("select pgmq.enable_notify_insert('q', 0); select pgmq.enable_notify_insert('q', 0)")
    await ears.on("pgmq.q_q.INSERT")
    await send_messages(conn, 1)
    assert await ears.count(conn) == 1
    await conn.execute("select pgmq.disable_notify_insert('q'); select pgmq.disable_notify_insert('q')")
    await conn.execute("select pgmq.disable_notify_insert('nope')")
    await send_messages(conn, 1)
    assert await ears.count(conn) == 1
    assert await conn.fetch("select * from pgmq.list_notify_insert_throttles()") == []


async def test_the_listing_shows_settings_and_the_last_time(conn: Connection) -> None:
    for name in ("b", "a"):
        await create_queue(conn, name)
        await conn.execute("select pgmq.enable_notify_insert($1)", name)
    rows = await conn.fetch("select * from pgmq.list_notify_insert_throttles()")
    assert [(row[0], row[1], row[2].timestamp()) for row in rows] == [("a", 250, 0), ("b", 250, 0)]
    await send_messages(conn, 1, "a")
    await conn.execute("select pgmq.update_notify_insert('b', 7)")
    rows = await conn.fetch("select * from pgmq.list_notify_insert_throttles()")
    assert [(row[0], row[1], row[2].timestamp() > 0) for row in rows] == [("a", 250, True), ("b", 7, False)]
    trigger = "select count(*) from pg_trigger where tgname = 'trigger_notify_queue_insert_listeners'"
    assert await conn.fetchval(trigger) == 2


async def test_wrong_settings_are_refused(conn: Connection) -> None:
    await create_queue(conn)
    message = await expect_error(conn, "P0001", "select pgmq.enable_notify_insert('q', -1)")
    assert message.startswith("throttle_interval_ms must be non-negative")
    message = await expect_error(conn, "P0001", "select pgmq.enable_notify_insert('x')")
    assert message == 'Queue "x" does not exist. Create it first using pgmq.create()'
    assert "must be non-negative" in await expect_error(
        conn, "P0001", "select pgmq.update_notify_insert('q', -1)"
    )
    assert "does not exist" in await expect_error(conn, "P0001", "select pgmq.update_notify_insert('x', 1)")
    message = await expect_error(conn, "P0001", "select pgmq.update_notify_insert('q', 1)")
    assert "does not have notify_insert enabled" in message


async def test_an_open_transaction_holds_up_no_other_sender(conn: Connection, second: Connection) -> None:
    await create_queue(conn)
    await conn.execute("select pgmq.enable_notify_insert('q', 0)")
    await second.execute("set lock_timeout = '100ms'")
    async with conn.transaction():
        await send_messages(conn, 1)
        assert await send_messages(second, 1) == [2]


async def test_wakeups_happen_only_while_somebody_sleeps(conn: Connection, ears: ChannelListener) -> None:
    await create_queue(conn, "Q")
    await conn.execute(
        "select holdfast.enable_message_wakeups('Q'); select holdfast.enable_message_wakeups('q')"
    )
    await ears.on("holdfast_messages")
    await send_messages(conn, 1)
    assert await ears.count(conn) == 0
    await conn.execute("select holdfast.register_sleeping_reader('q', '30 seconds')")
    await send_messages(conn, 1)
    assert await ears.count(conn) == 1
    assert ears.notifications == ["holdfast_messages|q"]


async def test_two_workers_that_start_together_enable_wakeups(conn: Connection, second: Connection) -> None:
    await create_queue(conn, "q")
    async with conn.transaction():
        await conn.execute("select holdfast.enable_message_wakeups('q')")
        other = asyncio.create_task(second.execute("select holdfast.enable_message_wakeups('q')"))
        await asyncio.sleep(0.2)  # the other one waits; without its lock it fails at the commit
    await other
    count = await conn.fetchval("select count(*) from pg_trigger where tgname = 'holdfast_wake'")
    assert count == 1


async def test_messages_that_become_visible_wake_sleeping_readers(
    conn: Connection, ears: ChannelListener
) -> None:
    await create_queue(conn, "Q")
    await conn.execute("select holdfast.wake_message_readers('q')")  # without wakeups, nothing happens
    await conn.execute("select holdfast.enable_message_wakeups('Q')")
    await send_messages(conn, 1)
    await ears.on("holdfast_messages")
    await conn.execute("select holdfast.wake_message_readers('q')")
    assert await ears.count(conn) == 0  # nobody sleeps
    await conn.execute("select holdfast.register_sleeping_reader('q', '30 seconds')")
    await conn.execute("select holdfast.wake_message_readers('Q')")
    assert await ears.count(conn) == 1
    assert ears.notifications == ["holdfast_messages|q"]


async def test_a_burst_wakes_at_most_once_per_interval(conn: Connection, ears: ChannelListener) -> None:
    await create_queue(conn)
    await conn.execute("select holdfast.enable_message_wakeups('q')")
    await conn.execute("select holdfast.register_sleeping_reader('q', '30 seconds')")
    await ears.on("holdfast_messages")
    began = await conn.fetchval("select clock_timestamp()")
    for _ in range(100):
        await send_messages(conn, 1)
    took = (await conn.fetchval("select clock_timestamp()") - began).total_seconds()
    assert 1 <= await ears.count(conn) <= 1 + took / 0.05


async def test_waiting_tells_when_the_next_message_falls_due(conn: Connection) -> None:
    await create_queue(conn)
    await expect_error(conn, "HF005", "select holdfast.register_sleeping_reader('q')")
    await conn.execute("select holdfast.enable_message_wakeups('q')")
    assert await conn.fetchval("select holdfast.register_sleeping_reader('q')") is None
    await send_messages(conn, 2)
    await read_ids(conn, 2, 3600)
    due = await conn.fetchval("select min(vt) from pgmq.q_q")
    assert await conn.fetchval("select holdfast.register_sleeping_reader('q')") == due


async def test_what_a_dropped_queue_leaves_is_swept_away(conn: Connection) -> None:
    await create_queue(conn)
    await conn.execute(
        "select holdfast.enable_message_wakeups('q'); select holdfast.put_message_policy('q', 3)"
    )
    await conn.execute("select pgmq.drop_queue('q')")
    await conn.execute("select holdfast.tick_messages()")
    left = "select count(*) from pg_class where relkind = 'S' and relname ~ '^(asleep|told)_'"
    assert await conn.fetchval(left) == 0
    assert await conn.fetchval("select max_reads from holdfast.get_message_policy('q')") is None


async def test_wakeups_can_be_switched_off(conn: Connection, ears: ChannelListener) -> None:
    await create_queue(conn)
    await conn.execute("select holdfast.enable_message_wakeups('q')")
    await conn.execute("select holdfast.register_sleeping_reader('q', '30 seconds')")
    await conn.execute(
        "select holdfast.disable_message_wakeups('q'); select holdfast.disable_message_wakeups('q')"
    )
    await ears.on("holdfast_messages")
    await send_messages(conn, 1)
    assert await ears.count(conn) == 0
