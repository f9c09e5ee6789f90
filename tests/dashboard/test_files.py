"""Files in the dashboard: downloads, previews, retention, and files that the store lost."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import AsyncGenerator
from uuid import UUID

from dashboard_server import DashboardServer

from holdfast.engine import artifacts, jobs
from holdfast.engine.connection import Connection
from holdfast.storage import open_store


def test_a_file_that_the_store_lost_is_an_error_page(dashboard: DashboardServer) -> None:
    """The download had started before the store was asked, and the browser got a broken file."""

    async def create_file_without_content(conn: Connection) -> str:
        job = await jobs.submit(conn, {"type": "legacy", "queue": "files"})
        declaration = {"name": "lost.png", "content_type": "image/png", "job": str(job.id)}
        staged = await artifacts.stage_artifact_without_task(conn, declaration)
        await artifacts.record_artifact_upload(conn, staged.id, None, size=1, sha256="0" * 64, meta={})
        return str(staged.id)

    file = dashboard.run_query(create_file_without_content)
    with dashboard.sign_in("admin") as client:
        assert client.get(f"/files/{file}/content").status_code == 404
        assert client.get(f"/files/{file}/preview").status_code == 404
        assert "no longer has this file" in client.get(f"/files/{file}").text


def test_files_are_downloaded_as_attachments(dashboard: DashboardServer) -> None:
    text = b"<script>alert(1)</script>"

    async def create_html_file(conn: Connection) -> tuple[str, UUID]:
        batch = await jobs.open_batch(conn, "files", owner="acme")
        job = await jobs.submit(
            conn, {"type": "legacy", "queue": "files", "owner": "acme", "batch": str(batch)}
        )
        declaration = {"name": "evil.html", "kind": "file", "content_type": "text/html", "job": str(job.id)}
        staged = await artifacts.stage_artifact_without_task(conn, declaration)

        async def read_chunks() -> AsyncGenerator[bytes]:
            yield text

        await open_store(dashboard.settings).put(staged.key, read_chunks())
        digest = hashlib.sha256(text).hexdigest()
        await artifacts.record_artifact_upload(conn, staged.id, None, size=len(text), sha256=digest, meta={})
        return str(staged.id), batch

    file, batch = dashboard.run_query(create_html_file)
    with dashboard.sign_in("viewer") as client:
        response = client.get(f"/files/{file}/content")
        assert (response.status_code, response.content) == (200, text)
        assert response.headers["content-type"] == "application/octet-stream"
        assert response.headers["content-disposition"].startswith("attachment")
        assert "sandbox" in response.headers["content-security-policy"]
        archive_response = client.get(f"/batches/{batch}/zip")
        with zipfile.ZipFile(io.BytesIO(archive_response.content)) as archive:
            assert text in [archive.read(name) for name in archive.namelist()]
    with dashboard.sign_in("support", "acme") as client:
        assert client.get(f"/files/{file}/content").status_code == 403
    with dashboard.sign_in("viewer", "zeta") as client:
        assert client.get(f"/files/{file}/content").status_code == 404
        assert client.get(f"/batches/{batch}/zip").status_code == 404


def test_previews_depend_on_the_content_and_never_run(dashboard: DashboardServer) -> None:
    kinds = {"shot.png": "<img", "report.pdf": "<iframe", "voice.wav": "<audio"}
    kinds |= dict.fromkeys(("ocr.json", "page.html", "drawing.svg", "mislabelled.png"), '<pre class="json"')
    types = {"shot.png": "image/png", "report.pdf": "application/pdf", "voice.wav": "audio/wav"}
    with dashboard.sign_in("viewer") as client:
        for name, file in dashboard.ids["files"].items():
            page = client.get(f"/files/{file}").text
            assert kinds.get(name, "There is no preview") in page, name
            assert "<script>" not in page, name
            response = client.get(f"/files/{file}/preview")
            assert response.status_code == (200 if name in types else 404), name
            if name in types:
                assert response.headers["content-type"] == types[name]
                assert response.headers["x-content-type-options"] == "nosniff"
                assert "default-src 'none'" in response.headers["content-security-policy"]
                assert ("sandbox" in response.headers["content-security-policy"]) == (name != "report.pdf")
    with dashboard.sign_in("support") as client:
        file = dashboard.ids["files"]["ocr.json"]
        assert "18211" not in client.get(f"/files/{file}").text
        assert client.get(f"/files/{file}/preview").status_code == 403
    with dashboard.sign_in("viewer", "zeta") as client:  # the job is acme's
        for path in (f"/files/{file}", f"/files/{file}/preview", f"/files/{file}/content"):
            assert client.get(path).status_code == 404


def test_file_retention_is_changed(dashboard: DashboardServer) -> None:
    file = dashboard.ids["files"]["ocr.json"]
    with dashboard.sign_in("operator") as client:
        response = dashboard.post_form(client, f"/files/{file}/keep", span="30 days")
        assert response.headers["location"].endswith(f"/files/{file}")
        kept = dashboard.run_query(lambda conn: artifacts.get_artifact(conn, file))
        assert kept.expires_at is not None
        assert 29 < (kept.expires_at - kept.created_at).days <= 30
        dashboard.post_form(client, f"/files/{file}/keep", span="Forever")
        assert dashboard.run_query(lambda conn: artifacts.get_artifact(conn, file)).expires_at is None
        assert dashboard.post_form(client, f"/files/{file}/keep", span="a while").status_code == 422
