"""Erasing an owner: nothing of the owner is left, others are untouched, and a killed erasure goes on."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncGenerator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import asyncpg
import pytest
from manual_worker import ManualWorker
from owner_traces import count_owner_traces

from holdfast import Client, Ctx, task
from holdfast.engine.connection import Connection, Database
from holdfast.errors import InvalidError
from holdfast.settings import Secret, Settings
from holdfast.testing import wait_until
from holdfast.worker.runtime import WorkerRuntime

ANN, BEN = "3f2504e0-4f89-41d3-9a0c-0305e82c3301", "7c9e6679-7425-40de-944b-e07fc1f90ae7"
ENDED = ("succeeded", "failed", "cancelled", "partial")
GATE = 4711  # an advisory lock


@task
async def write_note(ctx: Ctx, text: str) -> str:
    ctx.progress(1, 2, message=f"writing for {ctx.owner}")
    await ctx.save("note.txt", text.encode(), "text/plain")
    return text


@task(retries=0)
async def fail_with_owner(ctx: Ctx) -> None:
    raise ValueError(f"no note for {ctx.owner}")


@pytest.fixture
async def client(url: Secret, settings: Settings, tmp_path: Path) -> AsyncGenerator[Client]:
    async with Client(url.reveal(), settings=replace(settings, home=tmp_path)) as client:
        yield client


async def fill_owner(client: Client, owner: str) -> None:
    """Leave a trace of the owner in every part of the engine that has one."""
    for number in range(3):
        await client.submit(write_note(f"{owner} {number}"), owner=owner, key=f"note {owner} {number}")
    await client.submit(fail_with_owner(), owner=owner)
    async with client.batches.open(f"batch of {owner}", owner=owner) as batch:
        await batch.submit(write_note("batched"), owner=owner)
    async with client.connection() as connection:
        await connection.execute("select holdfast.put_quota($1, 1000000, 100, 100)", owner)
        await connection.execute(
            "select holdfast.put_schedule($1, $2::jsonb, '0 3 1 1 *', p_owner => $3)",
            *(f"yearly {owner}", '{"type": "write_note", "args": {"text": "x"}}', owner),
        )
        await connection.execute(
            "select holdfast.create_webhook('https://example.com/', '{artifact.expiring}', $1, null, $2)",
            *("whsec_MTIzNDU2Nzg5MDEyMzQ1Njc4OTA=", owner),
        )
        await connection.execute("select pgmq.send('mail', jsonb_build_object('to', $1::text))", owner)


async def run_all_tasks(client: Client, url: Secret) -> None:
    async with Database(url, client.settings) as database:
        worker = WorkerRuntime(
            database, {each.name: each for each in (write_note, fail_with_owner)}, grace=timedelta(0)
        )
        stop = asyncio.Event()
        running = asyncio.create_task(worker.run(stop))

        async def have_jobs_ended() -> bool:
            async with client.connection() as connection:
                return not await connection.fetchval(
                    "select count(*) from holdfast.tasks where status <> 'scheduled'"
                )

        await wait_until(have_jobs_ended, what="all jobs have ended")
        stop.set()
        await running


async def test_nothing_of_the_owner_is_left_and_others_keep_everything(
    client: Client, url: Secret, conn: Connection
) -> None:
    await client.queues.create("mail")
    await conn.execute("call holdfast.register_owner_queue('mail', 'to')")
    for owner in (ANN, BEN):
        await fill_owner(client, owner)
    await run_all_tasks(client, url)
    await client.submit(write_note("later"), owner=ANN, delay=timedelta(days=1))
    before = await count_owner_traces(conn, BEN)
    assert {"holdfast.quotas", "holdfast.schedules", "holdfast.webhooks", "pgmq.q_mail"} <= set(before)

    erasure = await client.erase_owner(ANN, by="support")

    assert erasure.finished_at is not None
    left = await count_owner_traces(conn, ANN)
    assert left == {"holdfast.audit_log": 2, "holdfast.erasures": 1}
    assert await count_owner_traces(conn, BEN) == before
    keys = [stored.key async for page in client.files.store.list() for stored in page]
    assert len(keys) == 4
    assert not any(ANN in key for key in keys)
    entries = await conn.fetch("select actor, action from holdfast.list_audit_entries() limit 2")
    assert [tuple(entry) for entry in entries] == [("support", "owner.erased"), ("support", "owner.erase")]
    assert (await client.erase_owner(ANN)).deleted == {}  # a second time: nothing is there


async def test_tables_of_any_column_type_are_emptied_in_order(client: Client, conn: Connection) -> None:
    await conn.execute("create table public.orders (id int primary key, buyer uuid)")
    await conn.execute("create table public.lines (order_id int references public.orders, buyer text)")
    await conn.execute("create table public.visits (visitor int)")
    await conn.execute("insert into public.orders select n, $1::uuid from generate_series(1, 2500) n", ANN)
    await conn.execute("insert into public.orders values (0, $1)", BEN)
    await conn.execute("insert into public.lines select n, $1 from generate_series(1, 2500) n", ANN)
    await conn.execute("insert into public.visits values (1)")
    for table, column in (("lines", "buyer"), ("orders", "buyer"), ("visits", "visitor")):
        await conn.execute(f"call holdfast.register_owner_table('public.{table}', '{column}')")
    erasure = await client.erase_owner(ANN)
    assert erasure.deleted == {"public.lines": 2500, "public.orders": 2500}
    assert await conn.fetchval("select array_agg(buyer::text) from public.orders") == [BEN]
    await conn.execute("drop table public.visits")
    assert (await client.erase_owner(BEN)).deleted == {"public.orders": 1}
    assert (await client.erase_owner("not a uuid")).deleted == {}


async def test_a_killed_erasure_is_finished_by_a_worker(
    client: Client, conn: Connection, second: Connection, url: Secret
) -> None:
    await conn.execute("create table public.notes (n int, user_id text)")
    await conn.execute("insert into public.notes select n, $1 from generate_series(1, 3000) n", ANN)
    await conn.execute("insert into public.notes values (0, $1)", BEN)
    await conn.execute(f"""
        create function public.wait_at_gate() returns trigger language plpgsql as $$
        begin
          if old.n = 2000 then perform pg_advisory_xact_lock_shared({GATE}); end if;
          return old;
        end $$;
        create trigger gate before delete on public.notes
          for each row execute function public.wait_at_gate()""")
    await conn.execute("call holdfast.register_owner_table('public.notes')")
    await second.execute("select pg_advisory_lock($1)", GATE)
    environment = {**os.environ, "DATABASE_URL": url.reveal(), "HOLDFAST_HOME": str(client.settings.home)}
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast", "owner", "erase", ANN, "--yes"], env=environment
    )

    async def is_at_the_gate() -> bool:
        assert process.poll() is None
        waiting = "select count(*) from pg_locks where locktype = 'advisory' and not granted"
        return bool(await conn.fetchval(waiting))

    try:
        await wait_until(is_at_the_gate, what="the erasure is half-way")
    finally:
        process.kill()
        process.wait()
    await second.execute("select pg_advisory_unlock($1)", GATE)
    assert await conn.fetchval("select finished_at from holdfast.erasures") is None
    assert await conn.fetchval("select count(*) from public.notes where user_id = $1", ANN) > 0

    async def is_finished() -> bool:
        await conn.execute("select holdfast.tick()")
        return await conn.fetchval("select finished_at from holdfast.erasures") is not None

    await wait_until(is_finished, what="maintenance finished the erasure")
    assert [tuple(row) for row in await conn.fetch("select * from public.notes")] == [(0, BEN)]
    assert await conn.fetchval("select deleted -> 'public.notes' from holdfast.erasures") == "3000"
    actor = await conn.fetchval("select requested_by from holdfast.erasures")
    assert "@" in actor


async def test_running_work_is_cancelled_and_cannot_write_after_the_end(
    client: Client, conn: Connection
) -> None:
    job = await client.submit(write_note("x"), owner=ANN)
    await ManualWorker(conn, queues=["default"]).claim_one_task()
    erasure = await client.erase_owner(ANN, within=timedelta(0))
    assert erasure.finished_at is None
    assert (await client.get(job.id)).status == "cancelled"
    erasure = await client.erase_owner(ANN, within=timedelta(seconds=0.5))
    assert erasure.finished_at is None  # the worker may not have noticed
    assert 5 < erasure.wait_s <= 15


@pytest.mark.parametrize("owner", ["", "x" * 1001])
async def test_an_invalid_owner_is_refused(client: Client, owner: str) -> None:
    with pytest.raises(InvalidError) as error:
        await client.erase_owner(owner)
    assert "owner" in str(error.value)


async def test_only_services_erase_and_only_owners_of_tables_register_them(conn: Connection) -> None:
    await conn.execute("create table public.notes (user_id text)")
    for role, query in (
        ("authenticated", "select holdfast.start_erasure('x')"),
        ("authenticated", "select holdfast.advance_erasure('x')"),
        ("authenticated", "call holdfast.register_owner_table('public.notes')"),
        ("holdfast_worker", "select holdfast.start_erasure('x')"),
        ("service_role", "call holdfast.register_owner_table('public.notes')"),
        ("service_role", "call holdfast.register_owner_table('holdfast.jobs', 'owner')"),
    ):
        await conn.execute(f"set role {role}")
        with pytest.raises(asyncpg.PostgresError) as error:
            await conn.execute(query)
        await conn.execute("reset role")
        assert error.value.sqlstate in ("42501", "HF005"), (role, query, error.value)
    with pytest.raises(asyncpg.PostgresError, match="is not a table with a column owner"):
        await conn.execute("call holdfast.register_owner_table('public.notes', 'owner')")
    with pytest.raises(asyncpg.PostgresError, match="does not exist"):
        await conn.execute("call holdfast.register_owner_queue('nosuch', 'owner')")
