"""Every route of the export contract: validation, ownership, streams, cancellation and columns."""

from __future__ import annotations

import asyncio
import re
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from api_clients import EventStreamReader, bearer_headers, make_token, open_event_stream
from gated_renderer import GatedRenderer
from system_harness import EXPORT_PATH, SERVICE_KEY, SystemHarness

from holdfast.errors import HoldfastError
from holdfast.systems.exports import export_tasks, queries
from holdfast.testing import wait_until


async def test_invalid_requests_list_every_invalid_field(exports_system: SystemHarness) -> None:
    ann = exports_system.create_user()
    body = {
        "documentId": "nothing",
        "templateSlug": "baroque",
        "options": {
            "pageSize": "A0",
            "margins": {"top": -0.1, "bottom": 2.01, "left": "1", "right": True},
            "quality": "best",
            "colorMode": "sepia",
        },
    }
    response = await ann.post(EXPORT_PATH, body)
    assert response.status_code == 400
    assert {error["field"] for error in response.json()["errors"]} == {
        "documentId", "templateSlug", "options.pageSize", "options.margins.top", "options.margins.bottom",
        "options.margins.left", "options.margins.right", "options.quality", "options.colorMode",
    }  # fmt: skip
    bodies: list[Any] = [None, [], {"documentId": 7}, {"documentId": str(uuid4()), "options": []}]
    for invalid_body in bodies:
        assert (await ann.post(EXPORT_PATH, invalid_body)).status_code == 400
    response = await exports_system.http.post(
        EXPORT_PATH, content=b"{", headers={**ann.headers, "content-type": "application/json"}
    )
    assert response.status_code == 400


@pytest.mark.parametrize(("count", "status"), [(0, 400), (11, 400), (10, 202)])
async def test_a_batch_has_one_to_ten_documents(
    exports_system: SystemHarness, count: int, status: int
) -> None:
    ann = exports_system.create_user()
    documents = [await ann.add_document(title=f"{n}") for n in range(count)]
    response = await ann.post("/api/v1/export/batch", {"documentIds": documents})
    assert response.status_code == status
    if status == 202:
        assert len({job["jobId"] for job in response.json()["jobs"]}) == 10


async def test_resources_of_other_users_are_not_found(exports_system: SystemHarness) -> None:
    ann, bob = exports_system.create_user(), exports_system.create_user()
    document = await ann.add_document()
    job = await ann.start_export(document)
    batch = (await ann.post("/api/v1/export/batch", {"documentIds": [document]})).json()["batchId"]
    async with exports_system.run_worker():
        await ann.wait_for_export(job)
    assert (await bob.post(EXPORT_PATH, {"documentId": document})).status_code == 404
    assert (await bob.post(EXPORT_PATH, {"documentId": str(uuid4())})).status_code == 404
    assert (await bob.post("/api/v1/export/batch", {"documentIds": [document]})).status_code == 404
    for path in (f"job/{job}", f"job/{job}/stream", f"batch/{batch}", f"batch/{batch}/stream",
                 f"batch/{batch}/download", f"download/{job}", "job/none", "download/none", "batch/none",
                 f"preview/{document}"):  # fmt: skip
        assert (await bob.get(f"/api/v1/export/{path}")).status_code == 404, path
        assert (await exports_system.http.get(f"/api/v1/export/{path}")).status_code == 401, path
    assert (await bob.delete(f"/api/v1/export/job/{job}")).status_code == 404
    assert (await bob.delete(f"/api/v1/export/history/{job}")).status_code == 404
    assert (await bob.get("/api/v1/export/documents")).json()["documents"] == []
    assert (await bob.get("/api/v1/export/history")).json()["history"] == []
    invalid_user = {"authorization": f"Bearer {make_token('not-a-uuid')}"}
    assert (
        await exports_system.http.get("/api/v1/export/documents", headers=invalid_user)
    ).status_code == 400


async def test_row_level_security_protects_rows(exports_system: SystemHarness) -> None:
    ann, bob = exports_system.create_user(), exports_system.create_user()
    job = await ann.start_export(await ann.add_document())
    async with exports_system.run_worker():
        await ann.wait_for_export(job)
    async with exports_system.db.transaction() as connection:
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
            await _execute_as_user(exports_system, bob.id, statement)


