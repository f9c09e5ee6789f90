"""`holdfast migrate plan`: locks and time of pending migrations, without any change."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.cli.root import run_command_line
from holdfast.engine import install, migration_plan, schema
from holdfast.engine.connection import Connection
from holdfast.engine.schema import SchemaFiles, SchemaMigration
from holdfast.errors import SchemaBusyError
from holdfast.settings import Secret, Settings

RELEASED = schema.load_packaged_schema()
FUNCTIONS_OF_THE_BASELINE = {"access/grants.sql", "foundation/clock.sql"}
NEXT = RELEASED.latest_version + 1


def add_migrations(*migrations: SchemaMigration) -> SchemaFiles:
    return SchemaFiles((*RELEASED.migrations, *migrations), RELEASED.functions)


def change_tables(sql: str) -> SchemaMigration:
    return SchemaMigration(NEXT, "next", sql)


async def read_columns(conn: Connection) -> list[str]:
    rows = await conn.fetch(
        "select attname from pg_attribute where attrelid = 'holdfast.jobs'::regclass order by 1"
    )
    return [row["attname"] for row in rows]


async def test_plan_names_locks_and_time_and_changes_nothing(
    url: Secret, settings: Settings, conn: Connection
) -> None:
    before = await read_columns(conn)
    index = "-- holdfast: concurrently\ncreate index concurrently jobs_x on holdfast.jobs (id)"
    files = add_migrations(
        change_tables(
            "alter table holdfast.jobs add column x int;"
            "create table holdfast.fresh (id int); alter table holdfast.fresh add column y int"
        ),
        SchemaMigration(NEXT + 1, "index", index, concurrently=True, breaking=True),
    )
    steps = await migration_plan.plan_migration(url, settings, files=files)
    assert [step.name for step in steps] == [f"{NEXT:04}_next.sql", f"{NEXT + 1:04}_index.sql", "functions"]
    locks = {(lock.table, lock.mode) for lock in steps[0].locks}
    assert ("holdfast.jobs", "AccessExclusiveLock") in locks
    assert not [table for table, _ in locks if "fresh" in table]  # nobody uses a table that is new
    assert steps[0].seconds is not None
    assert (steps[1].seconds, steps[1].breaking) == (None, True)
    assert [lock.table for lock in steps[1].locks] == ["holdfast.jobs"]
    assert await read_columns(conn) == before
    status = await install.read_schema_status(url, settings)
    assert status.is_current


@pytest.mark.parametrize(
    ("sql", "rewritten", "scanned"),
    [
        ("alter table holdfast.jobs add column x int, add column y int not null default 7", False, False),
        ("alter table holdfast.jobs add constraint positive check (id is not null) not valid", False, False),
        ("alter table holdfast.jobs add column x double precision default random()", True, True),
        ("alter table holdfast.jobs add constraint positive check (id is not null)", False, True),
        ("create index jobs_x on holdfast.jobs (id)", False, True),
        ("lock table holdfast.jobs in exclusive mode; update holdfast.jobs set id = id", False, True),
    ],
    ids=["add columns", "unchecked constraint", "random default", "checked constraint", "index", "update"],
)
async def test_plan_names_tables_that_are_rewritten_or_scanned_under_a_lock(
    url: Secret, settings: Settings, sql: str, rewritten: bool, scanned: bool
) -> None:
    files = add_migrations(change_tables(sql))
    step, _ = await migration_plan.plan_migration(url, settings, files=files)
    assert step.rewritten == (("holdfast.jobs",) if rewritten else ())
    assert step.scanned == (("holdfast.jobs",) if scanned else ())


async def test_released_migrations_neither_rewrite_nor_scan_a_locked_table(
    empty_url: Secret, settings: Settings
) -> None:
    """A migration that fails here blocks running work for as long as its table is large."""
    functions = tuple(each for each in RELEASED.functions if each.path in FUNCTIONS_OF_THE_BASELINE)
    baseline = SchemaFiles(RELEASED.migrations[:1], functions)
    await install.migrate_database(empty_url, settings, files=baseline)
    steps = await migration_plan.plan_migration(empty_url, settings)
    assert [step.name for step in steps[:-1]] == [each.file_name for each in RELEASED.migrations[1:]]
    assert {step.name: step.rewritten for step in steps if step.rewritten} == {}
    assert {step.name: step.scanned for step in steps if step.scanned} == {}


def change_function(path: str, old: str, new: str) -> SchemaFiles:
    functions = [replace(f, sql=f.sql.replace(old, new)) if f.path == path else f for f in RELEASED.functions]
    assert functions != list(RELEASED.functions)
    return replace(RELEASED, functions=tuple(functions))


async def test_functions_are_replaced_without_a_lock_on_a_table_or_view(
    url: Secret, settings: Settings
) -> None:
    """Each upgrade replaces all functions, in seconds, during which nobody may have to wait."""
    files = change_function("jobs/details.sql", "-- Jobs and tasks as JSON.", "-- Changed.")
    (step,) = await migration_plan.plan_migration(url, settings, files=files)
    assert step.locks == ()


async def test_plan_names_a_view_that_changes(url: Secret, settings: Settings, conn: Connection) -> None:
    files = change_function(
        "jobs/details.sql", "t.event_seq, t.batch_id", "0 + t.event_seq as event_seq, t.batch_id"
    )
    (step,) = await migration_plan.plan_migration(url, settings, files=files)
    assert {(lock.table, lock.mode) for lock in step.locks} == {("holdfast.all_tasks", "AccessExclusiveLock")}
    await install.migrate_database(url, settings, files=files)
    definition = await conn.fetchval("select pg_get_viewdef('holdfast.all_tasks'::regclass)")
    assert "(0 + t.event_seq)" in definition
    assert await conn.fetchval("select to_regclass('holdfast.all_tasks_scratch')") is None


async def test_plan_does_not_wait_behind_running_work(
    url: Secret, settings: Settings, conn: Connection
) -> None:
    files = add_migrations(change_tables("alter table holdfast.jobs add column x int"))
    impatient = replace(settings, lock_timeout=settings.lock_timeout / 10)
    async with conn.transaction():
        await conn.execute("lock table holdfast.jobs in access share mode")
        with pytest.raises(SchemaBusyError, match="holds a table"):
            await migration_plan.plan_migration(url, impatient, files=files)
    assert await migration_plan.plan_migration(url, impatient, files=files)


async def test_plan_refuses_to_run_beside_a_migration(
    url: Secret, settings: Settings, conn: Connection
) -> None:
    async with conn.transaction():
        await conn.execute("select pg_advisory_xact_lock($1)", install.MIGRATION_LOCK_ID)
        with pytest.raises(SchemaBusyError, match="running"):
            await migration_plan.plan_migration(url, settings)


def test_plan_of_a_current_schema_is_empty(url: Secret, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["--database-url", url.reveal(), "migrate", "plan"]) == 0
    assert capsys.readouterr().out == "Nothing is pending.\n"


def test_plan_of_an_empty_database_lists_everything(
    empty_url: Secret, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command_line(["--database-url", empty_url.reveal(), "migrate", "plan"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("0001_baseline") for line in lines)
    assert any(line.startswith("functions") for line in lines)
    assert run_command_line(["--database-url", empty_url.reveal(), "migrate", "check"]) == 1
