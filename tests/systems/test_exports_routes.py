"""Every route of the contract, its refusals and its limits."""

from __future__ import annotations

import asyncio
import re
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from callers import Stream, bearer, token, watching
from gated_press import GatedPress
from homes import KEY, PDF, House

from holdfast.errors import HoldfastError
from holdfast.systems.exports import records, work
from holdfast.testing import Clock, eventually


async def test_a_request_that_does_not_fit_is_answered_with_every_field(house: House) -> None:
    ann = house.user()
    wrong = {
        "documentId": "nothing",
        "templateSlug": "baroque",
        "options": {
            "pageSize": "A0",
            "margins": {"top": -0.1, "bottom": 2.01, "left": "1", "right": True},
            "quality": "best",
            "colorMode": "sepia",
        },
    }
    asked = await ann.post(PDF, wrong)
    assert asked.status_code == 400
    assert {each["field"] for each in asked.json()["errors"]} == {
        "documentId", "templateSlug", "options.pageSize", "options.margins.top", "options.margins.bottom",
        "options.margins.left", "options.margins.right", "options.quality", "options.colorMode",
    }  # fmt: skip
    bodies: list[Any] = [None, [], {"documentId": 7}, {"documentId": str(uuid4()), "options": []}]
    for body in bodies:
        assert (await ann.post(PDF, body)).status_code == 400
    text = await house.web.post(
        PDF, content=b"{", headers={**ann.headers, "content-type": "application/json"}
    )
    assert text.status_code == 400


@pytest.mark.parametrize(("count", "status"), [(0, 400), (11, 400), (10, 202)])
async def test_a_batch_has_one_to_ten_documents(house: House, count: int, status: int) -> None:
    ann = house.user()
    documents = [await ann.document(title=f"{n}") for n in range(count)]
    asked = await ann.post("/api/v1/export/batch", {"documentIds": documents})
    assert asked.status_code == status
    if status == 202:
        assert len({job["jobId"] for job in asked.json()["jobs"]}) == 10


async def test_what_is_not_yours_is_not_there(house: House) -> None:
    ann, bob = house.user(), house.user()
    document = await ann.document()
    job = await ann.export(document)
    batch = (await ann.post("/api/v1/export/batch", {"documentIds": [document]})).json()["batchId"]
    async with house.worker():
        await ann.ended(job)
    assert (await bob.post(PDF, {"documentId": document})).status_code == 404
    assert (await bob.post(PDF, {"documentId": str(uuid4())})).status_code == 404
    assert (await bob.post("/api/v1/export/batch", {"documentIds": [document]})).status_code == 404
    for path in (f"job/{job}", f"job/{job}/stream", f"batch/{batch}", f"batch/{batch}/stream",
                 f"batch/{batch}/download", f"download/{job}", "job/none", "download/none", "batch/none",
                 f"preview/{document}"):  # fmt: skip
        assert (await bob.get(f"/api/v1/export/{path}")).status_code == 404, path
        assert (await house.web.get(f"/api/v1/export/{path}")).status_code == 401, path
    assert (await bob.delete(f"/api/v1/export/job/{job}")).status_code == 404
    assert (await bob.delete(f"/api/v1/export/history/{job}")).status_code == 404
    assert (await bob.get("/api/v1/export/documents")).json()["documents"] == []
    assert (await bob.get("/api/v1/export/history")).json()["history"] == []
    strange = {"authorization": f"Bearer {token('not-a-uuid')}"}
    assert (await house.web.get("/api/v1/export/documents", headers=strange)).status_code == 400


