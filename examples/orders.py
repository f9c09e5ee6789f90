"""Orders of a shop: what a task can do while it runs. The guides to tasks and tests use this example."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta

import asyncpg

from holdfast import Client, Ctx, RetryPolicy, lifespan, task

client = Client()


@dataclass
class Shop:
    database: asyncpg.Pool
    currency: str


@lifespan
async def shop() -> AsyncIterator[Shop]:
    async with asyncpg.create_pool(os.environ["SHOP_DATABASE_URL"], min_size=1, max_size=5) as pool:
        yield Shop(pool, currency="EUR")


@dataclass
class Label:
    carrier: str
    number: str


async def buy_label(parcel: int) -> Label:
    """Buy a label. Each call costs money."""
    return Label("post", f"RR{parcel:09}")


@task(retry=RetryPolicy(retries=5, base=timedelta(minutes=1)), timeout=timedelta(minutes=5))
async def ship(ctx: Ctx[Shop], order: int, parcels: list[int]) -> list[str]:
    labels: list[str] = []
    async for parcel in ctx.track(parcels, phase="labels"):
        label = await ctx.step(f"label {parcel}", buy_label, parcel)  # bought only once
        ctx.log("bought a label", parcel=parcel, carrier=label.carrier)
        labels.append(label.number)
    printed = await ctx.submit(print_labels(labels))  # a child of this job
    await ctx.submit(notify_customer(order, labels), after=[printed])
    await ctx.submit(count_sale(order), detached=True)  # a separate job
    return labels


@task
async def charge(ctx: Ctx[Shop], order: int, amount: int) -> str:
    """Charge an order exactly once: the charge and the end of the task are one transaction."""
    receipt = f"{amount} {ctx.state.currency} for order {order}"
    async with ctx.state.database.acquire() as connection, connection.transaction():
        await connection.execute("insert into charges values ($1, $2)", order, amount)
        await ctx.complete(connection, receipt)
    return receipt


@task
def print_labels(ctx: Ctx[Shop], labels: list[str]) -> int:
    """Print labels in a thread, because the task is a plain function. `track` stops the loop."""
    pages = 0
    for label in ctx.blocking.track(labels):
        pages += ctx.blocking.step(f"print {label}", print_page, label)
    return pages


def print_page(label: str) -> int:
    print(f"printed {label}")
    return 1


@task
async def notify_customer(ctx: Ctx[Shop], order: int, labels: list[str]) -> None:
    await ctx.state.database.execute("insert into letters values ($1, $2)", order, ", ".join(labels))


@task
async def count_sale(ctx: Ctx[Shop], order: int) -> None:
    async with ctx.state.database.acquire() as connection, connection.transaction():
        await ctx.assert_lease(connection)  # no other worker runs this task until the commit
        await connection.execute("update sales set orders = orders + 1, last = $1", order)


async def buy(order: int, amount: int, parcels: list[int]) -> None:
    await client.submit(charge(order, amount))
    await client.submit(ship(order, parcels), delay=timedelta(hours=1))
