"""Every page, by HTTP: it is there, it says what it should, to those who may see it."""

from __future__ import annotations

import re
import time
from datetime import timedelta
from typing import Any

import httpx
from exhibition import Exhibition
from hands import Hand

from holdfast.engine import jobs, scratch
from holdfast.engine.connection import Connection
from holdfast.server.dashboard.registry import SCREENS

PATHS = [
    "/",
    "/?span=7d",
    "/jobs",
    "/jobs?q=state:failed",
    "/jobs?q=nosuch:1",
    "/errors",
    "/errors?span=7d&ignored=yes",
    "/error?cause=TimeoutError%20render.py:goto",
    "/queues",
    "/queue?name=browser",
    "/queue?name=ai",
    "/tasks",
    "/task?name=screenshot",
    "/task?name=digest",
    "/messages",
    "/messages?queue=clips",
    "/messages?queue=clips&place=dead",
    "/messages?queue=clips&place=archive",
    "/workers",
    "/worker?name=worker-1",
    "/schedules",
    "/schedules/edit?name=nightly-report",
    "/bulk",
    "/bulk/new?verb=retry&q=state:failed",
    "/bulk/new?verb=cancel",
    "/files",
    "/limits",
    "/webhooks",
    "/database",
    "/audit",
    "/settings",
]
OF_A_JOB = ["", "?tab=logs", "?tab=files", "?tab=payload", "?tab=events", "?tab=tasks", "/rerun"]


def paths(ids: dict[str, Any]) -> list[str]:
    jobs = [f"/jobs/{ids[name]}{tail}" for name in ("graph", "failed", "running") for tail in OF_A_JOB]
    files = [f"/files/{file}" for file in ids["files"].values()]
    return [*PATHS, *jobs, *files, f"/bulk/{ids['bulk']}", f"/batches/{ids['batch']}"]


def test_every_page_answers(shown: Exhibition) -> None:
    with shown.visitor("admin") as client:
        seen: set[str] = set()
        for path in paths(shown.ids):
            answer = client.get(path)
            assert answer.status_code == 200, (path, answer.text[-2000:])
            assert "<h1" in answer.text, path
            assert "script-src 'self'" in answer.headers["content-security-policy"]
            assert len(answer.content) < 100_000 or "task" in path, (path, len(answer.content))
            bare = path.partition("?")[0]
            seen |= {name for name, entry in SCREENS.items() if entry.pattern.match(bare)}
        assert seen == set(SCREENS), "a page that no test looks at"


def test_a_job_of_five_thousand_tasks(shown: Exhibition) -> None:
    """Its pages stay bounded: what runs or failed is shown first, and how much was left out is said."""

    async def make(conn: Connection) -> str:
        tasks = [{"name": f"part {n}", "type": "part"} for n in range(4999)]
        last = {"name": "bind", "type": "bind", "after": [task["name"] for task in tasks[:300]]}
        made = await jobs.submit(conn, {"type": "huge", "queue": "huge", "tasks": [*tasks, last]})
        hand = Hand(conn, "huge", ["huge"])
        for task in await hand.take(40):
            await hand.finish(task, "reject", {"type": "E", "message": "broken"})
        return str(made.id)

    job = shown.ask(make)
    with shown.visitor("admin") as client:
        for tail in OF_A_JOB:
            answer = in_time(client, f"/jobs/{job}{tail}")
            assert len(answer.content) < 1_000_000, (tail, len(answer.content))
        page = in_time(client, f"/jobs/{job}").text
        assert "more tasks are not drawn" in page
        assert "broken" in page
        assert "huge" in client.get("/jobs?q=task:huge").text


def in_time(client: httpx.Client, path: str) -> httpx.Response:
    """The page, however long the machine takes to make it within the two seconds that a page may take."""
    deadline = time.monotonic() + 60
    while (answer := client.get(path)).status_code == 503:
        assert time.monotonic() < deadline, path
    assert answer.status_code == 200, (path, answer.text[-500:])
    return answer


def test_a_session_that_has_expired(shown: Exhibition) -> None:
    """Reading leads to the door and back again; what was sent does nothing; a stream ends for good."""
    job = shown.ask(lambda conn: jobs.submit(conn, {"type": "kept", "queue": "kept"})).id
    with shown.visitor("operator") as client:
        said = shown.dashboard.site.signer.read("session", client.cookies["holdfast_session"])
        token = said["token"]
        over = shown.dashboard.site.signer.sign("session", {**said, "expires": time.time() - 1})
    with httpx.Client(base_url=shown.base, cookies={"holdfast_session": over}, timeout=30) as late:
        answer = late.get(f"/jobs/{job}?tab=events")
        assert answer.status_code == 303
        assert answer.headers["location"].endswith(f"/login?next=%2Fjobs%2F{job}%3Ftab%3Devents")
        sent = late.post(
            f"/jobs/{job}/cancel", data={"token": token}, headers={"sec-fetch-site": "same-origin"}
        )
        assert sent.status_code == 303
        assert "/login" in sent.headers["location"]
        assert late.get("/live", params={"path": "/jobs"}).status_code == 204
    assert (shown.ask(lambda conn: jobs.get_job(conn, job)) or {})["status"] == "queued"


def test_a_worker_that_died_is_quiet_then_lost_and_its_task_is_tried_again(shown: Exhibition) -> None:
    async def begin(conn: Connection) -> str:
        made = await jobs.submit(conn, {"type": "fatal", "queue": "fatal", "base_s": 0})
        await Hand(conn, "dying", ["fatal"]).take(1)
        return str(made.id)

    job = shown.ask(begin)
    with shown.visitor("viewer") as client:
        assert state_of(client.get("/workers").text, "dying") == "live"
        shown.ask(lambda conn: scratch.move_clock(conn, timedelta(seconds=70)))
        assert state_of(client.get("/workers").text, "dying") == "quiet"
        shown.ask(lambda conn: scratch.move_clock(conn, timedelta(seconds=60)))
        assert state_of(client.get("/workers").text, "dying") == "lost"
        shown.ask(lambda conn: Hand(conn, "heir", ["fatal"]).take(1))
        shown.ask(lambda conn: scratch.move_clock(conn, timedelta(seconds=30)))
        shown.ask(lambda conn: Hand(conn, "heir", ["fatal"]).take(1))
        page = client.get(f"/jobs/{job}").text
        assert "WorkerLost" in page
        assert "crashed" in page
        assert "attempt</dt><dd>2" in page


def state_of(page: str, worker: str) -> str:
    row = page[page.index(f">{worker}</a>") :]
    found = re.search(r'class="state \w+">.*?<span>(\w+)</span>', row)
    assert found is not None
    return found[1]
