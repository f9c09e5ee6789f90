"""Migrations outside a transaction: indexes are built beside running work and repaired after a failure."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import asyncpg
import pytest

from holdfast.engine import install, migration_script, schema
from holdfast.engine.schema import SchemaFiles, SchemaMigration
from holdfast.errors import DatabaseError
from holdfast.settings import Secret, Settings

BASELINE_MIGRATION = schema.load_packaged_schema().migrations[0]
MINIMAL_FUNCTION_FILES = tuple(
    f
    for f in schema.load_packaged_schema().functions
    if f.path in {"access/grants.sql", "foundation/clock.sql"}
)
TABLE_MIGRATION = SchemaMigration(2, "things", "create table holdfast.things (n integer);")
INDEX_MIGRATION = SchemaMigration(
    3,
    "things_index",
    "-- holdfast: concurrently\ncreate unique index concurrently things_n on holdfast.things (n);\n",
    concurrently=True,
)
LAST_MIGRATION = SchemaMigration(4, "after", "alter table holdfast.things add column m integer;")
SCHEMA_FILES = SchemaFiles(
    (BASELINE_MIGRATION, TABLE_MIGRATION, INDEX_MIGRATION, LAST_MIGRATION), MINIMAL_FUNCTION_FILES
)

Database: TypeAlias = "asyncpg.Connection[Any]"


@pytest.fixture
async def database(empty_url: Secret) -> AsyncGenerator[Database]:
    connection = await asyncpg.connect(empty_url.reveal())
    yield connection
    await connection.close()


async def is_index_valid(connection: Database) -> bool | None:
    """Whether the index is valid; None when there is none."""
    rows: bool | None = await connection.fetchval(
        "select indisvalid from pg_index where indexrelid = to_regclass('holdfast.things_n')"
    )
    return rows


@pytest.fixture
async def schema_without_index(empty_url: Secret, settings: Settings) -> None:
    """Install the schema of the version before the index."""
    files = SchemaFiles((BASELINE_MIGRATION, TABLE_MIGRATION), MINIMAL_FUNCTION_FILES)
    await install.migrate_database(empty_url, settings, files=files)


@pytest.mark.usefixtures("schema_without_index")
async def test_runs_between_the_transactions(
    empty_url: Secret, settings: Settings, database: Database
) -> None:
    done = await install.migrate_database(empty_url, settings, files=SCHEMA_FILES)
    assert done.versions == (3, 4)
    assert await is_index_valid(database) is True
    assert (await install.migrate_database(empty_url, settings, files=SCHEMA_FILES)).versions == ()


async def test_a_new_schema_is_created_in_one_transaction(
    empty_url: Secret, settings: Settings, database: Database
) -> None:
    broken = replace(LAST_MIGRATION, sql="select 1 / 0;")
    files = replace(SCHEMA_FILES, migrations=(*SCHEMA_FILES.migrations[:-1], broken))
    with pytest.raises(DatabaseError, match="division by zero"):
        await install.migrate_database(empty_url, settings, files=files)
    assert await database.fetchval("select to_regnamespace('holdfast')") is None
    done = await install.migrate_database(empty_url, settings, files=SCHEMA_FILES)
    assert done.versions == (1, 2, 3, 4)
    assert await is_index_valid(database) is True
    status = await install.read_schema_status(empty_url, settings, files=SCHEMA_FILES)
    assert status.is_current
    assert status.changed_migrations == ()


@pytest.mark.usefixtures("schema_without_index")
async def test_ten_at_once_do_not_wait_for_each_other_for_ever(
    empty_url: Secret, settings: Settings, database: Database
) -> None:
    runs = [install.migrate_database(empty_url, settings, files=SCHEMA_FILES) for _ in range(10)]
    done = await asyncio.wait_for(asyncio.gather(*runs), 60)
    assert sorted(version for each in done for version in each.versions) == [3, 4]
    assert await is_index_valid(database) is True


@pytest.mark.usefixtures("schema_without_index")
async def test_a_failed_build_is_cleaned_up_and_run_again(
    empty_url: Secret, settings: Settings, database: Database
) -> None:
    await database.execute("insert into holdfast.things values (1), (1)")
    with pytest.raises(DatabaseError, match=r"migrations/0003_things_index\.sql"):
        await install.migrate_database(empty_url, settings, files=SCHEMA_FILES)
    assert await is_index_valid(database) is False, "PostgreSQL leaves an invalid index behind"
    assert (await install.read_schema_status(empty_url, settings, files=SCHEMA_FILES)).installed.versions == {
        1,
        2,
    }
    await database.execute("delete from holdfast.things")
    assert (await install.migrate_database(empty_url, settings, files=SCHEMA_FILES)).versions == (3, 4)
    assert await is_index_valid(database) is True


@pytest.mark.usefixtures("schema_without_index")
async def test_an_index_that_was_finished_but_not_recorded_is_kept(
    empty_url: Secret, settings: Settings, database: Database
) -> None:
    await database.execute(INDEX_MIGRATION.sql)
    before = await database.fetchval("select to_regclass('holdfast.things_n')::oid")
    assert (await install.migrate_database(empty_url, settings, files=SCHEMA_FILES)).versions == (3, 4)
    assert await database.fetchval("select to_regclass('holdfast.things_n')::oid") == before


@pytest.mark.usefixtures("schema_without_index")
async def test_a_cancelled_build_goes_on_later(
    empty_url: Secret, settings: Settings, database: Database
) -> None:
    """The build waits for a transaction that has seen the table; it is cancelled while it waits."""
    blocker = await asyncpg.connect(empty_url.reveal())
    async with blocker.transaction():
        await blocker.execute("insert into holdfast.things values (1)")
        run = asyncio.create_task(install.migrate_database(empty_url, settings, files=SCHEMA_FILES))
        await asyncio.wait_for(building(database), 20)
        run.cancel()
        await asyncio.wait([run])
        assert run.cancelled()
    await blocker.close()
    assert (await install.migrate_database(empty_url, settings, files=SCHEMA_FILES)).versions == (3, 4)
    assert await is_index_valid(database) is True


MIGRATE_SCRIPT = """
import asyncio, pathlib, sys
from holdfast import settings
from holdfast.engine import install, schema
files = schema.load_schema_files(pathlib.Path(sys.argv[1]))
loaded = settings.load_settings()
asyncio.run(install.migrate_database(loaded.database_url, loaded, files=files))
"""


def write_schema_files(folder: Path) -> Path:
    texts = {file.path: file.sql for migration in SCHEMA_FILES.migrations for file in migration.files}
    texts |= {f"functions/{function.path}": function.sql for function in SCHEMA_FILES.functions}
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


@pytest.mark.slow
@pytest.mark.usefixtures("schema_without_index")
async def test_kill_9_while_the_server_still_builds(
    empty_url: Secret, settings: Settings, database: Database, tmp_path: Path
) -> None:
    """The server goes on building for a process that is gone; the next run has to get along with that."""
    blocker = await asyncpg.connect(empty_url.reveal())
    async with blocker.transaction():
        await blocker.execute("insert into holdfast.things values (1)")
        child = subprocess.Popen(
            [sys.executable, "-c", MIGRATE_SCRIPT, str(write_schema_files(tmp_path))],
            env={**os.environ, "DATABASE_URL": empty_url.reveal()},
        )
        await asyncio.wait_for(building(database), 30)
        child.kill()
        child.wait()
        run = asyncio.create_task(install.migrate_database(empty_url, settings, files=SCHEMA_FILES))
        await asyncio.wait_for(dropping(database), 30)
    await blocker.close()
    assert (await asyncio.wait_for(run, 60)).versions == (3, 4)
    assert await is_index_valid(database) is True


async def dropping(connection: Database) -> None:
    while not await connection.fetchval(
        "select exists (select from pg_stat_activity where query ilike 'drop index concurrently%' "
        "and datname = current_database())"
    ):
        await asyncio.sleep(0.01)


async def building(connection: Database) -> None:
    while not await connection.fetchval(
        "select exists (select from pg_stat_activity where query ilike '%create unique index concurrently%' "
        "and wait_event_type = 'Lock' and datname = current_database() and pid <> pg_backend_pid())"
    ):
        await asyncio.sleep(0.01)


@pytest.mark.usefixtures("schema_without_index")
async def test_the_script_runs_it_outside_the_transactions(
    empty_url: Secret, settings: Settings, database: Database, tmp_path: Path
) -> None:
    file = tmp_path / "script.sql"
    file.write_text(migration_script.build_migration_script(2, files=SCHEMA_FILES), encoding="utf-8")
    subprocess.run(
        [
            sys.executable,
            "-m",
            "holdfast",
            "db",
            "psql",
            "--",
            "-Xq",
            "-v",
            "ON_ERROR_STOP=1",
            "-f",
            str(file),
        ],
        env={**os.environ, "DATABASE_URL": empty_url.reveal()},
        check=True,
        capture_output=True,
    )
    assert await is_index_valid(database) is True
    assert (await install.read_schema_status(empty_url, settings, files=SCHEMA_FILES)).is_current


def test_the_script_of_a_new_schema_is_one_transaction() -> None:
    script = migration_script.build_migration_script(files=SCHEMA_FILES)
    assert (script.count("\nbegin;\n"), script.count("\ncommit;\n")) == (1, 1)
    assert "create unique index things_n on holdfast.things" in script
