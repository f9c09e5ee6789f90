"""Exports: limits, history, what cannot be printed, and templates of every kind."""

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
from callers import served
from chromium import program
from homes import PDF, House

from holdfast.engine.connection import Database
from holdfast.errors import TooManyError
from holdfast.server.api import create_app
from holdfast.settings import Secret, Settings
from holdfast.systems import exports
from holdfast.systems.exports import Limits, ordering
from holdfast.systems.exports.options import read_wanted
from holdfast.testing import eventually


async def test_a_day_has_a_hundred_exports(house: House) -> None:
    ann, bob = house.user(), house.user()
    document = await ann.document()
    await ann.export(document)
    async with house.db.connection() as connection:
        await connection.execute("update export_usage set operations = 99")
    asked = await asyncio.gather(
        *(ann.post(PDF, {"documentId": document, "options": {"margins": {"top": n / 10}}}) for n in range(6))
    )
    assert sorted(each.status_code for each in asked) == [202] + [429] * 5
    refused = next(each for each in asked if each.status_code == 429)
    assert 0 < int(refused.headers["retry-after"]) <= 86_400
    assert "100" in refused.json()["detail"]
    assert await ann.export(document)  # the same as the first one: it costs nothing
    await bob.export(await bob.document())
    async with house.db.connection() as connection:
        await connection.execute("update export_usage set day = day - 1")
    await ann.export(document, templateSlug="modern")


async def test_a_hundred_megabytes_are_enough(house: House) -> None:
    ann = house.user()
    document = await ann.document()
    job = await ann.export(document)
    async with house.worker():
        await ann.ended(job)
    async with house.db.connection() as connection:
        await connection.execute("update export_history set file_size = 104857600")
    refused = await ann.post(PDF, {"documentId": document})
    assert refused.status_code == 507
    assert "100.00MB / 100MB" in refused.json()["detail"]
    assert (await ann.delete(f"/api/v1/export/history/{job}")).status_code == 204
    await ann.export(document)


async def test_only_so_many_wait(house: House) -> None:
    ann = house.user()
    document = await ann.document()
    for number in range(3):
        await ann.export(document, options={"margins": {"top": number / 10}})
    wanted = read_wanted({"documentId": document}, ["modern"], "modern", kind="one")
    async with house.db.transaction() as connection:
        documents = await ordering.documents_of(connection, "public", ann.id, wanted.documents)
        with pytest.raises(TooManyError, match="wait already"):
            await ordering.order(connection, "public", ann.id, documents, wanted, Limits(waiting=3))


async def test_history_counts_downloads_and_outlives_the_document(house: House) -> None:
    ann = house.user()
    document = await ann.document()
    job = await ann.export(document, templateSlug="classic")
    async with house.worker():
        told = await ann.ended(job)
    for _ in range(2):
        assert (await ann.get(told["resultUrl"])).status_code == 302
    link = (await ann.get(f"{told['resultUrl']}?as=json")).json()
    assert (await house.web.get(link["url"])).content.startswith(b"%PDF")
    async with house.db.connection() as connection:
        await connection.execute("delete from documents where id = $1", document)
    listed = (await ann.get("/api/v1/export/history")).json()["history"]
    assert [(each["id"], each["downloadCount"], each["documentId"]) for each in listed] == [(job, 3, None)]
    assert listed[0]["templateSlug"] == "classic"
    assert (await ann.get(told["resultUrl"])).status_code == 302


async def test_documents_that_cannot_be_printed_fail_with_the_field_and_nothing_else(house: House) -> None:
    ann = house.user()
    job_of: dict[str, str] = {}
    broken: dict[str, Any] = {
        "empty": {},
        "null": None,
        "text": "just text",
        "wrong": {"profile": {"name": "x", "email": {"secret": "content"}}},
        "long": {"profile": {"name": "x" * 300}},
    }
    async with house.db.connection() as connection:
        for name, data in broken.items():
            made = await connection.fetchval(
                "insert into documents (user_id, title, data) values ($1, $2, $3::jsonb) returning id",
                ann.id, name, msgspec.json.encode(data).decode(),
            )  # fmt: skip
            job_of[name] = await ann.export(str(made))
        gone = await ann.document()
        job_of["gone"] = await ann.export(gone)
        await connection.execute("delete from documents where id = $1", gone)
    async with house.worker():
        told = {name: await ann.ended(job) for name, job in job_of.items()}
    assert {each["status"] for each in told.values()} == {"failed"}
    assert all(
        each["error"] and "secret" not in each["error"] and "xxx" not in each["error"]
        for each in told.values()
    )
    assert "email" in told["wrong"]["error"] or "profile" in told["wrong"]["error"]
    async with house.db.connection() as connection:
        tries = await connection.fetch("select attempts from export_jobs")
    assert {row["attempts"] for row in tries} == {1}


