"""Concurrent senders and readers that roll back, retry or die: no message is lost or read twice."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass, field

import asyncpg
import pytest
from message_queue_calls import count_rows, create_queue, read_ids, send_messages

from holdfast.engine.connection import Connection
from holdfast.settings import Secret

SENDERS, READERS, TURNS, PATIENCE = 3, 4, 60, 60


@dataclass
class MessageLedger:
    sent: set[int] = field(default_factory=set[int])
    done: set[int] = field(default_factory=set[int])
    senders: int = SENDERS

    def finish(self, ids: list[int]) -> None:
        assert not self.done & set(ids), "finished twice"
        self.done.update(ids)

    @property
    def over(self) -> bool:
        return self.senders == 0 and self.done == self.sent


async def send_random_messages(conn: Connection, ledger: MessageLedger, draw: random.Random) -> None:
    for _ in range(TURNS):
        transaction = conn.transaction()
        await transaction.start()
        ids = await send_messages(conn, draw.choice([1, 5, 50, 200]))
        if draw.random() < 0.2:  # hold on until others have gone further
            target = len(ledger.done) + 200
            while len(ledger.done) < target and ledger.senders > 1 and not ledger.sent <= ledger.done:
                await conn.fetchval("select 1")
        if draw.random() < 0.1:
            await transaction.rollback()
        else:
            ledger.sent.update(ids)
            await transaction.commit()
    ledger.senders -= 1


async def read_random_messages(conn: Connection, ledger: MessageLedger, draw: random.Random) -> None:
    until = time.monotonic() + PATIENCE
    while not ledger.over:
        assert time.monotonic() < until, f"{len(ledger.sent - ledger.done)} messages are missing"
        how = draw.choice(["within", "within", "after", "back", "vanish"])
        transaction = conn.transaction()
        await transaction.start()
        taken: list[int] = []
        for _ in range(draw.choice([1, 1, 4])):
            message_ids = await read_ids(conn, draw.choice([1, 10, 100, 300]), 1)
            if how == "within":
                await conn.fetch("select pgmq.delete('q', $1::bigint[])", message_ids)
            taken += message_ids
        if draw.random() < 0.15:
            await transaction.rollback()
            continue
        await transaction.commit()
        if how == "after":
            taken = [row[0] for row in await conn.fetch("select pgmq.delete('q', $1::bigint[])", taken)]
        elif how == "back":
            await conn.fetch("select pgmq.set_vt('q', $1::bigint[], 0)", taken)
        if how in {"within", "after"}:
            ledger.finish(taken)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
async def test_concurrent_readers_lose_and_repeat_no_message(
    url: Secret, conn: Connection, seed: int
) -> None:
    await create_queue(conn)
    ledger = MessageLedger()
    crowd = [await asyncpg.connect(url.reveal()) for _ in range(SENDERS + READERS)]
    old = conn.transaction(isolation="repeatable_read")  # and an old snapshot all the while
    await old.start()
    await count_rows(conn, "q_q")
    async with asyncio.TaskGroup() as group:
        for place, each in enumerate(crowd):
            work = send_random_messages if place < SENDERS else read_random_messages
            group.create_task(work(each, ledger, random.Random(seed * 100 + place)))
    await old.rollback()
    assert ledger.done == ledger.sent
    assert await count_rows(conn, "q_q") == 0
    for each in crowd:
        await each.close()
