"""The life of a file on S3, from put to sweep: signed URL, download, inline view, delete."""

from __future__ import annotations

import secrets
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import httpx
from object_store_servers import format_s3_url

from holdfast import Client
from holdfast.engine.connection import Database
from holdfast.server import create_app
from holdfast.settings import Secret, Settings

CONTENT = secrets.token_bytes(50_000)


async def test_file_from_put_to_sweep(
    db: Database, settings: Settings, moto_port: int, tmp_path: Path
) -> None:
    settings = replace(
        settings,
        home=tmp_path,
        service_key=Secret("k"),
        storage_url=Secret(format_s3_url(moto_port, prefix=secrets.token_hex(4))),
    )
    app = create_app(settings, database=db)
    api_client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://api")
    async with (
        Client(db.url.reveal(), settings=settings) as client,
        api_client as api,
        httpx.AsyncClient() as http,
    ):
        file = await client.files.put("Übersicht.pdf", CONTENT, owner="ann")
        headers = {"authorization": "Bearer k"}
        link = (await api.get(f"/api/artifacts/{file.id}?expires_s=300", headers=headers)).headers["location"]
        assert link.startswith(f"http://127.0.0.1:{moto_port}/")
        assert "X-Amz-Expires=300" in link
        response = await http.get(link)
        assert response.content == CONTENT
        assert response.headers["content-type"] == "application/pdf"
        assert "filename*=UTF-8''%C3%9Cbersicht.pdf" in response.headers["content-disposition"]
        partial = await http.get(link, headers={"range": "bytes=10-19"})
        assert (partial.status_code, partial.content) == (206, CONTENT[10:20])
        inline_link = (await api.get(f"/api/artifacts/{file.id}?inline=true", headers=headers)).headers[
            "location"
        ]
        response = await api.get(inline_link, headers={"range": "bytes=-5"})
        assert (response.status_code, response.content) == (206, CONTENT[-5:])
        assert response.headers["content-disposition"].startswith("inline; ")
        assert (await client.files.create_download_link(file, timedelta(minutes=5))).startswith("http://")
        await client.files.delete(file.id)
        assert (await client.files.sweep()).deleted == 1
        assert (await http.get(link)).status_code == 404
        assert [page async for page in client.files.store.list()] in ([], [[]])
    await app.state.holdfast.close()
