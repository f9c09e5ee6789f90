"""No page of a role that may not see secrets has one in the texts of a job: errors, logs, progress, results.

One secret is in a field that is named like one, the other in a field that only the schema of its task marks.
"""

from __future__ import annotations

import html
import re
from typing import Any
from uuid import UUID

import httpx
import msgspec
import pytest
from dashboard_server import DashboardServer
from manual_worker import ManualWorker, build_outcome

from holdfast.engine import error_groups, jobs, leases, task_types
from holdfast.engine.connection import Connection
from holdfast.engine.secret_payloads import load_secret_maskers
from holdfast.redaction import UNMASKABLE_TEXT
from holdfast.server.dashboard import PERMISSIONS_BY_ROLE
from holdfast.server.dashboard.registry import DOWNLOAD_ROUTES, PAGE_ROUTES

NAMED_SECRET, MARKED_SECRET, RESULT_SECRET = "swordfish-by-name", "marlin-by-schema", "tarpon-in-a-result"
SECRETS = (NAMED_SECRET, MARKED_SECRET, RESULT_SECRET)
QUEUE, CAUSE = "secretive", "Leak leak.py:spill"
MASKED_ROLES = [role for role, held in PERMISSIONS_BY_ROLE.items() if "payload.secret" not in held]
SCHEMA = {
    "type": "object",
    "properties": {"api_token": {"type": "string"}, "nickname": {"type": "string", "format": "password"}},
}
ARGS = {"api_token": NAMED_SECRET, "nickname": MARKED_SECRET}
SPILLED = f"cannot log in with {NAMED_SECRET} as {MARKED_SECRET}"
TABS = ("attempts", "logs", "files", "payload", "events", "tasks")


async def plant_secrets(conn: Connection) -> dict[str, UUID]:
    """Create a failed and a running job of one task, and a job in which the last of 25 tasks failed."""
    await task_types.register_task_types(
        conn, "spill", [{"name": "spill", "queue": QUEUE, "schema": SCHEMA}, {"name": "fine", "queue": QUEUE}]
    )
    single = await jobs.submit(conn, {"type": "spill", "queue": QUEUE, "attempts": 1, "args": ARGS})
    await fail_all(conn, 1)
    tasks: list[dict[str, Any]] = [{"type": "fine", "name": f"t{n:02}"} for n in range(24)]
    tasks += [
        {"type": "spill", "name": "z", "args": ARGS, "attempts": 1, "after": [t["name"] for t in tasks]}
    ]
    graph = await jobs.submit(
        conn, {"type": "flood", "queue": QUEUE, "tasks": [{"queue": QUEUE, **task} for task in tasks]}
    )
    worker = ManualWorker(conn, "spiller", [QUEUE])
    claimed = await worker.claim_tasks(30)
    results = [build_outcome(task, "succeed", {"session_token": RESULT_SECRET}) for task in claimed]
    await worker.finish_and_claim(results)
    await fail_all(conn, 1, f"{SPILLED} after {RESULT_SECRET}")
    running = await jobs.submit(conn, {"type": "spill", "queue": QUEUE, "args": ARGS})
    (task,) = await worker.claim_tasks(1)
    await report(conn, task, SPILLED)
    return {"single": single.id, "graph": graph.id, "running": running.id}


async def fail_all(conn: Connection, count: int, text: str = SPILLED) -> None:
    worker = ManualWorker(conn, "spiller", [QUEUE])
    tasks = await worker.claim_tasks(30)
    assert len(tasks) == count
    for task in tasks:
        await report(conn, task, text)
        error = {"type": "Leak", "message": text, "traceback": f'  File "leak.py"\n    {text}'}
        await worker.finish_and_claim([build_outcome(task, "fail", {**error, "fingerprint": CAUSE})])


async def report(conn: Connection, task: leases.LeasedTask, text: str) -> None:
    await conn.execute(
        "select holdfast.progress($1, $2, $3, 50, $4, $4)", task.id, task.attempt, task.nonce, text[:190]
    )
    line = {
        "seq": 1,
        "at": "2026-11-17T09:00:00Z",
        "level": "error",
        "message": text,
        "fields": {"detail": text},
    }
    lease = {"id": str(task.id), "attempt": task.attempt, "nonce": task.nonce}
    batch = msgspec.json.encode([{**lease, "lines": [line]}]).decode()
    assert await conn.fetchval("select holdfast.write_logs($1)", batch) == 1


@pytest.fixture(scope="module")
def planted(dashboard: DashboardServer) -> dict[str, UUID]:
    return dashboard.run_query(plant_secrets)


