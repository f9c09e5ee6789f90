"""Every page over HTTP: it responds, and stays bounded with much data."""

from __future__ import annotations

import re
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import httpx
from dashboard_server import DashboardServer
from manual_worker import ManualWorker

from holdfast.engine import jobs, scratch
from holdfast.engine.connection import Connection
from holdfast.server.dashboard.registry import PAGE_ROUTES

PAGE_PATHS = [
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
    "/charts",
    "/charts?by=task&span=24h",
    "/charts?by=worker&compare=day",
    "/charts?by=owner",
    "/charts?by=owner&name=acme&span=7d",
    "/charts?by=nonsense",
    "/worker?name=worker-1",
    "/schedules",
    "/schedules/edit?name=nightly-report",
    "/schedules/show?name=nightly-report",
    "/limits?history=browser",
    "/bulk",
    "/bulk/new?verb=retry&q=state:failed",
    "/bulk/new?verb=cancel",
    "/files",
    "/limits",
    "/webhooks",
    "/alerts",
    "/alerts/rules",
    "/database",
    "/audit",
    "/sessions",
    "/settings",
]
JOB_PAGE_SUFFIXES = ["", "?tab=logs", "?tab=files", "?tab=payload", "?tab=events", "?tab=tasks", "/rerun"]


def list_paths(ids: dict[str, Any]) -> list[str]:
    job_paths = [
        f"/jobs/{ids[name]}{tail}" for name in ("graph", "failed", "running") for tail in JOB_PAGE_SUFFIXES
    ]
    file_paths = [f"/files/{file}" for file in ids["files"].values()]
    return [*PAGE_PATHS, *job_paths, *file_paths, f"/bulk/{ids['bulk']}", f"/batches/{ids['batch']}"]


def test_every_page_responds(dashboard: DashboardServer) -> None:
    with dashboard.sign_in("admin") as client:
        visited: set[str] = set()
        for path in list_paths(dashboard.ids):
            response = client.get(path)
            assert response.status_code == 200, (path, response.text[-2000:])
            assert "<h1" in response.text, path
            assert "script-src 'self'" in response.headers["content-security-policy"]
            sent, size = response.num_bytes_downloaded, len(response.content)
            assert (sent < 25_000 and size < 200_000) or "task" in path, (path, sent, size)
            bare = path.partition("?")[0]
            visited |= {name for name, route in PAGE_ROUTES.items() if route.path_pattern.match(bare)}
        assert visited == set(PAGE_ROUTES), "a page that this test does not visit"


def test_pages_of_a_job_with_5000_tasks_stay_small(dashboard: DashboardServer) -> None:
    """Running and failed tasks are shown first, and the page says how many are left out."""

    async def create_job(conn: Connection) -> str:
        tasks = [{"name": f"part {n}", "type": "part"} for n in range(4999)]
        last = {"name": "bind", "type": "bind", "after": [task["name"] for task in tasks[:300]]}
        submitted = await jobs.submit(conn, {"type": "huge", "queue": "huge", "tasks": [*tasks, last]})
        manual_worker = ManualWorker(conn, "huge", ["huge"])
        for task in await manual_worker.claim_tasks(40):
            await manual_worker.finish_task(task, "reject", {"type": "E", "message": "broken"})
        return str(submitted.id)

    job = dashboard.run_query(create_job)
    with dashboard.sign_in("admin") as client:
        for tail in JOB_PAGE_SUFFIXES:
            response = get_with_retries(client, f"/jobs/{job}{tail}")
            assert len(response.content) < 1_000_000, (tail, len(response.content))
        page = get_with_retries(client, f"/jobs/{job}").text
        assert "4,000 tasks not shown" in page
        assert "broken" in page
        assert "huge" in client.get("/jobs?q=task:huge").text


def test_rows_that_maintenance_set_aside_are_on_the_database_page(dashboard: DashboardServer) -> None:
    call = "select holdfast.record_maintenance_problem('batch callback', 'b-1', '<type> is missing', now())"
    dashboard.run_query(lambda conn: conn.execute(call))
    with dashboard.sign_in("viewer") as client:
        page = client.get("/database").text
    assert "batch callback" in page
    assert "&lt;type&gt; is missing" in page


def get_with_retries(client: httpx.Client, path: str) -> httpx.Response:
    """Request a page until a busy machine renders it within the two seconds that a page may take."""
    deadline = time.monotonic() + 60
    while (response := client.get(path)).status_code == 503:
        assert time.monotonic() < deadline, path
    assert response.status_code == 200, (path, response.text[-500:])
    return response


