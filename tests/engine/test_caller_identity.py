"""Whom a connection acts for: services for every owner, a user for one, everybody else for nobody."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from uuid import UUID

import asyncpg
import msgspec
import pytest
from manual_worker import submit_job

from holdfast.engine import roles
from holdfast.engine.connection import Connection
from holdfast.settings import Secret, Settings

RoleFactory = Callable[..., Awaitable[str]]
# Functions that depend on who calls. Users may call some of them.
CALLS_THAT_NEED_A_CALLER = (
    "holdfast.get_job('{job}')",
    "holdfast.list_jobs('{{}}')",
    "holdfast.search_jobs('{{}}')",
    "holdfast.list_job_events('{job}', 0)",
    "holdfast.cancel_job('{job}')",
    "holdfast.retry_job('{job}')",
    "holdfast.submit('{{\"type\": \"t\", \"owner\": \"bob\"}}')",
    "holdfast.submit_standalone('{{\"type\": \"t\", \"queue\": \"q\", \"owner\": \"bob\"}}')",
    "holdfast.submit_many('[{{\"type\": \"t\", \"owner\": \"bob\"}}]')",
    "holdfast.submit_uniform('{{\"type\": \"t\", \"owner\": \"bob\"}}', array['1'::jsonb])",
    "holdfast.open_batch('b', null, 'bob')",
    "holdfast.list_artifacts('{{}}')",
    "holdfast.list_webhooks()",
    "holdfast.list_schedules()",
    "holdfast.get_owner_usage('bob')",
)  # fmt: skip


@pytest.fixture
async def create_role(conn: Connection) -> AsyncGenerator[RoleFactory]:
    """Create roles with memberships. Roles belong to the server, so each test has its own and drops them."""
    names: list[str] = []

    async def create_member(*groups: str, attributes: str = "login") -> str:
        name = f"hf_identity_{uuid.uuid4().hex[:12]}"
        names.append(name)
        await conn.execute(f"create role {name} {attributes}")
        for group in groups:
            await conn.execute(f"grant {group} to {name}")
        return name

    yield create_member
    await conn.execute("reset session authorization")
    for name in reversed(names):
        await conn.execute(f"drop owned by {name}; drop role {name}")


@asynccontextmanager
async def logged_in_as(
    conn: Connection, login: str, *, role: str | None = None, user: str | None = None
) -> AsyncGenerator[None]:
    """Act as a connection of this login, which may switch to a role and set the claims of a user."""
    claims = msgspec.json.encode({"sub": user}).decode() if user else ""
    async with conn.transaction():
        await conn.execute("select set_config('request.jwt.claims', $1, true)", claims)
        await conn.execute(f"set local session authorization {login}")
        if role is not None:
            await conn.execute(f"set local role {role}")
        yield


@contextmanager
def expect_nobody(text: str = "") -> Generator[None]:
    """Expect that the call inside is refused because the caller is neither a user nor a service."""
    with pytest.raises(asyncpg.PostgresError) as refused:
        yield
    error = refused.value
    assert error.sqlstate == "HF005", f"{error.sqlstate}: {error}"
    assert text in f"{error} {error.hint}"


async def can_read_job(conn: Connection, job_id: UUID) -> bool:
    return await conn.fetchval("select holdfast.get_job($1)", job_id) is not None


@pytest.mark.parametrize("group", ["authenticated", "anon, authenticated"])
@pytest.mark.parametrize("user", [None, "ann", "bob"])
async def test_a_login_that_was_granted_the_users_role_is_nobody(
    conn: Connection, create_role: RoleFactory, group: str, user: str | None
) -> None:
    """It inherits the rights of users. Without a role, no gateway vouched for the claims either."""
    job = await submit_job(conn, owner="bob")
    await conn.execute("""insert into holdfast.options values ('public_types', '["t"]')""")
    eve = await create_role(group)
    codes: set[str] = set()
    for call in CALLS_THAT_NEED_A_CALLER:
        with pytest.raises(asyncpg.PostgresError) as refused:
            async with logged_in_as(conn, eve, user=user):
                await conn.execute(f"select {call.format(job=job)}")
        codes.add(str(refused.value.sqlstate))
    assert codes <= {"HF005", "42501"}
    assert "HF005" in codes
    async with logged_in_as(conn, eve, user=user):
        for table in ("jobs", "tasks", "history", "attempts", "events", "batches", "artifacts"):
            assert await conn.fetch(f"select owner from holdfast.{table}") == [], table
    assert await conn.fetchval("select count(*) from holdfast.tasks") == 1


async def test_a_role_between_the_gateway_and_the_users_role_is_nobody(
    conn: Connection, create_role: RoleFactory
) -> None:
    """PostgREST switches to the role that a token names. A role of the application is not `authenticated`."""
    job = await submit_job(conn, owner="bob")
    editor = await create_role("authenticated", attributes="nologin")
    gateway = await create_role("authenticated", "anon", editor, attributes="login noinherit")
    with expect_nobody(editor):
        async with logged_in_as(conn, gateway, role=editor, user="bob"):
            await conn.execute("select holdfast.get_job($1)", job)
    async with logged_in_as(conn, gateway, role="authenticated", user="bob"):
        assert await can_read_job(conn, job)
    async with logged_in_as(conn, gateway, role="authenticated", user="ann"):
        assert not await can_read_job(conn, job)
    with expect_nobody():
        async with logged_in_as(conn, gateway, role="authenticated"):
            await conn.execute("select holdfast.get_job($1)", job)


async def test_a_role_that_was_granted_single_functions_is_nobody(
    conn: Connection, create_role: RoleFactory
) -> None:
    job = await submit_job(conn, owner="bob")
    stranger = await create_role()
    await conn.execute(f"grant usage on schema holdfast to {stranger}")
    await conn.execute(f"grant execute on function holdfast.get_job(uuid) to {stranger}")
    await conn.execute(f"grant execute on function holdfast.submit_standalone(jsonb) to {stranger}")
    for call in (f"get_job('{job}')", 'submit_standalone(\'{"type": "t", "queue": "q"}\')'):
        with expect_nobody("holdfast migrate grants"):
            async with logged_in_as(conn, stranger):
                await conn.execute(f"select holdfast.{call}")


async def test_resetting_the_role_makes_nobody_a_service(conn: Connection, create_role: RoleFactory) -> None:
    job = await submit_job(conn, owner="bob")
    eve = await create_role("authenticated")
    for statement in ("reset role", "set role none", f"set role {eve}"):
        with expect_nobody():
            async with logged_in_as(conn, eve, role="authenticated", user="ann"):
                await conn.execute(statement)
                await conn.execute("select holdfast.get_job($1)", job)
    for role in ("service_role", "holdfast_worker", "holdfast_owner"):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            async with logged_in_as(conn, eve, role="authenticated", user="ann"):
                await conn.execute("select set_config('role', $1, true)", role)


async def test_a_user_stays_the_user_inside_a_function_with_the_rights_of_its_owner(
    conn: Connection, create_role: RoleFactory
) -> None:
    job = await submit_job(conn, owner="bob")
    await conn.execute(
        "create function public.peek(p_id uuid) returns jsonb language sql security definer"
        " set search_path = '' as $$ select holdfast.get_job(p_id) $$"
    )
    gateway = await create_role("authenticated", attributes="login noinherit")
    async with logged_in_as(conn, gateway, role="authenticated", user="ann"):
        assert await conn.fetchval("select public.peek($1)", job) is None
    with expect_nobody():
        async with logged_in_as(conn, gateway):
            await conn.fetchval("select public.peek($1)", job)


@pytest.mark.parametrize("group", ["service_role", "holdfast_worker", "holdfast_owner"])
async def test_services_and_their_members_act_for_every_owner(
    conn: Connection, create_role: RoleFactory, group: str
) -> None:
    job = await submit_job(conn, owner="bob")
    member = await create_role(group)
    through_a_group = await create_role(await create_role(group, attributes="nologin"))
    # The login of the API is a member of both roles and switches between them.
    gateway = await create_role("authenticated", group)
    for login in (member, through_a_group, gateway):
        async with logged_in_as(conn, login):
            assert await can_read_job(conn, job)
    async with logged_in_as(conn, gateway, role=group):
        assert await can_read_job(conn, job)
    async with logged_in_as(conn, gateway, role="authenticated", user="ann"):
        assert not await can_read_job(conn, job)
    assert await can_read_job(conn, job), "a superuser"


async def test_an_application_that_may_submit_acts_for_every_owner(
    conn: Connection, create_role: RoleFactory, url: Secret, settings: Settings
) -> None:
    job = await submit_job(conn, owner="bob")
    web = await create_role()
    statements = await roles.build_grant_statements(url, settings, web, "submit")
    await roles.execute_grants(url, settings, statements)
    for name in roles.SUBMIT_FUNCTIONS:
        assert any(f"holdfast.{name}(" in statement for statement in statements), name
    async with logged_in_as(conn, web):
        assert await can_read_job(conn, job)
        assert await submit_job(conn, owner="bob")


async def test_the_anonymous_role_with_claims_is_nobody(conn: Connection, create_role: RoleFactory) -> None:
    await conn.execute("grant usage on schema holdfast to anon")
    await conn.execute("grant execute on function holdfast.get_job(uuid) to anon")
    job = await submit_job(conn, owner="bob")
    gateway = await create_role("anon", attributes="login noinherit")
    with expect_nobody():
        async with logged_in_as(conn, gateway, role="anon", user="bob"):
            await conn.execute("select holdfast.get_job($1)", job)
