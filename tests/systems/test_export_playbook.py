"""The five acceptance tests of the export contract."""

from __future__ import annotations

import asyncio
import io
import zipfile
from datetime import timedelta
from typing import Any

import pypdf
from api_clients import bearer_headers, make_token
from gated_renderer import GatedRenderer
from system_harness import SERVICE_KEY, SystemHarness

from holdfast import telemetry
from holdfast.testing import Clock, wait_until


async def test_1_single_export(exports_system: SystemHarness) -> None:
    ann = exports_system.create_user()
    document = await ann.add_document()
    job = await ann.start_export(document)
    async with exports_system.db.connection() as connection:
        row = await connection.fetchrow("select * from export_jobs where id = $1", job)
    assert row is not None
    assert (row["status"], row["progress"], str(row["document_id"])) == ("pending", 0, document)
    renderer = GatedRenderer()
    async with exports_system.run_worker(renderer=renderer):
        await wait_until(lambda: renderer.running == 1)
        assert (await ann.get(f"/api/v1/export/job/{job}")).json()["status"] == "processing"
        renderer.gate.set()
        export = await ann.wait_for_export(job)
    assert export["status"] == "completed"
    assert export["progress"] == 100
    async with exports_system.db.connection() as connection:
        row = await connection.fetchrow("select * from export_jobs where id = $1", job)
        history = await connection.fetchrow("select * from export_history where user_id = $1", ann.id)
    assert row is not None
    assert history is not None
    assert (row["status"], row["progress"], row["attempts"], row["page_count"]) == ("completed", 100, 1, 1)
    assert history["file_size"] == row["file_size"] > 10_000
    assert history["template_slug"] == "minimal"
    assert (history["expires_at"] - history["created_at"]).days == 7
    redirect = await ann.get(f"/api/v1/export/download/{export['id']}")
    assert redirect.status_code == 302
    for link in (redirect.headers["location"], export["resultUrl"]):
        pdf = await exports_system.http.get(link)  # a signed link needs no token
        assert pdf.status_code == 200
    assert pdf.content.startswith(b"%PDF-")
    assert "Amara" in pdf.headers["content-disposition"]


async def test_2_concurrent_limit(exports_system: SystemHarness) -> None:
    ann, bob = exports_system.create_user(), exports_system.create_user()
    jobs = [await ann.start_export(await ann.add_document(title=f"Document {n}")) for n in range(5)]
    renderer = GatedRenderer()
    async with exports_system.run_worker(renderer=renderer):
        await wait_until(lambda: renderer.running == 3)
        # Exports of another user do not wait for them.
        await bob.start_export(await bob.add_document())
        await wait_until(lambda: renderer.running == 4)
        statuses = [(await ann.get(f"/api/v1/export/job/{job}")).json()["status"] for job in jobs]
        assert sorted(statuses) == ["pending"] * 2 + ["processing"] * 3
        renderer.gate.set()
        exports = [await ann.wait_for_export(job) for job in jobs]
    assert [export["status"] for export in exports] == ["completed"] * 5
    assert renderer.max_running == 4


async def test_3_retry_logic(exports_system: SystemHarness, clock: Clock) -> None:
    ann = exports_system.create_user()
    job = await ann.start_export(await ann.add_document())
    renderer = GatedRenderer()
    renderer.error = TimeoutError("the printer did not answer: secret of the document")
    renderer.gate.set()
    delays: list[float] = []
    async with exports_system.run_worker(renderer=renderer):
        for attempt in range(1, 5):

            async def find_failed_attempt(attempt: int = attempt) -> Any:
                async with exports_system.db.connection() as connection:
                    return await connection.fetchrow(
                        "select status, attempts, error_message,"
                        " extract(epoch from run_after - holdfast.now())::float as delay"
                        " from export_jobs where id = $1 and status = 'pending' and attempts = $2",
                        job,
                        attempt,
                    )

            row = await wait_until(
                find_failed_attempt, within=timedelta(seconds=40), what=f"attempt {attempt} fails"
            )
            delays.append(row["delay"])
            export = (await ann.get(f"/api/v1/export/job/{job}")).json()
            assert export["status"] == "pending"
            assert "secret" not in str(export)
            await clock.advance(timedelta(seconds=row["delay"] + 1))
        export = await ann.wait_for_export(job)
    for delay, expected in zip(delays, (60, 120, 240, 480), strict=True):
        assert 0.8 * expected - 15 <= delay <= 1.2 * expected
    assert export["status"] == "failed"
    assert export["error"]
    async with exports_system.db.connection() as connection:
        assert await connection.fetchval("select attempts from export_jobs where id = $1", job) == 5
        assert await connection.fetchval("select count(*) from export_history") == 0


