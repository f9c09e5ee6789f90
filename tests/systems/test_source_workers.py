"""What workers of the sources do in SQL: register files with INSERT, fetch exports, no other writes."""

from __future__ import annotations

from typing import Any

import pytest
from system_harness import SystemHarness

from holdfast.engine.connection import Connection

START = {"type": "nuclear_v2", "params": {"person1": {"name": "Ana"}, "person2": {"name": "Bo"}}}
INSERT_ARTIFACT = (
    "insert into public.job_artifacts (job_id, task_id, artifact_type, storage_path, public_url,"
    " file_size_bytes, duration_seconds) values ($1, $2, 'audio_mp3', $3, 'https://signed.example', $4, 180)"
)


async def claim_task(sql: Connection) -> Any:
    return await sql.fetchrow("select * from public.claim_tasks('w1', 1, array['calculating'])")


async def create_link(sql: Connection, task: Any) -> Any:
    return await sql.fetchrow(
        "select * from public.create_upload_link($1, 'w1', 'chapter1.mp3', 'audio_mp3')", task["id"]
    )


async def test_a_sql_worker_uploads_a_file_by_link_and_registers_it(reports_system: SystemHarness) -> None:
    ann = reports_system.create_user()
    report = (await ann.post("/api/jobs/start", START)).json()["id"]
    async with reports_system.db.connection() as sql:
        task = await claim_task(sql)
        link = await create_link(sql, task)
        assert link["storage_path"] == f"{ann.id}/{report}/audio/chapter1.mp3"
        arguments = (task["job_id"], task["id"], link["storage_path"])
        with pytest.raises(Exception, match="was not uploaded yet"):
            await sql.execute(INSERT_ARTIFACT, *arguments, 5)
        uploaded = await reports_system.http.put(link["upload_url"], content=b"audio")
        assert (uploaded.status_code, uploaded.json()["size"]) == (201, 5)
        again = await reports_system.http.put(link["upload_url"], content=b"other")
        assert again.status_code == 404
        with pytest.raises(Exception, match="has 5 bytes, not 6"):
            await sql.execute(INSERT_ARTIFACT, *arguments, 6)
        await sql.execute(INSERT_ARTIFACT, *arguments, 5)
        assert await sql.fetchval("select count(*) from public.job_artifacts") == 0  # the task still runs
        await sql.execute("select public.complete_task($1, 'w1', '{}')", task["id"])
        row = await sql.fetchrow("select * from public.job_artifacts")
        assert row is not None
        assert (row["storage_path"], row["file_size_bytes"], row["duration_seconds"]) == (
            link["storage_path"], 5, 180,
        )  # fmt: skip
        with pytest.raises(Exception, match="You hold no task"):
            await sql.execute(INSERT_ARTIFACT, *arguments, 5)
    (artifact,) = (await ann.get(f"/api/jobs/{report}")).json()["artifacts"]
    assert (artifact["type"], artifact["duration"]) == ("audio_mp3", 180)
    assert (await reports_system.http.get(artifact["url"])).content == b"audio"


async def test_upload_links_end_with_the_lease(reports_system: SystemHarness) -> None:
    ann = reports_system.create_user()
    await ann.post("/api/jobs/start", START)
    async with reports_system.db.connection() as sql:
        task = await claim_task(sql)
        with pytest.raises(Exception, match="does not hold the lease"):
            await sql.fetchrow(
                "select * from public.create_upload_link($1, 'w2', 'a.mp3', 'audio_mp3')", task["id"]
            )
        link = await create_link(sql, task)
        await sql.execute("select public.fail_task($1, 'w1', 'no')", task["id"])
    refused = await reports_system.http.put(link["upload_url"], content=b"late")
    assert refused.status_code == 404
    for secret in ("x", "%00", "a" * 500, "..%2f.."):
        response = await reports_system.http.put(f"/api/report-uploads/{secret}", content=b"x")
        assert response.status_code in (404, 405), secret


async def test_other_writes_to_the_views_are_refused_with_a_hint(reports_system: SystemHarness) -> None:
    ann = reports_system.create_user()
    await ann.post("/api/jobs/start", START)
    statements = (
        "insert into public.jobs (user_id, type) values ('x', 'nuclear_v2')",
        "update public.jobs set status = 'complete'",
        "delete from public.jobs",
        "update public.job_tasks set status = 'complete'",
        "insert into public.job_tasks (task_type) values ('x')",
    )
    async with reports_system.db.connection() as sql:
        for statement in statements:
            with pytest.raises(Exception, match="cannot be changed") as caught:
                await sql.execute(statement)
            hint: str = getattr(caught.value, "hint", None) or str(caught.value)
            assert "POST /api/jobs/start" in hint or "complete_task" in hint, statement


async def test_workers_read_tasks_and_only_the_input_that_they_hold(reports_system: SystemHarness) -> None:
    ann = reports_system.create_user()
    await ann.post("/api/jobs/start", START)
    async with reports_system.db.transaction() as sql:
        await sql.execute("set local role holdfast_worker")
        query = "select count(*) as tasks, count(input) as inputs from public.job_tasks"
        assert dict(await sql.fetchrow(query) or {}) == {"tasks": 50, "inputs": 0}
        await claim_task(sql)
        assert dict(await sql.fetchrow(query) or {}) == {"tasks": 50, "inputs": 1}


async def test_fetch_next_export_job(exports_system: SystemHarness) -> None:
    ann, bob = exports_system.create_user(), exports_system.create_user()
    first = await ann.start_export(await ann.add_document())
    second = await bob.start_export(await bob.add_document())
    async with exports_system.db.connection() as sql:
        row = await sql.fetchrow("select * from public.fetch_next_export_job($1)", bob.id)
        assert row is not None
        assert (str(row["id"]), str(row["user_id"]), row["status"], row["attempts"]) == (
            second, bob.id, "processing", 1,
        )  # fmt: skip
        other = await sql.fetchrow("select * from public.fetch_next_export_job()")
        assert other is not None
        assert str(other["id"]) == first
        assert await sql.fetchrow("select * from public.fetch_next_export_job()") is None
        lease = (row["id"], row["attempt"], row["nonce"])
        await sql.execute("select holdfast.fail_task($1, $2, $3, 'no', p_retry => false)", *lease)
        with pytest.raises(Exception, match="cannot be changed"):
            await sql.execute("update public.export_jobs set status = 'completed'")
    assert (await bob.get(f"/api/v1/export/job/{second}")).json()["status"] == "failed"