async def test_rows_are_guarded_in_the_database_too(house: House) -> None:
    ann, bob = house.user(), house.user()
    job = await ann.export(await ann.document())
    async with house.worker():
        await ann.ended(job)
    async with house.db.transaction() as connection:
        await connection.execute(
            "select set_config('request.jwt.claims', $1, true)", f'{{"sub": "{bob.id}"}}'
        )
        await connection.execute("set local role authenticated")
        for table in ("documents", "export_requests", "export_history", "export_usage", "export_jobs"):
            if table == "export_jobs" and connection.get_server_version().major < 15:
                continue
            assert await connection.fetchval(f"select count(*) from {table}") == 0, table
        assert await connection.execute("delete from export_history") == "DELETE 0"
        assert await connection.execute("update documents set title = 'mine'") == "UPDATE 0"
    for statement in (
        f"insert into documents (user_id, title, data) values ('{ann.id}', 'x', '{{}}')",
        f"insert into export_usage values ('{bob.id}', now(), -1000)",
        "insert into export_history (user_id, document_version, format, template_slug, file_name, file_path,"
        f" file_size, expires_at) values ('{ann.id}', 1, 'pdf', 'x', 'x', 'x', 1, now())",
    ):
        with pytest.raises(HoldfastError, match=r"policy|permission"):
            await _as_user(house, bob.id, statement)


async def _as_user(house: House, user: str, statement: str) -> None:
    async with house.db.transaction() as connection:
        await connection.execute("select set_config('request.jwt.claims', $1, true)", f'{{"sub": "{user}"}}')
        await connection.execute("set local role authenticated")
        await connection.execute(statement)


async def test_a_forged_line_of_history_opens_and_deletes_nothing(house: House, clock: Clock) -> None:
    ann, bob = house.user(), house.user()
    job = await ann.export(await ann.document())
    async with house.worker():
        told = await ann.ended(job)
    async with house.db.connection() as connection:
        forged = await connection.fetchval(
            "insert into export_history (user_id, document_version, format, template_slug, file_name,"
            " file_path, file_size, artifact_id, expires_at)"
            " select $1, 1, 'pdf', 'x', 'x', file_path, 1, artifact_id, holdfast.now() + interval '1 hour'"
            " from export_history where id = $2 returning id",
            bob.id,
            job,
        )
    assert (await bob.get(f"/api/v1/export/download/{forged}")).status_code == 410
    await clock.advance(timedelta(hours=2))
    await house.web.post("/api/v1/export/cleanup", headers=bearer(KEY))
    assert (await ann.get(told["resultUrl"])).status_code == 302


async def test_the_same_again_is_the_same_job_while_it_waits(house: House) -> None:
    ann = house.user()
    document = await ann.document()
    first = await ann.export(document, options={"pageSize": "A4"})
    assert await ann.export(document, options={"pageSize": "A4"}) == first
    other = await ann.export(document, options={"pageSize": "Legal"})
    assert other != first
    assert await ann.export(document, templateSlug="modern", options={"pageSize": "A4"}) != first
    batch = (
        await ann.post("/api/v1/export/batch", {"documentIds": [document], "options": {"pageSize": "A4"}})
    ).json()
    assert batch["jobs"][0]["jobId"] == first
    async with house.db.connection() as connection:
        await connection.execute("update documents set title = 'Changed' where id = $1", document)
    changed = await ann.export(document, options={"pageSize": "A4"})
    assert changed != first
    assert (await ann.get("/api/v1/export/history")).json()["today"]["used"] == 4
    async with house.worker():
        await ann.ended(first)
    assert await ann.export(document, options={"pageSize": "A4"}) != first


async def test_cancel_while_it_waits_and_while_it_runs(house: House) -> None:
    ann = house.user()
    waiting, running = await ann.export(await ann.document()), await ann.export(await ann.document("jonas"))
    done = await ann.delete(f"/api/v1/export/job/{waiting}")
    assert (done.status_code, done.json()["status"]) == (200, "cancelled")
    press = GatedPress()
    async with house.worker(press=press):
        await eventually(lambda: press.printing == 1)
        done = await ann.delete(f"/api/v1/export/job/{running}")
        assert done.json()["status"] == "cancelled"
        # The worker lets go of it, and the place is free for the next one.
        await eventually(lambda: press.printing == 0, within=timedelta(seconds=30))
        press.gate.set()
        last = await ann.export(await ann.document("lucia"))
        assert (await ann.ended(last))["status"] == "completed"
    for job in (waiting, running):
        told = (await ann.get(f"/api/v1/export/job/{job}")).json()
        assert (told["status"], told["resultUrl"]) == ("cancelled", None)
    assert (await ann.delete(f"/api/v1/export/job/{last}")).json()["status"] == "completed"
    assert len((await ann.get("/api/v1/export/history")).json()["history"]) == 1