def list_paths(ids: dict[str, UUID], job_id: UUID) -> list[str]:
    """Return every page and download of the registry, and each tab of each job."""
    query = f"?q=queue:{QUEUE}&queue=clips&name=spiller&cause={CAUSE}&verb=retry&format=csv&span=24h"
    paths = [re.sub(r"{[^}]+}", str(job_id), path) + query for path in {**PAGE_ROUTES, **DOWNLOAD_ROUTES}]
    paths += [f"/jobs/{each}?tab={tab}" for each in ids.values() for tab in TABS]
    return [*paths, f"/jobs/export?format=jsonl&q=queue:{QUEUE}", "/task?name=spill", "/jobs", "/"]


def read_everything(client: httpx.Client, ids: dict[str, UUID]) -> dict[str, str]:
    """Return the texts of all pages, and of the live updates of pages that show texts of jobs."""
    texts = {path: client.get(path).text for path in list_paths(ids, ids["graph"])}
    for path in ("/", "/jobs", "/errors", f"/jobs/{ids['graph']}"):
        with client.stream("GET", "/live", params={"path": path}) as stream:
            lines = (line for line in stream.iter_lines() if line.startswith("data:"))
            texts[f"live {path}"] = next(lines, "")
    return texts


@pytest.mark.parametrize("role", MASKED_ROLES)
def test_no_page_shows_a_secret_to_a_role_that_may_not_see_it(
    dashboard: DashboardServer, planted: dict[str, UUID], role: str
) -> None:
    with dashboard.sign_in(role) as client:
        for path, text in read_everything(client, planted).items():
            leaked = [secret for secret in SECRETS if secret in html.unescape(text)]
            assert not leaked, (role, path, leaked)
        if role != "support":
            assert "cannot log in with •••" in client.get("/errors").text, "the rest of the message is shown"
            assert "cannot log in with •••" in client.get(f"/jobs/{planted['graph']}").text


def test_this_test_would_detect_a_leak(dashboard: DashboardServer, planted: dict[str, UUID]) -> None:
    with dashboard.sign_in("admin") as client:
        texts = read_everything(client, planted)
    for secret in (NAMED_SECRET, MARKED_SECRET, RESULT_SECRET):
        leaks = {path.partition("?")[0] for path, text in texts.items() if secret in html.unescape(text)}
        assert {"/errors", "/error", "/jobs", "/jobs/export"} <= leaks, (secret, leaks)


@pytest.mark.parametrize("term", [f"args.nickname:{MARKED_SECRET}", MARKED_SECRET, f"error:{MARKED_SECRET}"])
def test_a_search_does_not_confirm_a_guess(
    dashboard: DashboardServer, planted: dict[str, UUID], term: str
) -> None:
    with dashboard.sign_in("operator") as client:
        text = client.get("/jobs", params={"q": term}).text
        assert not any(str(job_id) in text for job_id in planted.values())


def test_the_error_of_a_deleted_job_is_hidden(dashboard: DashboardServer, planted: dict[str, UUID]) -> None:
    """Attempts are kept longer than jobs. Without the arguments nobody knows which words are secret."""
    cause = "Leak leak.py:gone"

    async def fail_and_delete(conn: Connection) -> UUID:
        job = await jobs.submit(conn, {"type": "spill", "queue": "gone", "attempts": 1, "args": ARGS})
        worker = ManualWorker(conn, "spiller", ["gone"])
        (task,) = await worker.claim_tasks(1)
        await worker.finish_task(task, "fail", {"type": "Leak", "message": SPILLED, "fingerprint": cause})
        await conn.execute("delete from holdfast.history where id = $1", job.id)
        return job.id

    job_id = dashboard.run_query(fail_and_delete)
    with dashboard.sign_in("operator") as client:
        for path in ("/errors", f"/error?cause={cause}", "/"):
            text = html.unescape(client.get(path).text)
            assert not any(secret in text for secret in SECRETS), path
        assert UNMASKABLE_TEXT in html.unescape(client.get("/errors").text)
    with dashboard.sign_in("admin") as client:
        assert SPILLED in html.unescape(client.get(f"/error?cause={cause}").text)
    assert dashboard.run_query(lambda conn: load_secret_maskers(conn, [job_id])) == {}


def test_payloads_above_the_limit_are_not_read(dashboard: DashboardServer, planted: dict[str, UUID]) -> None:
    async def read(conn: Connection) -> list[Any]:
        return [
            msgspec.json.decode(row[0])
            for row in await conn.fetch(
                "select holdfast.list_secret_payloads($1, 'token', 10)", [planted["single"], UUID(int=1)]
            )
        ]

    rows = {row["job"]: row for row in dashboard.run_query(read)}
    assert rows[str(planted["single"])] == {
        "job": str(planted["single"]), "exists": True, "complete": False, "payloads": [],
    }  # fmt: skip
    assert rows[str(UUID(int=1))]["exists"] is False


def test_error_groups_name_their_newest_job(dashboard: DashboardServer, planted: dict[str, UUID]) -> None:
    groups = dashboard.run_query(error_groups.list_error_groups)
    group = next(group for group in groups if group["cause"] == CAUSE)
    assert group["newest_job"] == str(planted["graph"])
    assert "args" not in group
