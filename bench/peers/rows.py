"""Fill the tables of a peer with millions of copies of a row that its own API created.

Some peers need hours to enqueue a million jobs or to run ten million. The copies differ from the original row only
in their ids, numbers and times, so that the peer treats them like its own rows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import asyncpg

ROWS_PER_CHUNK, INSERT_SESSIONS = 250_000, 2
SELECT_COLUMNS = """select quote_ident(attname) as name, format_type(atttypid, atttypmod) as type from pg_attribute
  where attrelid = $1::regclass and attnum > 0 and not attisdropped and attgenerated = '' order by attnum"""
# Indexes without a constraint. Dropping them and building them at the end takes half the time.
SELECT_DROPPABLE_INDEXES = """select indexrelid::regclass::text as name, pg_get_indexdef(indexrelid) as definition from pg_index as i
  where indrelid = $1::regclass and not exists (select from pg_constraint where conindid = i.indexrelid)"""


@dataclass(frozen=True)
class RowTemplate:
    """The row of a table that is copied, and the columns that differ between copies.

    `uuids` are columns of type uuid or text; their last twelve digits are the number of the copy. `times` are one
    microsecond number_step, in the order of the numbers. `defaults` are columns that get the default of the table.
    """

    table: str
    where: str
    uuids: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()
    times: tuple[str, ...] = ()
    defaults: tuple[str, ...] = ()

    def build_expression(self, name: str, column_type: str) -> str:
        if name in self.uuids:
            return f"cast(left(s.{name}::text, 24) || lpad(to_hex(n), 12, '0') as {column_type})"
        if name in self.numbers:
            return f"s.{name} + n * $4::bigint"
        if name in self.times and column_type == "bigint":  # milliseconds
            return f"s.{name} - ($3::bigint - n)"
        if name in self.times:
            return f"s.{name} - ($3::bigint - n) * interval '1 microsecond'"
        return f"s.{name}"

    def build_insert(self, columns: Sequence[tuple[str, str]], source: str) -> str:
        """Build the insert. Parameters: $1 first number, $2 last number, $3 number of copies, $4 number step."""
        copied = [(name, column_type) for name, column_type in columns if name not in self.defaults]
        names = ", ".join(name for name, _ in copied)
        values = ", ".join(self.build_expression(name, column_type) for name, column_type in copied)
        return (
            f"insert into {self.table} ({names}) overriding system value select {values}"
            f" from generate_series($1::bigint, $2::bigint) as n cross join {source} as s"
            " where $3::bigint >= $1 and $4::bigint > 0"
        )


async def multiply_rows(dsn: str, templates: Sequence[RowTemplate], count: int) -> int:
    """Copy rows until the first table has about `count` more rows. Return the number of added rows."""
    connection = await _connect_for_copying(dsn)
    try:
        inserts = [
            await _prepare_insert(connection, template, f"source_{number}")
            for number, template in enumerate(templates)
        ]
        number_step = int(await connection.fetchval("select count(*) from source_0"))
        copies = -(-count // number_step)
        indexes = [
            index
            for template in templates
            for index in await connection.fetch(SELECT_DROPPABLE_INDEXES, template.table)
        ]
        for index in indexes if copies > ROWS_PER_CHUNK else ():
            await connection.execute(f"drop index {index['name']}")
        chunks = iter(range(1, copies + 1, ROWS_PER_CHUNK))
        await asyncio.gather(
            *(_insert_chunks(dsn, inserts, chunks, copies, number_step) for _ in range(INSERT_SESSIONS))
        )
        for index in indexes if copies > ROWS_PER_CHUNK else ():
            await connection.execute(index["definition"].replace(" ON ONLY ", " ON "))
        await connection.execute("drop schema sources cascade")
        return copies * number_step
    finally:
        await connection.close()


async def _connect_for_copying(dsn: str) -> asyncpg.Connection:
    connection = await asyncpg.connect(dsn)
    await connection.execute("set synchronous_commit = off; set session_replication_role = replica")
    await connection.execute("set maintenance_work_mem = '512MB'; create schema if not exists sources")
    await connection.execute(
        "set search_path = sources, public"
    )  # so that a template can select from the sources before it
    return connection


async def _prepare_insert(connection: asyncpg.Connection, template: RowTemplate, source: str) -> str:
    """Save the row to copy in the table `source`, and return the insert statement that copies it."""
    created = await connection.execute(
        f"create table {source} as select * from {template.table} where {template.where}"
    )
    if created == "SELECT 0":
        raise RuntimeError(f"{template.table} has no row to copy")
    columns = await connection.fetch(SELECT_COLUMNS, template.table)
    return template.build_insert([(row["name"], row["type"]) for row in columns], source)


async def _insert_chunks(
    dsn: str, inserts: Sequence[str], chunks: Iterator[int], copies: int, number_step: int
) -> None:
    connection = await _connect_for_copying(dsn)
    try:
        for start in chunks:
            for insert in inserts:
                await connection.execute(
                    insert, start, min(start + ROWS_PER_CHUNK - 1, copies), copies, number_step
                )
    finally:
        await connection.close()


async def vacuum_and_checkpoint(dsn: str) -> None:
    """Bring statistics, visibility maps and files up to date, as a server does over time."""
    connection = await asyncpg.connect(dsn)
    await connection.execute("vacuum analyze")
    await connection.execute("checkpoint")
    await connection.close()


PG_BOSS_TIMES = ("created_on", "start_after")
WAITING_ROWS = {
    "holdfast": (RowTemplate("holdfast.tasks", "status = 'ready'", ("id",), ("pos",), ("due_at",)),),
    "graphile-worker": (
        RowTemplate(
            "graphile_worker._private_jobs", "is_available", times=("run_at", "created_at"), defaults=("id",)
        ),
    ),
    "pgmq": (RowTemplate("pgmq.q_bench", "true", times=("enqueued_at", "vt"), defaults=("msg_id",)),),
    "pg-boss": (
        RowTemplate("pgboss.job", "name = 'bench' and state = 'created'", ("id",), times=PG_BOSS_TIMES),
    ),
    "pgqueuer": (
        RowTemplate("pgqueuer", "status = 'queued'", times=("created", "execute_after"), defaults=("id",)),
    ),
    "awa": (
        RowTemplate("awa.jobs_hot", "state = 'available'", times=("run_at", "created_at"), defaults=("id",)),
    ),
    "chancy": (
        RowTemplate("chancy_jobs", "state = 'pending'", ("id",), times=("created_at", "scheduled_at")),
    ),
    "absurd": (
        RowTemplate(
            "absurd.t_bench", "state = 'pending'", ("task_id", "last_attempt_run"), times=("enqueue_at",)
        ),
        RowTemplate(
            "absurd.r_bench", "state = 'pending'", ("run_id", "task_id"), times=("available_at", "created_at")
        ),
    ),
    "procrastinate": (
        RowTemplate("procrastinate_jobs", "status = 'todo'", numbers=("id",)),
        RowTemplate(
            "procrastinate_events",
            "job_id in (select id from source_0)",
            numbers=("job_id",),
            defaults=("id",),
        ),
    ),
    "dbos": (
        RowTemplate("dbos.workflow_status", "status = 'ENQUEUED'", ("workflow_uuid",), times=("created_at",)),
        RowTemplate(
            "dbos.workflow_input", "workflow_uuid in (select workflow_uuid from source_0)", ("workflow_uuid",)
        ),
    ),
}
FINISHED_ROWS = {
    "holdfast": (
        RowTemplate("holdfast.history", "id = (select min(id::text)::uuid from holdfast.history)", ("id",),
             times=("due_at", "started_at", "finished_at")),
    ),
    "pg-boss": (
        RowTemplate("pgboss.job", "id = (select id from pgboss.job where name = 'bench' and state = 'completed' limit 1)",
             ("id",), times=(*PG_BOSS_TIMES, "started_on", "completed_on")),
    ),
    # Three rows per job: queued, picked, successful.
    "pgqueuer": (
        RowTemplate("pgqueuer_log", "job_id = (select min(job_id) from pgqueuer_log)", numbers=("job_id",),
             times=("created",), defaults=("id",)),
    ),
    "awa": (
        RowTemplate("awa.jobs_hot", "id = (select min(id) from awa.jobs_hot where state = 'completed')",
             times=("run_at", "created_at", "attempted_at", "finalized_at"), defaults=("id",)),
    ),
    "chancy": (
        RowTemplate("chancy_jobs", "id = (select id from chancy_jobs where state = 'succeeded' limit 1)", ("id",),
             times=("created_at", "scheduled_at", "started_at", "completed_at")),
    ),
    "absurd": (
        RowTemplate("absurd.t_bench", "task_id = (select task_id from absurd.t_bench where state = 'completed' limit 1)",
             ("task_id", "last_attempt_run"), times=("enqueue_at", "first_started_at")),
        RowTemplate("absurd.r_bench", "task_id in (select task_id from source_0)", ("run_id", "task_id"),
             times=("available_at", "created_at", "started_at", "completed_at")),
    ),
    "dbos": (
        RowTemplate("dbos.workflow_status",
             "workflow_uuid = (select workflow_uuid from dbos.workflow_status where status = 'SUCCESS' limit 1)",
             ("workflow_uuid",), times=("created_at", "updated_at", "started_at_epoch_ms", "completed_at")),
        RowTemplate("dbos.workflow_input", "workflow_uuid in (select workflow_uuid from source_0)", ("workflow_uuid",)),
        RowTemplate("dbos.workflow_output", "workflow_uuid in (select workflow_uuid from source_0)", ("workflow_uuid",)),
    ),
}  # fmt: skip