async def test_stages_are_pushed_in_order_and_a_stream_resumes(house: House, monkeypatch: Any) -> None:
    ann = house.user()
    job = await ann.export(await ann.document())
    gates = [asyncio.Event() for _ in range(4)]

    def gated(name: str, gate: asyncio.Event) -> None:
        plain = getattr(work, name)

        async def waits(*args: Any) -> Any:
            await gate.wait()
            return await plain(*args)

        monkeypatch.setattr(work, name, waits)

    for name, gate in zip(("_fetched", "_printed", "_stored"), gates, strict=False):
        gated(name, gate)
    plain = records.write_history

    async def history(*args: Any) -> None:
        await gates[3].wait()
        await plain(*args)

    monkeypatch.setattr(records, "write_history", history)
    async with house.worker(), watching(house.web, f"/api/v1/export/job/{job}/stream", ann.headers) as stream:
        seen: list[int] = []
        last = None
        for number, stage in enumerate((50, 75, 90)):
            gates[number].set()
            last = await _until(stream, stage, seen)
            told = (await ann.get(f"/api/v1/export/job/{job}")).json()
            assert (told["status"], told["progress"]) == ("processing", stage)
        gates[3].set()
        ended = (await stream.until("completed"))[-1]
        assert ended.data == {"jobId": job, "resultUrl": f"/api/v1/export/download/{job}", "error": None}
        assert await stream.next() is None
    assert list(dict.fromkeys(seen)) == [0, 25, 50, 75, 90]
    again = {**ann.headers, "last-event-id": str(last)}
    async with watching(house.web, f"/api/v1/export/job/{job}/stream", again) as stream:
        frames = await stream.until("completed")
        assert all(frame.data["progress"] >= 90 for frame in frames[:-1])


async def test_an_export_that_takes_no_time_shows_every_stage(house: House) -> None:
    ann = house.user()
    job = await ann.export(await ann.document())
    path = f"/api/v1/export/job/{job}/stream"
    async with watching(house.web, path, ann.headers) as stream, house.worker():
        frames = await stream.until("completed", 60)
    told = [(frame.data["status"], frame.data["progress"]) for frame in frames[:-1]]
    assert list(dict.fromkeys(told)) == [
        ("pending", 0), ("processing", 25), ("processing", 50), ("processing", 75),
        ("processing", 90), ("completed", 100),
    ]  # fmt: skip
    # And they are kept: whoever comes late and asks for everything is told the same.
    late = {**ann.headers, "last-event-id": "0"}
    async with watching(house.web, path, late) as stream:
        again = await stream.until("completed")
    stages = [frame.data["progress"] for frame in again[:-1] if frame.data["progress"]]
    assert stages == [25, 50, 75, 90, 100]


async def test_a_running_export_stops_at_once_when_it_is_cancelled(house: House) -> None:
    ann = house.user()
    job = await ann.export(await ann.document())
    press = GatedPress()
    async with house.worker(press=press):
        await eventually(lambda: press.printing == 1)
        await ann.delete(f"/api/v1/export/job/{job}")
        # A heartbeat would come after ten seconds: the lease is thirty.
        await eventually(lambda: press.printing == 0, within=timedelta(seconds=5), what="the press lets go")


async def test_the_tables_have_the_names_and_places_of_the_source(house: House) -> None:
    ann = house.user()
    document = await ann.document()
    job = await ann.export(document)
    press = GatedPress()

    async def row(what: str) -> Any:
        async with house.db.connection() as connection:
            return await connection.fetchrow(f"select * from {what} where id = $1", job)

    async with house.worker(press=press):
        await eventually(lambda: press.printing == 1)
        async with house.db.connection() as connection:
            workers = [each["name"] for each in await connection.fetch("select name from holdfast.workers")]
        held = await row("export_jobs")
        assert held["locked_by"] in workers
        press.gate.set()
        await ann.ended(job)
    done, kept = await row("export_jobs"), await row("export_history")
    assert done["locked_by"] is None
    assert set(done.keys()) == {
        "id", "user_id", "document_id", "format", "options", "status", "progress", "attempts", "max_attempts",
        "run_after", "result_url", "file_size", "page_count", "error_message", "locked_by", "started_at",
        "completed_at", "created_at",
    }  # fmt: skip
    assert set(kept.keys()) - {"artifact_id"} == {
        "id", "user_id", "document_id", "document_version", "format", "template_slug", "file_name",
        "file_path", "file_size", "download_count", "expires_at", "created_at",
    }  # fmt: skip
    assert re.fullmatch(rf"exports/{ann.id}/{document}_[0-9T]+\.pdf", kept["file_path"])
    listed = (await ann.get("/api/v1/export/history")).json()["history"]
    assert [each["filePath"] for each in listed] == [kept["file_path"]]


