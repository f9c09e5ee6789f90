"""The five playbook tests of the source, as written there."""

from __future__ import annotations

import asyncio
import io
import zipfile
from datetime import timedelta
from typing import Any

import pypdf
from callers import bearer, token
from gated_press import GatedPress
from homes import KEY, House

from holdfast.testing import Clock, eventually


async def test_1_single_export(house: House) -> None:
    ann = house.user()
    document = await ann.document()
    job = await ann.export(document)
    async with house.db.connection() as connection:
        row = await connection.fetchrow("select * from export_jobs where id = $1", job)
    assert row is not None
    assert (row["status"], row["progress"], str(row["document_id"])) == ("pending", 0, document)
    press = GatedPress()
    async with house.worker(press=press):
        await eventually(lambda: press.printing == 1)
        assert (await ann.get(f"/api/v1/export/job/{job}")).json()["status"] == "processing"
        press.gate.set()
        told = await ann.ended(job)
    assert told["status"] == "completed"
    assert told["progress"] == 100
    async with house.db.connection() as connection:
        row = await connection.fetchrow("select * from export_jobs where id = $1", job)
        history = await connection.fetchrow("select * from export_history where user_id = $1", ann.id)
    assert row is not None
    assert history is not None
    assert (row["status"], row["progress"], row["attempts"], row["page_count"]) == ("completed", 100, 1, 1)
    assert history["file_size"] == row["file_size"] > 10_000
    assert history["template_slug"] == "minimal"
    assert (history["expires_at"] - history["created_at"]).days == 7
    redirect = await ann.get(told["resultUrl"])
    assert redirect.status_code == 302
    pdf = await house.web.get(redirect.headers["location"])
    assert pdf.status_code == 200
    assert pdf.content.startswith(b"%PDF-")
    assert "Amara" in pdf.headers["content-disposition"]


async def test_2_concurrent_limit(house: House) -> None:
    ann, bob = house.user(), house.user()
    jobs = [await ann.export(await ann.document(title=f"Document {n}")) for n in range(5)]
    press = GatedPress()
    async with house.worker(press=press):
        await eventually(lambda: press.printing == 3)
        # Somebody else is not held up by them.
        await bob.export(await bob.document())
        await eventually(lambda: press.printing == 4)
        states = [(await ann.get(f"/api/v1/export/job/{job}")).json()["status"] for job in jobs]
        assert sorted(states) == ["pending"] * 2 + ["processing"] * 3
        press.gate.set()
        ended = [await ann.ended(job) for job in jobs]
    assert [told["status"] for told in ended] == ["completed"] * 5
    assert press.most == 4


async def test_3_retry_logic(house: House, clock: Clock) -> None:
    ann = house.user()
    job = await ann.export(await ann.document())
    press = GatedPress()
    press.problem = TimeoutError("the printer did not answer: secret of the document")
    press.gate.set()
    waits: list[float] = []
    async with house.worker(press=press):
        for attempt in range(1, 5):

            async def failed(attempt: int = attempt) -> Any:
                async with house.db.connection() as connection:
                    return await connection.fetchrow(
                        "select status, attempts, error_message,"
                        " extract(epoch from run_after - holdfast.now())::float as wait"
                        " from export_jobs where id = $1 and status = 'pending' and attempts = $2",
                        job,
                        attempt,
                    )

            row = await eventually(failed, within=timedelta(seconds=40), what=f"attempt {attempt} fails")
            waits.append(row["wait"])
            told = (await ann.get(f"/api/v1/export/job/{job}")).json()
            assert told["status"] == "pending"
            assert "secret" not in str(told)
            await clock.advance(timedelta(seconds=row["wait"] + 1))
        told = await ann.ended(job)
    for wait, expected in zip(waits, (60, 120, 240, 480), strict=True):
        assert 0.8 * expected - 15 <= wait <= 1.2 * expected
    assert told["status"] == "failed"
    assert told["error"]
    async with house.db.connection() as connection:
        assert await connection.fetchval("select attempts from export_jobs where id = $1", job) == 5
        assert await connection.fetchval("select count(*) from export_history") == 0


async def test_4_storage_cleanup(house: House, clock: Clock) -> None:
    ann = house.user()
    job = await ann.export(await ann.document())
    async with house.worker():
        told = await ann.ended(job)
    files = house.db.settings.home / "files"
    assert len(list(files.rglob("*.pdf"))) == 1
    refused = await ann.post("/api/v1/export/cleanup")
    assert refused.status_code == 403
    for claims, status in (
        ({"user_metadata": {"role": "admin"}}, 403),
        ({"app_metadata": {"role": "admin"}}, 200),
    ):
        told_by = bearer(token(ann.id, **claims))
        assert (await house.web.post("/api/v1/export/cleanup", headers=told_by)).status_code == status
    assert (await house.web.post("/api/v1/export/cleanup", headers=bearer(KEY))).json() == {"deleted": 0}
    await clock.advance(timedelta(days=7, seconds=5))
    assert (await ann.get(told["resultUrl"])).status_code == 410
    done = await house.web.post("/api/v1/export/cleanup", headers=bearer(KEY))
    assert (done.status_code, done.json()) == (200, {"deleted": 1})
    assert not list(files.rglob("*.pdf"))
    async with house.db.connection() as connection:
        assert await connection.fetchval("select count(*) from export_history") == 0
    assert (await ann.get(told["resultUrl"])).status_code == 404


async def test_5_batch_export(house: House) -> None:
    ann = house.user()
    titles = ("Curriculum / 2026", "Curriculum / 2026", "Brief")
    documents = [
        await ann.document(name, title=title)
        for name, title in zip(("amara", "jonas", "lucia"), titles, strict=True)
    ]
    asked = await ann.post("/api/v1/export/batch", {"documentIds": documents, "options": {"pageSize": "A4"}})
    assert asked.status_code == 202
    batch, jobs = asked.json()["batchId"], asked.json()["jobs"]
    assert [job["documentId"] for job in jobs] == documents
    press = GatedPress()
    async with house.worker(press=press):
        await eventually(lambda: press.printing == 3)
        early = await ann.get(f"/api/v1/export/batch/{batch}/download")
        assert (early.status_code, early.json()) == (
            206,
            {"completedCount": 0, "totalCount": 3, "completedJobs": []},
        )
        press.gate.set()
        await asyncio.gather(*(ann.ended(job["jobId"]) for job in jobs))
    told = (await ann.get(f"/api/v1/export/batch/{batch}")).json()
    assert (told["status"], told["progress"], told["completedCount"]) == ("completed", 100, 3)
    zipped = await ann.get(f"/api/v1/export/batch/{batch}/download")
    assert zipped.status_code == 200
    assert f"resumes-{batch}.zip" in zipped.headers["content-disposition"]
    with zipfile.ZipFile(io.BytesIO(zipped.content)) as archive:
        names = [name for name in archive.namelist() if name != "manifest.json"]
        assert len(names) == len(set(names)) == 3
        assert all(name.endswith(".pdf") and "/" not in name for name in names)
        pages = [len(pypdf.PdfReader(io.BytesIO(archive.read(name))).pages) for name in names]
    assert pages == [1, 2, 1]
