"""The API submits with one statement, with the rights of the caller, and leaves nothing in the connection."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from api_clients import bearer_headers, make_token
from book_app import SERVICE_KEY

from holdfast.engine.connection import Database
from holdfast.server import AppServices

ANN = bearer_headers(make_token("ann"))
SERVICE = bearer_headers(SERVICE_KEY)
REQUESTS: list[tuple[str, dict[str, Any], dict[str, str]]] = [
    ("/api/jobs", {"type": "page", "args": {"number": 1}}, SERVICE),
    ("/api/jobs", {"type": "page", "args": {"number": 1}, "owner": "bob"}, SERVICE),
    ("/api/jobs", {"type": "page", "key": "k1"}, SERVICE),
    ("/api/jobs", {"type": "page", "key": "k1"}, SERVICE),
    ("/api/jobs", {"type": "page", "priority": 5}, ANN),
    ("/api/jobs", {"type": "hidden"}, ANN),
    ("/api/jobs", {"type": ""}, SERVICE),
    ("/api/jobs", {"type": "page", "owner": "bob"}, ANN),
    ("/api/jobs/start", {"type": "book"}, ANN),
    ("/api/jobs/start", {"type": "book", "key": "k2"}, ANN),
    ("/api/jobs/start", {"type": "book", "key": "k2"}, ANN),
    ("/api/jobs/start", {"type": "page"}, ANN),
    ("/api/jobs/start", {"type": "page", "params": {"number": 2}}, SERVICE),
    ("/api/jobs/start", {"type": "book", "batch": "00000000-0000-0000-0000-000000000000"}, ANN),
]


async def send_all(api: httpx.AsyncClient) -> list[tuple[int, Any]]:
    """Send the requests and return the status and the body of each response without its ids."""
    answers: list[tuple[int, Any]] = []
    for path, body, headers in REQUESTS:
        response = await api.post(path, json=body, headers=headers)
        answer = response.json()
        for field in ("id", "tasks", "instance"):
            answer.pop(field, None)
        answers.append((response.status_code, answer))
    return answers


async def test_both_ways_to_submit_answer_alike(
    api: httpx.AsyncClient, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A login without inherited rights cannot call the function: the API opens a transaction instead."""
    one_call = await send_all(api)
    async with db.connection() as connection:
        await connection.execute("delete from holdfast.idempotency_keys")

    async def deny(_: AppServices) -> bool:
        return False

    monkeypatch.setattr(AppServices, "can_submit_as_role", deny)
    assert await send_all(api) == one_call
    assert {status for status, _ in one_call} >= {200, 202, 403, 409}


async def test_role_and_claims_end_with_the_submission(api: httpx.AsyncClient, db: Database) -> None:
    async def read_identity() -> tuple[str, str | None]:
        async with db.connection() as connection:
            row = await connection.fetchrow(
                "select current_user::text, nullif(current_setting('request.jwt.claims', true), '')"
            )
        assert row is not None
        return row[0], row[1]

    login, _ = await read_identity()
    for path, body, headers in REQUESTS:
        await api.post(path, json=body, headers=headers)
        assert await read_identity() == (login, None)


async def test_a_submission_takes_one_statement(
    api: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the first request asks what the login of the API may do."""
    path, body, _ = REQUESTS[0]
    await api.post(path, json=body, headers=SERVICE)

    def refuse_transaction(_: Database) -> None:
        raise AssertionError("a transaction costs three more round trips")

    monkeypatch.setattr(Database, "transaction", refuse_transaction)
    assert (await api.post(path, json=body, headers=SERVICE)).status_code == 202
    assert (await api.post("/api/jobs/start", json={"type": "book"}, headers=ANN)).status_code == 202
