"""The tests of the club: `pytest photo_club` in the folder above, with a PostgreSQL of their own."""

from __future__ import annotations

import asyncio
import io
import json
import zipfile
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import httpx
import pytest

from holdfast.testing import Holdfast
from photo_club import tasks, web


@pytest.fixture(scope="session")
def hf_prepare() -> str:
    return web.SCHEMA


@pytest.fixture
async def http(hf: Holdfast) -> AsyncIterator[httpx.AsyncClient]:
    hf.use(tasks)
    await web.prepare()
    transport = httpx.ASGITransport(web.app)  # it uses the database of the test
    async with httpx.AsyncClient(transport=transport, base_url="http://club") as http:
        yield http


@pytest.fixture
def mails(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, str]]:
    sent: list[tuple[str, str, str]] = []

    async def deliver(to: str, text: str, *, key: str) -> None:
        sent.append((to, text, key))

    monkeypatch.setattr(tasks, "deliver_mail", deliver)
    return sent


async def sign_up(http: httpx.AsyncClient, *emails: str) -> None:
    for email in emails:
        assert (await http.post("/members", json={"email": email})).status_code == 201


async def test_a_signup_sends_one_welcome(hf: Holdfast, http: httpx.AsyncClient, mails: list[Any]) -> None:
    await sign_up(http, "ann@example.com")
    assert (await http.post("/members", json={"email": "ann@example.com"})).status_code == 409
    hf.assert_submitted(tasks.welcome, email="ann@example.com", count=1)
    await hf.drain()
    assert [(to, text) for to, text, _ in mails] == [("ann@example.com", "Welcome!")]
    async with hf.client.connection() as connection:
        assert await connection.fetchval("select welcomed_at is not null from members")


async def test_a_signup_that_rolls_back_submits_nothing(
    hf: Holdfast, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit = tasks.client.submit

    async def submit_and_fail(*args: Any, **options: Any) -> Any:
        await submit(*args, **options)
        raise ConnectionError("The power fails right here.")

    monkeypatch.setattr(tasks.client, "submit", submit_and_fail)
    with pytest.raises(ConnectionError):
        await http.post("/members", json={"email": "ann@example.com"})
    hf.assert_submitted(tasks.welcome, count=0)


async def test_every_night_each_member_gets_one_newsletter(
    hf: Holdfast, http: httpx.AsyncClient, mails: list[Any]
) -> None:
    await sign_up(http, "ann@example.com", "bob@example.com", "eve@example.org")
    await hf.drain()
    mails.clear()
    await hf.drain(until=timedelta(days=1))
    assert sorted(to for to, _, _ in mails) == ["ann@example.com", "bob@example.com", "eve@example.org"]
    assert len({key for _, _, key in mails}) == 3
    [limit] = await hf.client.limits.list()
    assert (limit.per_key, limit.max_running) == (True, 2)


async def test_an_album_is_watched_and_downloaded_with_a_signed_link(
    hf: Holdfast, http: httpx.AsyncClient
) -> None:
    await sign_up(http, "ann@example.com")
    for title in ("sea", "hill"):
        photo = {"email": "ann@example.com", "title": title}
        assert (await http.post("/photos", json=photo)).status_code == 201
    album = (await http.post("/members/ann@example.com/albums")).json()
    assert (await http.get(album["link"])).status_code == 404
    events = asyncio.create_task(http.get(album["events"]))
    await hf.drain()
    states = [
        json.loads(frame.removeprefix("data: ")) for frame in (await events).text.split("\n\n") if frame
    ]
    assert (states[-1]["status"], states[-1]["percent"]) == ("succeeded", 100)
    link = (await http.get(album["link"])).json()["url"]
    assert link.startswith("/tasks/files/")
    response = await http.get(link)
    with zipfile.ZipFile(io.BytesIO(response.content)) as archive:
        assert archive.namelist() == ["page 1.txt", "page 2.txt"]
        assert archive.read("page 1.txt") == b"*** sea ***"


async def test_an_album_without_photos_fails_with_a_reason(hf: Holdfast, http: httpx.AsyncClient) -> None:
    await sign_up(http, "ann@example.com")
    album = (await http.post("/members/ann@example.com/albums")).json()
    await hf.drain()
    job = await hf.client.get(album["job"])
    assert job.error is not None
    assert job.error.message == "An album needs at least one photo."
