"""pip install 'holdfast[testing]' && pytest: views and tasks with the real engine."""

import asyncio
from typing import Any

from django.db import connections
from django.test import Client
from tasks import count_words

from holdfast.testing import Holdfast


async def call_view(method: str, path: str, **arguments: Any) -> Any:
    """Call a view in a thread: views are plain functions and use a connection of their thread."""

    def call() -> Any:
        try:
            return getattr(Client(HTTP_HOST="localhost"), method)(path, **arguments)
        finally:
            connections.close_all()

    return await asyncio.to_thread(call)


async def test_a_note_and_its_job_are_stored_together(hf: Holdfast) -> None:
    text = {"text": "to be or not to be"}
    response = await call_view("post", "/notes", data=text, content_type="application/json")
    assert response.status_code == 202
    hf.assert_submitted(count_words, count=1)
    await hf.drain()
    note = await call_view("get", response.json()["note"])
    assert note.json()["words"] == {"to": 2, "be": 2, "or": 1, "not": 1}


async def test_an_unknown_note_is_404(hf: Holdfast) -> None:
    assert (await call_view("get", "/notes/7")).status_code == 404