async def test_users_do_not_learn_on_which_machine_an_export_runs(house: House) -> None:
    ann = house.user()
    job = await ann.export(await ann.document())
    press = GatedPress()
    async with house.worker(press=press), house.db.transaction() as connection:
        await eventually(lambda: press.printing == 1)
        names = [each["name"] for each in await connection.fetch("select name from holdfast.workers")]
        if connection.get_server_version().major < 15:
            return
        await connection.execute(
            "select set_config('request.jwt.claims', $1, true)", f'{{"sub": "{ann.id}"}}'
        )
        await connection.execute("set local role authenticated")
        shown = await connection.fetchval("select locked_by from export_jobs where id = $1", job)
        assert shown.startswith("worker-")
        assert shown not in names


async def _until(stream: Stream, stage: int, seen: list[int]) -> str | None:
    while True:
        frame = await stream.next()
        assert frame is not None
        assert frame.event == "progress"
        assert set(frame.data) == {"jobId", "status", "progress"}
        seen.append(frame.data["progress"])
        if frame.data["progress"] == stage:
            return frame.id


async def test_a_batch_is_watched_as_one(house: House) -> None:
    ann = house.user()
    documents = [await ann.document(), await ann.document("lucia")]
    bad = await ann.document("jonas")
    async with house.db.connection() as connection:
        await connection.execute("update documents set data = '{}' where id = $1", bad)
    asked = (await ann.post("/api/v1/export/batch", {"documentIds": [*documents, bad]})).json()
    path = f"/api/v1/export/batch/{asked['batchId']}"
    async with house.worker(), watching(house.web, f"{path}/stream", ann.headers) as stream:
        frames = await stream.until("completed", 60)
    numbers = [int(frame.id) for frame in frames if frame.id]
    assert numbers == sorted(set(numbers))
    assert [frame.data["progress"] for frame in frames] == sorted(frame.data["progress"] for frame in frames)
    last = frames[-1].data
    assert (last["status"], last["progress"], last["completedCount"]) == ("failed", 67, 2)
    assert [job["status"] for job in last["jobs"]] == ["completed", "completed", "failed"]
    assert "profile" in last["jobs"][2]["error"]
    part = await ann.get(f"{path}/download")
    assert (part.status_code, part.json()["completedCount"]) == (206, 2)
    zipped = await ann.get(f"{path}/download?partial=true")
    assert (zipped.status_code, zipped.content[:2]) == (200, b"PK")


async def test_the_stream_of_a_batch_resumes_by_number(house: House) -> None:
    ann = house.user()
    documents = [await ann.document(), await ann.document("lucia")]
    batch = (await ann.post("/api/v1/export/batch", {"documentIds": documents})).json()["batchId"]
    path, press = f"/api/v1/export/batch/{batch}/stream", GatedPress()
    async with watching(house.web, path, ann.headers) as stream:
        first = await stream.next()
    assert first is not None
    assert first.data["progress"] == 0
    back = {**ann.headers, "last-event-id": str(first.id)}
    async with house.worker(press=press), watching(house.web, path, back) as stream:
        # Nothing of what it has is told again: the next frame is newer.
        second = await stream.next()
        assert second is not None
        assert int(second.id or 0) > int(first.id or 0)
        press.gate.set()
        last = (await stream.until("completed", 60))[-1]
    assert last.data["progress"] == 100
    for known, status in ((last.id, 204), (first.id, 200)):
        again = await ann.get(path, headers={"last-event-id": str(known)})
        assert again.status_code == status
    assert (await ann.get(path, headers={"last-event-id": "x"})).status_code == 400
