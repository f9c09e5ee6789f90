"""Batches, schedules, queues, limits, workers, messages, metrics and search over HTTP."""

from __future__ import annotations

from typing import Any

import httpx
from api_clients import bearer_headers, make_token
from book_app import SERVICE_KEY
from manual_worker import ManualWorker

from holdfast.engine import jobs
from holdfast.engine.connection import Connection

ANN, BOB, SERVICE = (
    bearer_headers(make_token("ann")),
    bearer_headers(make_token("bob")),
    bearer_headers(SERVICE_KEY),
)


async def test_a_batch_is_opened_filled_closed_and_calls_back(
    api: httpx.AsyncClient, conn: Connection
) -> None:
    callback = {"type": "done", "queue": "q", "args": {"x": 1}}
    created = await api.post("/api/batches", json={"name": "b", "callback": callback}, headers=SERVICE)
    assert created.status_code == 201
    batch = created.json()["id"]
    for _ in range(2):
        body = {"type": "t", "queue": "q", "batch": batch}
        assert (await api.post("/api/jobs", json=body, headers=SERVICE)).status_code == 202
    closed = (await api.post(f"/api/batches/{batch}/close", headers=SERVICE)).json()
    assert (closed["total"], closed["ended"], closed["finished_at"]) == (2, 0, None)
    worker = ManualWorker(conn)
    for _ in range(2):
        await worker.finish_task(await worker.claim_one_task())
    shown = (await api.get(f"/api/batches/{batch}", headers=SERVICE)).json()
    assert shown["ended"] == 2
    assert (await api.get(f"/api/jobs/{shown['callback_job']}", headers=SERVICE)).json()["type"] == "done"


async def test_users_see_their_own_batches_only(api: httpx.AsyncClient) -> None:
    batch = (await api.post("/api/batches", json={}, headers=ANN)).json()["id"]
    started = {"type": "book", "batch": batch}
    assert (await api.post("/api/jobs/start", json=started, headers=ANN)).status_code == 202
    assert (await api.post("/api/jobs/start", json=started, headers=BOB)).status_code == 409
    rejected = await api.post("/api/batches", json={"callback": {"type": "x"}}, headers=ANN)
    assert rejected.status_code == 403
    assert (await api.delete(f"/api/batches/{batch}", headers=ANN)).json() == {"cancelled": 1}
    for callback in ({}, {"type": 7}, {"type": "t", "queue": 9}, {"type": "t", "tasks": []}):
        response = await api.post("/api/batches", json={"callback": callback}, headers=SERVICE)
        assert (response.status_code, response.json()["field"]) == (422, "callback")


async def test_all_jobs_of_a_large_batch_are_cancelled(api: httpx.AsyncClient, conn: Connection) -> None:
    batch = (await api.post("/api/batches", json={}, headers=SERVICE)).json()["id"]
    await jobs.submit_many(conn, [{"type": "t", "queue": "q", "batch": batch}] * 1001)
    assert (await api.delete(f"/api/batches/{batch}", headers=SERVICE)).json() == {"cancelled": 1001}
    rows = await conn.fetch("select detail::text from holdfast.audit_log where action = 'batch.cancel'")
    assert [row["detail"] for row in rows] == ['{"cancelled": 1001}']


async def test_schedules_are_put_paused_run_previewed_and_deleted(api: httpx.AsyncClient) -> None:
    job = {"type": "t", "queue": "q"}
    body: dict[str, Any] = {"cron": "0 3 * * *", "timezone": "Europe/Madrid", "job": job}
    created = await api.put("/api/schedules/nightly", json=body, headers=SERVICE)
    assert created.status_code == 200, created.text
    assert created.json()["next_at"] is not None
    assert [each["name"] for each in (await api.get("/api/schedules", headers=SERVICE)).json()] == ["nightly"]
    times = (await api.get("/api/schedules/nightly/preview?count=3", headers=SERVICE)).json()
    assert len(times) == 3
    assert (await api.post("/api/schedules/nightly/pause", headers=SERVICE)).json() == {"changed": True}
    assert (await api.get("/api/schedules/nightly", headers=SERVICE)).json()["paused_at"] is not None
    assert (await api.post("/api/schedules/nightly/resume", headers=SERVICE)).json() == {"changed": True}
    run = await api.post("/api/schedules/nightly/run", headers=SERVICE)
    assert (await api.get(f"/api/jobs/{run.json()['id']}", headers=SERVICE)).json()["type"] == "t"
    assert (await api.delete("/api/schedules/nightly", headers=SERVICE)).status_code == 204
    assert (await api.get("/api/schedules/nightly", headers=SERVICE)).status_code == 404
    for wrong in ({"cron": "x", "job": job}, {"job": job}, {"cron": "* * * * *", "every_s": 5, "job": job}):
        assert (await api.put("/api/schedules/n", json=wrong, headers=SERVICE)).status_code == 422


