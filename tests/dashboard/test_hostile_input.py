"""Hostile forms get a 4xx, and searches do not reveal what a role sees masked."""

from __future__ import annotations

from uuid import UUID

import httpx
import pytest
from dashboard_server import DashboardServer
from manual_worker import ManualWorker

from holdfast.engine import jobs, task_types
from holdfast.engine.connection import Connection


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"&".join(b"f%d=x" % n for n in range(5001)), 413),
        (b"key=" + b"x" * 1_100_000, 413),
        (b"key=%00", 400),
        (b"key=%ff%fe&%zz&=&&&key", 403),
        (b"\xff\xfe\x00\x80", 400),
        (b"", 403),
    ],
    ids=["many fields", "large", "NUL", "broken escapes", "binary", "empty"],
)
def test_forms_that_cannot_be_parsed_get_4xx(dashboard: DashboardServer, body: bytes, status: int) -> None:
    """Anybody can send a form to the login."""
    for content_type in (
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "text/plain",
    ):
        headers = {"sec-fetch-site": "same-origin", "content-type": content_type}
        response = httpx.post(f"{dashboard.base}/login", content=body, headers=headers, timeout=60)
        assert response.status_code in {status, 429}, response.text


@pytest.mark.parametrize("role", ["viewer", "operator", "support"])
def test_searches_do_not_confirm_guesses_of_masked_values(dashboard: DashboardServer, role: str) -> None:
    """The message of an error contains the secret, and these roles see it masked."""

    async def fail_with_secret(conn: Connection) -> UUID:
        job = {
            "type": "leak",
            "queue": "leaks",
            "attempts": 1,
            "args": {"api_token": "swordfish-value", "pin": "4711"},
        }
        submitted = await jobs.submit(conn, {**job, "labels": {"api_token": "swordfish-value"}})
        schema = {"properties": {"pin": {"type": "string", "writeOnly": True}}}
        await task_types.register_task_types(
            conn, "w", [{"name": "leak", "queue": "leaks", "schema": schema}]
        )
        worker = ManualWorker(conn, "leaker", ["leaks"])
        error = {"type": "LeakError", "message": "denied for swordfish-value"}
        await worker.finish_task(await worker.claim_one_task(), "fail", error)
        return submitted.id

    job = str(dashboard.run_query(fail_with_secret))

    def is_found(client: httpx.Client, search: str) -> bool:
        return job in client.get("/jobs", params={"q": f"task:leak {search}"}).text

    guesses = (
        "swordfish",
        "denied",
        "error:swordfish-value",
        "args.pin:4711",
        "tag:api_token=swordfish-value",
    )
    with dashboard.sign_in(role) as client:
        assert is_found(client, "LeakError")
        assert is_found(client, "error:LeakError")
        assert not [guess for guess in guesses if is_found(client, guess)]
        assert is_found(client, "-swordfish"), "an exclusion would tell as much"
        assert is_found(client, "-error:swordfish-value")
        if role == "operator":
            preview = client.get("/bulk/new", params={"verb": "retry", "q": "swordfish", "all": "yes"})
            assert job not in preview.text
    with dashboard.sign_in("admin") as client:
        assert [guess for guess in guesses if is_found(client, guess)] == list(guesses)
