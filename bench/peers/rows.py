"""Rows of a peer by the million: one that its own API made, multiplied in its own tables.

Enqueueing a million jobs, or running ten million, takes some of them hours. The copies differ from the row they
come from in their numbers and times only, so the peer cannot tell them from its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import asyncpg

CHUNK, SESSIONS = 250_000, 2
COLUMNS = """select quote_ident(attname) as name, format_type(atttypid, atttypmod) as type from pg_attribute
  where attrelid = $1::regclass and attnum > 0 and not attisdropped and attgenerated = '' order by attnum"""
# Those that nothing depends on: building them at the end takes half the time.
INDEXES = """select indexrelid::regclass::text as name, pg_get_indexdef(indexrelid) as made_by from pg_index as i
  where indrelid = $1::regclass and not exists (select from pg_constraint where conindid = i.indexrelid)"""


@dataclass(frozen=True)
class Rows:
    """What is multiplied in one table, and which of its columns differ from copy to copy.

    `uuids` are of type uuid or text: the last twelve digits count. `times` go back by a microsecond each, so
    that the order of time is that of the numbers. `given` are left to the default of the table.
    """

    table: str
    where: str
    uuids: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()
    times: tuple[str, ...] = ()
    options: tuple[str, ...] = ()

    def expression(self, name: str, kind: str) -> str:
        if name in self.uuids:
            return f"cast(left(s.{name}::text, 24) || lpad(to_hex(n), 12, '0') as {kind})"
        if name in self.numbers:
            return f"s.{name} + n * $4::bigint"
        if name in self.times and kind == "bigint":  # milliseconds
            return f"s.{name} - ($3::bigint - n)"
        if name in self.times:
            return f"s.{name} - ($3::bigint - n) * interval '1 microsecond'"
        return f"s.{name}"

    def insert(self, columns: Sequence[tuple[str, str]], source: str) -> str:
        """$1 and $2: from which number to which; $3: how many in all; $4: how far apart whole numbers are."""
        taken = [(name, kind) for name, kind in columns if name not in self.options]
        names = ", ".join(name for name, _ in taken)
        values = ", ".join(self.expression(name, kind) for name, kind in taken)
        return (
            f"insert into {self.table} ({names}) overriding system value select {values}"
            f" from generate_series($1::bigint, $2::bigint) as n cross join {source} as s"
            " where $3::bigint >= $1 and $4::bigint > 0"
        )


async def multiply(dsn: str, tables: Sequence[Rows], count: int) -> int:
    """Add about `count` rows to the first of these tables, and what belongs to them to the others."""
    connection = await _connect(dsn)
    try:
        inserts = [
            await _prepared(connection, rows, f"source_{number}") for number, rows in enumerate(tables)
        ]
        apart = int(await connection.fetchval("select count(*) from source_0"))
        copies = -(-count // apart)
        indexes = [index for rows in tables for index in await connection.fetch(INDEXES, rows.table)]
        for index in indexes if copies > CHUNK else ():
            await connection.execute(f"drop index {index['name']}")
        chunks = iter(range(1, copies + 1, CHUNK))
        await asyncio.gather(*(_insert(dsn, inserts, chunks, copies, apart) for _ in range(SESSIONS)))
        for index in indexes if copies > CHUNK else ():
            await connection.execute(index["made_by"].replace(" ON ONLY ", " ON "))
        await connection.execute("drop schema sources cascade")
        return copies * apart
    finally:
        await connection.close()


async def _connect(dsn: str) -> asyncpg.Connection:
    connection = await asyncpg.connect(dsn)
    await connection.execute("set synchronous_commit = off; set session_replication_role = replica")
    await connection.execute("set maintenance_work_mem = '512MB'; create schema if not exists sources")
    await connection.execute(
        "set search_path = sources, public"
    )  # so that later sources may name earlier ones
    return connection


async def _prepared(connection: asyncpg.Connection, rows: Rows, source: str) -> str:
    """The row that is multiplied, set aside, and the statement that does it."""
    created = await connection.execute(
        f"create table {source} as select * from {rows.table} where {rows.where}"
    )
    if created == "SELECT 0":
        raise RuntimeError(f"{rows.table} has no row that could be multiplied")
    measurements = await connection.fetch(COLUMNS, rows.table)
    return rows.insert([(row["name"], row["type"]) for row in measurements], source)


async def _insert(dsn: str, inserts: Sequence[str], chunks: Iterator[int], copies: int, apart: int) -> None:
    connection = await _connect(dsn)
    try:
        for start in chunks:
            for insert in inserts:
                await connection.execute(insert, start, min(start + CHUNK - 1, copies), copies, apart)
    finally:
        await connection.close()


async def settle(dsn: str) -> None:
    """What a server does in time: statistics, visibility, and pages on disk."""
    connection = await asyncpg.connect(dsn)
    await connection.execute("vacuum analyze")
    await connection.execute("checkpoint")
    await connection.close()


PG_BOSS_TIMES = ("created_on", "start_after")
WAITING = {
    "holdfast": (Rows("holdfast.tasks", "status = 'ready'", ("id",), ("pos",), ("due_at",)),),
    "graphile-worker": (
        Rows(
            "graphile_worker._private_jobs", "is_available", times=("run_at", "created_at"), options=("id",)
        ),
    ),
    "pgmq": (Rows("pgmq.q_bench", "true", times=("enqueued_at", "vt"), options=("msg_id",)),),
    "pg-boss": (Rows("pgboss.job", "name = 'bench' and state = 'created'", ("id",), times=PG_BOSS_TIMES),),
    "pgqueuer": (Rows("pgqueuer", "status = 'queued'", times=("created", "execute_after"), options=("id",)),),
    "awa": (Rows("awa.jobs_hot", "state = 'available'", times=("run_at", "created_at"), options=("id",)),),
    "chancy": (Rows("chancy_jobs", "state = 'pending'", ("id",), times=("created_at", "scheduled_at")),),
    "absurd": (
        Rows("absurd.t_bench", "state = 'pending'", ("task_id", "last_attempt_run"), times=("enqueue_at",)),
        Rows(
            "absurd.r_bench", "state = 'pending'", ("run_id", "task_id"), times=("available_at", "created_at")
        ),
    ),
    "procrastinate": (
        Rows("procrastinate_jobs", "status = 'todo'", numbers=("id",)),
        Rows(
            "procrastinate_events",
            "job_id in (select id from source_0)",
            numbers=("job_id",),
            options=("id",),
        ),
    ),
    "dbos": (
        Rows("dbos.workflow_status", "status = 'ENQUEUED'", ("workflow_uuid",), times=("created_at",)),
        Rows(
            "dbos.workflow_input", "workflow_uuid in (select workflow_uuid from source_0)", ("workflow_uuid",)
        ),
    ),
}
FINISHED = {
    "holdfast": (
        Rows("holdfast.history", "id = (select min(id::text)::uuid from holdfast.history)", ("id",),
             times=("due_at", "started_at", "finished_at")),
    ),
    "pg-boss": (
        Rows("pgboss.job", "id = (select id from pgboss.job where name = 'bench' and state = 'completed' limit 1)",
             ("id",), times=(*PG_BOSS_TIMES, "started_on", "completed_on")),
    ),
    # Three rows a job: queued, picked, successful.
    "pgqueuer": (
        Rows("pgqueuer_log", "job_id = (select min(job_id) from pgqueuer_log)", numbers=("job_id",),
             times=("created",), options=("id",)),
    ),
    "awa": (
        Rows("awa.jobs_hot", "id = (select min(id) from awa.jobs_hot where state = 'completed')",
             times=("run_at", "created_at", "attempted_at", "finalized_at"), options=("id",)),
    ),
    "chancy": (
        Rows("chancy_jobs", "id = (select id from chancy_jobs where state = 'succeeded' limit 1)", ("id",),
             times=("created_at", "scheduled_at", "started_at", "completed_at")),
    ),
    "absurd": (
        Rows("absurd.t_bench", "task_id = (select task_id from absurd.t_bench where state = 'completed' limit 1)",
             ("task_id", "last_attempt_run"), times=("enqueue_at", "first_started_at")),
        Rows("absurd.r_bench", "task_id in (select task_id from source_0)", ("run_id", "task_id"),
             times=("available_at", "created_at", "started_at", "completed_at")),
    ),
    "dbos": (
        Rows("dbos.workflow_status",
             "workflow_uuid = (select workflow_uuid from dbos.workflow_status where status = 'SUCCESS' limit 1)",
             ("workflow_uuid",), times=("created_at", "updated_at", "started_at_epoch_ms", "completed_at")),
        Rows("dbos.workflow_input", "workflow_uuid in (select workflow_uuid from source_0)", ("workflow_uuid",)),
        Rows("dbos.workflow_output", "workflow_uuid in (select workflow_uuid from source_0)", ("workflow_uuid",)),
    ),
}  # fmt: skip
