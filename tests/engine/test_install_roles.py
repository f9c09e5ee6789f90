"""The role that installs decides the owner. Each case has its own server, as roles belong to a server."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import uuid
from collections.abc import AsyncGenerator, Generator
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest

from holdfast import errors, telemetry
from holdfast.engine import doctor, embedded, install, roles, scratch
from holdfast.engine.connection import open_connection
from holdfast.engine.schema import FunctionFile, SchemaFiles, load_packaged_schema
from holdfast.engine.schema_status import SCHEMA_ROLES
from holdfast.settings import Secret, Settings, load_settings

pytestmark = pytest.mark.slow
SERVER_OPTIONS = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}


@pytest.fixture(scope="module")
def own_server() -> Generator[Secret]:
    home = Path(tempfile.mkdtemp(prefix="holdfast-roles-"))
    home.chmod(0o755)
    settings = load_settings({"home": str(home)})
    with embedded.start_server(settings, options=SERVER_OPTIONS) as server:
        yield server.url
    embedded.stop_server(settings)
    shutil.rmtree(home, ignore_errors=True)


@pytest.fixture
async def admin(own_server: Secret) -> AsyncGenerator[Any]:
    """A superuser on a server that has none of our roles."""
    connection = await asyncpg.connect(own_server.reveal())
    await drop_roles_and_databases(connection)
    yield connection
    await drop_roles_and_databases(connection)
    await connection.close()


async def drop_roles_and_databases(admin: Any) -> None:
    for row in await admin.fetch("select datname from pg_database where datname like 'hf_%'"):
        await admin.execute(f'drop database "{row["datname"]}" with (force)')
    # Members first: a role that granted a membership cannot go before the member.
    for row in await admin.fetch(
        "select rolname from pg_roles where rolname = any ($1) or rolname like 'hf_%' "
        "order by rolname not in ('hf_app', 'hf_odd \"name'), rolname = any ($1)",
        list(SCHEMA_ROLES),
    ):
        await admin.execute(f"drop role {roles.quote_identifier(row['rolname'])}")


async def create_database_with_login(
    admin: Any, server: Secret, *, attributes: str = "", role: str | None = None
) -> Secret:
    """A database that belongs to a login with these attributes, and the address of both."""
    name = f"hf_{uuid.uuid4().hex[:12]}"
    login = role or name
    if role is None:
        await admin.execute(f"create role {name} login password 'word' {attributes}")
    await admin.execute(f"create database {name} owner {login}")
    return replace_url_role(scratch.build_database_url(server, name), login)


def replace_url_role(url: Secret, role: str) -> Secret:
    parts = urlsplit(url.reveal())
    return Secret(urlunsplit(parts._replace(netloc=f"{role}:word@{parts.netloc.rpartition('@')[2]}")))


def get_database_name(url: Secret) -> str:
    return str(urlsplit(url.reveal()).username)


async def list_object_owners(url: Secret) -> set[str]:
    connection = await asyncpg.connect(url.reveal())
    rows = await connection.fetch(
        "with ours as (select * from pg_namespace where nspname in ('holdfast', 'pgmq', 'pgmq_public')) "
        "select pg_get_userbyid(relowner) as owner from pg_class join ours on ours.oid = relnamespace "
        "union select pg_get_userbyid(proowner) from pg_proc join ours on ours.oid = pronamespace "
        "union select pg_get_userbyid(nspowner) from ours"
    )
    await connection.close()
    return {row["owner"] for row in rows}


async def read_role_attributes(admin: Any) -> dict[str, tuple[bool, bool]]:
    rows = await admin.fetch(
        "select rolname, rolcanlogin, rolbypassrls from pg_roles where rolname = any ($1)", list(SCHEMA_ROLES)
    )
    return {row["rolname"]: (row["rolcanlogin"], row["rolbypassrls"]) for row in rows}


SCHEMA_WITH_CHANGED_FUNCTIONS = SchemaFiles(
    load_packaged_schema().migrations,
    (*load_packaged_schema().functions, FunctionFile("zz.sql", "-- one more\nselect 1;")),
)


async def test_as_superuser(admin: Any, own_server: Secret, settings: Settings) -> None:
    url = scratch.build_database_url(
        own_server, get_database_name(await create_database_with_login(admin, own_server))
    )
    assert (await install.migrate_database(url, settings)).missing_roles == ()
    assert await list_object_owners(url) == {"holdfast_owner"}
    assert await read_role_attributes(admin) == {
        role: (False, role == "service_role") for role in SCHEMA_ROLES
    }


async def test_as_a_role_that_may_create_roles(admin: Any, own_server: Secret, settings: Settings) -> None:
    url = await create_database_with_login(admin, own_server, attributes="createrole")
    assert (await install.migrate_database(url, settings)).missing_roles == ()
    assert await list_object_owners(url) == {"holdfast_owner"}
    assert await read_role_attributes(admin) == dict.fromkeys(SCHEMA_ROLES, (False, False))
    assert (
        await install.migrate_database(url, settings, files=SCHEMA_WITH_CHANGED_FUNCTIONS)
    ).functions_replaced
    async with open_connection(url, settings) as connection:
        await install.verify_schema(connection, files=SCHEMA_WITH_CHANGED_FUNCTIONS)


async def test_as_a_plain_owner_of_a_database(admin: Any, own_server: Secret, settings: Settings) -> None:
    url = await create_database_with_login(admin, own_server)
    skipped: list[str] = []
    with telemetry.subscription(
        lambda name, fields: skipped.append(fields["role"]) if name == "schema.role_skipped" else None
    ):
        done = await install.migrate_database(url, settings)
        again = await install.migrate_database(url, settings)
    assert tuple(skipped) == done.missing_roles == again.missing_roles == SCHEMA_ROLES, "and warned once"
    assert await list_object_owners(url) == {get_database_name(url)}
    async with open_connection(url, settings) as connection:
        await install.verify_schema(connection)
    (finding,) = [f for f in await doctor.run_doctor_checks(url, settings) if f.check == "roles"]
    assert (finding.level, "holdfast_worker" in finding.text) == ("warn", True)
    with pytest.raises(errors.NotFoundError, match="holdfast_worker does not exist"):
        await roles.build_grant_statements(url, settings, get_database_name(url), "worker")


async def test_roles_that_appear_later_are_given_their_rights(
    admin: Any, own_server: Secret, settings: Settings
) -> None:
    url = await create_database_with_login(admin, own_server)
    await install.migrate_database(url, settings)
    for role in SCHEMA_ROLES:
        await admin.execute(f"create role {role} nologin")
    assert (await install.read_schema_status(url, settings)).function_set_state == "outdated"
    assert (await install.migrate_database(url, settings)).functions_replaced
    async with open_connection(url, settings) as connection:
        assert await connection.fetchval(
            "select has_function_privilege('holdfast_worker', 'holdfast.get_installed_schema()', 'execute')"
        )
    assert (await install.read_schema_status(url, settings)).is_current


async def test_roles_of_somebody_else_are_used_as_they_are(
    admin: Any, own_server: Secret, settings: Settings
) -> None:
    """As on a hosted server: the roles exist, and the login may neither create roles nor become the owner."""
    for role in SCHEMA_ROLES:
        await admin.execute(f"create role {role} nologin")
    url = await create_database_with_login(admin, own_server)
    assert (await install.migrate_database(url, settings)).missing_roles == ()
    assert await list_object_owners(url) == {get_database_name(url)}
    assert (await read_role_attributes(admin))["service_role"] == (False, False)


@pytest.mark.parametrize("installer", ["superuser", "the same role"])
async def test_on_top_of_the_real_pgmq(
    installer: str, admin: Any, own_server: Secret, settings: Settings
) -> None:
    """Its own SQL, as people install it where the extension is not to be had."""
    url = await create_database_with_login(admin, own_server)
    theirs = (
        url
        if installer == "the same role"
        else scratch.build_database_url(own_server, get_database_name(url))
    )
    text = (resources.files("pgmq") / "sql" / "pgmq.sql").read_text(encoding="utf-8")
    async with open_connection(theirs, settings) as connection:
        await connection.execute(f"create schema pgmq; {text}")
    await install.migrate_database(theirs, settings)
    status = await install.read_schema_status(theirs, settings)
    assert status.is_current
    assert "messages/pgmq_read.sql" in status.skipped_files


async def test_a_schema_that_was_made_for_us(admin: Any, own_server: Secret, settings: Settings) -> None:
    """Where nobody gets the right to create one: an administrator makes them, empty."""
    url = scratch.build_database_url(
        own_server, get_database_name(await create_database_with_login(admin, own_server))
    )
    await admin.execute("create role hf_app login password 'word'")
    async with open_connection(url, settings) as connection:
        for name in ("holdfast", "pgmq", "pgmq_public"):
            await connection.execute(f"create schema {name} authorization hf_app")
    await install.migrate_database(replace_url_role(url, "hf_app"), settings)
    status = await install.read_schema_status(replace_url_role(url, "hf_app"), settings)
    assert (status.is_current, status.skipped_files) == (True, ())
    assert await list_object_owners(url) == {"hf_app"}


async def test_many_databases_of_a_server_at_once(admin: Any, own_server: Secret, settings: Settings) -> None:
    """The advisory lock is of one database; the roles are everybody's."""
    urls = [await create_database_with_login(admin, own_server, attributes="createrole") for _ in range(3)]
    urls += [
        scratch.build_database_url(
            own_server, get_database_name(await create_database_with_login(admin, own_server))
        )
        for _ in range(3)
    ]
    await asyncio.gather(*(install.migrate_database(url, settings) for url in urls))
    for url in urls:
        assert (await install.read_schema_status(url, settings)).is_current
    assert set(await read_role_attributes(admin)) == set(SCHEMA_ROLES)


