"""External workers of reports: only the login or service key that claimed a task can report on it."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from api_clients import bearer_headers, create_service_key
from system_harness import SystemHarness

from holdfast.engine.connection import Connection
from holdfast.testing import Clock

REPORTING_CALLS = (
    "public.heartbeat_task($1, '{worker}', p_fence => {fence})",
    "public.complete_task($1, '{worker}', '{{}}', {fence})",
    "public.fail_task($1, '{worker}', 'stolen', {fence})",
)


async def start_report(system: SystemHarness) -> None:
    params = {"person1": {"name": "Ana Ruiz"}, "person2": {"name": "Bo Lind"}, "systems": ["western"]}
    body = {"type": "nuclear_v2", "params": params}
    assert (await system.create_user().post("/api/jobs/start", body)).status_code == 202


@pytest.fixture
async def sql(reports_system: SystemHarness) -> AsyncGenerator[Connection]:
    connection = await asyncpg.connect(reports_system.db.url.reveal())
    yield connection
    await connection.close()


@pytest.fixture
async def logins(sql: Connection) -> AsyncGenerator[tuple[str, str]]:
    """Two logins that may run workers. Roles belong to the server, so each test has its own."""
    names = (f"hf_worker_{uuid.uuid4().hex[:12]}", f"hf_worker_{uuid.uuid4().hex[:12]}")
    for name in names:
        await sql.execute(f"create role {name} login; grant holdfast_worker, service_role to {name}")
    yield names
    await sql.execute("reset session authorization")
    for name in names:
        await sql.execute(f"drop owned by {name}; drop role {name}")


@asynccontextmanager
async def logged_in_as(
    sql: Connection, login: str, *, role: str | None = None, claims: str = ""
) -> AsyncGenerator[None]:
    """Act as one transaction of a login through a pooler: on a connection that others use too."""
    async with sql.transaction():
        await sql.execute("select set_config('request.jwt.claims', $1, true)", claims)
        await sql.execute(f"set local session authorization {login}")
        if role is not None:
            await sql.execute(f"set local role {role}")
        yield


async def claim_task(sql: Connection, worker: str = "w-A", **identity: Any) -> dict[str, Any]:
    async with logged_in_as(sql, **identity):
        (row,) = await sql.fetch("select * from public.claim_tasks($1, 1, null)", worker)
    return dict(row)


async def expect_refused(
    sql: Connection, task: UUID, worker: str, fence: str = "null", **identity: Any
) -> None:
    for call in REPORTING_CALLS:
        with pytest.raises(asyncpg.PostgresError) as refused:
            async with logged_in_as(sql, **identity):
                await sql.execute(f"select {call.format(worker=worker, fence=fence)}", task)
        assert refused.value.sqlstate == "HF001", f"{call}: {refused.value}"


async def test_another_login_cannot_report(
    reports_system: SystemHarness, sql: Connection, logins: tuple[str, str]
) -> None:
    await start_report(reports_system)
    mine, theirs = logins
    task = (await claim_task(sql, login=mine))["id"]
    await expect_refused(sql, task, "w-A", login=theirs)
    # Neither a role nor claims of its own choice make it the other login.
    await expect_refused(sql, task, "w-A", login=theirs, role="service_role")
    await expect_refused(sql, task, "w-A", login=theirs, claims=f'{{"service_key": "{mine} "}}')
    assert await sql.fetchval("select status from public.job_tasks where id = $1", task) == "claimed"
    # The same login reports through another connection, and after a change of its role.
    other = await asyncpg.connect(reports_system.db.url.reveal())
    try:
        async with logged_in_as(other, mine, role="holdfast_worker"):
            assert await other.fetchval("select public.heartbeat_task($1, 'w-A')", task)
        async with logged_in_as(other, mine):
            assert await other.fetchval("select public.complete_task($1, 'w-A', '{}')", task)
    finally:
        await other.close()
    assert await sql.fetchval("select status from public.job_tasks where id = $1", task) == "complete"
    assert await sql.fetchval("select count(*) from public.report_claims") == 0


async def test_another_worker_name_or_a_wrong_fence_cannot_report(
    reports_system: SystemHarness, sql: Connection, logins: tuple[str, str]
) -> None:
    await start_report(reports_system)
    task = await claim_task(sql, login=logins[0])
    assert task["fence"] == f"{task['attempt']}.{task['nonce']}"
    await expect_refused(sql, task["id"], "w-B", login=logins[0])
    for fence in (
        f"'{task['attempt'] + 1}.{task['nonce']}'",
        f"'{task['attempt']}.{task['nonce'] + 1}'",
        "''",
    ):
        await expect_refused(sql, task["id"], "w-A", fence, login=logins[0])
    async with logged_in_as(sql, logins[0]):
        call = "select public.complete_task($1, 'w-A', p_output => '{}', p_fence => $2)"
        assert await sql.fetchval(call, task["id"], task["fence"])


async def test_a_stale_fence_cannot_report_on_a_later_claim(
    reports_system: SystemHarness, sql: Connection, logins: tuple[str, str], clock: Clock
) -> None:
    """The first worker hung, its lease ended, and a worker with the same name and login claimed again."""
    await start_report(reports_system)
    first = await claim_task(sql, login=logins[0])
    await clock.advance(timedelta(minutes=10))
    assert await sql.fetchval("select public.reclaim_stale_tasks()") == 1
    await expect_refused(sql, first["id"], "w-A", login=logins[0])
    await clock.advance(timedelta(minutes=10))
    second = await claim_task(sql, login=logins[0])
    assert second["id"] == first["id"]
    await expect_refused(sql, first["id"], "w-A", f"'{first['fence']}'", login=logins[0])
    async with logged_in_as(sql, logins[0]):
        call = "select public.complete_task($1, 'w-A', '{}', $2)"
        assert await sql.fetchval(call, second["id"], second["fence"])


async def test_tasks_that_are_no_reports_are_refused(
    reports_system: SystemHarness, sql: Connection, logins: tuple[str, str]
) -> None:
    await sql.execute("""select holdfast.submit('{"type": "other", "queue": "q"}')""")
    await sql.execute("""select holdfast.submit('{"type": "other", "queue": "reports"}')""")
    async with logged_in_as(sql, logins[0]):
        assert await sql.fetch("select * from public.claim_tasks('w-A', 5, array['other'])") == []
        tasks = await sql.fetch("select id from holdfast.claim_tasks('w-A', 5)")
    assert len(tasks) == 2
    for task in tasks:
        await expect_refused(sql, task["id"], "w-A", login=logins[0])
    await expect_refused(sql, uuid.uuid4(), "w-A", login=logins[0])


async def test_a_report_task_of_a_python_worker_cannot_be_reported_in_sql(
    reports_system: SystemHarness, sql: Connection, logins: tuple[str, str]
) -> None:
    """A worker's name is in the view. The claim of the engine leaves no claim of this system."""
    await start_report(reports_system)
    async with logged_in_as(sql, logins[0]):
        task = await sql.fetchval("select id from holdfast.claim_tasks('w-A', 1, null, '{reports}')")
    await expect_refused(sql, task, "w-A", login=logins[0])


