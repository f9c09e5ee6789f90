"""The whole way through a store that speaks S3: put, link, fetch, show, delete, sweep."""

from __future__ import annotations

import secrets
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import httpx
from stores import s3_url

from holdfast import Client
from holdfast.engine.connection import Database
from holdfast.server.api import create_app
from holdfast.settings import Secret, Settings

CONTENT = secrets.token_bytes(50_000)


async def test_a_file_from_its_putting_to_its_end(
    db: Database, settings: Settings, moto_port: int, tmp_path: Path
) -> None:
    settings = replace(
        settings,
        home=tmp_path,
        service_key=Secret("k"),
        storage_url=Secret(s3_url(moto_port, prefix=secrets.token_hex(4))),
    )
    app = create_app(settings, database=db)
    inside = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://api")
    async with (
        Client(db.url.reveal(), settings=settings) as client,
        inside as api,
        httpx.AsyncClient() as world,
    ):
        file = await client.files.put("Übersicht.pdf", CONTENT, owner="ann")
        key = {"authorization": "Bearer k"}
        link = (await api.get(f"/api/artifacts/{file.id}?expires_s=300", headers=key)).headers["location"]
        assert link.startswith(f"http://127.0.0.1:{moto_port}/")
        assert "X-Amz-Expires=300" in link
        answer = await world.get(link)
        assert answer.content == CONTENT
        assert answer.headers["content-type"] == "application/pdf"
        assert "filename*=UTF-8''%C3%9Cbersicht.pdf" in answer.headers["content-disposition"]
        part = await world.get(link, headers={"range": "bytes=10-19"})
        assert (part.status_code, part.content) == (206, CONTENT[10:20])
        shown = (await api.get(f"/api/artifacts/{file.id}?inline=true", headers=key)).headers["location"]
        answer = await api.get(shown, headers={"range": "bytes=-5"})
        assert (answer.status_code, answer.content) == (206, CONTENT[-5:])
        assert answer.headers["content-disposition"].startswith("inline; ")
        assert (await client.files.sign(file, timedelta(minutes=5))).startswith("http://")
        await client.files.delete(file.id)
        assert (await client.files.sweep()).deleted == 1
        assert (await world.get(link)).status_code == 404
        assert [page async for page in client.files.store.list()] in ([], [[]])
    await app.state.holdfast.close()