async def test_a_worker_may_call_and_not_read(admin: Any, own_server: Secret, settings: Settings) -> None:
    url = await create_database_with_login(admin, own_server, attributes="createrole")
    await install.migrate_database(url, settings)
    await admin.execute("create role hf_app login password 'word' noinherit")
    app = replace_url_role(url, "hf_app")
    async with open_connection(app, settings) as connection:
        with pytest.raises(errors.DatabasePermissionError) as closed:
            await install.verify_schema(connection)
    assert closed.value.fix == "Let its owner run: holdfast migrate grants --role hf_app."
    if (await read_server_version(app)) < 16:
        await admin.execute("alter role hf_app inherit")
    await roles.execute_grants(
        url, settings, await roles.build_grant_statements(url, settings, "hf_app", "worker")
    )
    async with open_connection(app, settings) as connection:
        await install.verify_schema(connection)
    with pytest.raises(errors.DatabasePermissionError, match="permission denied for table migrations"):
        async with open_connection(app, settings) as connection:
            await connection.fetch("select * from holdfast.migrations")


async def read_server_version(url: Secret) -> int:
    connection = await asyncpg.connect(url.reveal())
    rows: int = connection.get_server_version().major
    await connection.close()
    return rows


async def test_an_application_that_only_submits(admin: Any, own_server: Secret, settings: Settings) -> None:
    url = await create_database_with_login(admin, own_server, attributes="createrole")
    await install.migrate_database(url, settings)
    await admin.execute('create role "hf_odd ""name" login password \'word\'')
    statements = await roles.build_grant_statements(url, settings, 'hf_odd "name', "submit")
    await roles.execute_grants(url, settings, statements)
    async with open_connection(url, settings) as connection:
        allowed = {
            row["proname"]
            for row in await connection.fetch(
                "select proname from pg_proc where pronamespace = 'holdfast'::regnamespace "
                "and has_function_privilege('hf_odd \"name', oid, 'execute')"
            )
        }
    assert {"now", "submit", "get_job", "cancel_job"} <= allowed
    assert not {"finish_and_claim", "claim_tasks", "allow", "deny"} & allowed


async def test_grants_that_the_login_may_not_give_are_printed_for_an_administrator(
    admin: Any, own_server: Secret, settings: Settings
) -> None:
    for role in (*SCHEMA_ROLES, "hf_app"):
        await admin.execute(f"create role {role} nologin")
    url = await create_database_with_login(admin, own_server)
    await install.migrate_database(url, settings)
    statements = await roles.build_grant_statements(url, settings, "hf_app", "worker")
    with pytest.raises(errors.DatabasePermissionError) as refused:
        await roles.execute_grants(url, settings, statements)
    assert f"Let an administrator run: {statements[0]};" == refused.value.fix
    with pytest.raises(errors.NotFoundError, match="Role nobody_at_all does not exist"):
        await roles.build_grant_statements(url, settings, "nobody_at_all", "worker")