async def test_another_service_key_cannot_report(reports_system: SystemHarness) -> None:
    await start_report(reports_system)
    mine, theirs = [await create_service_key(reports_system.db, name=name) for name in ("mine", "theirs")]

    async def call(key: str, function: str, **arguments: Any) -> Any:
        headers = {**bearer_headers(key), "content-profile": "public"}
        return await reports_system.http.post(f"/rest/v1/rpc/{function}", json=arguments, headers=headers)

    (task,) = (await call(mine, "claim_tasks", p_worker_id="w-A", p_max_tasks=1)).json()
    reports: dict[str, dict[str, Any]] = {
        "heartbeat_task": {},
        "complete_task": {"p_output": {}},
        "fail_task": {"p_error": "stolen"},
    }
    for function, arguments in reports.items():
        refused = await call(theirs, function, p_task_id=task["id"], p_worker_id="w-A", **arguments)
        assert refused.status_code == 409, refused.text
        assert refused.json()["code"] == "HF001"
        fence = task["fence"]  # a text, because JavaScript rounds large numbers
        stolen = {"p_task_id": task["id"], "p_worker_id": "w-A", "p_fence": fence, **arguments}
        assert (await call(theirs, function, **stolen)).status_code == 409
    done = await call(mine, "complete_task", p_task_id=task["id"], p_worker_id="w-A", p_output={})
    assert (done.status_code, done.json()) == (200, True)


async def test_claims_without_a_report_are_forgotten(
    reports_system: SystemHarness, sql: Connection, logins: tuple[str, str], clock: Clock
) -> None:
    await start_report(reports_system)
    await claim_task(sql, login=logins[0])
    await sql.execute("update public.report_claims set task_id = gen_random_uuid()")
    await clock.advance(timedelta(days=2))
    await sql.fetch("select * from public.claim_tasks('w-B', 1, array['finalizing'])")
    assert await sql.fetchval("select count(*) from public.report_claims") == 0