async def test_operators_manage_queues_limits_and_workers(api: httpx.AsyncClient, conn: Connection) -> None:
    await api.post("/api/jobs", json={"type": "t", "queue": "q"}, headers=SERVICE)
    assert (await api.post("/api/queues/q/pause", json={"reason": "so"}, headers=SERVICE)).status_code == 204
    [queue] = (await api.get("/api/queues", headers=SERVICE)).json()
    assert queue["queue"] == "q"
    assert await ManualWorker(conn).claim_tasks(1) == []
    assert (await api.post("/api/queues/q/resume", headers=SERVICE)).json() == {"changed": True}
    assert (await api.get("/api/queues/nothing", headers=SERVICE)).status_code == 404
    scale = await api.get("/api/queues/q/scale?per_worker=4", headers=SERVICE)
    assert scale.json()["workers"] >= 1
    assert (await api.get("/api/queues/nothing/scale", headers=SERVICE)).json() == {"workers": 0}
    assert (await api.put("/api/limits/l", json={"max_running": 2}, headers=SERVICE)).status_code == 204
    assert (await api.get("/api/limits", headers=SERVICE)).json()[0]["name"] == "l"
    assert (await api.put("/api/limits/l", json={}, headers=SERVICE)).status_code == 422
    for unknown in ({"queue": "nosuch"}, {"type": "nosuch"}):
        rule = {"max_running": 2, **unknown}
        refused = await api.put("/api/limits/new", json=rule, headers=SERVICE)
        assert (refused.status_code, "allow_new" in refused.text) == (404, True)
        accepted = await api.put("/api/limits/new", json={**rule, "allow_new": True}, headers=SERVICE)
        assert accepted.status_code == 204
        assert (await api.put("/api/limits/new", json=rule, headers=SERVICE)).status_code == 204
    assert (await api.delete("/api/limits/l", headers=SERVICE)).status_code == 204
    await ManualWorker(conn, "worker-1").claim_tasks(1)
    workers = (await api.get("/api/workers", headers=SERVICE)).json()
    assert "worker-1" in str(workers)
    assert len((await api.get("/api/workers/worker-1/tasks", headers=SERVICE)).json()) == 1
    result = await api.post("/api/workers/worker-1/command", json={"command": "drain"}, headers=SERVICE)
    assert result.json() == {"alive": True}
    gone = await api.post("/api/workers/nobody/command", json={"command": "drain"}, headers=SERVICE)
    assert gone.status_code == 404
    assert (await api.get("/api/stats", headers=SERVICE)).json()["running"] == 1


async def test_messages_are_sent_read_hidden_and_archived(api: httpx.AsyncClient) -> None:
    async def post(path: str, **body: Any) -> httpx.Response:
        return await api.post(f"/api/messages/{path}", json=body, headers=SERVICE)

    assert (await api.put("/api/messages/letters", headers=SERVICE)).status_code == 204
    assert (await post("letters", messages=[{"n": 1}, {"n": 2}])).json() == {"ids": [1, 2]}
    [read] = (await post("letters/read", qty=1, vt_s=30)).json()
    assert (read["id"], read["body"]) == (1, {"n": 1})
    assert (await post("letters/hide", receipts=[read["receipt"]], vt_s=0)).json() == {"ids": [1]}
    [again] = (await post("letters/read", qty=1, vt_s=30)).json()
    stale = await post("letters/archive", receipts=[read["receipt"]])
    assert stale.status_code == 409
    assert (await post("letters/archive", receipts=[again["receipt"]])).json() == {"ids": [1]}
    assert (await post("letters/delete", ids=[2])).json() == {"ids": [2]}
    metrics = (await api.get("/api/messages/letters/metrics", headers=SERVICE)).json()
    assert (metrics["total"], metrics["archived"]) == (0, 1)
    assert (await post("letters/delete")).status_code == 422
    assert (await post("nothing", messages=[1])).status_code == 404
    assert (await api.delete("/api/messages/letters", headers=SERVICE)).status_code == 204
    assert (await api.delete("/api/messages/letters", headers=SERVICE)).status_code == 404


async def test_metrics_cover_the_database_and_this_process(api: httpx.AsyncClient) -> None:
    await api.post("/api/jobs", json={"type": "t", "queue": "q"}, headers=SERVICE)
    await api.post("/api/queues/q/pause", json={}, headers=SERVICE)
    await api.get("/metrics", headers=SERVICE)
    response = await api.get("/metrics", headers=SERVICE)
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = response.text.splitlines()
    assert 'holdfast_queue_ready{queue="q"} 1' in lines
    assert 'holdfast_queue_paused{queue="q"} 1' in lines
    assert 'holdfast_queue_desired_workers{queue="q"} 0' in lines  # nobody may claim from a paused queue
    assert "holdfast_api_streams 0" in lines
    assert 'holdfast_api_requests_total{method="GET",status="200"} 1' in lines
    assert (await api.get("/metrics")).status_code == 401
    assert (await api.get("/metrics", headers=ANN)).status_code == 403


async def test_services_search_jobs_and_list_errors(api: httpx.AsyncClient, conn: Connection) -> None:
    worker = ManualWorker(conn)
    for kind in ("a", "b"):
        await api.post("/api/jobs", json={"type": kind, "queue": "q", "owner": "ann"}, headers=SERVICE)
        await worker.finish_task(
            await worker.claim_one_task(), "reject", {"type": "SiteDown", "message": "no", "fingerprint": "f"}
        )
    matches = (await api.get("/api/search?q=type:a", headers=SERVICE)).json()
    assert [row["type"] for row in matches["rows"]] == ["a"]
    assert "SiteDown" in (await api.get("/api/errors", headers=SERVICE)).text
    assert (await api.get("/api/search?q=nonsense:::x", headers=SERVICE)).status_code in (200, 422)
    assert (await api.get("/api/search", headers=ANN)).status_code == 403
