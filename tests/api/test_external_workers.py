"""External workers over HTTP: claim, heartbeat, complete, fail, snooze, release and upload files."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import httpx
import pytest
from api_clients import bearer_headers, make_token
from book_app import SERVICE_KEY

from holdfast.testing import Clock

SERVICE = bearer_headers(SERVICE_KEY)


async def submit_job(api: httpx.AsyncClient, **more: Any) -> str:
    body = {"type": "t", "queue": "q", "args": {"n": 1}, **more}
    return str((await api.post("/api/jobs", json=body, headers=SERVICE)).json()["id"])


async def claim_tasks(api: httpx.AsyncClient, worker: str = "w1", **more: Any) -> list[dict[str, Any]]:
    response = await api.post(
        "/api/worker/claim", json={"worker": worker, "queues": ["q"], **more}, headers=SERVICE
    )
    assert response.status_code == 200, response.text
    return list(response.json())


async def post_outcome(
    api: httpx.AsyncClient, task: dict[str, Any], verb: str, **body: Any
) -> httpx.Response:
    return await api.post(
        f"/api/tasks/{task['id']}/{verb}", json={"lease": task["lease"], **body}, headers=SERVICE
    )


async def get_job(api: httpx.AsyncClient, job: str) -> dict[str, Any]:
    return dict((await api.get(f"/api/jobs/{job}", headers=SERVICE)).json())


async def test_a_worker_claims_and_completes_a_task(api: httpx.AsyncClient) -> None:
    job = await submit_job(api)
    [task] = await claim_tasks(api, max_tasks=5)
    assert (task["type"], task["args"], task["attempt"]) == ("t", {"n": 1}, 1)
    heartbeat = await post_outcome(api, task, "heartbeat", percent=40, phase="half", message="going on")
    assert 0 < heartbeat.json()["lease_s"] <= 61
    assert (await get_job(api, job))["progress"] == {"percent": 40, "phase": "half", "message": "going on"}
    assert (await post_outcome(api, task, "complete", output={"sum": 3})).status_code == 204
    finished = await get_job(api, job)
    assert (finished["status"], finished["output"]) == ("succeeded", {"sum": 3})
    assert (
        await post_outcome(api, task, "complete", output={"sum": 3})
    ).status_code == 204  # the worker repeats it because the response was lost
    assert await claim_tasks(api) == []


@pytest.mark.parametrize("verb", ["heartbeat", "complete", "fail", "release", "snooze"])
async def test_a_worker_with_a_lost_lease_gets_409(api: httpx.AsyncClient, clock: Clock, verb: str) -> None:
    job = await submit_job(api)
    [stale] = await claim_tasks(api)
    await clock.advance(timedelta(minutes=5))
    reclaimed: list[dict[str, Any]] = []
    while not reclaimed:
        reclaimed = await claim_tasks(api, "w2")
        await clock.advance(timedelta(minutes=1))
    body = {"delay_s": 1} if verb == "snooze" else {}
    rejected = await post_outcome(api, stale, verb, **body)
    assert (rejected.status_code, rejected.json()["title"]) == (409, "The lease is lost")
    assert (await post_outcome(api, reclaimed[0], "complete", output=2)).status_code == 204
    assert (await get_job(api, job))["output"] == 2


async def test_a_worker_fails_snoozes_and_releases_tasks(api: httpx.AsyncClient, clock: Clock) -> None:
    job = await submit_job(api)
    [task] = await claim_tasks(api)
    assert (await post_outcome(api, task, "release")).status_code == 204
    [task] = await claim_tasks(api)
    assert (await post_outcome(api, task, "snooze", delay_s=10)).status_code == 204
    assert await claim_tasks(api) == []
    await clock.advance(timedelta(seconds=11))
    [task] = await claim_tasks(api)
    assert (await post_outcome(api, task, "fail", error="no", type="SiteDown")).status_code == 204
    await clock.advance(timedelta(minutes=1))
    [task] = await claim_tasks(api)
    assert (await post_outcome(api, task, "fail", error="never", retry=False)).status_code == 204
    assert (await get_job(api, job))["error"]["message"] == "never"


async def test_invalid_leases_get_422_and_users_get_403(api: httpx.AsyncClient) -> None:
    await submit_job(api)
    [task] = await claim_tasks(api)
    for lease in ("", "1", "x.y", f"1.{2**63}", "1.1 ", 7, None):
        assert (await post_outcome(api, {**task, "lease": lease}, "release")).status_code == 422
    response = await api.post(
        f"/api/tasks/{task['id']}/release",
        json={"lease": task["lease"]},
        headers=bearer_headers(make_token()),
    )
    assert response.status_code == 403


async def test_a_file_becomes_visible_when_its_task_succeeds(api: httpx.AsyncClient) -> None:
    job = await submit_job(api)
    [task] = await claim_tasks(api)
    path = f"/api/tasks/{task['id']}/artifacts/answer.txt?lease={task['lease']}"
    saved = await api.put(path, content=b"forty-two", headers={**SERVICE, "content-type": "text/plain"})
    assert saved.status_code == 201, saved.text
    assert (saved.json()["name"], saved.json()["size"]) == ("answer.txt", 9)
    listing = f"/api/jobs/{job}/artifacts"
    assert (await api.get(listing, headers=SERVICE)).json()["artifacts"] == []
    stale = path.replace("lease=1.", "lease=2.")
    assert (await api.put(stale, content=b"x", headers=SERVICE)).status_code == 409
    await post_outcome(api, task, "complete", output=1)
    [listed] = (await api.get(listing, headers=SERVICE)).json()["artifacts"]
    fetched = await api.get(listed["url"], headers=SERVICE, follow_redirects=True)
    assert fetched.content == b"forty-two"
