"""Usage of providers in the database: what is counted, once, and who may read it."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import Any

import asyncpg
import pytest
from provider_server import ProviderServer, run_provider_server

from holdfast import Client
from holdfast.engine.connection import Database
from holdfast.systems.providers import (
    CallRecord,
    DatabaseUsageRecorder,
    ProviderRateLimitedError,
    ProviderRegistry,
    ProviderUsage,
    UsageAccount,
)
from holdfast.testing import Clock
from holdfast.worker.metrics import ProcessMetrics

PRICES = '{"gpt-5-mini": {"tokens_in": 1000, "tokens_out": 2000}}'
JOB, TASK = str(uuid.uuid4()), str(uuid.uuid4())
ACCOUNT = UsageAccount(owner="ann", job_id=JOB, task_id=TASK, attempt=1)


@pytest.fixture
async def server() -> AsyncGenerator[ProviderServer]:
    async with run_provider_server() as provider_server:
        yield provider_server


@pytest.fixture
async def client(db: Database, server: ProviderServer) -> AsyncGenerator[Client]:
    settings = replace(db.settings, text_url=server.url, egress_allow="127.0.0.1", provider_prices=PRICES)
    async with Client(db.url.reveal(), settings=settings) as opened:
        yield opened


async def fetch_usage(db: Database, **filters: Any) -> list[dict[str, Any]]:
    names = ", ".join(f"p_{name} => ${number}" for number, name in enumerate(filters, 1))
    async with db.connection() as connection:
        query = f"select * from holdfast.list_provider_usage({names})"
        return [dict(row) for row in await connection.fetch(query, *filters.values())]


async def test_calls_of_retries_are_counted_and_refused_calls_cost_nothing(
    client: Client, db: Database, server: ProviderServer
) -> None:
    providers = ProviderRegistry.for_client(client)
    await providers.text.generate_text("x", "y", account=ACCOUNT)
    # The task failed after the call and runs again: both answers were paid for.
    await providers.text.generate_text("x", "y", account=replace(ACCOUNT, attempt=2))
    server.respond = lambda *_: (429, {"retry-after": "30"}, b"")
    for _ in range(2):  # the second is not even sent
        with pytest.raises(ProviderRateLimitedError):
            await providers.text.generate_text("x", "y", account=replace(ACCOUNT, attempt=3))
    await providers.close()
    [usage] = await fetch_usage(db, owner="ann")
    assert (usage["calls"], usage["succeeded"], usage["failed"], usage["unknown"]) == (3, 2, 1, 0)
    assert (usage["tokens_in"], usage["tokens_out"], usage["cost"]) == (240, 90, Decimal("0.42"))
    assert (usage["kind"], usage["provider"], usage["model"]) == ("text", "127.0.0.1", "gpt-5-mini")
    async with db.connection() as connection:
        rows = await connection.fetch("select * from holdfast.list_job_provider_usage($1)", uuid.UUID(JOB))
        cost = await connection.fetchval("select holdfast.get_provider_cost('ann')")
    assert [(row["attempt"], row["calls"], row["cost"]) for row in rows] == [
        (1, 1, Decimal("0.21")),
        (2, 1, Decimal("0.21")),
        (3, 1, 0),
    ]
    assert cost == Decimal("0.42")


async def test_recording_twice_counts_once(client: Client, db: Database) -> None:
    recorder = DatabaseUsageRecorder(client)
    started = CallRecord(
        id=uuid.uuid4(), kind="speech", provider="h", model="m", account=ACCOUNT, status="started"
    )
    usage = ProviderUsage(audio_s=1.5, images=2)
    ended = replace(
        started, status="succeeded", usage=usage, cost=Decimal("0.1"), duration=timedelta(seconds=1)
    )
    for record in (started, started, ended, ended, started):
        await recorder.record_call(record)
    [row] = await fetch_usage(db)
    assert (row["calls"], row["succeeded"], row["audio_s"], row["images"], row["cost"]) == (
        1, 1, 1.5, 2, Decimal("0.1"),
    )  # fmt: skip


async def test_a_call_whose_process_died_stays_visible(client: Client, db: Database) -> None:
    recorder = DatabaseUsageRecorder(client)
    await recorder.record_call(
        CallRecord(id=uuid.uuid4(), kind="text", provider="h", model="m", account=ACCOUNT, status="started")
    )
    [row] = await fetch_usage(db)
    assert (row["calls"], row["succeeded"] + row["failed"] + row["unknown"], row["cost"]) == (1, 0, 0)


async def test_calls_without_price_or_usage_are_counted_as_such(
    client: Client, db: Database, server: ProviderServer
) -> None:
    server.respond = lambda *_: (
        200, {"content-type": "application/json"}, b'{"choices": [{"message": {"content": "x"}}]}',
    )  # fmt: skip
    providers = ProviderRegistry.for_client(client)
    await providers.text.generate_text("x", "y", account=ACCOUNT)
    await providers.close()
    [row] = await fetch_usage(db)
    assert (row["succeeded"], row["cost"], row["unpriced"]) == (1, 0, 1)


async def test_local_calls_cost_nothing(client: Client, db: Database) -> None:
    settings = replace(client.settings, text_url=None)
    providers = ProviderRegistry(settings, recorder=DatabaseUsageRecorder(client))
    await providers.text.generate_text("x", "{}", account=ACCOUNT)
    await providers.close()
    [row] = await fetch_usage(db)
    assert (row["provider"], row["calls"], row["succeeded"], row["unpriced"]) == ("local", 1, 1, 0)


async def test_usage_is_grouped_and_limited_to_days(client: Client, db: Database, clock: Clock) -> None:
    recorder = DatabaseUsageRecorder(client)

    async def record(owner: str, kind: Any, cost: str) -> None:
        await recorder.record_call(
            CallRecord(
                id=uuid.uuid4(), kind=kind, provider="h", model="m", account=UsageAccount(owner=owner),
                status="succeeded", cost=Decimal(cost),
            )
        )  # fmt: skip

    await record("ann", "text", "1")
    await clock.advance(timedelta(days=2))
    await record("ann", "text", "2")
    await record("ann", "speech", "4")
    await record("bob", "text", "8")
    by_owner = await fetch_usage(db, group_by=["owner"])
    assert [(row["owner"], row["cost"]) for row in by_owner] == [("bob", 8), ("ann", 7)]
    [total] = await fetch_usage(db, group_by=[])
    assert (total["calls"], total["cost"], total["kind"]) == (4, 15, None)
    days = sorted({row["day"] for row in await fetch_usage(db, group_by=["day"])})
    assert (days[1] - days[0]).days == 2
    assert sum(row["cost"] for row in await fetch_usage(db, since=days[1])) == 14
    assert sum(row["cost"] for row in await fetch_usage(db, until=days[0])) == 1


async def test_old_calls_are_deleted_and_their_totals_stay(
    client: Client, db: Database, clock: Clock
) -> None:
    await DatabaseUsageRecorder(client).record_call(
        CallRecord(
            id=uuid.uuid4(), kind="text", provider="h", model="m", account=ACCOUNT, status="succeeded",
            cost=Decimal(3),
        )
    )  # fmt: skip
    await clock.advance(timedelta(days=91))
    async with db.connection() as connection:
        while await connection.fetchval("select (holdfast.tick() ->> 'more')::boolean"):
            pass  # partitions of days come first
        assert await connection.fetchval("select count(*) from holdfast.provider_calls") == 0
    assert [row["cost"] for row in await fetch_usage(db)] == [3]


async def test_users_read_their_own_usage_and_record_none(client: Client, db: Database) -> None:
    recorder = DatabaseUsageRecorder(client)
    for owner in ("ann", "bob"):
        await recorder.record_call(
            CallRecord(
                id=uuid.uuid4(), kind="text", provider="h", model="m",
                account=UsageAccount(owner=owner, job_id=JOB), status="succeeded", cost=Decimal(3),
            )
        )  # fmt: skip
    async with db.connection() as connection, connection.transaction():
        await connection.execute("""select set_config('request.jwt.claims', '{"sub": "ann"}', true)""")
        await connection.execute("set local role authenticated")
        rows = await connection.fetch(
            "select * from holdfast.list_provider_usage('bob', null, null, '{owner}')"
        )
        assert [row["owner"] for row in rows] == ["ann"]
        assert await connection.fetchval("select holdfast.get_provider_cost('bob')") == 3
        rows = await connection.fetch("select * from holdfast.list_job_provider_usage($1)", uuid.UUID(JOB))
        assert [row["calls"] for row in rows] == [1]
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.execute(
                "select holdfast.record_provider_call($1, 'text', 'h', 'm', 'succeeded')", uuid.uuid4()
            )


@pytest.mark.parametrize(
    "change",
    [{"tokens_in": -1}, {"cost": Decimal(-1)}, {"audio_s": float("nan")}, {"images": -1}, {"status": "done"},
     {"model": "x" * 301}, {"owner": "x" * 1001}],
    ids=str,
)  # fmt: skip
async def test_invalid_usage_is_refused(db: Database, change: dict[str, Any]) -> None:
    values = {
        "id": uuid.uuid4(),
        "kind": "text",
        "provider": "h",
        "model": "m",
        "status": "succeeded",
        **change,
    }
    names = ", ".join(f"p_{name} => ${number}" for number, name in enumerate(values, 1))
    async with db.connection() as connection:
        with pytest.raises(asyncpg.PostgresError):
            await connection.execute(f"select holdfast.record_provider_call({names})", *values.values())
        assert await connection.fetchval("select count(*) from holdfast.provider_usage") == 0


async def test_the_cost_of_an_owner_reads_only_rows_of_the_owner(db: Database) -> None:
    async with db.connection() as connection:
        await connection.execute(
            """insert into holdfast.provider_usage (owner, day, kind, provider, model, cost)
               select 'user ' || n % 500, date '2026-01-01' + n / 500, 'text', 'h', 'm', 1
               from generate_series(0, 9999) as n"""
        )
        await connection.execute("analyze holdfast.provider_usage")
        plan = await connection.fetch(
            "explain (analyze, costs off, timing off) select coalesce(sum(u.cost), 0)"
            " from holdfast.provider_usage u where u.owner = 'user 7' and u.day >= '2026-01-05'"
        )
        assert await connection.fetchval("select holdfast.get_provider_cost('user 7', '2026-01-05')") == 16
    text = "\n".join(row[0] for row in plan)
    assert "provider_usage_pkey" in text
    assert "Seq Scan" not in text


async def test_calls_are_metrics_of_the_process(client: Client) -> None:
    metrics = ProcessMetrics()
    metrics.start()
    try:
        providers = ProviderRegistry.for_client(client)
        await providers.text.generate_text("x", "y", account=ACCOUNT)
        await providers.close()
    finally:
        metrics.stop()
    lines = metrics.format_text().splitlines()
    labels = 'kind="text",provider="127.0.0.1",model="gpt-5-mini"'
    assert f'holdfast_provider_calls_total{{{labels},outcome="succeeded"}} 1' in lines
    assert f'holdfast_provider_units_total{{{labels},unit="tokens_out"}} 45' in lines
    assert f"holdfast_provider_cost_total{{{labels}}} 0.21" in lines
