"""Message queues: orders are paid and shipped, each step in one transaction.

This example uses your own PostgreSQL: set DATABASE_URL and run `holdfast migrate` once. Then run:

holdfast worker examples/messages.py        in one terminal
python examples/messages.py                 in another
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import asyncpg

from holdfast import Client, Message, consumer, load_settings

client = Client()


@dataclass
class Order:
    number: int
    amount: int


def print_dead_letter(msg: Message[Any], error: str) -> None:
    print(f"order {msg.body} is a dead letter: {error.splitlines()[0]}")


@consumer(
    queue="orders",
    vt=timedelta(seconds=30),
    concurrency=5,
    max_reads=3,
    on_dead=print_dead_letter,
    create=True,
)
async def pay(msg: Message[Order]) -> None:
    if msg.body.amount < 0:
        raise ValueError("the amount is negative")
    connection = await asyncpg.connect(get_database_url())
    try:
        async with connection.transaction():
            await connection.execute("insert into payments values ($1, $2)", msg.body.number, msg.body.amount)
            await client.queues.send("parcels", {"order": msg.body.number}, on=connection)
            await msg.done(connection)  # payment, parcel and acknowledgement commit together
    finally:
        await connection.close()


@consumer(queue="parcels", create=True)
def ship(msg: Message[dict[str, int]]) -> None:
    print(f"shipped order {msg.body['order']}")


def get_database_url() -> str:
    url = load_settings().database_url
    assert url, "set DATABASE_URL: the example uses your own PostgreSQL"
    return url.reveal()


async def send_orders() -> None:
    await client.queues.create("orders")
    await client.queues.send("orders", Order(number=1, amount=250))
    await client.queues.send_batch("orders", [Order(2, 90), Order(3, -1)], delay=timedelta(milliseconds=100))


async def read_returns() -> None:
    await client.queues.create("returns")
    await client.queues.send("returns", {"order": 1})
    for msg in await client.queues.read("returns", type=dict[str, int], vt=timedelta(seconds=30)):
        print(msg.id, msg.body["order"], msg.reads)
        await client.queues.set_vt("returns", msg, timedelta(minutes=5))  # extend the visibility timeout
        await client.queues.archive("returns", msg)


async def create_tables() -> None:
    connection = await asyncpg.connect(get_database_url())
    await connection.execute("create table if not exists payments (number integer, amount integer)")
    await connection.close()


async def main() -> None:
    await create_tables()
    await send_orders()
    await read_returns()
    await client.close()


if __name__ == "__main__":
    asyncio.run(main())