async def test_4_storage_cleanup(exports_system: SystemHarness, clock: Clock) -> None:
    ann = exports_system.create_user()
    job = await ann.start_export(await ann.add_document())
    async with exports_system.run_worker():
        export = await ann.wait_for_export(job)
    files = exports_system.db.settings.home / "files"
    assert len(list(files.rglob("*.pdf"))) == 1
    refused = await ann.post("/api/v1/export/cleanup")
    assert refused.status_code == 403
    for claims, status in (
        ({"user_metadata": {"role": "admin"}}, 403),
        ({"app_metadata": {"role": "admin"}}, 200),
    ):
        headers = bearer_headers(make_token(ann.id, **claims))
        assert (
            await exports_system.http.post("/api/v1/export/cleanup", headers=headers)
        ).status_code == status
    assert (
        await exports_system.http.post("/api/v1/export/cleanup", headers=bearer_headers(SERVICE_KEY))
    ).json() == {"deleted": 0}
    await clock.advance(timedelta(days=7, seconds=5))
    assert (await ann.get(f"/api/v1/export/download/{export['id']}")).status_code == 410
    response = await exports_system.http.post("/api/v1/export/cleanup", headers=bearer_headers(SERVICE_KEY))
    assert (response.status_code, response.json()) == (200, {"deleted": 1})
    assert not list(files.rglob("*.pdf"))
    async with exports_system.db.connection() as connection:
        assert await connection.fetchval("select count(*) from export_history") == 0
    assert (await ann.get(f"/api/v1/export/download/{export['id']}")).status_code == 410


async def test_5_batch_export(exports_system: SystemHarness) -> None:
    ann = exports_system.create_user()
    titles = ("Curriculum / 2026", "Curriculum / 2026", "Brief")
    documents = [
        await ann.add_document(name, title=title)
        for name, title in zip(("amara", "jonas", "lucia"), titles, strict=True)
    ]
    response = await ann.post(
        "/api/v1/export/batch", {"documentIds": documents, "options": {"pageSize": "A4"}}
    )
    assert response.status_code == 202
    batch, jobs = response.json()["batchId"], response.json()["jobs"]
    assert [job["documentId"] for job in jobs] == documents
    renderer = GatedRenderer()
    async with exports_system.run_worker(renderer=renderer):
        await wait_until(lambda: renderer.running == 3)
        incomplete = await ann.get(f"/api/v1/export/batch/{batch}/download")
        assert (incomplete.status_code, incomplete.json()) == (
            206,
            {"completedCount": 0, "totalCount": 3, "completedJobs": []},
        )
        renderer.gate.set()
        await asyncio.gather(*(ann.wait_for_export(job["jobId"]) for job in jobs))
    status = (await ann.get(f"/api/v1/export/batch/{batch}")).json()
    assert (status["status"], status["progress"], status["completedCount"]) == ("completed", 100, 3)
    for job in status["jobs"]:
        assert (await exports_system.http.get(job["resultUrl"])).content.startswith(b"%PDF-")
    zip_file = await ann.get(f"/api/v1/export/batch/{batch}/download")
    assert zip_file.status_code == 200
    assert f"resumes-{batch}.zip" in zip_file.headers["content-disposition"]
    with zipfile.ZipFile(io.BytesIO(zip_file.content)) as archive:
        names = [name for name in archive.namelist() if name != "manifest.json"]
        assert len(names) == len(set(names)) == 3
        assert all(name.endswith(".pdf") and "/" not in name for name in names)
        pages = [len(pypdf.PdfReader(io.BytesIO(archive.read(name))).pages) for name in names]
    assert pages == [1, 2, 1]


async def test_the_end_of_an_export_is_logged_with_user_and_duration_and_without_content(
    exports_system: SystemHarness,
) -> None:
    events: list[dict[str, Any]] = []
    unsubscribe = telemetry.subscribe(lambda _, fields: events.append(dict(fields)), only=["task.finished"])
    ann = exports_system.create_user()
    job = await ann.start_export(await ann.add_document(title="A secret title"))
    try:
        async with exports_system.run_worker():
            await ann.wait_for_export(job)
            await wait_until(lambda: events, what="the event")
    finally:
        unsubscribe()
    [event] = events
    assert (str(event["job"]), event["owner"], event["outcome"]) == (job, ann.id, "succeed")
    assert event["seconds"] > 0
    assert "secret" not in str(event)
