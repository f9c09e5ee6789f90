"""Install: once, again, by ten processes at once, killed, cancelled, from a script, and upgrades."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from holdfast import telemetry
from holdfast.engine import install, schema, scratch
from holdfast.engine.schema import FunctionFile, SchemaFiles, SchemaMigration
from holdfast.errors import SchemaBusyError
from holdfast.settings import Secret, Settings
from holdfast.testing import wait_until

CatalogReader = Callable[[Secret], Awaitable[list[str]]]
LATEST_VERSION = schema.load_packaged_schema().latest_version
MINIMAL_FUNCTION_FILES = tuple(
    f
    for f in schema.load_packaged_schema().functions
    if f.path in {"access/grants.sql", "foundation/clock.sql"}
)
HOLDFAST_COMMAND = (sys.executable, "-m", "holdfast")
# Imports first, then waits for the word: so that the kill hits the migration and not the start of Python.
MIGRATE_SCRIPT = """
import asyncio, sys
from holdfast import settings
from holdfast.engine import install
print("ready", flush=True)
sys.stdin.readline()
asyncio.run(install.migrate_database(settings.load_settings().database_url, settings.load_settings()))
print("done", flush=True)
"""


def build_environment(url: Secret) -> dict[str, str]:
    return {**os.environ, "DATABASE_URL": url.reveal()}


@pytest.fixture
async def clean_url(server_url: Secret, settings: Settings) -> AsyncGenerator[Secret]:
    """A second empty database, installed in one go, to compare with."""
    name = f"hf_clean_{uuid.uuid4().hex[:12]}"
    await scratch.create_test_database(server_url, name, settings)
    url = scratch.build_database_url(server_url, name)
    await install.migrate_database(url, settings)
    yield url
    await scratch.drop_test_database(server_url, name, settings)


async def read_installed_versions(url: Secret, settings: Settings) -> frozenset[int]:
    return (await install.read_schema_status(url, settings)).installed.versions


async def test_installs_once_and_then_has_nothing_to_do(empty_url: Secret, settings: Settings) -> None:
    events: list[str] = []
    with telemetry.subscription(lambda name, _: events.append(name)):
        first = await install.migrate_database(empty_url, settings)
        again = await install.migrate_database(empty_url, settings)
    assert first.versions == tuple(range(1, LATEST_VERSION + 1))
    assert first.functions_replaced
    assert (again.versions, again.functions_replaced, again.version) == ((), False, LATEST_VERSION)
    assert events == ["schema.migrated"]
    assert (await install.read_schema_status(empty_url, settings)).is_current


async def test_verify_passes_on_what_migrate_made(empty_url: Secret, settings: Settings) -> None:
    await install.migrate_database(empty_url, settings)
    connection = await asyncpg.connect(empty_url.reveal())
    await install.verify_schema(connection)
    await connection.close()


@pytest.mark.slow
async def test_ten_processes_at_once(
    empty_url: Secret, clean_url: Secret, settings: Settings, catalogue: CatalogReader
) -> None:
    children = [
        subprocess.Popen(
            [*HOLDFAST_COMMAND, "migrate", "up", "--json"],
            env=build_environment(empty_url),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(10)
    ]
    answers = [await asyncio.to_thread(child.communicate) for child in children]
    assert [child.returncode for child in children] == [0] * 10, answers
    applied = [json.loads(out)["applied"] for out, _ in answers]
    assert sorted(applied) == [[]] * 9 + [list(range(1, LATEST_VERSION + 1))]
    assert await catalogue(empty_url) == await catalogue(clean_url)


@pytest.mark.slow
async def test_kill_9_at_random_instants_leaves_a_state_from_which_the_next_run_goes_on(
    empty_url: Secret, clean_url: Secret, settings: Settings, catalogue: CatalogReader
) -> None:
    chance = random.Random(20)
    killed = 0
    for _ in range(15):
        killed += await asyncio.to_thread(kill_migration, empty_url, chance.uniform(0.0, 0.25))
        # The server may still be at its last statement; then it sees that nobody is there.
        result = await wait_until(lambda: find_partial_migration(empty_url, settings), what="all or nothing")
        if result == "whole":
            await drop_schemas(empty_url)
    assert killed >= 3, "hardly any migration was killed; make the delays shorter"
    await install.migrate_database(empty_url, settings)
    assert await catalogue(empty_url) == await catalogue(clean_url)


def kill_migration(url: Secret, delay: float) -> bool:
    """Whether the child was killed before it was done."""
    child = subprocess.Popen(
        [sys.executable, "-c", MIGRATE_SCRIPT],
        env=build_environment(url),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    with child:
        assert child.stdout.readline() == "ready\n"
        child.stdin.write("go\n")
        child.stdin.flush()
        try:
            child.wait(delay)
        except subprocess.TimeoutExpired:
            child.kill()
        return "done" not in child.stdout.read()


async def find_partial_migration(url: Secret, settings: Settings) -> str | None:
    result = await read_installed_versions(url, settings)
    if not result:
        return "nothing"
    return "whole" if result == frozenset(range(1, LATEST_VERSION + 1)) else None


async def drop_schemas(url: Secret) -> None:
    connection = await asyncpg.connect(url.reveal())
    await connection.execute("drop schema if exists holdfast, pgmq, pgmq_public cascade")
    # The owner's defaults for new functions are not in any schema.
    await connection.execute(
        "alter default privileges for role holdfast_owner grant execute on functions to public"
    )
    await connection.close()


async def test_cancelled_runs_strand_no_lock(
    empty_url: Secret, clean_url: Secret, settings: Settings, catalogue: CatalogReader
) -> None:
    for step in range(12):
        run = asyncio.create_task(install.migrate_database(empty_url, settings))
        await asyncio.wait([run], timeout=step * 0.008)
        run.cancel()
        await asyncio.wait([run])
        if not run.cancelled():
            break
    await install.migrate_database(empty_url, settings)
    assert await catalogue(empty_url) == await catalogue(clean_url)


@pytest.mark.parametrize("bare", [False, True])
async def test_the_script_makes_the_same_schema(
    bare: bool,
    empty_url: Secret,
    clean_url: Secret,
    settings: Settings,
    catalogue: CatalogReader,
    tmp_path: Path,
) -> None:
    run_psql(
        empty_url,
        install.build_migration_script(bare=bare),
        tmp_path,
        *(["--single-transaction"] if bare else []),
    )
    assert await catalogue(empty_url) == await catalogue(clean_url)
    assert await list_migration_rows(empty_url) == await list_migration_rows(clean_url)
    assert (await install.migrate_database(empty_url, settings)).versions == ()


async def test_the_script_refuses_a_schema_at_another_version(url: Secret, tmp_path: Path) -> None:
    before = await list_migration_rows(url)
    with pytest.raises(subprocess.CalledProcessError) as refused:
        run_psql(url, install.build_migration_script(), tmp_path)
    assert (
        f"the schema is at version {LATEST_VERSION}, and this script starts from version 0"
        in refused.value.stderr
    )
    assert await list_migration_rows(url) == before


def run_psql(url: Secret, text: str, folder: Path, *options: str) -> None:
    file = folder / "script.sql"
    file.write_text(text, encoding="utf-8")
    subprocess.run(
        [*HOLDFAST_COMMAND, "db", "psql", "--", "-Xq", *options, "-v", "ON_ERROR_STOP=1", "-f", str(file)],
        env=build_environment(url),
        check=True,
        capture_output=True,
        text=True,
    )


async def list_migration_rows(url: Secret) -> list[tuple[Any, ...]]:
    connection = await asyncpg.connect(url.reveal())
    result = await connection.fetch(
        "select version, name, checksum, breaking, applied_by from holdfast.migrations order by 1"
    )
    result += await connection.fetch("select checksum, skipped, roles, applied_by from holdfast.function_set")
    await connection.close()
    return [tuple(record) for record in result]


def test_the_script_is_the_same_in_every_process() -> None:
    def print_script(seed: str) -> bytes:
        return subprocess.run(
            [*HOLDFAST_COMMAND, "migrate", "sql"],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
        ).stdout

    assert print_script("1") == print_script("2") == install.build_migration_script().encode()


NEXT_RELEASE = SchemaFiles(
    (
        *schema.load_packaged_schema().migrations,
        SchemaMigration(LATEST_VERSION + 1, "next", "alter table holdfast.workers add column note text;"),
    ),
    schema.load_packaged_schema().functions,
)


@pytest.mark.parametrize("at", range(1, LATEST_VERSION + 1))
async def test_upgrades_from_every_earlier_version(
    at: int, empty_url: Secret, clean_url: Secret, settings: Settings, catalogue: CatalogReader
) -> None:
    earlier = SchemaFiles(schema.load_packaged_schema().migrations[:at], MINIMAL_FUNCTION_FILES)
    await install.migrate_database(empty_url, settings, files=earlier)
    done = await install.migrate_database(empty_url, settings, files=NEXT_RELEASE)
    assert done.versions == tuple(range(at + 1, LATEST_VERSION + 2))
    await install.migrate_database(clean_url, settings, files=NEXT_RELEASE)
    assert await catalogue(empty_url) == await catalogue(clean_url)


async def test_the_script_upgrades_too(
    empty_url: Secret, clean_url: Secret, settings: Settings, catalogue: CatalogReader, tmp_path: Path
) -> None:
    await install.migrate_database(
        empty_url,
        settings,
        files=SchemaFiles(schema.load_packaged_schema().migrations[:1], MINIMAL_FUNCTION_FILES),
    )
    run_psql(empty_url, install.build_migration_script(1, files=NEXT_RELEASE), tmp_path)
    await install.migrate_database(clean_url, settings, files=NEXT_RELEASE)
    assert await catalogue(empty_url) == await catalogue(clean_url)
    assert (await install.read_schema_status(empty_url, settings, files=NEXT_RELEASE)).is_current


async def test_a_changed_function_file_renews_all_functions(empty_url: Secret, settings: Settings) -> None:
    files = schema.load_packaged_schema()
    await install.migrate_database(
        empty_url, settings, files=SchemaFiles(files.migrations[:1], MINIMAL_FUNCTION_FILES)
    )
    added = FunctionFile(
        "zebra.sql", "create function holdfast.zebra() returns int language sql as 'select 7';"
    )
    more = SchemaFiles(files.migrations[:1], (*MINIMAL_FUNCTION_FILES, added))
    done = await install.migrate_database(empty_url, settings, files=more)
    assert (done.versions, done.functions_replaced) == ((), True)
    connection = await asyncpg.connect(empty_url.reveal())
    assert await connection.fetchval("select holdfast.zebra()") == 7
    assert not await connection.fetchval(
        "select has_function_privilege('anon', 'holdfast.zebra()', 'execute')"
    )
    await connection.close()


async def test_files_for_an_extension_are_left_out_where_it_is_installed(
    empty_url: Secret, settings: Settings
) -> None:
    marked = FunctionFile("queue.sql", "create table holdfast.from_us ();", unless_extension="pgmq")
    files = SchemaFiles(schema.load_packaged_schema().migrations[:1], (*MINIMAL_FUNCTION_FILES, marked))
    connection = await asyncpg.connect(empty_url.reveal())
    await connection.execute(
        "insert into pg_extension (oid, extname, extowner, extnamespace, extrelocatable, extversion) "
        "select 99999, 'pgmq', 10, oid, false, '1.5' from pg_namespace where nspname = 'public'"
    )
    await install.migrate_database(empty_url, settings, files=files)
    status = await install.read_schema_status(empty_url, settings, files=files)
    assert (status.skipped_files, status.is_current) == (("queue.sql",), True)
    assert await connection.fetchval("select to_regclass('holdfast.from_us')") is None
    await connection.execute("delete from pg_extension where extname = 'pgmq'")
    assert (
        await install.read_schema_status(empty_url, settings, files=files)
    ).function_set_state == "outdated"
    await install.migrate_database(empty_url, settings, files=files)
    assert await connection.fetchval("select to_regclass('holdfast.from_us')") is not None
    await connection.close()


async def test_waits_for_another_migration_without_holding_a_snapshot(
    empty_url: Secret, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder = await asyncpg.connect(empty_url.reveal())
    waiting = asyncio.Event()
    async with holder.transaction():
        await holder.execute("select pg_advisory_xact_lock($1)", install.MIGRATION_LOCK_ID)
        with telemetry.subscription(lambda name, _: waiting.set() if name == "schema.lock_waited" else None):
            run = asyncio.create_task(install.migrate_database(empty_url, settings))
            await asyncio.wait_for(waiting.wait(), 20)
            assert not run.done()
    assert (await run).versions
    await drop_schemas(empty_url)
    monkeypatch.setattr(install, "MAX_MIGRATION_LOCK_WAIT", timedelta(0))
    async with holder.transaction():
        await holder.execute("select pg_advisory_xact_lock($1)", install.MIGRATION_LOCK_ID)
        with pytest.raises(SchemaBusyError, match="Another migration"):
            await install.migrate_database(empty_url, settings)
    await holder.close()


async def test_retries_when_running_work_holds_a_table(
    empty_url: Secret, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = SchemaFiles(schema.load_packaged_schema().migrations[:1], MINIMAL_FUNCTION_FILES)
    await install.migrate_database(empty_url, settings, files=first)
    more = SchemaMigration(2, "column", "alter table holdfast.migrations add column note text;")
    files = SchemaFiles((*first.migrations, more), MINIMAL_FUNCTION_FILES)
    hasty = replace(settings, lock_timeout=timedelta(milliseconds=20))
    reader = await asyncpg.connect(empty_url.reveal())
    waiting = asyncio.Event()
    async with reader.transaction():
        await reader.execute("lock table holdfast.migrations in row share mode")
        with telemetry.subscription(lambda name, _: waiting.set() if name == "schema.lock_waited" else None):
            run = asyncio.create_task(install.migrate_database(empty_url, hasty, files=files))
            await asyncio.wait_for(waiting.wait(), 20)
    assert (await run).versions == (2,)
    monkeypatch.setattr(install, "MAX_TABLE_LOCK_ATTEMPTS", 2)
    third = SchemaFiles(
        (*files.migrations, replace(more, version=3, sql=more.sql.replace("note", "other"))),
        MINIMAL_FUNCTION_FILES,
    )
    async with reader.transaction():
        await reader.execute("lock table holdfast.migrations in row share mode")
        with pytest.raises(SchemaBusyError, match="2 attempts"):
            await install.migrate_database(empty_url, hasty, files=third)
    await reader.close()
    assert await read_installed_versions(empty_url, settings) == {1, 2}
