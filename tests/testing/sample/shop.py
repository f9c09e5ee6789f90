"""A user's application: a shop that takes orders, with a client made at import time, as applications do."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

import asyncpg

from holdfast import Client, Ctx, Message, RetryPolicy, consumer, lifespan, schedule, task

client = Client()
URL: str = ""  # the shop's own database; set by its configuration


@lifespan
async def pool() -> AsyncIterator[asyncpg.Pool]:
    async with asyncpg.create_pool(URL, min_size=1, max_size=2) as opened:
        yield opened


@task(retry=RetryPolicy(retries=3, base=timedelta(minutes=1), jitter=0))
async def send(ctx: Ctx[asyncpg.Pool], to: str, text: str = "hello") -> str:
    if ctx.attempt < 3 and to == "slow":
        raise ConnectionError("busy")
    if to == "never":
        raise ValueError("no such address")
    await ctx.state.execute("insert into sent (recipient) values ($1)", to)
    return f"{text} to {to}"


@task
async def charge_carelessly(ctx: Ctx[asyncpg.Pool], order: int) -> str:
    """Charges again when it is killed after the insert."""
    await ctx.state.execute("insert into charges (number) values ($1)", order)
    await client.submit(send("ann"))
    return f"receipt {order}"


@task
def plain(n: int) -> int:
    return n + 1


@schedule("0 3 * * *")
@task
async def tidy(ctx: Ctx[asyncpg.Pool]) -> None:
    await ctx.state.execute("insert into sent (recipient) values ('tidied')")


@consumer(queue="wishes", create=True, max_reads=1)
async def grant(msg: Message[str]) -> None:
    if msg.body == "the moon":
        raise ValueError("too far")
    await client.submit(send(msg.body))


async def order(to: str) -> None:
    await client.submit(send(to, text="thanks"))
