"""Jobs over HTTP: users and services start, list, read, wait, cancel and run again what is theirs."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from uuid import UUID, uuid4

import httpx
from books import KEY, book
from callers import bearer, service_key, token
from hands import Hand

from holdfast.engine import task_types
from holdfast.engine.connection import Connection, Database
from holdfast.server import create_app
from holdfast.settings import Settings

ANN, BOB, SERVICE = bearer(token("ann")), bearer(token("bob")), bearer(KEY)


async def started(api: httpx.AsyncClient, headers: dict[str, str] = ANN, **more: object) -> str:
    answer = await api.post("/api/jobs/start", json={"type": "book", **more}, headers=headers)
    assert answer.status_code in (200, 202), answer.text
    return str(answer.json()["id"])


async def test_a_user_starts_a_public_type_and_reads_it(api: httpx.AsyncClient) -> None:
    made = await api.post("/api/jobs/start", json={"type": "book", "params": {"count": 3}}, headers=ANN)
    assert made.status_code == 202
    assert made.json()["created"] is True
    job = (await api.get(made.headers["location"], headers=ANN)).json()
    assert (job["type"], job["owner"], job["status"]) == ("book", "ann", "queued")
    assert job["params"] == {"count": 3, "title": ""}
    assert {task["name"] for task in job["tasks"]} == {"page", "page-2", "page-3", "bind"}


async def test_the_same_key_is_the_same_job_and_another_body_is_a_conflict(api: httpx.AsyncClient) -> None:
    headers = {**ANN, "idempotency-key": "k1"}
    first = await api.post("/api/jobs/start", json={"type": "book"}, headers=headers)
    again = await api.post("/api/jobs/start", json={"type": "book"}, headers=headers)
    assert (first.status_code, again.status_code) == (202, 200)
    assert first.json()["id"] == again.json()["id"]
    other = await api.post("/api/jobs/start", json={"type": "book", "params": {"count": 9}}, headers=headers)
    assert other.status_code == 409
    of_bob = await api.post(
        "/api/jobs/start", json={"type": "book"}, headers={**BOB, "idempotency-key": "k1"}
    )
    assert of_bob.json()["id"] != first.json()["id"]


async def test_users_start_what_was_opened_and_nothing_else(api: httpx.AsyncClient) -> None:
    for kind in ("inner", "page", "nothing"):
        answer = await api.post("/api/jobs/start", json={"type": kind}, headers=ANN)
        assert answer.status_code == 403, kind
    for field, value in (("owner", "bob"), ("queue", "x"), ("priority", 5)):
        answer = await api.post("/api/jobs/start", json={"type": "book", field: value}, headers=ANN)
        assert answer.status_code == 403, field
    assert (await api.post("/api/jobs/start", json={"type": "inner"}, headers=SERVICE)).status_code == 202
    raw = {"type": "page", "params": {"number": 1}, "queue": "q", "owner": "bob"}
    made = await api.post("/api/jobs/start", json=raw, headers=SERVICE)
    assert made.status_code == 202
    assert (await api.get(f"/api/jobs/{made.json()['id']}", headers=BOB)).json()["owner"] == "bob"


async def test_wrong_parameters_are_named(api: httpx.AsyncClient) -> None:
    wrong = await api.post("/api/jobs/start", json={"type": "book", "params": {"count": "x"}}, headers=ANN)
    assert (wrong.status_code, wrong.json()["field"]) == (422, "params")
    for body, field in (({}, "type"), ({"type": 3}, "type"), ({"type": "book", "x": 1}, "x")):
        answer = await api.post("/api/jobs/start", json=body, headers=ANN)
        assert (answer.status_code, answer.json()["field"]) == (422, field)


async def test_a_foreign_job_answers_exactly_like_a_missing_one(api: httpx.AsyncClient) -> None:
    mine, missing = await started(api), str(uuid4())
    for method, path in (
        ("GET", ""),
        ("DELETE", ""),
        ("POST", "/retry"),
        ("GET", "/events"),
        ("POST", "/ticket"),
    ):
        foreign = await api.request(method, f"/api/jobs/{mine}{path}", headers=BOB)
        absent = await api.request(method, f"/api/jobs/{missing}{path}", headers=BOB)
        assert foreign.status_code == absent.status_code == 404, path
        assert foreign.content == absent.content
        assert dict(foreign.headers) == dict(absent.headers)


async def test_lists_are_ones_own_and_paged(api: httpx.AsyncClient) -> None:
    mine = [await started(api) for _ in range(3)]
    theirs = await started(api, BOB)
    first = (await api.get("/api/jobs?limit=2", headers=ANN)).json()
    rest = (await api.get(f"/api/jobs?limit=2&before={first['next']}", headers=ANN)).json()
    assert [job["id"] for job in first["jobs"] + rest["jobs"]] == mine[::-1]
    assert rest["next"] is None
    assert [job["id"] for job in (await api.get("/api/jobs?owner=ann", headers=BOB)).json()["jobs"]] == [
        theirs
    ]
    assert len((await api.get("/api/jobs", headers=SERVICE)).json()["jobs"]) == 4
    assert (await api.get("/api/jobs?status=failed", headers=SERVICE)).json()["jobs"] == []
    assert (await api.get("/api/jobs?limit=0", headers=SERVICE)).status_code == 422


async def test_cancel_is_final_and_retry_runs_again(api: httpx.AsyncClient) -> None:
    job = await started(api)
    assert (await api.delete(f"/api/jobs/{job}", headers=ANN)).json() == {
        "cancelled": True,
        "status": "cancelled",
    }
    assert (await api.delete(f"/api/jobs/{job}", headers=ANN)).json()["cancelled"] is False
    assert (await api.post(f"/api/jobs/{job}/retry", headers=ANN)).json() == {"restarted": 3}
    assert (await api.get(f"/api/jobs/{job}", headers=ANN)).json()["status"] == "queued"
    running = await api.post(f"/api/jobs/{job}/retry", json={"from": ["bind"]}, headers=ANN)
    assert running.status_code == 409


async def test_a_long_poll_ends_with_a_change(api: httpx.AsyncClient, conn: Connection) -> None:
    job = await started(api)
    seq = (await api.get(f"/api/jobs/{job}", headers=ANN)).json()["event_seq"]
    waiting = asyncio.create_task(api.get(f"/api/jobs/{job}?wait=25&after={seq}", headers=ANN))
    await Hand(conn).one()
    changed = (await asyncio.wait_for(waiting, 20)).json()
    assert (changed["status"], changed["event_seq"]) == ("running", seq + 1)
    tag = (await api.get(f"/api/jobs/{job}", headers=ANN)).headers["etag"]
    assert (await api.get(f"/api/jobs/{job}", headers={**ANN, "if-none-match": tag})).status_code == 304


async def test_the_quota_holds_for_many_at_once_on_every_way_in(
    db: Database, api_settings: Settings, conn: Connection
) -> None:
    app = create_app(replace(api_settings, user_jobs=5), database=db, job_types=[book])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://api") as api:
        calls = [api.post("/api/jobs/start", json={"type": "book"}, headers=ANN) for _ in range(40)]
        answers = [answer.status_code for answer in await asyncio.gather(*calls)]
        assert (answers.count(202), answers.count(429)) == (5, 35)
        assert (await api.post("/api/jobs/start", json={"type": "book"}, headers=BOB)).status_code == 202
        await conn.execute("""insert into holdfast.options values ('public_types', '["t"]')""")
        jobs = {"content-profile": "holdfast"}
        for name, body in (
            ("submit", {"p_job": {"type": "t"}}),
            ("submit_many", {"p_jobs": [{"type": "t"}] * 5}),
        ):
            at_quota = await api.post(f"/rest/v1/rpc/{name}", json=body, headers={**ANN, **jobs})
            assert (at_quota.status_code, at_quota.json()["code"]) == (429, "HF006"), at_quota.text
        kept = {**BOB, "idempotency-key": "k"}
        for status in (202, 200):
            answer = await api.post("/api/jobs/start", json={"type": "book"}, headers=kept)
            assert answer.status_code == status
        app.state.holdfast.settings = replace(api_settings, user_jobs=1)
        assert (await api.post("/api/jobs/start", json={"type": "book"}, headers=kept)).status_code == 200
        assert (await api.post("/api/jobs/start", json={"type": "book"}, headers=BOB)).status_code == 429


async def test_users_see_no_traceback_and_no_message_not_meant_for_them(
    api: httpx.AsyncClient, conn: Connection
) -> None:
    shown: dict[str, str] = {}
    for kind in ("PublicError", "OperationalError"):
        made = {"type": "page", "params": {}, "queue": "q", "owner": "ann"}
        job = (await api.post("/api/jobs/start", json=made, headers=SERVICE)).json()["id"]
        hand = Hand(conn)
        error = {"type": kind, "message": "select secret", "traceback": "File secret.py"}
        await hand.finish(await hand.one(), "reject", error)
        mine = await api.get(f"/api/jobs/{job}", headers=ANN)
        assert "secret.py" not in mine.text
        tried = await api.get(f"/api/tasks/{UUID(job)}/attempts", headers=ANN)
        assert "secret.py" not in tried.text
        shown[kind] = mine.json()["error"]["message"]
        assert "secret.py" in (await api.get(f"/api/jobs/{job}", headers=SERVICE)).text
    assert shown["PublicError"] == "select secret"
    assert "select secret" not in shown["OperationalError"]


async def test_a_key_opens_what_its_scopes_say(api: httpx.AsyncClient, db: Database) -> None:
    allowed, other = await service_key(db, "jobs"), await service_key(db, "metrics")
    assert (await api.get("/api/jobs", headers=bearer(allowed))).status_code == 200
    assert (await api.get("/api/jobs", headers=bearer(other))).status_code == 403
    assert (await api.get("/api/jobs", headers={"apikey": allowed})).status_code == 200


async def test_arguments_are_compared_with_what_workers_have_told(
    api: httpx.AsyncClient, conn: Connection
) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    await task_types.register_task_types(conn, "w", [{"name": "t", "queue": "q", "schema": schema}])
    wrong = await api.post("/api/jobs", json={"type": "t", "args": {"n": "x"}}, headers=SERVICE)
    assert wrong.status_code == 422, wrong.text
    assert "n" in wrong.json()["field"]
    for path, body in (("/api/jobs", {"args": {"n": 1}}), ("/api/jobs/start", {"params": {"n": 1}})):
        assert (await api.post(path, json={"type": "t", **body}, headers=SERVICE)).status_code == 202
