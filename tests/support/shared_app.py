"""An application with a lifespan, for tests with real worker processes. It writes to the file in RECORD."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import asyncpg

from holdfast import Ctx, RetryPolicy, lifespan, task

QUICK = RetryPolicy(retries=4, base=timedelta(milliseconds=10), cap=timedelta(milliseconds=20))
log = logging.getLogger("shop")


def record(*words: object) -> None:
    with Path(os.environ["RECORD"]).open("a") as file:
        file.write(" ".join(str(word) for word in (os.getpid(), *words)) + "\n")


@dataclass
class Shop:
    pool: asyncpg.Pool
    opened: int


@lifespan
async def shop() -> AsyncIterator[Shop]:
    record("opening")
    if os.environ.get("SHOP") == "hangs":
        await asyncio.Event().wait()
    if os.environ.get("SHOP") == "broken":
        raise OSError("the shutters are stuck")
    async with asyncpg.create_pool(os.environ["HOLDFAST_DATABASE_URL"], min_size=0, max_size=2) as pool:
        yield Shop(pool, os.getpid())
    record("closed")


@task(queue="shop", retry=QUICK)
async def sell(ctx: Ctx[Shop], amount: int) -> int:
    """Exactly once: the sale and the success of the task are one transaction."""
    async with ctx.state.pool.acquire() as connection, connection.transaction():
        await connection.execute("insert into sales (amount) values ($1)", amount)
        await ctx.complete(connection, amount)
    await asyncio.sleep(float(os.environ.get("AFTER_SALE", "0")))
    record("sold", amount, ctx.cancelled)
    return amount


@task(queue="shop", retry=QUICK)
async def order(ctx: Ctx[Shop], goods: list[str]) -> dict[str, list[str]]:
    """Fails the first time after each step, and does no step twice."""
    done: list[str] = []
    async for each in ctx.track(goods, phase="pack"):
        box = await ctx.step(f"pack {each}", pack, each)
        done.append(box)
    ctx.log("packed", goods=len(goods))
    log.warning("attempt %d", ctx.attempt)
    if ctx.attempt == 1:
        raise OSError("the van is late")
    child: UUID = await ctx.submit(deliver(done))
    own = await ctx.submit(deliver(["thanks"]), detached=True)
    return {"children": [str(child), str(own)], "done": done}


@task(queue="shop", process=True, retry=QUICK)
async def order_apart(ctx: Ctx[Shop], goods: list[str]) -> dict[str, list[str]]:
    record("apart", ctx.state.opened)
    done = [await ctx.step(f"pack {each}", pack, each) for each in goods]
    ctx.log("packed", goods=len(goods))
    log.warning("attempt %d", ctx.attempt)
    if ctx.attempt == 1:
        raise OSError("the van is late")
    return {"children": [str(await ctx.submit(deliver(done)))], "done": done}


@task(queue="shop", retry=QUICK)
def order_plain(ctx: Ctx[Shop], goods: list[str]) -> dict[str, list[str]]:
    done = [ctx.blocking.step(f"pack {each}", pack, each) for each in ctx.blocking.track(goods)]
    ctx.log("packed", goods=len(goods))
    log.warning("attempt %d", ctx.attempt)
    if ctx.attempt == 1:
        raise OSError("the van is late")
    return {"children": [str(ctx.blocking.submit(deliver(done)))], "done": done}


def pack(goods: str) -> str:
    record("pack", goods)
    return f"box of {goods}"


@task(queue="shop", retry=QUICK)
async def deliver(boxes: list[str]) -> int:
    log.info("no context is asked for here")
    return len(boxes)
