"""pip install 'holdfast[testing]' && pytest: the web application with the real engine."""

import asyncio

import pytest
import tasks
import web
from flask.testing import FlaskClient

from holdfast.testing import Holdfast


@pytest.fixture(scope="session")
def hf_prepare() -> str:
    return web.SCHEMA  # the tables of the application, in the database of every test


@pytest.fixture
def http(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> FlaskClient:
    monkeypatch.setenv("DATABASE_URL", hf.url)
    return web.app.test_client()


async def test_a_note_and_its_job_are_stored_together(hf: Holdfast, http: FlaskClient) -> None:
    # Views are plain functions, so they run in a thread beside the event loop of the test.
    response = await asyncio.to_thread(lambda: http.post("/notes", json={"text": "to be or not to be"}))
    assert response.status_code == 202
    hf.assert_submitted(tasks.count_words, count=1)
    await hf.drain()
    note = await asyncio.to_thread(lambda: http.get(response.get_json()["note"]))
    assert note.get_json()["words"] == {"to": 2, "be": 2, "or": 1, "not": 1}


async def test_an_invalid_note_submits_no_job(hf: Holdfast, http: FlaskClient) -> None:
    response = await asyncio.to_thread(lambda: http.post("/notes", json={}))
    assert response.status_code == 400
    hf.assert_submitted(tasks.count_words, count=0)