async def _execute_as_user(exports_system: SystemHarness, user: str, statement: str) -> None:
    async with exports_system.db.transaction() as connection:
        await connection.execute("select set_config('request.jwt.claims', $1, true)", f'{{"sub": "{user}"}}')
        await connection.execute("set local role authenticated")
        await connection.execute(statement)


async def test_the_same_request_returns_the_same_job_while_it_is_unfinished(
    exports_system: SystemHarness,
) -> None:
    ann = exports_system.create_user()
    document = await ann.add_document()
    first = await ann.start_export(document, options={"pageSize": "A4"})
    assert await ann.start_export(document, options={"pageSize": "A4"}) == first
    other = await ann.start_export(document, options={"pageSize": "Legal"})
    assert other != first
    assert await ann.start_export(document, templateSlug="modern", options={"pageSize": "A4"}) != first
    batch = (
        await ann.post("/api/v1/export/batch", {"documentIds": [document], "options": {"pageSize": "A4"}})
    ).json()
    assert batch["jobs"][0]["jobId"] == first
    async with exports_system.db.connection() as connection:
        await connection.execute("update documents set title = 'Changed' where id = $1", document)
    changed = await ann.start_export(document, options={"pageSize": "A4"})
    assert changed != first
    assert (await ann.get("/api/v1/export/history")).json()["today"]["used"] == 4
    async with exports_system.run_worker():
        await ann.wait_for_export(first)
    assert await ann.start_export(document, options={"pageSize": "A4"}) != first


async def test_cancel_waiting_and_running_exports(exports_system: SystemHarness) -> None:
    ann = exports_system.create_user()
    waiting, running = (
        await ann.start_export(await ann.add_document()),
        await ann.start_export(await ann.add_document("jonas")),
    )
    response = await ann.delete(f"/api/v1/export/job/{waiting}")
    assert (response.status_code, response.json()["status"]) == (200, "cancelled")
    renderer = GatedRenderer()
    async with exports_system.run_worker(renderer=renderer):
        await wait_until(lambda: renderer.running == 1)
        response = await ann.delete(f"/api/v1/export/job/{running}")
        assert response.json()["status"] == "cancelled"
        # The worker stops the export and is free for the next one.
        await wait_until(lambda: renderer.running == 0, within=timedelta(seconds=30))
        renderer.gate.set()
        last = await ann.start_export(await ann.add_document("lucia"))
        assert (await ann.wait_for_export(last))["status"] == "completed"
    for job in (waiting, running):
        export = (await ann.get(f"/api/v1/export/job/{job}")).json()
        assert (export["status"], export["resultUrl"]) == ("cancelled", None)
    assert (await ann.delete(f"/api/v1/export/job/{last}")).json()["status"] == "completed"
    assert len((await ann.get("/api/v1/export/history")).json()["history"]) == 1


async def test_stages_are_streamed_in_order_and_a_stream_resumes(
    exports_system: SystemHarness, monkeypatch: Any
) -> None:
    ann = exports_system.create_user()
    job = await ann.start_export(await ann.add_document())
    gates = [asyncio.Event() for _ in range(4)]

    def add_gate(module: Any, name: str, gate: asyncio.Event) -> None:
        original = getattr(module, name)

        async def call_after_gate(*args: Any) -> Any:
            await gate.wait()
            return await original(*args)

        monkeypatch.setattr(module, name, call_after_gate)

    for name, gate in zip(("_fetch_document", "_render_document", "_save_pdf_file"), gates, strict=False):
        add_gate(export_tasks, name, gate)
    add_gate(queries, "add_history_entry", gates[3])
    async with (
        exports_system.run_worker(),
        open_event_stream(exports_system.http, f"/api/v1/export/job/{job}/stream", ann.headers) as stream,
    ):
        percents: list[int] = []
        last_id = None
        for number, stage in enumerate((50, 75, 90)):
            gates[number].set()
            last_id = await _read_until(stream, stage, percents)
            export = (await ann.get(f"/api/v1/export/job/{job}")).json()
            assert (export["status"], export["progress"]) == ("processing", stage)
        gates[3].set()
        final = (await stream.read_until("completed"))[-1]
        assert (final.data["jobId"], final.data["error"]) == (job, None)
        pdf = await exports_system.http.get(final.data["resultUrl"])  # without a token
        assert (pdf.status_code, pdf.content[:5]) == (200, b"%PDF-")
        assert await stream.read_next() is None
    assert list(dict.fromkeys(percents)) == [0, 25, 50, 75, 90]
    resume_headers = {**ann.headers, "last-event-id": str(last_id)}
    async with open_event_stream(
        exports_system.http, f"/api/v1/export/job/{job}/stream", resume_headers
    ) as stream:
        frames = await stream.read_until("completed")
        assert all(frame.data["progress"] >= 90 for frame in frames[:-1])


