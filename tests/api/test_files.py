"""Files over HTTP: signed links, ranges, ZIP archives, and access by owner only."""

from __future__ import annotations

import base64
import io
import os
import time
import zipfile
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx
import msgspec
import pytest
from api_clients import bearer_headers, make_token, serve_app
from book_app import SERVICE_KEY
from manual_worker import ManualWorker, submit_job

from holdfast import Client
from holdfast.engine import artifacts
from holdfast.engine.connection import Connection, Database
from holdfast.errors import StorageUnavailableError
from holdfast.model import Artifact
from holdfast.server import create_app
from holdfast.server.api.zip_archives import make_zip_entry, stream_zip
from holdfast.settings import Secret, Settings
from holdfast.testing import Clock, wait_until

ANN, BOB, SERVICE = (
    bearer_headers(make_token("ann")),
    bearer_headers(make_token("bob")),
    bearer_headers(SERVICE_KEY),
)
TITLE = "Übersicht „2026“; 日本 📊.pdf"


@pytest.fixture
def api_settings(api_settings: Settings, tmp_path: Path) -> Settings:
    return replace(api_settings, storage_url=Secret(str(tmp_path / "store")), signing_key=Secret("k" * 40))


@pytest.fixture
async def client(db: Database, api_settings: Settings) -> AsyncIterator[Client]:
    async with Client(db.url.reveal(), settings=api_settings) as client:
        yield client


CONTENT = os.urandom(300_000)


async def save_file(client: Client, name: str = TITLE, content: bytes = CONTENT, **options: Any) -> Artifact:
    options.setdefault("owner", "ann")
    return await client.files.put(name, content, **options)


async def test_a_link_downloads_the_file_under_its_name(api: httpx.AsyncClient, client: Client) -> None:
    file = await save_file(client)
    redirect = await api.get(f"/api/artifacts/{file.id}", headers=ANN)
    assert redirect.status_code == 302
    assert redirect.headers["location"].startswith("/files/")
    response = await api.get(redirect.headers["location"])
    assert (response.status_code, response.content) == (200, CONTENT)
    assert response.headers["content-type"] == "application/pdf"
    assert response.headers["cache-control"] == "private, no-store"
    assert response.headers["x-content-type-options"] == "nosniff"
    assert "sandbox" in response.headers["content-security-policy"]
    disposition = response.headers["content-disposition"]
    assert disposition.startswith('attachment; filename="Ubersicht ')
    assert "filename*=UTF-8''%C3%9Cbersicht%20%E2%80%9E2026%E2%80%9C%3B%20%E6%97%A5" in disposition
    assert (await client.files.get(file.id)).downloads == 1
    head = await api.head(f"/api/artifacts/{file.id}", headers=ANN)
    assert (head.status_code, (await client.files.get(file.id)).downloads) == (302, 1)
    inline_link = (
        await api.get(f"/api/artifacts/{file.id}/link?inline=true&expires_s=300", headers=ANN)
    ).json()
    response = await api.get(inline_link["url"])
    assert response.headers["content-disposition"].startswith("inline; ")


async def test_a_link_works_beside_an_expired_token(api: httpx.AsyncClient, client: Client) -> None:
    """The link is the credential: a browser or a client may send another one along."""
    link = (await api.get(f"/api/artifacts/{(await save_file(client)).id}", headers=ANN)).headers["location"]
    for headers in (bearer_headers(make_token("ann", exp=1)), bearer_headers("x"), BOB):
        assert (await api.get(link, headers=headers)).content == CONTENT


async def test_active_content_is_never_shown_inline(api: httpx.AsyncClient, client: Client) -> None:
    for name in ("page.html", "drawing.svg", "x.xhtml", "a.js"):
        file = await save_file(client, name, b"<script>alert(1)</script>")
        response = await api.get(await client.files.create_download_link(file, inline=True))
        assert response.headers["content-disposition"].startswith("attachment; "), name


