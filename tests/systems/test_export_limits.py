"""Exports: limits, history, documents that cannot be rendered, and templates of every type."""

from __future__ import annotations

import asyncio
import io
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pypdf
import pytest
from api_clients import serve_app
from chromium import find_chromium
from system_harness import EXPORT_PATH, SystemHarness

from holdfast.egress import EgressPolicy
from holdfast.engine.connection import Database
from holdfast.errors import TooManyRequestsError
from holdfast.server import create_app
from holdfast.settings import Secret, Settings
from holdfast.systems import exports
from holdfast.systems.capture import BrowserOptions, BrowserPool
from holdfast.systems.exports import ExportLimits, submission
from holdfast.systems.exports.export_requests import parse_export_request
from holdfast.systems.printing import PdfRenderer
from holdfast.testing import wait_until


async def test_limit_of_exports_per_day(exports_system: SystemHarness) -> None:
    ann, bob = exports_system.create_user(), exports_system.create_user()
    document = await ann.add_document()
    await ann.start_export(document)
    async with exports_system.db.connection() as connection:
        await connection.execute("update export_usage set operations = 99")
    responses = await asyncio.gather(
        *(
            ann.post(EXPORT_PATH, {"documentId": document, "options": {"margins": {"top": n / 10}}})
            for n in range(6)
        )
    )
    assert sorted(response.status_code for response in responses) == [202] + [429] * 5
    refused = next(response for response in responses if response.status_code == 429)
    assert 0 < int(refused.headers["retry-after"]) <= 86_400
    assert "100" in refused.json()["detail"]
    assert await ann.start_export(document)  # equal to the first export, so it does not count
    await bob.start_export(await bob.add_document())
    async with exports_system.db.connection() as connection:
        await connection.execute("update export_usage set day = day - 1")
    await ann.start_export(document, templateSlug="modern")


async def test_limit_of_stored_bytes(exports_system: SystemHarness) -> None:
    ann = exports_system.create_user()
    document = await ann.add_document()
    job = await ann.start_export(document)
    async with exports_system.run_worker():
        await ann.wait_for_export(job)
    async with exports_system.db.connection() as connection:
        await connection.execute("update export_history set file_size = 104857600")
    refused = await ann.post(EXPORT_PATH, {"documentId": document})
    assert refused.status_code == 507
    assert "100.00MB / 100MB" in refused.json()["detail"]
    assert (await ann.delete(f"/api/v1/export/history/{job}")).status_code == 204
    await ann.start_export(document)


async def test_limit_of_waiting_exports(exports_system: SystemHarness) -> None:
    ann = exports_system.create_user()
    document = await ann.add_document()
    for number in range(3):
        await ann.start_export(document, options={"margins": {"top": number / 10}})
    request = parse_export_request({"documentId": document}, ["modern"], "modern", kind="one")
    async with exports_system.db.transaction() as connection:
        documents = await submission.load_documents(connection, "public", ann.id, request.document_ids)
        with pytest.raises(TooManyRequestsError, match="are waiting"):
            await submission.submit_exports(
                connection, "public", ann.id, documents, request, ExportLimits(max_waiting=3)
            )


async def test_history_counts_downloads_and_outlives_the_document(exports_system: SystemHarness) -> None:
    ann = exports_system.create_user()
    document = await ann.add_document()
    job = await ann.start_export(document, templateSlug="classic")
    async with exports_system.run_worker():
        await ann.wait_for_export(job)
    download = f"/api/v1/export/download/{job}"
    for _ in range(2):
        assert (await ann.get(download)).status_code == 302
    link = (await ann.get(f"{download}?as=json")).json()
    assert (await exports_system.http.get(link["url"])).content.startswith(b"%PDF")
    async with exports_system.db.connection() as connection:
        await connection.execute("delete from documents where id = $1", document)
    history = (await ann.get("/api/v1/export/history")).json()["history"]
    assert [(entry["id"], entry["downloadCount"], entry["documentId"]) for entry in history] == [
        (job, 3, None)
    ]
    assert history[0]["templateSlug"] == "classic"
    assert (await ann.get(download)).status_code == 302


