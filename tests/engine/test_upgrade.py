"""Upgrade the schema under load: workers and submitters keep running, and no task is lost or run twice.

The workers here know the SQL contract of the installed release only. Nothing tells them about the upgrade.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from manual_worker import run_ticks

from holdfast.engine import install, schema
from holdfast.engine.connection import Connection
from holdfast.engine.schema import SchemaFiles, SchemaMigration
from holdfast.settings import Secret, Settings

RELEASED = schema.load_packaged_schema()
# A migration of tables that are in use. Every submit reads `options` first, and every exchange and heartbeat
# reads `workers` first. Behind these two locks they wait without holding anything, so the other tables can be
# locked without a deadlock.
CHANGE_BUSY_TABLES = """
lock table holdfast.options, holdfast.workers in access exclusive mode;
lock table holdfast.queues, holdfast.lanes, holdfast.tasks, holdfast.jobs, holdfast.limit_counters,
  holdfast.history in access exclusive mode;
alter table holdfast.tasks add column next_note text, add column next_number integer not null default 7;
alter table holdfast.jobs add column next_note text;
alter table holdfast.lanes add column next_note text;
alter table holdfast.limit_counters add column next_note text;
alter table holdfast.history add column next_note text;
create index tasks_next on holdfast.tasks (next_number) where next_note is not null;
"""
FUNCTION_BODY = "as $$"
NEXT_FUNCTION_BODY = "as $$\n-- of the next release\n"
# Errors of a call while tables and functions are replaced. The caller retries, as after a deadlock.
TRANSIENT_ERRORS = (
    asyncpg.DeadlockDetectedError,
    asyncpg.SerializationError,
    asyncpg.LockNotAvailableError,
    asyncpg.UndefinedFunctionError,
    asyncpg.InvalidCachedStatementError,
)


def next_release() -> SchemaFiles:
    """The baseline, a migration of busy tables, and a new text for every function."""
    migration = SchemaMigration(RELEASED.latest_version + 1, "next", CHANGE_BUSY_TABLES)
    functions = tuple(
        replace(function, sql=function.sql.replace(FUNCTION_BODY, NEXT_FUNCTION_BODY))
        for function in RELEASED.functions
    )
    return SchemaFiles((*RELEASED.migrations, migration), functions)


class ContractWorker:
    """Claims and finishes tasks through `exchange`, and counts the outcomes that the engine accepted."""

    def __init__(self, url: Secret, name: str) -> None:
        self._url = url
        self._name = name
        self.finished: Counter[UUID] = Counter()
        self.retries = 0

    async def run(self, stop: asyncio.Event) -> None:
        connection = await asyncpg.connect(self._url.reveal())
        leases: list[tuple[UUID, int, int]] = []
        cursors = "{}"
        while leases or not stop.is_set():
            try:
                rows = await self._exchange(connection, leases, 0 if stop.is_set() else 20, cursors)
            except TRANSIENT_ERRORS:
                self.retries += 1
                continue
            self.finished.update(task for task, _, _ in leases)
            (header,) = (json.loads(row["header"]) for row in rows if row["id"] is None)
            assert header.get("answers") is None, "an outcome came too late"
            cursors = json.dumps(header["cursors"])
            leases = [(row["id"], row["attempt"], header["nonce"]) for row in rows if row["id"] is not None]
        await connection.close()

    async def _exchange(self, connection: Any, leases: list[Any], slots: int, cursors: str) -> list[Any]:
        rows: list[Any] = await connection.fetch(
            "select * from holdfast.finish_and_claim(p_worker => $1, p_ids => $2, p_attempts => $3, "
            "p_nonces => $4, p_outcomes => $5, p_bodies => $6, p_slots => $7, "
            "p_queues => '{q}', p_cursors => $8)",
            self._name,
            [task for task, _, _ in leases],
            [attempt for _, attempt, _ in leases],
            [nonce for _, _, nonce in leases],
            ["succeed"] * len(leases),
            ["1"] * len(leases),
            slots,
            cursors,
        )
        return rows


async def submit_until(url: Secret, stop: asyncio.Event) -> list[UUID]:
    """Submit jobs of every shape until told to stop; return their ids."""
    connection = await asyncpg.connect(url.reveal())
    job_ids: list[UUID] = []
    number = 0
    while not stop.is_set():
        number += 1
        key = {"limit_key": f"k{number % 5}"} if number % 3 else {}
        body: Any = {"type": "t", "queue": "q", "owner": f"o{number % 2}", "key": f"job {number}", **key}
        if number % 7 == 0:
            tasks = [{"type": "t", "name": "a"}, {"type": "t", "name": "b", "after": ["a"]}]
            body = {**body, "type": "g", "tasks": tasks}
        try:
            response = await connection.fetchval("select holdfast.submit($1)", json.dumps(body))
        except TRANSIENT_ERRORS:
            number -= 1  # submit the same body under the same key again
            continue
        job_ids.append(UUID(json.loads(response)["id"]))
    await connection.close()
    return job_ids


@pytest.mark.timeout(300)
async def test_the_baseline_is_upgraded_under_load(empty_url: Secret, settings: Settings) -> None:
    await install.migrate_database(empty_url, settings)
    conn: Connection = await asyncpg.connect(empty_url.reveal())
    await conn.execute(
        "select holdfast.put_limit('each', p_queue => 'q', p_per_key => true, p_max_running => 3)"
    )
    stop_submitting, stop_working = asyncio.Event(), asyncio.Event()
    workers = [ContractWorker(empty_url, f"worker-{n}") for n in range(3)]
    worker_runs: list[asyncio.Task[Any]] = [
        asyncio.create_task(worker.run(stop_working)) for worker in workers
    ]
    submitter = asyncio.create_task(submit_until(empty_url, stop_submitting))
    runs = [*worker_runs, submitter]
    await _wait_for_more_history(conn, 300, runs)
    applied = await install.migrate_database(empty_url, settings, files=next_release())
    assert applied.versions == (RELEASED.latest_version + 1,)
    assert applied.functions_replaced
    await _wait_for_more_history(conn, 300, runs)
    stop_submitting.set()
    job_ids = await submitter
    await _wait_until_drained(conn, worker_runs)
    stop_working.set()
    await asyncio.gather(*worker_runs)
    await _assert_functions_were_replaced(conn)
    await _assert_nothing_lost(conn, job_ids, workers)
    await conn.close()


async def _wait_for_more_history(conn: Connection, count: int, runs: list[asyncio.Task[Any]]) -> None:
    """Wait until `count` more tasks have ended."""
    query = "select count(*) from holdfast.history"
    goal = await conn.fetchval(query) + count
    await _wait_until(conn, query, lambda ended: ended >= goal, runs)


async def _wait_until_drained(conn: Connection, runs: list[asyncio.Task[Any]]) -> None:
    query = "select count(*) from holdfast.tasks where status in ('waiting', 'ready', 'running')"
    await _wait_until(conn, query, lambda left: left == 0, runs)


async def _wait_until(
    conn: Connection, query: str, reached: Callable[[int], bool], runs: list[asyncio.Task[Any]]
) -> None:
    """Wait until a count is as it should be. Fail when a run ended or nothing changes for a minute."""
    before, changed_at = -1, time.monotonic()
    while not reached(count := await conn.fetchval(query)):
        for run in runs:
            if run.done():
                pytest.fail(f"a worker or the submitter ended early: {run.exception()!r}")
        if count != before:
            before, changed_at = count, time.monotonic()
        if time.monotonic() - changed_at > 60:
            pytest.fail(f"nothing moved for a minute: {await _describe_stall(conn)}")
        await asyncio.sleep(0.05)


async def _describe_stall(conn: Connection) -> str:
    tasks = await conn.fetch("select status, count(*) from holdfast.tasks group by 1")
    sessions = await conn.fetch(
        "select pid, state, wait_event_type, wait_event, pg_blocking_pids(pid) as blocked_by, query "
        "from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
    )
    return "\n".join(str(dict(row)) for row in [*tasks, *sessions])


async def _assert_functions_were_replaced(conn: Connection) -> None:
    old_text = await conn.fetch(
        "select p.oid::regprocedure::text from pg_proc p where p.pronamespace = 'holdfast'::regnamespace "
        "and p.prolang = (select oid from pg_language where lanname = 'plpgsql') "
        "and p.prosrc not like '%of the next release%'"
    )
    assert not old_text


async def _assert_nothing_lost(conn: Connection, job_ids: list[UUID], workers: list[ContractWorker]) -> None:
    assert len(set(job_ids)) == len(job_ids)
    statuses = Counter(await _job_statuses(conn, job_ids))
    assert statuses == {"succeeded": len(job_ids)}
    finished = sum((worker.finished for worker in workers), Counter[UUID]())
    assert set(finished.values()) == {1}, "a task ran twice"
    tasks = await conn.fetchval("select count(*) from holdfast.all_tasks where status = 'succeeded'")
    assert sum(finished.values()) == tasks
    assert not await conn.fetch("select * from holdfast.list_limit_counters() where running <> leases")
    await run_ticks(conn)
    await install.verify_schema(conn, files=next_release())


async def _job_statuses(conn: Connection, job_ids: list[UUID]) -> list[str]:
    rows = await conn.fetch(
        "select holdfast.get_job_status(j) as status from unnest($1::uuid[]) as j", job_ids
    )
    return [row["status"] for row in rows]
