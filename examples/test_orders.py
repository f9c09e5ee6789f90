"""Tests of orders.py with the pytest plug-in. They need `asyncio_mode = "auto"`."""

from __future__ import annotations

from datetime import timedelta

import asyncpg
import pytest

import orders
from holdfast.testing import Holdfast

TABLES = """
create table charges (number int, amount int);
create table letters (number int, text text);
create table sales (orders int, last int);
insert into sales values (0, null);
"""


@pytest.fixture(scope="session")
def hf_prepare() -> str:
    return TABLES


@pytest.fixture(autouse=True)
def own_database(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_DATABASE_URL", hf.url)
    hf.use(orders)


async def test_order_is_charged_at_once_and_shipped_an_hour_later(hf: Holdfast) -> None:
    await orders.buy(7, 250, parcels=[1, 2])
    hf.assert_submitted(orders.charge(7, 250))
    hf.assert_submitted(orders.ship, order=7, count=1)

    first = await hf.drain()
    assert [attempt.task for attempt in first.attempts] == ["charge"]

    rest = await hf.drain(until=timedelta(hours=2))
    assert rest.of(orders.ship)[0].output == ["RR000000001", "RR000000002"]
    assert not rest.failed
    hf.assert_submitted(orders.notify_customer, order=7)


async def test_labels_are_bought_once(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    bought: list[int] = []

    async def flaky(parcel: int) -> orders.Label:
        if parcel == 2 and len(bought) < 2:
            bought.append(parcel)
            raise ConnectionError("no response from the carrier")
        bought.append(parcel)
        return orders.Label("post", str(parcel))

    monkeypatch.setattr(orders, "buy_label", flaky)
    assert await hf.run(orders.ship(7, [1, 2])) == ["1", "2"]
    assert bought == [1, 2, 2]


async def test_charge_survives_being_killed_anywhere(hf: Holdfast) -> None:
    async def setup() -> None:
        await execute(hf, "truncate charges")

    async def charges() -> list[tuple[int, int]]:
        return [(row["number"], row["amount"]) for row in await execute(hf, "select * from charges")]

    replayed = await hf.replay(orders.charge(7, 250), setup=setup, snapshot=charges)
    assert replayed.kills > 3


async def execute(hf: Holdfast, query: str) -> list[asyncpg.Record]:
    connection = await asyncpg.connect(hf.url)
    try:
        return await connection.fetch(query)
    finally:
        await connection.close()
