"""Jobs over HTTP: start, list, read, wait, cancel and retry, for users and services."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from uuid import UUID, uuid4

import httpx
from api_clients import bearer_headers, create_service_key, make_token
from book_app import SERVICE_KEY, book_job
from manual_worker import ManualWorker

from holdfast.engine import task_types
from holdfast.engine.connection import Connection, Database
from holdfast.server import create_app
from holdfast.settings import Settings

ANN, BOB, SERVICE = (
    bearer_headers(make_token("ann")),
    bearer_headers(make_token("bob")),
    bearer_headers(SERVICE_KEY),
)


async def start_book_job(api: httpx.AsyncClient, headers: dict[str, str] = ANN, **more: object) -> str:
    response = await api.post("/api/jobs/start", json={"type": "book", **more}, headers=headers)
    assert response.status_code in (200, 202), response.text
    return str(response.json()["id"])


async def test_a_user_starts_a_public_job_type_and_reads_the_job(api: httpx.AsyncClient) -> None:
    created = await api.post("/api/jobs/start", json={"type": "book", "params": {"count": 3}}, headers=ANN)
    assert created.status_code == 202
    assert created.json()["created"] is True
    job = (await api.get(created.headers["location"], headers=ANN)).json()
    assert (job["type"], job["owner"], job["status"]) == ("book", "ann", "queued")
    assert job["params"] == {"count": 3, "title": ""}
    assert {task["name"] for task in job["tasks"]} == {"page", "page-2", "page-3", "bind"}


async def test_a_repeated_key_returns_the_same_job_and_conflicts_with_another_body(
    api: httpx.AsyncClient,
) -> None:
    headers = {**ANN, "idempotency-key": "k1"}
    first = await api.post("/api/jobs/start", json={"type": "book"}, headers=headers)
    again = await api.post("/api/jobs/start", json={"type": "book"}, headers=headers)
    assert (first.status_code, again.status_code) == (202, 200)
    assert first.json()["id"] == again.json()["id"]
    other = await api.post("/api/jobs/start", json={"type": "book", "params": {"count": 9}}, headers=headers)
    assert other.status_code == 409
    job_of_bob = await api.post(
        "/api/jobs/start", json={"type": "book"}, headers={**BOB, "idempotency-key": "k1"}
    )
    assert job_of_bob.json()["id"] != first.json()["id"]


async def test_users_start_public_job_types_only(api: httpx.AsyncClient) -> None:
    for kind in ("inner", "page", "nothing"):
        response = await api.post("/api/jobs/start", json={"type": kind}, headers=ANN)
        assert response.status_code == 403, kind
    for field, value in (("owner", "bob"), ("queue", "x"), ("priority", 5)):
        response = await api.post("/api/jobs/start", json={"type": "book", field: value}, headers=ANN)
        assert response.status_code == 403, field
    assert (await api.post("/api/jobs/start", json={"type": "inner"}, headers=SERVICE)).status_code == 202
    raw = {"type": "page", "params": {"number": 1}, "queue": "q", "owner": "bob"}
    created = await api.post("/api/jobs/start", json=raw, headers=SERVICE)
    assert created.status_code == 202
    assert (await api.get(f"/api/jobs/{created.json()['id']}", headers=BOB)).json()["owner"] == "bob"


async def test_errors_name_the_invalid_field(api: httpx.AsyncClient) -> None:
    invalid = await api.post("/api/jobs/start", json={"type": "book", "params": {"count": "x"}}, headers=ANN)
    assert (invalid.status_code, invalid.json()["field"]) == (422, "params")
    for body, field in (({}, "type"), ({"type": 3}, "type"), ({"type": "book", "x": 1}, "x")):
        response = await api.post("/api/jobs/start", json=body, headers=ANN)
        assert (response.status_code, response.json()["field"]) == (422, field)


async def test_a_job_of_another_user_looks_like_a_missing_job(api: httpx.AsyncClient) -> None:
    own, missing = await start_book_job(api), str(uuid4())
    for method, path in (
        ("GET", ""),
        ("DELETE", ""),
        ("POST", "/retry"),
        ("GET", "/events"),
        ("POST", "/ticket"),
    ):
        foreign = await api.request(method, f"/api/jobs/{own}{path}", headers=BOB)
        absent = await api.request(method, f"/api/jobs/{missing}{path}", headers=BOB)
        assert foreign.status_code == absent.status_code == 404, path
        assert foreign.text.replace(own, "ID") == absent.text.replace(missing, "ID")
        assert dict(foreign.headers) == dict(absent.headers)


async def test_users_list_their_own_jobs_in_pages(api: httpx.AsyncClient) -> None:
    own = [await start_book_job(api) for _ in range(3)]
    foreign_job = await start_book_job(api, BOB)
    first = (await api.get("/api/jobs?limit=2", headers=ANN)).json()
    rest = (await api.get(f"/api/jobs?limit=2&before={first['next']}", headers=ANN)).json()
    assert [job["id"] for job in first["jobs"] + rest["jobs"]] == own[::-1]
    assert rest["next"] is None
    assert [job["id"] for job in (await api.get("/api/jobs?owner=ann", headers=BOB)).json()["jobs"]] == [
        foreign_job
    ]
    assert len((await api.get("/api/jobs", headers=SERVICE)).json()["jobs"]) == 4
    assert (await api.get("/api/jobs?status=failed", headers=SERVICE)).json()["jobs"] == []
    assert (await api.get("/api/jobs?limit=0", headers=SERVICE)).status_code == 422


async def test_a_cancelled_job_can_be_retried(api: httpx.AsyncClient) -> None:
    job = await start_book_job(api)
    assert (await api.delete(f"/api/jobs/{job}", headers=ANN)).json() == {
        "cancelled": True,
        "status": "cancelled",
    }
    assert (await api.delete(f"/api/jobs/{job}", headers=ANN)).json()["cancelled"] is False
    assert (await api.post(f"/api/jobs/{job}/retry", headers=ANN)).json() == {"restarted": 3}
    assert (await api.get(f"/api/jobs/{job}", headers=ANN)).json()["status"] == "queued"
    running = await api.post(f"/api/jobs/{job}/retry", json={"from": ["bind"]}, headers=ANN)
    assert running.status_code == 409


async def test_a_long_poll_returns_when_the_job_changes(api: httpx.AsyncClient, conn: Connection) -> None:
    job = await start_book_job(api)
    seq = (await api.get(f"/api/jobs/{job}", headers=ANN)).json()["event_seq"]
    waiting = asyncio.create_task(api.get(f"/api/jobs/{job}?wait=25&after={seq}", headers=ANN))
    await ManualWorker(conn).claim_one_task()
    changed = (await asyncio.wait_for(waiting, 20)).json()
    assert (changed["status"], changed["event_seq"]) == ("running", seq + 1)
    tag = (await api.get(f"/api/jobs/{job}", headers=ANN)).headers["etag"]
    assert (await api.get(f"/api/jobs/{job}", headers={**ANN, "if-none-match": tag})).status_code == 304


async def test_the_job_quota_applies_to_concurrent_requests_and_to_rpc(
    db: Database, api_settings: Settings, conn: Connection
) -> None:
    app = create_app(replace(api_settings, user_jobs=5), database=db, job_types=[book_job])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://api") as api:
        calls = [api.post("/api/jobs/start", json={"type": "book"}, headers=ANN) for _ in range(40)]
        responses = [response.status_code for response in await asyncio.gather(*calls)]
        assert (responses.count(202), responses.count(429)) == (5, 35)
        assert (await api.post("/api/jobs/start", json={"type": "book"}, headers=BOB)).status_code == 202
        await conn.execute("""insert into holdfast.options values ('public_types', '["t"]')""")
        jobs = {"content-profile": "holdfast"}
        for name, body in (
            ("submit", {"p_job": {"type": "t"}}),
            ("submit_many", {"p_jobs": [{"type": "t"}] * 5}),
        ):
            at_quota = await api.post(f"/rest/v1/rpc/{name}", json=body, headers={**ANN, **jobs})
            assert (at_quota.status_code, at_quota.json()["code"]) == (429, "HF006"), at_quota.text
        headers_with_key = {**BOB, "idempotency-key": "k"}
        for status in (202, 200):
            response = await api.post("/api/jobs/start", json={"type": "book"}, headers=headers_with_key)
            assert response.status_code == status
        app.state.holdfast.settings = replace(api_settings, user_jobs=1)
        assert (
            await api.post("/api/jobs/start", json={"type": "book"}, headers=headers_with_key)
        ).status_code == 200
        assert (await api.post("/api/jobs/start", json={"type": "book"}, headers=BOB)).status_code == 429


async def test_users_see_no_traceback_and_no_internal_message(
    api: httpx.AsyncClient, conn: Connection
) -> None:
    messages: dict[str, str] = {}
    for kind in ("PublicError", "OperationalError"):
        created = {"type": "page", "params": {}, "queue": "q", "owner": "ann"}
        job = (await api.post("/api/jobs/start", json=created, headers=SERVICE)).json()["id"]
        worker = ManualWorker(conn)
        error = {"type": kind, "message": "select secret", "traceback": "File secret.py"}
        await worker.finish_task(await worker.claim_one_task(), "reject", error)
        own = await api.get(f"/api/jobs/{job}", headers=ANN)
        assert "secret.py" not in own.text
        attempts = await api.get(f"/api/tasks/{UUID(job)}/attempts", headers=ANN)
        assert "secret.py" not in attempts.text
        stream = await api.get(f"/api/jobs/{job}/events", headers=ANN)
        assert "secret.py" not in stream.text
        for answer in (attempts, stream):
            assert ("select secret" in answer.text) == (kind == "PublicError"), answer.url
        messages[kind] = own.json()["error"]["message"]
        assert "secret.py" in (await api.get(f"/api/jobs/{job}", headers=SERVICE)).text
    assert messages["PublicError"] == "select secret"
    assert "select secret" not in messages["OperationalError"]


async def test_a_key_gives_access_to_its_scopes_only(api: httpx.AsyncClient, db: Database) -> None:
    allowed, other = await create_service_key(db, "jobs"), await create_service_key(db, "metrics")
    assert (await api.get("/api/jobs", headers=bearer_headers(allowed))).status_code == 200
    assert (await api.get("/api/jobs", headers=bearer_headers(other))).status_code == 403
    assert (await api.get("/api/jobs", headers={"apikey": allowed})).status_code == 200


async def test_arguments_are_checked_against_the_registered_schema(
    api: httpx.AsyncClient, conn: Connection
) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    await task_types.register_task_types(conn, "w", [{"name": "t", "queue": "q", "schema": schema}])
    invalid = await api.post("/api/jobs", json={"type": "t", "args": {"n": "x"}}, headers=SERVICE)
    assert invalid.status_code == 422, invalid.text
    assert "n" in invalid.json()["field"]
    for path, body in (("/api/jobs", {"args": {"n": 1}}), ("/api/jobs/start", {"params": {"n": 1}})):
        assert (await api.post(path, json={"type": "t", **body}, headers=SERVICE)).status_code == 202