def test_expired_session(dashboard: DashboardServer) -> None:
    """Pages redirect to the login page, actions change nothing, and streams end."""
    job = dashboard.run_query(lambda conn: jobs.submit(conn, {"type": "kept", "queue": "kept"})).id
    session_id, cookie = dashboard.start_session("operator")
    expire = "update holdfast.dashboard_sessions set expires_at = holdfast.now() where id = $1"
    dashboard.run_query(lambda conn: conn.execute(expire, session_id))
    with httpx.Client(base_url=dashboard.base, cookies={"holdfast_session": cookie}, timeout=30) as client:
        response = client.get(f"/jobs/{job}?tab=events")
        assert response.status_code == 303
        assert response.headers["location"].endswith(f"/login?next=%2Fjobs%2F{job}%3Ftab%3Devents")
        posted = client.post(
            f"/jobs/{job}/cancel",
            data={"token": dashboard.get_form_token(client)},
            headers={"sec-fetch-site": "same-origin"},
        )
        assert posted.status_code == 303
        assert "/login" in posted.headers["location"]
        assert client.get("/live", params={"path": "/jobs"}).status_code == 401
    assert (dashboard.run_query(lambda conn: jobs.get_job(conn, job)) or {})["status"] == "queued"


def test_dead_worker_is_unresponsive_then_lost_and_its_task_runs_again(dashboard: DashboardServer) -> None:
    async def start_task(conn: Connection) -> str:
        submitted = await jobs.submit(conn, {"type": "fatal", "queue": "fatal", "base_s": 0})
        await ManualWorker(conn, "dying", ["fatal"]).claim_tasks(1)
        return str(submitted.id)

    job = dashboard.run_query(start_task)
    with dashboard.sign_in("viewer") as client:
        assert get_worker_state(client.get("/workers").text, "dying") == "live"
        dashboard.run_query(lambda conn: scratch.advance_database_clock(conn, timedelta(seconds=70)))
        assert get_worker_state(client.get("/workers").text, "dying") == "unresponsive"
        dashboard.run_query(lambda conn: scratch.advance_database_clock(conn, timedelta(seconds=60)))
        assert get_worker_state(client.get("/workers").text, "dying") == "lost"
        own_page = client.get("/worker?name=dying").text
        header = own_page[own_page.index("page-header") :]
        assert re.search(r'class="state \w+">.*?<span>(\w+)</span>', header)[1] == "lost"  # type: ignore[index]
        assert get_leased_task_count(client.get("/workers").text, "dying") == 1
        assert f"/jobs/{job}" in own_page
        dashboard.run_query(lambda conn: ManualWorker(conn, "heir", ["fatal"]).claim_tasks(1))
        dashboard.run_query(lambda conn: scratch.advance_database_clock(conn, timedelta(seconds=30)))
        dashboard.run_query(lambda conn: ManualWorker(conn, "heir", ["fatal"]).claim_tasks(1))
        assert get_leased_task_count(client.get("/workers").text, "dying") == 0
        assert "Other workers have taken its tasks over." in client.get("/worker?name=dying").text
        page = client.get(f"/jobs/{job}").text
        assert "WorkerLost" in page
        assert "not charged: its worker was lost" in page
        assert re.search(r"<dt>Attempt</dt>\s*<dd>2</dd>", page)


def test_more_pages_at_once_than_connections(dashboard: DashboardServer) -> None:
    """Pages that read on two connections must not wait for each other's second one."""
    with dashboard.sign_in("viewer") as client, ThreadPoolExecutor(30) as pool:
        paths = ["/jobs", "/", "/jobs?q=state:"] * 20
        pages = list(pool.map(lambda path: client.get(path, timeout=60), paths))
    assert {page.status_code for page in pages} == {200}
    assert not any("Database unavailable" in page.text for page in pages)
    assert all("state:" in page.text for page in pages[2::3])


def test_a_worker_page_shows_no_raw_values(dashboard: DashboardServer) -> None:
    async def report_nulls(conn: Connection) -> None:
        await ManualWorker(conn, "plain", ["plain"]).claim_tasks(1)
        await conn.execute(
            """select holdfast.heartbeat_worker('plain', '{"blocked": null, "slots": 4, "rss": null}')"""
        )

    dashboard.run_query(report_nulls)
    with dashboard.sign_in("viewer") as client:
        for path in ("/workers", "/worker?name=plain"):
            text = re.sub(r"<script.*?</script>|<[^>]*>", " ", client.get(path).text, flags=re.DOTALL)
            assert "plain" in text
            assert not re.search(r"\b(null|None|undefined)\b", text)


def get_leased_task_count(page: str, worker: str) -> int:
    """Return the number of leased tasks in the row of a former worker."""
    row = page[page.index(f">{worker}</a>") :]
    match = re.search(r'data-label="Leased tasks" class="numeric">\s*(\d+)', row)
    assert match is not None
    return int(match[1])


def get_worker_state(page: str, worker: str) -> str:
    """Return the state badge of a worker's row."""
    row = page[page.index(f">{worker}</a>") :]
    match = re.search(r'class="state \w+">.*?<span>(\w+)</span>', row)
    assert match is not None
    return match[1]