async def test_a_fast_export_streams_every_stage(exports_system: SystemHarness) -> None:
    ann = exports_system.create_user()
    job = await ann.start_export(await ann.add_document())
    path = f"/api/v1/export/job/{job}/stream"
    async with (
        open_event_stream(exports_system.http, path, ann.headers) as stream,
        exports_system.run_worker(),
    ):
        frames = await stream.read_until("completed", 60)
    progress = [(frame.data["status"], frame.data["progress"]) for frame in frames[:-1]]
    assert list(dict.fromkeys(progress)) == [
        ("pending", 0), ("processing", 25), ("processing", 50), ("processing", 75),
        ("processing", 90), ("completed", 100),
    ]  # fmt: skip
    # The events are stored: a client that connects later and requests all events receives the same.
    late_headers = {**ann.headers, "last-event-id": "0"}
    async with open_event_stream(exports_system.http, path, late_headers) as stream:
        replayed = await stream.read_until("completed")
    stages = [frame.data["progress"] for frame in replayed[:-1] if frame.data["progress"]]
    assert stages == [25, 50, 75, 90, 100]


async def test_cancelling_stops_a_running_export_at_once(exports_system: SystemHarness) -> None:
    ann = exports_system.create_user()
    job = await ann.start_export(await ann.add_document())
    renderer = GatedRenderer()
    async with exports_system.run_worker(renderer=renderer):
        await wait_until(lambda: renderer.running == 1)
        await ann.delete(f"/api/v1/export/job/{job}")
        # Faster than the next heartbeat, which is sent after ten of the lease's thirty seconds.
        await wait_until(lambda: renderer.running == 0, within=timedelta(seconds=5), what="rendering stops")


async def test_views_and_tables_have_the_columns_of_the_contract(exports_system: SystemHarness) -> None:
    ann = exports_system.create_user()
    document = await ann.add_document()
    job = await ann.start_export(document)
    renderer = GatedRenderer()

    async def find_row(relation: str) -> Any:
        async with exports_system.db.connection() as connection:
            return await connection.fetchrow(f"select * from {relation} where id = $1", job)

    async with exports_system.run_worker(renderer=renderer):
        await wait_until(lambda: renderer.running == 1)
        async with exports_system.db.connection() as connection:
            workers = [row["name"] for row in await connection.fetch("select name from holdfast.workers")]
        running = await find_row("export_jobs")
        assert running["locked_by"] in workers
        renderer.gate.set()
        await ann.wait_for_export(job)
    completed, entry = await find_row("export_jobs"), await find_row("export_history")
    assert completed["locked_by"] is None
    assert set(completed.keys()) == {
        "id", "user_id", "document_id", "format", "options", "status", "progress", "attempts", "max_attempts",
        "run_after", "result_url", "file_size", "page_count", "error_message", "locked_by", "started_at",
        "completed_at", "created_at",
    }  # fmt: skip
    assert set(entry.keys()) - {"artifact_id"} == {
        "id", "user_id", "document_id", "document_version", "format", "template_slug", "file_name",
        "file_path", "file_size", "download_count", "expires_at", "created_at",
    }  # fmt: skip
    assert re.fullmatch(rf"exports/{ann.id}/{document}_[0-9T]+\.pdf", entry["file_path"])
    history = (await ann.get("/api/v1/export/history")).json()["history"]
    assert [listed["filePath"] for listed in history] == [entry["file_path"]]


