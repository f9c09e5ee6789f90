"""The example of the guide to messages: orders come in, are paid and shipped, each step in one transaction.

It uses your own PostgreSQL: set DATABASE_URL, and run `holdfast migrate` once. Then

holdfast worker examples/letters.py        in one terminal
python examples/letters.py                 in another
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import asyncpg

from holdfast import Client, Message, consumer
from holdfast.settings import load

client = Client()


@dataclass
class Order:
    number: int
    amount: int


def tell(msg: Message[Any], error: str) -> None:
    print(f"order {msg.body} is dead: {error.splitlines()[0]}")


@consumer(queue="orders", vt=timedelta(seconds=30), concurrency=5, max_reads=3, on_dead=tell, create=True)
async def pay(msg: Message[Order]) -> None:
    if msg.body.amount < 0:
        raise ValueError("nobody owes that")
    connection = await asyncpg.connect(database())
    try:
        async with connection.transaction():
            await connection.execute("insert into payments values ($1, $2)", msg.body.number, msg.body.amount)
            await client.queues.send("parcels", {"order": msg.body.number}, on=connection)
            await msg.done(connection)  # payment, parcel and the end of this message: all or nothing
    finally:
        await connection.close()


@consumer(queue="parcels", create=True)
def ship(msg: Message[dict[str, int]]) -> None:
    print(f"shipped order {msg.body['order']}")


def database() -> str:
    url = load().database_url
    assert url, "the example uses your own PostgreSQL: set DATABASE_URL"
    return url.reveal()


async def sell() -> None:
    await client.queues.create("orders")
    await client.queues.send("orders", Order(number=1, amount=250))
    await client.queues.send_batch("orders", [Order(2, 90), Order(3, -1)], delay=timedelta(milliseconds=100))


async def look() -> None:
    await client.queues.create("returns")
    await client.queues.send("returns", {"order": 1})
    for msg in await client.queues.read("returns", type=dict[str, int], vt=timedelta(seconds=30)):
        print(msg.id, msg.body["order"], msg.reads)
        await client.queues.set_vt("returns", msg, timedelta(minutes=5))  # more time, if it is still ours
        await client.queues.archive("returns", msg)


async def prepare() -> None:
    connection = await asyncpg.connect(database())
    await connection.execute("create table if not exists payments (number integer, amount integer)")
    await connection.close()


async def main() -> None:
    await prepare()
    await sell()
    await look()
    await client.close()


if __name__ == "__main__":
    asyncio.run(main())
