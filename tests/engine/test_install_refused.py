"""What the installer refuses, with which error, without changing anything."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest

from holdfast import errors
from holdfast.engine import doctor, embedded, install, preflight, schema, schema_status
from holdfast.engine.connection import open_connection
from holdfast.engine.embedded import home as embedded_home
from holdfast.engine.schema import FunctionFile, SchemaFiles, SchemaMigration
from holdfast.settings import Secret, Settings, load_settings
from holdfast.version import __version__

SCHEMA_FILES = schema.load_packaged_schema()
MINIMAL_FUNCTION_FILES = tuple(
    f for f in SCHEMA_FILES.functions if f.path in {"access/grants.sql", "foundation/clock.sql"}
)


async def list_applied_migrations(connection: Any) -> list[Any]:
    rows = await connection.fetch("select * from holdfast.migrations order by version")
    return [*rows, *await connection.fetch("select * from holdfast.function_set")]


async def add_version(connection: Any, *, breaking: bool = False) -> None:
    await connection.execute(
        "insert into holdfast.migrations values (9999, 'later', 'x', $1, now(), '99.0')", breaking
    )


async def test_older_code_never_touches_a_newer_schema(conn: Any, url: Secret, settings: Settings) -> None:
    await add_version(conn)
    before = await list_applied_migrations(conn)
    with pytest.raises(errors.SchemaTooNewError) as refused:
        await install.migrate_database(url, settings)
    assert "holdfast>=99.0" in (refused.value.fix or "")
    assert refused.value.exit_code == 4
    assert await list_applied_migrations(conn) == before


# The rows that the migrations from before the first release left behind.
UNRELEASED_MIGRATIONS = (
    *("schema", "jobs", "schedules", "workers", "logs", "files", "access", "views", "bells", "surface"),
    *("step_files", "message_errors", "rings", "lists", "ends", "bounds"),
)


async def test_a_schema_of_unreleased_migrations_is_refused(
    conn: Any, url: Secret, settings: Settings
) -> None:
    await conn.execute("delete from holdfast.migrations")
    await conn.executemany(
        "insert into holdfast.migrations (version, name, checksum, breaking, applied_by) "
        "values ($1, $2, encode(sha256(convert_to($2::text, 'UTF8')), 'hex'), false, '0.1.0.dev0')",
        list(enumerate(UNRELEASED_MIGRATIONS, start=1)),
    )
    await conn.execute("update holdfast.function_set set checksum = 'other', applied_by = '0.1.0.dev0'")
    before = await list_applied_migrations(conn)
    with pytest.raises(errors.SchemaChangedError, match="unreleased version") as refused:
        await install.migrate_database(url, settings)
    assert "drop schema holdfast" in (refused.value.fix or "")
    with pytest.raises(errors.SchemaChangedError, match="unreleased version"):
        await install.verify_schema(conn)
    (finding,) = [f for f in await doctor.run_doctor_checks(url, settings) if f.check == "schema"]
    assert (finding.level, finding.text) == ("fail", schema_status.UNRELEASED_SCHEMA_MESSAGE)
    assert finding.fix is not None
    assert "holdfast migrate" in finding.fix
    assert await list_applied_migrations(conn) == before


async def test_older_code_works_on_a_newer_schema_unless_that_broke_with_it(conn: Any) -> None:
    await add_version(conn)
    await install.verify_schema(conn)
    await conn.execute("update holdfast.migrations set breaking = true where version = 9999")
    with pytest.raises(errors.SchemaTooNewError, match="later"):
        await install.verify_schema(conn)


async def test_older_code_does_not_put_its_functions_over_newer_ones(
    conn: Any, url: Secret, settings: Settings
) -> None:
    await conn.execute("update holdfast.function_set set checksum = 'other', applied_by = '99.1'")
    await install.verify_schema(conn)
    with pytest.raises(errors.SchemaTooNewError, match=r"99\.1"):
        await install.migrate_database(url, settings)


async def test_functions_of_a_newer_schema_are_newer_whatever_the_version_is_called(
    conn: Any, url: Secret, settings: Settings
) -> None:
    await conn.execute(
        "insert into holdfast.migrations values (9999, 'later', 'x', false, now(), $1)", __version__
    )
    await conn.execute("update holdfast.function_set set checksum = 'other', applied_by = $1", __version__)
    await install.verify_schema(conn)
    with pytest.raises(errors.SchemaTooNewError, match="newer than this code"):
        await install.migrate_database(url, settings)


async def test_a_released_file_that_was_edited_is_named(conn: Any, url: Secret, settings: Settings) -> None:
    edited = replace(SCHEMA_FILES.migrations[0], sql=SCHEMA_FILES.migrations[0].sql + "-- a thought\n")
    files = SchemaFiles((edited, *SCHEMA_FILES.migrations[1:]), SCHEMA_FILES.functions)
    with pytest.raises(errors.SchemaChangedError, match=r"0001_baseline"):
        await install.migrate_database(url, settings, files=files)
    assert (await install.read_schema_status(url, settings, files=files)).changed_migrations == (
        "0001_baseline",
    )


async def test_a_schema_of_a_build_before_the_release_is_completed(
    conn: Any, url: Secret, settings: Settings
) -> None:
    """0004 had the index on the audit log before it became a migration of its own."""
    await conn.execute("delete from holdfast.migrations where version > 8")
    await conn.execute(
        "update holdfast.migrations set checksum = $1 where version = 4", schema.UNRELEASED_CHECKSUMS[4]
    )
    assert (await install.migrate_database(url, settings)).versions[:1] == (9,)
    assert (await install.read_schema_status(url, settings)).is_current


async def test_verify_names_the_fix_when_missing_or_outdated(
    empty_url: Secret, conn: Any, settings: Settings
) -> None:
    async with open_connection(empty_url, settings) as connection:
        with pytest.raises(errors.SchemaMissingError) as missing:
            await install.verify_schema(connection)
    assert missing.value.fix == "Run: holdfast migrate"
    more = SchemaFiles(
        (*SCHEMA_FILES.migrations, SchemaMigration(9000, "more", "select 1;")), SCHEMA_FILES.functions
    )
    with pytest.raises(errors.SchemaOutdatedError, match="needs 9000"):
        await install.verify_schema(conn, files=more)
    with pytest.raises(errors.SchemaOutdatedError, match="newer functions"):
        await install.verify_schema(conn, files=SchemaFiles(SCHEMA_FILES.migrations, MINIMAL_FUNCTION_FILES))


async def test_a_failing_migration_names_file_and_line_and_changes_nothing(
    empty_url: Secret, settings: Settings
) -> None:
    broken = SchemaMigration(2, "broken", "create table holdfast.fine ();\n\nselect no_such_column;\n")
    files = SchemaFiles((SCHEMA_FILES.migrations[0], broken), MINIMAL_FUNCTION_FILES)
    with pytest.raises(errors.DatabaseError, match=r"migrations/0002_broken\.sql, line 3: .*no_such_column"):
        await install.migrate_database(empty_url, settings, files=files)
    assert (await install.read_schema_status(empty_url, settings, files=files)).installed.owner is None


async def test_the_line_is_right_in_a_file_that_depends_on_an_extension(
    empty_url: Secret, settings: Settings
) -> None:
    broken = FunctionFile("q.sql", "-- holdfast: unless-extension pgmq\nselect 1;\nselect wrong;\n", "pgmq")
    with pytest.raises(errors.DatabaseError, match=r"functions/q\.sql, line 3: .*wrong"):
        await install.migrate_database(
            empty_url,
            settings,
            files=SchemaFiles(SCHEMA_FILES.migrations[:1], (*MINIMAL_FUNCTION_FILES, broken)),
        )


async def test_what_somebody_else_put_into_the_schema_does_not_stop_an_upgrade(
    conn: Any, url: Secret, settings: Settings
) -> None:
    await conn.execute(
        "create table holdfast.theirs (); grant select on holdfast.theirs to authenticated;"
        "create function holdfast.theirs() returns int language sql as 'select 1'"
    )
    more = FunctionFile("zz.sql", "select 1;")
    await install.migrate_database(
        url, settings, files=SchemaFiles(SCHEMA_FILES.migrations, (*SCHEMA_FILES.functions, more))
    )
    assert await conn.fetchval("select has_table_privilege('authenticated', 'holdfast.theirs', 'select')")


def build_server_info(**changes: Any) -> preflight.ServerInfo:
    fine = preflight.ServerInfo(
        version_number=140000,
        version="14.0",
        is_standby=False,
        read_only=False,
        database="app",
        role="me",
        may_create_schemas=True,
        may_create_roles=False,
        schemas=0,
        owner=None,
        may_own=True,
    )
    return replace(fine, **changes)


def test_postgresql_before_14() -> None:
    preflight.require_writable_server(build_server_info())
    with pytest.raises(errors.DatabaseTooOldError, match=r"PostgreSQL 13\.9; Holdfast needs 14"):
        preflight.require_writable_server(build_server_info(version_number=130009, version="13.9"))


def test_a_standby() -> None:
    with pytest.raises(errors.DatabaseReadOnlyError) as refused:
        preflight.require_writable_server(build_server_info(is_standby=True, read_only=True))
    assert "primary" in (refused.value.fix or "")


@pytest.mark.slow
async def test_a_real_standby() -> None:
    home = Path(tempfile.mkdtemp(prefix="holdfast-standby-"))
    home.chmod(0o755)
    own = load_settings({"home": str(home)}, environ={})
    try:
        with embedded.start_server(own) as primary:
            assert (await install.migrate_database(primary.url, own)).versions
        embedded.stop_server(own)
        embedded_home.EmbeddedHome(own).data_folder.joinpath("standby.signal").touch()
        with embedded.start_server(own) as standby:
            async with open_connection(standby.url, own) as connection:
                assert await connection.fetchval("select pg_is_in_recovery()")
                await install.verify_schema(connection)
            with pytest.raises(errors.DatabaseReadOnlyError, match="standby"):
                await install.migrate_database(standby.url, own)
            result = {finding.check: finding for finding in await doctor.run_doctor_checks(standby.url, own)}
        assert (result["version"].level, result["version"].fix) == (
            "fail",
            "Point DATABASE_URL at the primary.",
        )
    finally:
        embedded.stop_server(own)
        shutil.rmtree(home, ignore_errors=True)


async def test_read_only_by_default(empty_url: Secret, settings: Settings) -> None:
    async with open_connection(empty_url, settings) as connection:
        name = await connection.fetchval("select current_database()")
        await connection.execute(f'alter database "{name}" set default_transaction_read_only = on')
    with pytest.raises(errors.DatabaseReadOnlyError, match="read-only"):
        await install.migrate_database(empty_url, settings)


@pytest.fixture
async def stranger(empty_url: Secret) -> AsyncGenerator[Secret]:
    """A login that may connect and nothing else."""
    admin = await asyncpg.connect(empty_url.reveal())
    name = f"hf_stranger_{admin.get_server_pid()}"
    await admin.execute(f"create role {name} login password 'strange'")
    parts = urlsplit(empty_url.reveal())
    host = parts.netloc.rpartition("@")[2]
    yield Secret(urlunsplit(parts._replace(netloc=f"{name}:strange@{host}")))
    await admin.execute(f"drop owned by {name}")
    await admin.execute(f"drop role {name}")
    await admin.close()


async def test_no_right_to_create_a_schema_names_the_grant(stranger: Secret, settings: Settings) -> None:
    with pytest.raises(errors.DatabasePermissionError) as refused:
        await install.migrate_database(stranger, settings)
    assert 'grant create on database "hf_test_' in (refused.value.fix or "")
    assert refused.value.exit_code == 5


async def test_a_schema_of_somebody_else(stranger: Secret, empty_url: Secret, settings: Settings) -> None:
    few = SchemaFiles(SCHEMA_FILES.migrations[:1], MINIMAL_FUNCTION_FILES)
    await install.migrate_database(empty_url, settings, files=few)
    with pytest.raises(errors.DatabasePermissionError, match="Role hf_stranger"):
        await install.migrate_database(stranger, settings)
    async with open_connection(empty_url, settings) as connection:
        role = urlsplit(stranger.reveal()).username
        await connection.execute(f"grant holdfast_worker to {role}")
        await connection.execute(f"grant create on database {await read_database_name(connection)} to {role}")
    with pytest.raises(errors.DatabasePermissionError, match="belongs to holdfast_owner"):
        await install.migrate_database(stranger, settings)
    async with open_connection(stranger, settings) as connection:
        await install.verify_schema(connection, files=few)


async def read_database_name(connection: Any) -> str:
    name: str = await connection.fetchval("select quote_ident(current_database())")
    return name


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"netloc": "postgres@127.0.0.1:1"}, "cannot be reached"),
        ({"path": "/no_such_database"}, "no such database"),
        ({"scheme": "mysql"}, "DATABASE_URL is not a valid URL"),
        ({"netloc": "u:p@127.0.0.1:port"}, "DATABASE_URL is not a valid URL"),
        ({"netloc": "u:p@127.0.0.1:99999"}, "DATABASE_URL is not a valid URL"),
        ({"netloc": "u:p/secret@127.0.0.1:1"}, "DATABASE_URL is not a valid URL"),
    ],
)
async def test_wrong_addresses(change: dict[str, str], text: str, url: Secret, settings: Settings) -> None:
    wrong = Secret(urlunsplit(urlsplit(url.reveal())._replace(**change)))
    with pytest.raises(errors.DatabaseUnavailableError, match=text) as away:
        await install.migrate_database(wrong, settings)
    assert away.value.fix
    assert away.value.exit_code == 6
    assert "secret" not in str(away.value)


async def test_a_wrong_password_is_not_printed(stranger: Secret, settings: Settings) -> None:
    wrong = Secret(stranger.reveal().replace(":strange@", ":hunter2@"))
    with pytest.raises(errors.DatabaseUnavailableError, match="refused the login") as away:
        async with open_connection(wrong, settings):
            pytest.skip("this server asks for no password")
    assert "hunter2" not in str(away.value)


def test_versions_are_ordered_as_packages_order_them() -> None:
    rising = ["0.1.dev0", "0.1.dev3", "0.1a1", "0.1b1.dev2", "0.1b1", "0.1rc1", "0.1", "0.1.post1", "0.1.1"]
    assert sorted(rising, key=schema_status.version_sort_key) == rising
    assert schema_status.version_sort_key("1.0") == schema_status.version_sort_key("1.0.0")


def load_schema_files(folder: Path, **texts: str) -> SchemaFiles:
    for name, text in texts.items():
        path = folder / f"{name.replace('__', '/')}.sql"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return schema.load_schema_files(folder)


def test_directives(tmp_path: Path) -> None:
    files = load_schema_files(
        tmp_path,
        migrations__0001_a="-- holdfast: breaking\nselect 1;",
        migrations__0002_b="-- holdfast: concurrently, breaking\ncreate index concurrently b on h.b (n);",
        functions__a__b="select 2;",
        functions__access__grants="select 1;",
        functions__a__a="-- holdfast: unless-extension pgmq\nselect 3;",
    )
    first, second = files.migrations
    assert (first.breaking, first.concurrently, first.index_name) == (True, False, None)
    assert (second.breaking, second.concurrently, second.index_name) == (True, True, "b")
    assert [f.path for f in files.functions] == ["access/grants.sql", "a/a.sql", "a/b.sql"]
    assert files.list_skipped_files(frozenset({"pgmq"})) == ("a/a.sql",)


def test_the_files_of_a_folder_are_one_migration_in_name_order(tmp_path: Path) -> None:
    files = load_schema_files(
        tmp_path,
        migrations__0001_a__2_second="select 2;",
        migrations__0001_a__1_first="-- holdfast: breaking\nselect 1;",
        migrations__0002_b="select 3;",
        functions__a__a="select 4;",
    )
    folder, file = files.migrations
    assert (folder.version, folder.name, folder.breaking, folder.file_name) == (1, "a", True, "0001_a")
    assert [f.path for f in folder.files] == [
        "migrations/0001_a/1_first.sql",
        "migrations/0001_a/2_second.sql",
    ]
    assert [(f.path, f.sql) for f in file.files] == [("migrations/0002_b.sql", "select 3;")]
    (tmp_path / "migrations/0001_a/2_second.sql").rename(tmp_path / "migrations/0001_a/3_third.sql")
    assert schema.load_schema_files(tmp_path).migrations[0].checksum != folder.checksum


@pytest.mark.parametrize(
    ("texts", "complaint"),
    [
        ({"migrations__0001_a__1": "", "migrations__0001_b": ""}, "two migrations have the number 0001"),
        ({"migrations__0001_A__1": ""}, "NNNN_name"),
        ({"migrations__0001_a__1": "-- holdfast: concurrently\n"}, "unknown directive 'concurrently'"),
        (
            {"migrations__0001_a__1": "", "migrations__0001_a__2": "-- holdfast: breaking\n"},
            "unknown directive",
        ),
        ({"migrations__0001_a": "", "migrations__0001_b": ""}, "two migrations have the number 0001"),
        ({"migrations__1_a": ""}, "NNNN_name"),
        ({"migrations__0001_a": "-- holdfast: concurently\nselect 1;"}, "unknown directive 'concurently'"),
    ],
)
def test_invalid_migration_files_are_refused(texts: dict[str, str], complaint: str, tmp_path: Path) -> None:
    (tmp_path / "functions").mkdir()
    with pytest.raises(ValueError, match=complaint):
        load_schema_files(tmp_path, **texts)


def test_released_numbers_have_no_gap() -> None:
    assert [m.version for m in SCHEMA_FILES.migrations] == list(range(1, SCHEMA_FILES.latest_version + 1))


def test_script_bounds() -> None:
    with pytest.raises(errors.InvalidError):
        install.build_migration_script(3, 2)
    with pytest.raises(errors.InvalidError):
        install.build_migration_script(0, 8888)
    next_migration = SchemaMigration(SCHEMA_FILES.latest_version + 1, "more", "select 1;")
    files = SchemaFiles((*SCHEMA_FILES.migrations, next_migration), SCHEMA_FILES.functions)
    assert "-- functions/access/grants.sql" not in install.build_migration_script(
        0, SCHEMA_FILES.latest_version, files=files
    )
    assert "-- functions/access/grants.sql" in install.build_migration_script(files=files)


def test_line_endings_do_not_change_a_checksum(tmp_path: Path) -> None:
    unix = load_schema_files(tmp_path, migrations__0001_a="select 1;\nselect 2;\n", functions__a="")
    (tmp_path / "migrations" / "0001_a.sql").write_bytes(b"select 1;\r\nselect 2;\r\n")
    assert schema.load_schema_files(tmp_path).migrations[0].checksum == unix.migrations[0].checksum
