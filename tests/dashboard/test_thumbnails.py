"""Small pictures of image files in lists: images only, whatever type a file declares."""

from __future__ import annotations

import hashlib

from dashboard_server import DashboardServer

from holdfast.engine import artifacts
from holdfast.engine.connection import Connection


def test_lists_show_thumbnails_of_images(dashboard: DashboardServer) -> None:
    shot, page = dashboard.ids["files"]["shot.png"], dashboard.ids["files"]["page.html"]
    with dashboard.sign_in("admin") as client:
        for path in ("/files", f"/jobs/{dashboard.ids['graph']}?tab=files"):
            html = client.get(path).text
            assert f"/files/{shot}/thumbnail" in html
            assert f"/files/{page}/thumbnail" not in html
        image = client.get(f"/files/{shot}/thumbnail")
        assert (image.status_code, image.headers["content-type"]) == (200, "image/png")
        assert "sandbox" in image.headers["content-security-policy"]
        assert image.content.startswith(b"\x89PNG")


def test_only_small_images_are_sent(dashboard: DashboardServer) -> None:
    async def create_large_lost_image(conn: Connection) -> str:
        declaration = {"name": "large.png", "content_type": "image/png", "job": str(dashboard.ids["graph"])}
        staged = await artifacts.stage_artifact_without_task(conn, declaration)
        digest = hashlib.sha256(b"").hexdigest()
        await artifacts.record_artifact_upload(conn, staged.id, None, size=1_000_001, sha256=digest, meta={})
        return str(staged.id)

    large = dashboard.run_query(create_large_lost_image)
    files = dashboard.ids["files"]
    with dashboard.sign_in("admin") as client:
        for file in (files["mislabelled.png"], files["drawing.svg"], files["report.pdf"], large):
            response = client.get(f"/files/{file}/thumbnail")
            assert response.headers["content-type"] == "image/gif"
            assert len(response.content) < 50  # the empty picture
        assert f"/files/{large}/thumbnail" not in client.get("/files").text


def test_a_thumbnail_needs_the_permission_to_download(dashboard: DashboardServer) -> None:
    shot = dashboard.ids["files"]["shot.png"]
    with dashboard.sign_in("support") as client:
        assert client.get(f"/files/{shot}/thumbnail").status_code == 403
        assert "/thumbnail" not in client.get("/files").text
    with dashboard.sign_in("admin", tenant="someone else") as client:
        assert client.get(f"/files/{shot}/thumbnail").status_code == 404