async def test_range_requests(api: httpx.AsyncClient, client: Client) -> None:
    file = await save_file(client)
    link = await client.files.create_download_link(file)
    size = len(CONTENT)
    cases = {
        "bytes=0-9": (206, CONTENT[:10], f"bytes 0-9/{size}"),
        "bytes=299990-": (206, CONTENT[-10:], f"bytes 299990-299999/{size}"),
        "bytes=-5": (206, CONTENT[-5:], f"bytes 299995-299999/{size}"),
        "bytes=299999-999999999": (206, CONTENT[-1:], f"bytes 299999-299999/{size}"),
        "bytes=300000-": (416, b"", f"bytes */{size}"),
        "bytes=-0": (416, b"", f"bytes */{size}"),
        "bytes=5-2": (200, CONTENT, None),
        "bytes=-": (200, CONTENT, None),
        "bytes=0-1,5-9": (200, CONTENT, None),
        "lines=1-2": (200, CONTENT, None),
        "bytes=99999999999999999999999-": (200, CONTENT, None),
    }
    for range_header, (status, content, content_range) in cases.items():
        response = await api.get(link, headers={"range": range_header})
        assert (response.status_code, response.content) == (status, content), range_header
        assert response.headers.get("content-range") == content_range
    other = await api.get(link, headers={"range": "bytes=0-9", "if-range": '"other"'})
    assert other.status_code == 200
    head = await api.head(link, headers={"range": "bytes=0-9"})
    assert (head.status_code, head.headers["content-length"], head.content) == (206, "10", b"")
    empty = await save_file(client, "empty", b"")
    assert (await api.get(await client.files.create_download_link(empty))).content == b""


async def test_forged_links_are_rejected(api: httpx.AsyncClient, client: Client, tmp_path: Path) -> None:
    file, other = await save_file(client), await save_file(client, "b.txt", b"b")
    link = await client.files.create_download_link(file)
    payload, signature = link.removeprefix("/files/").split(".")
    text = base64.urlsafe_b64decode(payload + "==")
    forged = base64.urlsafe_b64encode(text.replace(str(file.id).encode(), str(other.id).encode())).decode()
    later = msgspec.json.decode(text)
    later[3] += 1000
    stretched = base64.urlsafe_b64encode(msgspec.json.encode(later)).rstrip(b"=").decode()
    other_client = Client(settings=replace(client.settings, signing_key=Secret("x" * 40)))
    words = [
        "", ".", "x", "x.y", payload, f"{payload}.", f".{signature}",
        f"{signature}.{payload}",  # parts in the wrong order
        f"{payload}.{signature}.{signature}", f"{payload}.{payload}.{signature}",
        f"{payload}{payload}.{signature}",
        f"{forged.rstrip('=')}.{signature}", f"{stretched}.{signature}",
        f"{payload}.{signature[:-1]}", f"{payload}.{signature}=", f"{payload}.{signature}A",
        f"{payload[:-1]}.{signature}",
        f"{payload}.{'A' * len(signature)}", f"{payload}.{signature.swapcase()}", f"%20{payload}.{signature}",
        (await other_client.files.create_download_link(file)).removeprefix("/files/"), "A" * 5000 + ".A",
    ]  # fmt: skip
    # The last character has unused bits; a different character with the same value is rejected too.
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    words.append(f"{payload}.{signature[:-1]}{letters[letters.index(signature[-1]) ^ 1]}")
    for word in words:
        response = await api.get(f"/files/{word}")
        assert response.status_code == 404, word
        assert str(tmp_path) not in response.text
    for doubled in (f"{link}?x=1", f"{link}?{link}"):
        assert (await api.get(doubled)).status_code == 404
    assert (await api.post(link)).status_code == 405
    assert (await api.delete(link)).status_code == 405
    assert (await api.get(link)).status_code == 200


