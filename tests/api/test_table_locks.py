"""No request changes the schema or waits for a table lock.

A reader such as `pg_dump` holds ACCESS SHARE on every table for hours. A request that needs a stronger lock
would wait for it, and every later statement on the table would wait behind that request. Only the creation
and deletion of a message queue change the schema: they lock the tables of that queue, which nobody shares.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

import httpx
import pytest
from api_clients import bearer_headers, make_token
from api_targets import ApiTarget, call_target, list_targets
from book_app import SERVICE_KEY
from manual_worker import ManualWorker, submit_job

from holdfast.engine.connection import Connection

ANN, SERVICE = bearer_headers(make_token("ann")), bearer_headers(SERVICE_KEY)
WEBHOOK = {"url": "https://example.org/hook", "events": ["job.succeeded", "job.failed", "batch.completed"]}
OWN_SCHEMAS = "('holdfast', 'pgmq')"
RECORD_SCHEMA_CHANGES = """
create table public.schema_changes (tag text, statement text);
grant all on public.schema_changes to public;
create function public.record_schema_change() returns event_trigger language plpgsql as $$
begin
  insert into public.schema_changes values (tg_tag, current_query());
end $$;
create event trigger record_schema_changes on ddl_command_start
  execute function public.record_schema_change();
"""
LIST_TABLES = (
    "select format('%I.%I', n.nspname, c.relname) from pg_class c "
    "join pg_namespace n on n.oid = c.relnamespace "
    f"where c.relkind in ('r', 'p') and n.nspname in {OWN_SCHEMAS}"
)
# They have streams that do not end, or are the documented exception.
STREAM_SUFFIX = "/events"
QUEUE_CHANGES = {"put_messages_queue", "delete_messages_queue"}


async def lock_all_tables(connection: Connection) -> None:
    """Hold ACCESS SHARE on every table, as a long-running reader does."""
    await connection.execute("begin")
    tables = [row[0] for row in await connection.fetch(LIST_TABLES)]
    assert len(tables) > 40
    await connection.execute(f"lock table {', '.join(tables)} in access share mode")


@pytest.fixture
async def reader(conn: Connection, second: Connection) -> AsyncGenerator[Connection]:
    """Yield a connection whose transaction reads every table. Others wait for locks for one second."""
    await conn.execute("select pgmq.create('letters'), pgmq.create('empty')")
    await conn.execute(RECORD_SCHEMA_CHANGES)
    database = await conn.fetchval("select quote_ident(current_database())")
    await conn.execute(f"alter database {database} set lock_timeout = '1s'")
    await lock_all_tables(second)
    yield second
    await second.execute("rollback")


async def list_schema_changes(conn: Connection) -> list[tuple[str, str]]:
    rows = await conn.fetch("select tag, left(statement, 200) from public.schema_changes")
    return [(row[0], row[1]) for row in rows]


async def create_resources(api: httpx.AsyncClient) -> dict[str, str]:
    """Create a job, a batch and a webhook of ann and return their ids by the noun of their path."""
    job = (await api.post("/api/jobs/start", json={"type": "book"}, headers=ANN)).json()["id"]
    batch = (await api.post("/api/batches", json={}, headers=ANN)).json()["id"]
    webhook = (await api.post("/api/webhooks", json=WEBHOOK, headers=ANN)).json()["id"]
    return {"jobs": job, "batches": batch, "webhooks": webhook}


def choose_ids(target: ApiTarget, resources: dict[str, str]) -> dict[str, str]:
    noun = target.path.removeprefix("/api/").partition("/")[0]
    return {"id": resources.get(noun, resources["jobs"]), "task": resources["jobs"]}


@pytest.mark.usefixtures("reader")
async def test_every_route_responds_while_a_reader_has_locked_all_tables(
    api: httpx.AsyncClient, conn: Connection
) -> None:
    resources = await create_resources(api)
    targets = sorted(await list_targets(api), key=lambda target: target.method == "delete")
    violations: dict[str, object] = {}
    for headers in (SERVICE, ANN):
        for target in targets:
            if target.path.endswith(STREAM_SUFFIX) or target.name in QUEUE_CHANGES:
                continue
            response = await call_target(api, target, headers, choose_ids(target, resources))
            if response.status_code >= 500:
                violations[f"{target.method} {target.path}"] = (response.status_code, response.text)
    assert violations == {}
    assert await list_schema_changes(conn) == []


@pytest.mark.usefixtures("reader")
async def test_the_last_webhook_is_created_and_deleted_while_a_reader_has_locked_all_tables(
    api: httpx.AsyncClient, conn: Connection
) -> None:
    for _ in range(2):
        created = await api.post("/api/webhooks", json=WEBHOOK, headers=ANN)
        assert created.status_code == 201, created.text
        response = await api.delete(f"/api/webhooks/{created.json()['id']}", headers=ANN)
        assert response.status_code == 204, response.text
    assert await list_schema_changes(conn) == []


@pytest.mark.usefixtures("reader")
async def test_limits_change_while_a_reader_has_locked_all_tables(
    api: httpx.AsyncClient, conn: Connection
) -> None:
    await submit_job(conn)
    task = await ManualWorker(conn).claim_one_task()
    for body in ({"queue": "q", "max_running": 2}, {"max_running": 1}):
        response = await api.put("/api/limits/all", json=body, headers=SERVICE)
        assert response.status_code == 204, response.text
        counters = await conn.fetch("select running, leases from holdfast.list_limit_counters()")
        assert [tuple(row) for row in counters] == [(1, 1)]
    assert (await api.delete("/api/limits/all", headers=SERVICE)).status_code == 204
    await ManualWorker(conn).finish_task(task)
    assert await list_schema_changes(conn) == []


@pytest.mark.usefixtures("reader")
async def test_messages_are_purged_while_a_reader_has_locked_all_tables(conn: Connection) -> None:
    await conn.execute("set lock_timeout = '1s'")
    await conn.execute("""select pgmq.send('letters', '{}'), pgmq.send('letters', '{}')""")
    assert await conn.fetchval("select pgmq.purge_queue('letters')") == 2
    assert await conn.fetchval("select queue_length from pgmq.metrics('letters')") == 0


async def test_only_the_deletion_of_a_message_queue_waits_for_its_readers_and_gives_up(
    api: httpx.AsyncClient, reader: Connection
) -> None:
    assert (await api.put("/api/messages/fresh", json={}, headers=SERVICE)).status_code < 300
    used = await api.delete("/api/messages/empty", headers=SERVICE)
    assert used.status_code == 409, used.text
    assert (
        await api.post("/api/messages/letters", json={"messages": [1]}, headers=SERVICE)
    ).status_code < 300
    await reader.execute("rollback")
    assert (await api.delete("/api/messages/empty", headers=SERVICE)).status_code == 204