async def test_invalid_documents_fail_with_the_field_and_without_content(
    exports_system: SystemHarness,
) -> None:
    ann = exports_system.create_user()
    jobs: dict[str, str] = {}
    invalid_documents: dict[str, Any] = {
        "empty": {},
        "null": None,
        "text": "just text",
        "wrong": {"profile": {"name": "x", "email": {"secret": "content"}}},
        "long": {"profile": {"name": "x" * 300}},
    }
    async with exports_system.db.connection() as connection:
        for name, data in invalid_documents.items():
            document = await connection.fetchval(
                "insert into documents (user_id, title, data) values ($1, $2, $3::jsonb) returning id",
                ann.id, name, msgspec.json.encode(data).decode(),
            )  # fmt: skip
            jobs[name] = await ann.start_export(str(document))
        deleted = await ann.add_document()
        jobs["deleted"] = await ann.start_export(deleted)
        await connection.execute("delete from documents where id = $1", deleted)
    async with exports_system.run_worker():
        exports_by_name = {name: await ann.wait_for_export(job) for name, job in jobs.items()}
    assert {export["status"] for export in exports_by_name.values()} == {"failed"}
    assert all(
        export["error"] and "secret" not in export["error"] and "xxx" not in export["error"]
        for export in exports_by_name.values()
    )
    error = exports_by_name["wrong"]["error"]
    assert "email" in error or "profile" in error
    async with exports_system.db.connection() as connection:
        rows = await connection.fetch("select attempts from export_jobs")
    assert {row["attempts"] for row in rows} == {1}


async def test_a_failed_upload_is_retried(exports_system: SystemHarness) -> None:
    ann = exports_system.create_user()
    job = await ann.start_export(await ann.add_document())
    files_folder = exports_system.db.settings.home / "files"
    files_folder.write_bytes(b"a file where the folder should be")

    async def find_retry_time() -> Any:
        async with exports_system.db.connection() as connection:
            return await connection.fetchval(
                "select run_after from export_jobs where id = $1 and status = 'pending' and attempts = 1", job
            )

    async with exports_system.run_worker():
        await wait_until(find_retry_time, within=timedelta(seconds=40))
    async with exports_system.db.connection() as connection:
        assert await connection.fetchval("select count(*) from export_history") == 0


async def test_preview_of_a_page(exports_system: SystemHarness) -> None:
    ann = exports_system.create_user()
    document = await ann.add_document("jonas")
    first = await ann.get(f"/api/v1/export/preview/{document}?template=modern")
    assert (first.status_code, first.headers["x-page-count"]) == (200, "2")
    assert first.content.startswith(b"\x89PNG")
    assert (await ann.get(f"/api/v1/export/preview/{document}?page=3")).status_code == 404
    assert (await ann.get(f"/api/v1/export/preview/{document}?template=x")).status_code == 400


async def test_installing_again_keeps_rows_and_limits(exports_system: SystemHarness) -> None:
    ann = exports_system.create_user()
    await ann.add_document()
    async with exports_system.db.connection() as connection:
        await connection.execute("select holdfast.put_limit('exports', 'exports', 'export_pdf', false, 7)")
        await exports.install(connection)
        await exports.install(connection, "elsewhere")
        assert (
            await connection.fetchval("select max_running from holdfast.limit_rules where name = 'exports'")
            == 7
        )
        assert await connection.fetchval("select count(*) from documents") == 1
        assert await connection.fetchval("select count(*) from elsewhere.documents") == 0
        # Nothing is changed while this version of the script is installed.
        await connection.execute("drop trigger documents_next_version on documents")
        await exports.install_if_needed(connection)
        assert await connection.fetchval(COUNT_TRIGGERS_QUERY) == 0
        await connection.execute("comment on table documents is 'installed by an older version'")
        await exports.install_if_needed(connection)
        assert await connection.fetchval(COUNT_TRIGGERS_QUERY) == 1


COUNT_TRIGGERS_QUERY = (
    "select count(*) from pg_trigger where tgrelid = 'public.documents'::regclass and not tgisinternal"
)
CUSTOM_TEMPLATE = """#import "@local/holdfast:1.0.0": *
#show: setup.with(font: serif)
= Custom template
#content.profile.name, #layout.title
"""