async def test_a_store_that_is_full_is_tried_again(house: House) -> None:
    ann = house.user()
    job = await ann.export(await ann.document())
    place = house.db.settings.home / "files"
    place.write_bytes(b"a file where the folder should be")

    async def waits() -> Any:
        async with house.db.connection() as connection:
            return await connection.fetchval(
                "select run_after from export_jobs where id = $1 and status = 'pending' and attempts = 1", job
            )

    async with house.worker():
        await eventually(waits, within=timedelta(seconds=40))
    async with house.db.connection() as connection:
        assert await connection.fetchval("select count(*) from export_history") == 0


async def test_a_page_can_be_looked_at_before(house: House) -> None:
    ann = house.user()
    document = await ann.document("jonas")
    first = await ann.get(f"/api/v1/export/preview/{document}?template=modern")
    assert (first.status_code, first.headers["x-page-count"]) == (200, "2")
    assert first.content.startswith(b"\x89PNG")
    assert (await ann.get(f"/api/v1/export/preview/{document}?page=3")).status_code == 404
    assert (await ann.get(f"/api/v1/export/preview/{document}?template=x")).status_code == 400


async def test_installing_again_keeps_what_is_there(house: House) -> None:
    ann = house.user()
    await ann.document()
    async with house.db.connection() as connection:
        await connection.execute("select holdfast.put_limit('exports', 'exports', 'export_pdf', false, 7)")
        await exports.install(connection)
        await exports.install(connection, "elsewhere")
        assert (
            await connection.fetchval("select max_running from holdfast.limit_rules where name = 'exports'")
            == 7
        )
        assert await connection.fetchval("select count(*) from documents") == 1
        assert await connection.fetchval("select count(*) from elsewhere.documents") == 0
        # Nothing is done while the text that was run is the text there is.
        await connection.execute("drop trigger documents_next_version on documents")
        await exports.ensure(connection)
        assert await connection.fetchval(TRIGGERS) == 0
        await connection.execute("comment on table documents is 'made by an older version'")
        await exports.ensure(connection)
        assert await connection.fetchval(TRIGGERS) == 1


TRIGGERS = "select count(*) from pg_trigger where tgrelid = 'public.documents'::regclass and not tgisinternal"
OWN = """#import "@local/holdfast:1.0.0": *
#show: setup.with(font: serif)
= Own template
#content.profile.name, #layout.title
"""


async def test_templates_of_your_own(url: Secret, house_settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "house.typ").write_text(OWN)
    (tmp_path / "own" / "broken.typ").write_text("#panic(content)")
    (tmp_path / "own" / "notes.txt").write_text("not a template")
    mine = replace(house_settings, template_folder=tmp_path / "own")
    async with Database(url, mine) as db, db.connection() as connection:
        await exports.install(connection)
        app = create_app(mine, database=db, **exports.mount())
        async with served(app) as place, httpx.AsyncClient(base_url=place, timeout=60) as web:
            house = House(db, web, place, exports.tasks)
            ann = house.user()
            document = await ann.document()
            listed = (await ann.get("/api/v1/export/documents")).json()["templates"]
            assert listed == ["minimal", "classic", "modern", "paper", "broken", "house"]
            good, bad = [await ann.export(document, templateSlug=slug) for slug in ("house", "broken")]
            async with house.worker():
                told = await ann.ended(good)
                failed = await ann.ended(bad)
            link = (await ann.get(told["resultUrl"])).headers["location"]
            text = pypdf.PdfReader(io.BytesIO((await web.get(link)).content)).pages[0].extract_text()
    assert "Own template" in text
    assert "Amara Okafor" in text
    assert failed["status"] == "failed"
    assert "broken" in failed["error"]


async def test_html_templates_are_printed_by_chromium(house: House) -> None:
    program()
    ann = house.user()
    attack = "<script>document.title='no'</script><b>bold</b> {{ 7 * 7 }} <img src=http://127.0.0.1:1/x>"
    document = await ann.document(profile={"name": "Eve <i>x</i>", "summary": attack})
    job = await ann.export(document, templateSlug="paper", options={"pageSize": "A4"})
    async with house.worker():
        told = await ann.ended(job)
    assert told["status"] == "completed", told
    link = (await ann.get(told["resultUrl"])).headers["location"]
    reader = pypdf.PdfReader(io.BytesIO((await house.web.get(link)).content))
    text = " ".join(reader.pages[0].extract_text().split())
    assert attack in text
    assert "Eve <i>x</i>" in text
    assert (round(reader.pages[0].mediabox.width), round(reader.pages[0].mediabox.height)) == (595, 842)
    refused = await ann.export(document, templateSlug="paper", options={"standard": "a-2b"})
    async with house.worker():
        assert "PDF/A" in (await ann.ended(refused))["error"]


async def test_the_routes_are_described(house: House) -> None:
    paths = (await house.web.get("/api/openapi.json")).json()["paths"]
    for path in ("/api/v1/export/pdf", "/api/v1/export/batch"):
        assert paths[path]["post"]["requestBody"]
    assert len([path for path in paths if path.startswith("/api/v1/export/")]) == 14