async def test_expired_links_and_files_give_410(
    api: httpx.AsyncClient, client: Client, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = await save_file(client, ttl=timedelta(hours=2))
    link = await client.files.create_download_link(file, timedelta(minutes=5))
    for span in (timedelta(minutes=4), timedelta(hours=2)):
        with pytest.raises(Exception, match="between 5 minutes and 1 hour"):
            await client.files.create_download_link(file, span)
    for wrong in ("expires_s=299", "expires_s=3601", "expires_s=x", "x=1"):
        assert (await api.get(f"/api/artifacts/{file.id}?{wrong}", headers=ANN)).status_code == 422
    await clock.advance(timedelta(hours=3))
    for path in (link, f"/api/artifacts/{file.id}", f"/api/artifacts/{file.id}/link"):
        response = await api.get(path, headers=ANN)
        assert response.status_code == 410, path
        assert "expired" in response.json()["detail"]
    assert (await client.files.sweep()).deleted == 1
    assert (await api.get(link)).status_code == 410
    deleted = await save_file(client)
    link = await client.files.create_download_link(deleted)
    assert (await api.delete(f"/api/artifacts/{deleted.id}", headers=ANN)).status_code == 204
    assert (await api.get(link)).status_code == 410
    assert (await api.delete(f"/api/artifacts/{deleted.id}", headers=ANN)).status_code == 410
    fresh = await save_file(client)
    link = await client.files.create_download_link(fresh)
    now = time.time()
    monkeypatch.setattr("holdfast.storage.signed_links.time.time", lambda: now + 3601)
    response = await api.get(link)
    assert (response.status_code, response.json()["detail"]) == (
        410,
        "This link has expired. Request a new link.",
    )


async def test_owners_reach_their_own_files_only(
    api: httpx.AsyncClient, client: Client, conn: Connection
) -> None:
    job = await submit_job(conn, owner="ann")
    worker = ManualWorker(conn)
    await worker.finish_task(await worker.claim_one_task())
    file = await save_file(client, job=job)
    for path in ("/api/artifacts/{}", "/api/artifacts/{}/link"):
        other = uuid4()
        foreign = await api.get(path.format(file.id), headers=BOB)
        missing = await api.get(path.format(other), headers=BOB)
        assert foreign.status_code == 404
        assert foreign.text.replace(str(file.id), "ID") == missing.text.replace(str(other), "ID")
        assert (await api.get(path.format(file.id))).status_code == 401
        assert (await api.get(path.format(file.id), headers=ANN)).status_code in {200, 302}
        assert (await api.get(path.format(file.id), headers=SERVICE)).status_code in {200, 302}
    assert (await api.delete(f"/api/artifacts/{file.id}", headers=BOB)).status_code == 404
    assert (await api.post(f"/api/artifacts/{file.id}/regenerate", headers=BOB)).status_code == 404
    for tail in ("artifacts", "zip"):
        other = uuid4()
        foreign = await api.get(f"/api/jobs/{job}/{tail}", headers=BOB)
        missing = await api.get(f"/api/jobs/{other}/{tail}", headers=BOB)
        assert foreign.status_code == 404
        assert foreign.text.replace(str(job), "ID") == missing.text.replace(str(other), "ID")
        assert (await api.get(f"/api/jobs/{job}/{tail}", headers=ANN)).status_code == 200
    listed = (await api.get(f"/api/jobs/{job}/artifacts", headers=ANN)).json()["artifacts"]
    assert [(each["name"], each["url"]) for each in listed] == [(TITLE, f"/api/artifacts/{file.id}")]
    assert "key" not in listed[0]
    assert (await api.get("/api/usage", headers=ANN)).json()["bytes"] == {"used": len(CONTENT), "limit": None}
    assert (await api.get("/api/usage?owner=ann", headers=BOB)).json()["owner"] == "bob"
    assert (await api.get("/api/usage?owner=ann", headers=SERVICE)).json()["files"]["used"] == 1


async def test_a_deleted_file_is_regenerated(api: httpx.AsyncClient, conn: Connection, clock: Clock) -> None:
    job, worker = await submit_job(conn, owner="ann"), ManualWorker(conn)
    task = await worker.claim_one_task()
    staged = await artifacts.stage_artifact(conn, task, {"name": "a", "ttl_s": 60})
    await artifacts.record_artifact_upload(conn, staged.id, task, size=0, sha256="0" * 64, meta={})
    await worker.finish_task(task)
    await clock.advance(timedelta(minutes=2))
    gone = await api.get(f"/api/artifacts/{staged.id}", headers=ANN)
    assert (gone.status_code, "Regenerate it" in gone.json()["detail"]) == (410, True)
    again = await api.post(f"/api/artifacts/{staged.id}/regenerate", headers=ANN)
    assert (again.status_code, again.json()["job_id"]) == (202, str(job))
    assert (await worker.claim_one_task()).id == task.id


async def test_the_files_of_a_batch_are_downloaded_as_a_zip(
    api: httpx.AsyncClient, client: Client, conn: Connection
) -> None:
    batch = UUID(str(await conn.fetchval("select holdfast.open_batch('b', null, 'ann')")))
    worker = ManualWorker(conn)
    contents = {}
    for number in range(3):
        job = await submit_job(conn, owner="ann", batch=str(batch))
        await worker.finish_task(await worker.claim_one_task())
        contents[number] = os.urandom(70_000) if number else b"text " * 50_000
        await save_file(client, "Report.txt" if number < 2 else "report.TXT", contents[number], job=job)
    failed = await submit_job(conn, owner="ann", batch=str(batch), attempts=1)
    await worker.finish_task(
        await worker.claim_one_task(), "fail", {"type": "ValueError", "message": "10.0.0.3 said no"}
    )
    lost = await save_file(client, "lost.bin", b"lost", job=job)
    await client.files.store.delete([lost.key])
    response = await api.get(f"/api/batches/{batch}/zip", headers=ANN)
    assert response.headers["content-type"] == "application/zip"
    assert response.headers["content-disposition"].startswith(f'attachment; filename="{batch}.zip"')
    with zipfile.ZipFile(io.BytesIO(response.content)) as archive:
        assert archive.testzip() is None
        assert archive.namelist() == ["Report.txt", "Report (2).txt", "report (3).TXT", "manifest.json"]
        assert [archive.read(name) for name in archive.namelist()[:3]] == list(contents.values())
        manifest = msgspec.json.decode(archive.read("manifest.json"))
    assert not manifest["complete"]
    assert [each["size"] for each in manifest["files"]] == [250_000, 70_000, 70_000]
    assert [(each["name"], each["included"]) for each in manifest["failures"]] == [("lost.bin", False)]
    assert manifest["batch"] == {"total": 4, "ended": 4, "failed": 1}
    assert [(each["id"], each["status"]) for each in manifest["failed_jobs"]] == [(str(failed), "failed")]
    assert "10.0.0.3" not in str(manifest)
    assert len(response.content) < 150_000  # text is compressed


async def test_a_zip_resumes_reading_after_a_store_error(client: Client) -> None:
    file = await save_file(client, "a.bin", CONTENT)
    good = make_zip_entry(client.files.store, file)
    opened: list[int] = []

    def breaks(start: int) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        @asynccontextmanager
        async def broken() -> AsyncIterator[AsyncIterator[bytes]]:
            async def pieces() -> AsyncIterator[bytes]:
                opened.append(start)
                async with good.open(start) as source:
                    async for piece in source:
                        yield piece[:100_000]
                        break
                raise StorageUnavailableError("gone in the middle")

            yield pieces()

        return broken() if len(opened) < 2 else good.open(start)

    entries = [replace(good, open=breaks, name="mended.bin")]
    octets = b"".join([piece async for piece in stream_zip(entries)])
    with zipfile.ZipFile(io.BytesIO(octets)) as archive:
        assert archive.read("mended.bin") == CONTENT
        assert msgspec.json.decode(archive.read("manifest.json"))["complete"]
    assert opened == [0, 100_000]


async def test_a_disconnect_stops_reading_from_the_store(
    db: Database, api_settings: Settings, client: Client, conn: Connection
) -> None:
    job = await submit_job(conn, owner="ann")
    file = await save_file(client, "big.bin", bytes(4_000_000), job=job)
    for number in range(40):
        await save_file(client, f"{number}.bin", bytes(4_000_000), job=job)
    store = CountingStore(client.files.store)
    app = create_app(api_settings, database=db, store=store)
    async with serve_app(app) as address, httpx.AsyncClient(base_url=address) as browser:
        for path in (f"/api/jobs/{job}/zip", await client.files.create_download_link(file)):
            store.reset()
            async with browser.stream("GET", path, headers=ANN) as response:
                assert response.status_code == 200
                async for _ in response.aiter_raw():
                    break
            await wait_until(lambda: store.opened == store.closed, what="the end of all reading")
            assert 1 <= store.opened < 30


class CountingStore:
    """A store that counts its open objects."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.reset()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def reset(self) -> None:
        self.opened = self.closed = 0

    def open(self, key: str, **part: Any) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        @asynccontextmanager
        async def watched() -> AsyncIterator[AsyncIterator[bytes]]:
            self.opened += 1
            try:
                async with self._store.open(key, **part) as pieces:
                    yield pieces
            finally:
                self.closed += 1

        return watched()


async def test_an_unavailable_store_gives_503(
    db: Database, api_settings: Settings, client: Client, tmp_path: Path
) -> None:
    file = await save_file(client)
    link = await client.files.create_download_link(file)
    (tmp_path / "store" / file.key).unlink()
    transport = httpx.ASGITransport(create_app(api_settings, database=db), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://api") as api:
        response = await api.get(link)
    assert response.status_code == 410
    assert str(tmp_path) not in response.text
