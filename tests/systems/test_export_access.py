"""Attacks on exports through their tables: foreign jobs, forged files, and rows that limits count."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

import pytest
from api_clients import bearer_headers
from system_harness import SERVICE_KEY, SystemHarness

from holdfast.errors import HoldfastError
from holdfast.testing import Clock

_HISTORY_COLUMNS = (
    "user_id, document_version, format, template_slug, file_name, file_path, file_size, expires_at"
)


async def execute_as_user(system: SystemHarness, user: str, statement: str) -> str:
    async with system.db.transaction() as connection:
        await connection.execute("select set_config('request.jwt.claims', $1, true)", f'{{"sub": "{user}"}}')
        await connection.execute("set local role authenticated")
        return str(await connection.execute(statement))


async def execute_as_service(system: SystemHarness, statement: str) -> None:
    async with system.db.transaction() as connection:
        await connection.execute("set local role service_role")
        await connection.execute(statement)


def build_forged_rows(user: str, job: str, batch: str) -> list[str]:
    """Statements that give a user a row with the job of another user."""
    document = uuid4()
    return [
        "insert into export_requests (id, user_id, document_id, template_slug, options)"
        f" values ('{job}', '{user}', '{document}', 'minimal', '{{}}')",
        "insert into export_batch_items (batch_id, position, job_id, document_id, title, user_id)"
        f" values ('{batch}', 0, '{job}', '{document}', 'x', '{user}')",
    ]


async def test_a_request_with_a_foreign_job_is_refused(exports_system: SystemHarness) -> None:
    """A user inserted a request with the id of a foreign job, and the API showed and cancelled that job."""
    ann, bob = exports_system.create_user(), exports_system.create_user()
    job = await ann.start_export(await ann.add_document())
    own = await bob.start_export(await bob.add_document())
    response = await bob.post("/api/v1/export/batch", {"documentIds": [await bob.add_document()]})
    batch = response.json()["batchId"]
    await execute_as_service(exports_system, f"delete from export_requests where id in ('{job}', '{own}')")
    await execute_as_service(exports_system, f"delete from export_batch_items where batch_id = '{batch}'")
    for statement in build_forged_rows(bob.id, job, batch):
        with pytest.raises(HoldfastError, match=r"policy|permission"):
            await execute_as_user(exports_system, bob.id, statement)
        # A service that is deceived by the user's input cannot store such a row either.
        with pytest.raises(HoldfastError, match="does not exist"):
            await execute_as_service(exports_system, statement)
        await execute_as_service(exports_system, statement.replace(job, own))
        with pytest.raises(HoldfastError, match="does not exist"):
            await execute_as_service(exports_system, statement.replace(job, str(uuid4())))
    for path in (f"job/{job}", f"job/{job}/stream"):
        assert (await bob.get(f"/api/v1/export/{path}")).status_code == 404
    assert (await bob.delete(f"/api/v1/export/job/{job}")).status_code == 404
    with pytest.raises(HoldfastError, match="does not exist"):
        await execute_as_service(
            exports_system, f"update export_requests set id = '{job}' where id = '{own}'"
        )


async def test_rows_of_earlier_versions_do_not_open_foreign_jobs(exports_system: SystemHarness) -> None:
    """The routes hold without the triggers, so a row that a user stored before the upgrade is harmless."""
    ann, bob = exports_system.create_user(), exports_system.create_user()
    job = await ann.start_export(await ann.add_document())
    async with exports_system.db.connection() as connection:
        await connection.execute("alter table export_requests disable trigger all")
        await connection.execute("alter table export_batch_items disable trigger all")
        await connection.execute("delete from export_requests where id = $1", job)
        batch = await connection.fetchval(
            "insert into export_batches (user_id) values ($1) returning id", bob.id
        )
        for statement in build_forged_rows(bob.id, job, str(batch)):
            await connection.execute(statement)
    assert (await bob.get(f"/api/v1/export/job/{job}")).status_code == 404
    assert (await bob.delete(f"/api/v1/export/job/{job}")).status_code == 404
    async with exports_system.db.transaction() as connection:
        await connection.execute("set local role service_role")
        assert await connection.fetchval("select count(*) from export_jobs") == 0
    async with exports_system.db.connection() as connection:
        assert "queued" in await connection.fetchval("select holdfast.get_job($1)::text", job)


async def test_users_cannot_change_what_counts_against_their_limits(exports_system: SystemHarness) -> None:
    ann = exports_system.create_user()
    job = await ann.start_export(await ann.add_document())
    for statement in (
        f"delete from export_requests where id = '{job}'",
        "update export_usage set operations = 0",
        "delete from export_usage",
        f"insert into export_usage values ('{ann.id}', now(), -1000)",
        f"insert into export_batches (user_id) values ('{ann.id}')",
        "delete from export_batches",
        "update export_history set file_size = 0",
        f"insert into export_history ({_HISTORY_COLUMNS}, artifact_id)"
        f" values ('{ann.id}', 1, 'pdf', 'x', 'x', 'x', 1, now(), '{uuid4()}')",
        f"insert into export_history ({_HISTORY_COLUMNS}, id) values ('{ann.id}', 1, 'pdf', 'x', 'x', 'x', 1,"
        f" now(), '{job}')",
        f"insert into export_history ({_HISTORY_COLUMNS})"
        f" values ('{ann.id}', 1, 'pdf', 'x', 'x', 'x', -1, now())",
        "truncate export_history",
    ):
        with pytest.raises(HoldfastError, match=r"policy|permission"):
            await execute_as_user(exports_system, ann.id, statement)
    # What the contract says about history: owners insert and delete their own lines.
    own = (
        f"insert into export_history ({_HISTORY_COLUMNS})"
        f" values ('{ann.id}', 1, 'pdf', 'x', 'x', 'x', 1, now())"
    )
    assert await execute_as_user(exports_system, ann.id, own) == "INSERT 0 1"
    assert await execute_as_user(exports_system, ann.id, "delete from export_history") == "DELETE 1"


async def test_a_history_line_names_only_documents_of_its_user(exports_system: SystemHarness) -> None:
    ann, bob = exports_system.create_user(), exports_system.create_user()
    theirs, own = await ann.add_document(), await bob.add_document()
    line = (
        f"insert into export_history ({_HISTORY_COLUMNS}, document_id)"
        f" values ('{bob.id}', 1, 'pdf', 'x', 'x', 'x', 1, now(), '{{}}')"
    )
    for document in (theirs, str(uuid4())):
        with pytest.raises(HoldfastError, match="policy"):
            await execute_as_user(exports_system, bob.id, line.format(document))
    await execute_as_user(exports_system, bob.id, line.format(own))


async def test_a_forged_history_entry_is_refused(exports_system: SystemHarness, clock: Clock) -> None:
    ann, bob = exports_system.create_user(), exports_system.create_user()
    job = await ann.start_export(await ann.add_document())
    async with exports_system.run_worker():
        await ann.wait_for_export(job)
    forged = (
        f"insert into export_history ({_HISTORY_COLUMNS}, artifact_id)"
        f" select '{bob.id}', 1, 'pdf', 'x', 'x', 'x', 1, holdfast.now() + interval '1 hour', artifact_id"
        f" from export_history where id = '{job}'"
    )
    with pytest.raises(HoldfastError, match="does not exist"):
        await execute_as_service(exports_system, forged)
    async with exports_system.db.connection() as connection:
        await connection.execute("alter table export_history disable trigger check_exported_file")
        entry = await connection.fetchval(f"{forged} returning id")
    assert (await bob.get(f"/api/v1/export/download/{entry}")).status_code == 410
    await clock.advance(timedelta(hours=2))
    await exports_system.http.post("/api/v1/export/cleanup", headers=bearer_headers(SERVICE_KEY))
    assert (await ann.get(f"/api/v1/export/download/{job}")).status_code == 302, (
        "bob's line took no file with it"
    )


async def test_the_file_goes_with_its_line_of_history(exports_system: SystemHarness) -> None:
    """Otherwise a user could delete the line, which counts against the storage limit, and keep the file."""
    ann, bob = exports_system.create_user(), exports_system.create_user()
    job = await ann.start_export(await ann.add_document())
    async with exports_system.run_worker():
        await ann.wait_for_export(job)
    query = "select status from holdfast.artifacts where job_id = $1"
    assert await execute_as_user(exports_system, bob.id, "delete from export_history") == "DELETE 0"
    async with exports_system.db.connection() as connection:
        assert await connection.fetchval(query, job) == "visible"
    assert await execute_as_user(exports_system, ann.id, "delete from export_history") == "DELETE 1"
    async with exports_system.db.connection() as connection:
        assert await connection.fetchval(query, job) == "deleting"