async def test_users_cannot_see_the_name_of_the_worker(exports_system: SystemHarness) -> None:
    ann = exports_system.create_user()
    job = await ann.start_export(await ann.add_document())
    renderer = GatedRenderer()
    async with exports_system.run_worker(renderer=renderer), exports_system.db.transaction() as connection:
        await wait_until(lambda: renderer.running == 1)
        worker_names = [row["name"] for row in await connection.fetch("select name from holdfast.workers")]
        if connection.get_server_version().major < 15:
            return
        await connection.execute(
            "select set_config('request.jwt.claims', $1, true)", f'{{"sub": "{ann.id}"}}'
        )
        await connection.execute("set local role authenticated")
        locked_by = await connection.fetchval("select locked_by from export_jobs where id = $1", job)
        assert locked_by.startswith("worker-")
        assert locked_by not in worker_names


async def _read_until(stream: EventStreamReader, stage: int, percents: list[int]) -> str | None:
    while True:
        frame = await stream.read_next()
        assert frame is not None
        assert frame.event == "progress"
        assert set(frame.data) == {"jobId", "status", "progress"}
        percents.append(frame.data["progress"])
        if frame.data["progress"] == stage:
            return frame.id


async def test_stream_of_a_batch(exports_system: SystemHarness) -> None:
    ann = exports_system.create_user()
    documents = [await ann.add_document(), await ann.add_document("lucia")]
    invalid = await ann.add_document("jonas")
    async with exports_system.db.connection() as connection:
        await connection.execute("update documents set data = '{}' where id = $1", invalid)
    batch = (await ann.post("/api/v1/export/batch", {"documentIds": [*documents, invalid]})).json()
    path = f"/api/v1/export/batch/{batch['batchId']}"
    async with (
        exports_system.run_worker(),
        open_event_stream(exports_system.http, f"{path}/stream", ann.headers) as stream,
    ):
        frames = await stream.read_until("failed", 60)
    numbers = [int(frame.id) for frame in frames if frame.id]
    assert numbers == sorted(set(numbers))
    assert [frame.data["progress"] for frame in frames] == sorted(frame.data["progress"] for frame in frames)
    last = frames[-1].data
    assert (last["status"], last["progress"], last["completedCount"]) == ("failed", 67, 2)
    assert [job["status"] for job in last["jobs"]] == ["completed", "completed", "failed"]
    assert "profile" in last["jobs"][2]["error"]
    partial = await ann.get(f"{path}/download")
    assert (partial.status_code, partial.json()["completedCount"]) == (206, 2)
    zip_file = await ann.get(f"{path}/download?partial=true")
    assert (zip_file.status_code, zip_file.content[:2]) == (200, b"PK")


async def test_stream_of_a_batch_resumes_by_number(exports_system: SystemHarness) -> None:
    ann = exports_system.create_user()
    documents = [await ann.add_document(), await ann.add_document("lucia")]
    batch = (await ann.post("/api/v1/export/batch", {"documentIds": documents})).json()["batchId"]
    path, renderer = f"/api/v1/export/batch/{batch}/stream", GatedRenderer()
    async with open_event_stream(exports_system.http, path, ann.headers) as stream:
        first = await stream.read_next()
    assert first is not None
    assert first.data["progress"] == 0
    resume_headers = {**ann.headers, "last-event-id": str(first.id)}
    async with (
        exports_system.run_worker(renderer=renderer),
        open_event_stream(exports_system.http, path, resume_headers) as stream,
    ):
        # States that the client has are not sent again: the next frame is newer.
        second = await stream.read_next()
        assert second is not None
        assert int(second.id or 0) > int(first.id or 0)
        renderer.gate.set()
        last = (await stream.read_until("completed", 60))[-1]
    assert last.data["progress"] == 100
    for last_id, status in ((last.id, 204), (first.id, 200)):
        response = await ann.get(path, headers={"last-event-id": str(last_id)})
        assert response.status_code == status
    assert (await ann.get(path, headers={"last-event-id": "x"})).status_code == 400


async def test_another_spelling_of_a_user_id_is_not_the_same_user(exports_system: SystemHarness) -> None:
    """Jobs and files compare the text of the subject, so the tables of the system must not accept more."""
    ann = exports_system.create_user()
    document = await ann.add_document()
    for spelling in (ann.id.upper(), f"{{{ann.id}}}", ann.id.replace("-", ""), f"urn:uuid:{ann.id}"):
        for headers in (
            bearer_headers(make_token(spelling)),
            {**bearer_headers(SERVICE_KEY), "x-user-id": spelling},
        ):
            response = await exports_system.http.get("/api/v1/export/documents", headers=headers)
            assert response.status_code == 400, response.text
            assert document not in response.text
