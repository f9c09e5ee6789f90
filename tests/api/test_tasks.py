"""A worker in another language, over HTTP: claims, keeps, hands in, and stops when it no longer holds."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import httpx
import pytest
from books import KEY
from callers import bearer, token

from holdfast.testing import Clock

SERVICE = bearer(KEY)


async def submitted(api: httpx.AsyncClient, **more: Any) -> str:
    body = {"type": "t", "queue": "q", "args": {"n": 1}, **more}
    return str((await api.post("/api/jobs", json=body, headers=SERVICE)).json()["id"])


async def claimed(api: httpx.AsyncClient, worker: str = "w1", **more: Any) -> list[dict[str, Any]]:
    answer = await api.post(
        "/api/worker/claim", json={"worker": worker, "queues": ["q"], **more}, headers=SERVICE
    )
    assert answer.status_code == 200, answer.text
    return list(answer.json())


async def say(api: httpx.AsyncClient, task: dict[str, Any], verb: str, **body: Any) -> httpx.Response:
    return await api.post(
        f"/api/tasks/{task['id']}/{verb}", json={"lease": task["lease"], **body}, headers=SERVICE
    )


async def status(api: httpx.AsyncClient, job: str) -> dict[str, Any]:
    return dict((await api.get(f"/api/jobs/{job}", headers=SERVICE)).json())


async def test_a_task_from_claim_to_result(api: httpx.AsyncClient) -> None:
    job = await submitted(api)
    [task] = await claimed(api, max_tasks=5)
    assert (task["type"], task["args"], task["attempt"]) == ("t", {"n": 1}, 1)
    beaten = await say(api, task, "heartbeat", percent=40, phase="half", message="going on")
    assert 0 < beaten.json()["lease_s"] <= 61
    assert (await status(api, job))["progress"] == {"percent": 40, "phase": "half", "message": "going on"}
    assert (await say(api, task, "complete", output={"sum": 3})).status_code == 204
    ended = await status(api, job)
    assert (ended["status"], ended["output"]) == ("succeeded", {"sum": 3})
    assert (await say(api, task, "complete", output={"sum": 3})).status_code == 204  # the answer was lost
    assert await claimed(api) == []


@pytest.mark.parametrize("verb", ["heartbeat", "complete", "fail", "release", "snooze"])
async def test_whoever_lost_the_lease_is_told_to_stop(
    api: httpx.AsyncClient, clock: Clock, verb: str
) -> None:
    job = await submitted(api)
    [stale] = await claimed(api)
    await clock.advance(timedelta(minutes=5))
    again: list[dict[str, Any]] = []
    while not again:
        again = await claimed(api, "w2")
        await clock.advance(timedelta(minutes=1))
    body = {"delay_s": 1} if verb == "snooze" else {}
    refused = await say(api, stale, verb, **body)
    assert (refused.status_code, refused.json()["title"]) == (409, "The lease is lost")
    assert (await say(api, again[0], "complete", output=2)).status_code == 204
    assert (await status(api, job))["output"] == 2


async def test_failing_snoozing_and_giving_back(api: httpx.AsyncClient, clock: Clock) -> None:
    job = await submitted(api)
    [task] = await claimed(api)
    assert (await say(api, task, "release")).status_code == 204
    [task] = await claimed(api)
    assert (await say(api, task, "snooze", delay_s=10)).status_code == 204
    assert await claimed(api) == []
    await clock.advance(timedelta(seconds=11))
    [task] = await claimed(api)
    assert (await say(api, task, "fail", error="no", type="SiteDown")).status_code == 204
    await clock.advance(timedelta(minutes=1))
    [task] = await claimed(api)
    assert (await say(api, task, "fail", error="never", retry=False)).status_code == 204
    assert (await status(api, job))["error"]["message"] == "never"


async def test_leases_are_words_that_fit_and_users_have_none(api: httpx.AsyncClient) -> None:
    await submitted(api)
    [task] = await claimed(api)
    for lease in ("", "1", "x.y", f"1.{2**63}", "1.1 ", 7, None):
        assert (await say(api, {**task, "lease": lease}, "release")).status_code == 422
    answer = await api.post(
        f"/api/tasks/{task['id']}/release", json={"lease": task["lease"]}, headers=bearer(token())
    )
    assert answer.status_code == 403


async def test_a_file_of_a_running_task_is_there_with_its_success(api: httpx.AsyncClient) -> None:
    job = await submitted(api)
    [task] = await claimed(api)
    path = f"/api/tasks/{task['id']}/artifacts/answer.txt?lease={task['lease']}"
    saved = await api.put(path, content=b"forty-two", headers={**SERVICE, "content-type": "text/plain"})
    assert saved.status_code == 201, saved.text
    assert (saved.json()["name"], saved.json()["size"]) == ("answer.txt", 9)
    listing = f"/api/jobs/{job}/artifacts"
    assert (await api.get(listing, headers=SERVICE)).json()["artifacts"] == []
    stale = path.replace("lease=1.", "lease=2.")
    assert (await api.put(stale, content=b"x", headers=SERVICE)).status_code == 409
    await say(api, task, "complete", output=1)
    [listed] = (await api.get(listing, headers=SERVICE)).json()["artifacts"]
    fetched = await api.get(listed["url"], headers=SERVICE, follow_redirects=True)
    assert fetched.content == b"forty-two"