async def test_custom_templates(url: Secret, system_settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates" / "custom.typ").write_text(CUSTOM_TEMPLATE)
    (tmp_path / "templates" / "broken.typ").write_text("#panic(content)")
    (tmp_path / "templates" / "notes.txt").write_text("not a template")
    custom_settings = replace(system_settings, template_folder=tmp_path / "templates")
    async with Database(url, custom_settings) as db, db.connection() as connection:
        await exports.install(connection)
        app = create_app(custom_settings, database=db, **exports.mount())
        async with serve_app(app) as address, httpx.AsyncClient(base_url=address, timeout=60) as http:
            harness = SystemHarness(db, http, address, exports.tasks)
            ann = harness.create_user()
            document = await ann.add_document()
            templates = (await ann.get("/api/v1/export/documents")).json()["templates"]
            assert templates == ["minimal", "classic", "modern", "paper", "broken", "custom"]
            valid, broken = [
                await ann.start_export(document, templateSlug=slug) for slug in ("custom", "broken")
            ]
            async with harness.run_worker():
                export = await ann.wait_for_export(valid)
                failed = await ann.wait_for_export(broken)
            pdf = await http.get(export["resultUrl"])
            text = pypdf.PdfReader(io.BytesIO(pdf.content)).pages[0].extract_text()
    assert "Custom template" in text
    assert "Amara Okafor" in text
    assert failed["status"] == "failed"
    assert "broken" in failed["error"]


async def test_html_templates_are_rendered_by_chromium(exports_system: SystemHarness) -> None:
    find_chromium()
    ann = exports_system.create_user()
    attack = "<script>document.title='no'</script><b>bold</b> {{ 7 * 7 }} <img src=http://127.0.0.1:1/x>"
    document = await ann.add_document(profile={"name": "Eve <i>x</i>", "summary": attack})
    job = await ann.start_export(document, templateSlug="paper", options={"pageSize": "A4"})
    async with exports_system.run_worker() as state:
        export = await ann.wait_for_export(job)
        browsers = state.browsers.browser_pids
        again = await ann.start_export(document, templateSlug="paper", options={"pageSize": "Letter"})
        assert (await ann.wait_for_export(again))["status"] == "completed"
        assert state.browsers.browser_pids == browsers  # the same Chromium printed both
        assert len(browsers) == 1
    assert export["status"] == "completed", export
    assert not any(Path(f"/proc/{pid}").exists() for pid in browsers)  # it ended with its worker
    pdf = await exports_system.http.get(export["resultUrl"])
    reader = pypdf.PdfReader(io.BytesIO(pdf.content))
    text = " ".join(reader.pages[0].extract_text().split())
    assert attack in text
    assert "Eve <i>x</i>" in text
    assert (round(reader.pages[0].mediabox.width), round(reader.pages[0].mediabox.height)) == (595, 842)
    refused = await ann.start_export(document, templateSlug="paper", options={"standard": "a-2b"})
    async with exports_system.run_worker():
        assert "a-2b" in (await ann.wait_for_export(refused))["error"]


async def test_an_html_template_without_chromium_fails_at_once(exports_system: SystemHarness) -> None:
    ann = exports_system.create_user()
    job = await ann.start_export(await ann.add_document(), templateSlug="paper")
    browsers = BrowserPool(EgressPolicy(), BrowserOptions(chromium=Path("/nowhere/chromium")))
    async with exports_system.run_worker(renderer=PdfRenderer(browsers=browsers)):
        export = await ann.wait_for_export(job)
    assert export["status"] == "failed"
    assert "needs Chromium" in export["error"]


async def test_openapi_describes_the_routes(exports_system: SystemHarness) -> None:
    paths = (await exports_system.http.get("/api/openapi.json")).json()["paths"]
    for path in ("/api/v1/export/pdf", "/api/v1/export/batch"):
        assert paths[path]["post"]["requestBody"]
    assert len([path for path in paths if path.startswith("/api/v1/export/")]) == 14
