"""Rules of the dashboard over HTTP: roles, secrets, forms, login and bulk actions."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import httpx
import msgspec
import pytest
from dashboard_server import DashboardServer
from manual_worker import ManualWorker, build_outcome

from holdfast.engine import alerts, artifacts, bulk_actions, job_detail, jobs, schedules, webhooks
from holdfast.engine import (
    audit as engine_audit,
)
from holdfast.engine.connection import Connection
from holdfast.server.dashboard import PERMISSIONS_BY_ROLE
from holdfast.server.dashboard.registry import ACTION_ROUTES, DOWNLOAD_ROUTES, PAGE_ROUTES

PAYLOAD_SECRET = "hunter2-secret"
SCHEDULE_JOB_JSON = '{"type": "export", "queue": "default"}'
# A valid form for every action. What it refers to is created anew for each role.
FORMS_BY_ACTION: dict[str, dict[str, str]] = {
    "/jobs/columns": {"column": "id"},
    "/views/save": {"name": "mine", "q": "state:failed"},
    "/views/delete": {"id": str(UUID(int=5))},
    "/jobs/{id}/retry": {},
    "/jobs/{id}/cancel": {"reason": "test"},
    "/jobs/{id}/rerun": {"args": "{}"},
    "/error/ignore": {"cause": "KeyError x.py:f", "span": "1h"},
    "/bulk": {"verb": "retry", "q": "task:no_such_type", "reason": "test", "ramp": "10"},
    "/bulk/{id}/control": {"verb": "pause"},
    "/bulk/{id}/undo": {},
    "/batches/{id}/cancel": {},
    "/queue/pause": {"name": "mail", "span": "15m"},
    "/queue/resume": {"name": "mail"},
    "/task/submit": {"name": "legacy", "args": "{}"},
    "/messages/requeue": {"queue": "clips", "place": "archive", "all": "yes"},
    "/messages/send": {"queue": "mails", "body": "{}"},
    "/worker/command": {"name": "worker-2", "command": "none"},
    "/schedules/run": {"name": "heartbeat"},
    "/schedules/pause": {"name": "heartbeat"},
    "/schedules/resume": {"name": "heartbeat"},
    "/schedules/delete": {"name": "gone"},
    "/schedules/edit": {
        "name": "sweep",
        "cron": "*/20 * * * *",
        "missed": "skip",
        "max_catch_up": "5",
        "job": SCHEDULE_JOB_JSON,
    },
    "/webhooks/{id}/switch": {"on": "yes"},
    "/alerts/{id}/acknowledge": {"note": "looking"},
    "/alerts/silence": {"rule": "queue-age", "span": "1h"},
    "/alerts/silences/{id}/end": {},
    "/alerts/rules/set": {"name": "matrix", "kind": "queue_age", "threshold": "60"},
    "/alerts/rules/switch": {"name": "storage", "on": "yes"},
    "/alerts/rules/delete": {"name": "matrix"},
    "/alerts/channels/add": {"name": "matrix", "kind": "email", "target": "ann@x.test"},
    "/alerts/channels/test": {"name": "matrix"},
    "/alerts/channels/switch": {"name": "matrix", "on": "yes"},
    "/alerts/channels/delete": {"name": "matrix"},
    "/limits/set": {"name": "matrix", "queue": "matrix", "max_running": "3", "allow_new": "yes"},
    "/limits/remove": {"name": "matrix"},
    "/files/{id}/keep": {"span": "30 days"},
    "/files/{id}/delete": {},
    "/sessions/{id}/end": {},
    "/sessions/end-others": {},
    "/settings": {"theme": "dark"},
}


def submit_job(dashboard: DashboardServer, **job: Any) -> UUID:
    async def run(conn: Connection) -> UUID:
        return (await jobs.submit(conn, {"type": "legacy", "queue": "matrix", **job})).id

    return dashboard.run_query(run)


def create_failed_jobs(
    dashboard: DashboardServer, count: int, task_type: str = "flaky", queue: str = "rules"
) -> list[UUID]:
    async def run(conn: Connection) -> list[UUID]:
        submitted = await jobs.submit_many(
            conn, [{"type": task_type, "queue": queue, "attempts": 1} for _ in range(count)]
        )
        manual_worker = ManualWorker(conn, "rules", [queue])
        tasks = await manual_worker.claim_tasks(count)
        await manual_worker.finish_and_claim(
            [build_outcome(t, "fail", {"type": "E", "message": "m"}) for t in tasks]
        )
        return [job.id for job in submitted]

    return dashboard.run_query(run)


def create_target(dashboard: DashboardServer, path: str, role: str = "admin") -> str:
    """Return a path with the id of an object that the action of a user with this role can change."""
    if "{id}" not in path:
        return path
    if path.startswith("/jobs/"):
        is_retry = path.endswith("retry")
        job_id = create_failed_jobs(dashboard, 1)[0] if is_retry else submit_job(dashboard)
        return path.replace("{id}", str(job_id))
    if path.startswith("/bulk/"):
        return path.replace("{id}", str(dashboard.ids["bulk"]))
    if path.startswith("/batches/"):
        return path.replace("{id}", str(dashboard.ids["batch"]))
    if path.startswith("/sessions/"):
        return path.replace("{id}", str(dashboard.start_session(role)[0]))
    if path.startswith("/webhooks/"):
        return path.replace("{id}", str(dashboard.run_query(webhooks.list_webhooks)[-1].id))
    if path.startswith("/alerts/"):
        create = create_silence if "silences" in path else create_alert
        return path.replace("{id}", str(dashboard.run_query(create)))
    return path.replace("{id}", str(dashboard.run_query(create_file)))


async def create_alert(conn: Connection) -> UUID:
    alert_id: UUID = await conn.fetchval(
        "insert into holdfast.alerts (id, rule, kind, subject, severity, status, started_at, seen_at)"
        " values (gen_random_uuid(), 'no-worker', 'no_worker', gen_random_uuid(), 'critical', 'firing',"
        " holdfast.now(), holdfast.now()) returning id"
    )
    return alert_id


async def create_silence(conn: Connection) -> UUID:
    return await alerts.silence_alerts(conn, datetime.now(UTC) + timedelta(hours=1), "ann")


async def create_file(conn: Connection) -> UUID:
    staged = await artifacts.stage_artifact_without_task(
        conn, {"name": "spare.txt", "content_type": "text/plain"}
    )
    await artifacts.record_artifact_upload(conn, staged.id, None, size=1, sha256="0" * 64, meta={})
    return staged.id


@pytest.mark.parametrize("role", PERMISSIONS_BY_ROLE)
def test_permission_of_every_action_for_every_role(dashboard: DashboardServer, role: str) -> None:
    """The server enforces the permission table, also for buttons that a page does not show."""
    assert set(FORMS_BY_ACTION) == set(ACTION_ROUTES), "an action that this test does not try"
    with dashboard.sign_in(role) as client:
        for path, route in ACTION_ROUTES.items():
            before = dashboard.run_query(lambda conn: engine_audit.list_audit_entries(conn, limit=1))
            target = create_target(dashboard, path, role)
            response = dashboard.post_form(client, target, **FORMS_BY_ACTION[path])
            after = dashboard.run_query(lambda conn: engine_audit.list_audit_entries(conn, limit=1))
            if route.permission in PERMISSIONS_BY_ROLE[role]:
                assert response.status_code == 303, (role, path, response.text[-1500:])
            else:
                assert response.status_code == 403, (role, path, response.status_code)
                assert after == before, f"{role} added an audit entry with {path}"


@pytest.mark.parametrize("role", PERMISSIONS_BY_ROLE)
def test_permission_of_every_page_for_every_role(dashboard: DashboardServer, role: str) -> None:
    with dashboard.sign_in(role) as client:
        for path, route in {**PAGE_ROUTES, **DOWNLOAD_ROUTES}.items():
            if "{" in path:
                continue
            response = client.get(
                path, params={"name": "browser", "cause": "x", "verb": "retry", "format": "csv"}
            )
            allowed = route.permission in PERMISSIONS_BY_ROLE[role]
            assert (response.status_code == 403) is not allowed, (role, path, response.status_code)


def test_every_action_is_audited(dashboard: DashboardServer) -> None:
    with dashboard.sign_in("admin") as client:
        for path in ACTION_ROUTES:
            if path in {"/settings", "/views/delete", "/jobs/columns"}:  # nothing of others changes
                continue
            before = dashboard.run_query(lambda conn: engine_audit.list_audit_entries(conn, limit=1))
            assert (
                dashboard.post_form(
                    client, create_target(dashboard, path), **FORMS_BY_ACTION[path]
                ).status_code
                == 303
            ), path
            (entry,) = dashboard.run_query(lambda conn: engine_audit.list_audit_entries(conn, limit=1))
            assert [entry] != before, path
            assert entry.actor == "ann (admin)"


def test_forms_of_other_sites_and_sessions_are_refused(dashboard: DashboardServer) -> None:
    job = submit_job(dashboard)
    with dashboard.sign_in("admin") as client:
        path, token = f"/jobs/{job}/cancel", dashboard.get_form_token(client)
        requests = [
            {"data": {"token": token}, "headers": {"sec-fetch-site": "cross-site"}},
            {"data": {"token": token}, "headers": {"origin": "https://evil.example"}},
            {"data": {"token": token}},
            {"data": {"token": "wrong"}, "headers": {"sec-fetch-site": "same-origin"}},
            {"data": {}, "headers": {"sec-fetch-site": "same-origin"}},
        ]
        for request in requests:
            assert client.post(path, **request).status_code == 403  # type: ignore[arg-type]
        with dashboard.sign_in("admin") as other:
            assert dashboard.post_form(other, path, token=token).status_code == 403, (
                "a token of another session"
            )
        assert client.get(path).status_code in {404, 405}
    assert dashboard.run_query(lambda conn: jobs.get_job(conn, job))["status"] == "queued"  # type: ignore[index]


def test_login_is_required(dashboard: DashboardServer) -> None:
    with httpx.Client(base_url=dashboard.base) as client:
        for path in ("/", "/jobs", "/audit", "/jobs/export?format=csv"):
            response = client.get(path)
            assert response.status_code == 303, path
            assert "/login?next=" in response.headers["location"]
        assert client.get("/live", params={"path": "/"}).status_code == 401
        client.cookies.set("holdfast_session", "eyJyb2xlIjoiYWRtaW4ifQ.0000")
        assert client.get("/").status_code == 303, "a forged session"
        same_origin = {"sec-fetch-site": "same-origin"}
        assert client.post("/login", data={"key": "wrong"}, headers=same_origin).status_code == 403
        response = client.post(
            "/login", data={"key": "hf_test_key", "next": "//evil.example"}, headers=same_origin
        )
        assert (response.status_code, response.headers["location"]) == (303, "/dashboard/")
        assert "HttpOnly" in response.headers["set-cookie"]
        statuses = [
            client.post("/login", data={"key": "x"}, headers=same_origin).status_code for _ in range(12)
        ]
        assert 429 in statuses


def test_login_link_works_once(dashboard: DashboardServer) -> None:
    link = dashboard.create_login_link("viewer", "bob")
    with httpx.Client() as client:
        assert client.get(link, headers={"sec-purpose": "prefetch"}).status_code == 503
        assert client.get(link).status_code == 303
        assert "bob" in client.get(f"{dashboard.base}/settings").text
        assert client.get(link).status_code == 403


def read_pages_and_streams(
    dashboard: DashboardServer, client: httpx.Client, paths: list[str]
) -> Iterator[tuple[str, str]]:
    for path in paths:
        yield path, client.get(path).text
    for path in ("/", "/jobs", f"/jobs/{dashboard.ids['failed']}"):
        with client.stream("GET", "/live", params={"path": path}) as stream:
            for line in stream.iter_lines():
                if line.startswith("data:"):
                    yield f"stream of {path}", line
                    break


@pytest.mark.parametrize("role", ["viewer", "support", "operator"])
def test_secrets_are_redacted(dashboard: DashboardServer, role: str) -> None:
    job_ids = [dashboard.ids[name] for name in ("graph", "failed", "running")]
    tabs = ["", "?tab=payload", "?tab=logs", "?tab=events", "?tab=tasks", "/rerun"]
    paths = [
        "/",
        "/jobs",
        "/jobs?q=state:failed",
        "/errors",
        "/error?cause=TimeoutError%20render.py:goto",
        "/messages?queue=clips",
        "/jobs/export?format=csv",
        "/jobs/export?format=jsonl&q=state:failed",
        *(f"/jobs/{job_id}{tab}" for job_id in job_ids for tab in tabs),
    ]
    with dashboard.sign_in(role) as client:
        for path, text in read_pages_and_streams(dashboard, client, paths):
            assert PAYLOAD_SECRET not in html.unescape(text), path
        assert (
            "is a secret" in client.get("/jobs", params={"q": f"args.api_token:{PAYLOAD_SECRET}"}).text
            or role == "support"
        )
    with dashboard.sign_in("admin") as client:
        leaks = [
            path for path, text in read_pages_and_streams(dashboard, client, paths) if PAYLOAD_SECRET in text
        ]
        assert len(leaks) > 5, "this test would not detect a leak"


def test_retried_message_shows_its_error(dashboard: DashboardServer) -> None:
    errors = {"admin": f"ValueError: {PAYLOAD_SECRET} is not", "operator": "ValueError: ••• is not"}
    for role, error in errors.items():
        with dashboard.sign_in(role) as client:
            assert error in client.get("/messages?queue=clips").text


def test_support_role_sees_its_tenant_and_no_payload(dashboard: DashboardServer) -> None:
    mine = submit_job(dashboard, owner="acme", args={"about": "mine"})
    theirs = submit_job(dashboard, owner="zeta", args={"about": "theirs"})
    with dashboard.sign_in("support", "acme") as client:
        assert client.get(f"/jobs/{mine}").status_code == 200
        assert client.get(f"/jobs/{theirs}").status_code == 404
        page = client.get("/jobs", params={"q": "owner:zeta"}).text
        assert str(theirs) not in page
        assert "about" not in client.get(f"/jobs/{mine}?tab=payload").text
        assert "may not search" in client.get("/jobs", params={"q": "args.about:mine"}).text
        exported = client.get("/jobs/export?format=jsonl").text
        owners = {msgspec.json.decode(line)["owner"] for line in exported.splitlines()}
        assert owners == {"acme"}
    with dashboard.sign_in("operator", "acme") as client:
        for verb in ("cancel", "retry", "rerun"):
            assert dashboard.post_form(client, f"/jobs/{theirs}/{verb}", args="{}").status_code == 404
        dashboard.post_form(client, "/bulk", verb="cancel", q="task:legacy", reason="mine only")
        dashboard.run_query(bulk_actions.advance_bulk_actions)
    assert dashboard.run_query(lambda conn: jobs.get_job(conn, theirs))["status"] == "queued"  # type: ignore[index]
    assert dashboard.run_query(lambda conn: jobs.get_job(conn, mine))["status"] == "cancelled"  # type: ignore[index]


def test_pagination_of_jobs_from_one_transaction(dashboard: DashboardServer) -> None:
    async def submit_jobs(conn: Connection) -> list[UUID]:
        submitted = await jobs.submit_many(conn, [{"type": "forty", "queue": "forty"} for _ in range(140)])
        return [job.id for job in submitted]

    job_ids = dashboard.run_query(submit_jobs)
    listed: list[str] = []
    with dashboard.sign_in("viewer") as client:
        path: str | None = "/jobs?q=task:forty"
        while path:
            text = client.get(path).text
            listed += re.findall(r'data-row="([0-9a-f-]{36})"', text)
            next_link = re.search(r'href="/dashboard(/jobs\?[^"]*)" rel="next"', text)
            path = html.unescape(next_link[1]) if next_link else None
    assert len(listed) == len(set(listed)) == 140
    assert set(listed) == {str(job_id) for job_id in job_ids}


def test_bulk_retry_and_undo(dashboard: DashboardServer) -> None:
    job_ids = create_failed_jobs(dashboard, 300, "bulky", "bulky")
    with dashboard.sign_in("operator") as client:
        page = client.get("/bulk/new", params={"verb": "retry", "q": "task:bulky"}).text
        assert "Retry 300 jobs" in page
        assert dashboard.post_form(client, "/bulk", verb="retry", q="task:bulky").status_code == 422, (
            "without a reason"
        )
        response = dashboard.post_form(
            client, "/bulk", verb="retry", q="task:bulky", reason="fixed", ramp="10, 100", stop="20"
        )
        path = response.headers["location"].removeprefix("/dashboard")
        bulk_id = UUID(path.rpartition("/")[2])
        dashboard.run_query(bulk_actions.advance_bulk_actions)
        assert "stage 1" in client.get(path).text

        async def start_some(conn: Connection) -> None:
            await ManualWorker(conn, "bulky", ["bulky"]).claim_tasks(4)

        dashboard.run_query(start_some)
        assert dashboard.post_form(client, f"{path}/undo").status_code == 303
        bulk_action_jobs = dashboard.run_query(
            lambda conn: bulk_actions.list_bulk_action_jobs(conn, bulk_id, limit=300)
        )
        outcomes = [job["outcome"] for job in bulk_action_jobs]
        assert (outcomes.count("undone"), outcomes.count("done"), outcomes.count(None)) == (6, 4, 290)
        audit = client.get("/audit").text
        assert "bulk.retry" in audit
        assert "bulk.undo" in audit
    assert len(job_ids) == 300


def test_run_as_new_job_with_changed_arguments(dashboard: DashboardServer) -> None:
    old = dashboard.ids["failed"]
    before = dashboard.run_query(lambda conn: jobs.get_job(conn, old))
    with dashboard.sign_in("operator") as client:
        form = client.get(f"/jobs/{old}/rerun").text
        assert 'name="arg.url"' in form
        assert "•••" in form
        form_values = {
            "arg.url": "https://e.example",
            "arg.width": "0",
            "arg.format": "png",
            "arg.api_token": "•••",
        }
        refused = dashboard.post_form(client, f"/jobs/{old}/rerun", **form_values)
        assert refused.status_code == 422
        assert "width" in refused.text
        assert 'value="https://e.example"' in refused.text, "the form keeps the input"
        response = dashboard.post_form(client, f"/jobs/{old}/rerun", **{**form_values, "arg.width": "640"})
        assert response.status_code == 303, response.text[-500:]
        path = response.headers["location"].removeprefix("/dashboard")
        assert str(old) in client.get(path).text
        assert path.rpartition("/")[2] in client.get(f"/jobs/{old}").text
    new = dashboard.run_query(lambda conn: job_detail.get_task_payload(conn, UUID(path.rpartition("/")[2])))
    assert new is not None
    assert new["args"] == {
        "url": "https://e.example",
        "width": 640,
        "format": "png",
        "api_token": PAYLOAD_SECRET,
    }
    assert dashboard.run_query(lambda conn: jobs.get_job(conn, old)) == before


def test_submit_form_names_the_invalid_field(dashboard: DashboardServer) -> None:
    with dashboard.sign_in("operator") as client:
        response = dashboard.post_form(client, "/task/submit", name="screenshot", **{"arg.width": "wide"})
        assert response.status_code == 422
        assert "width" in response.text
        response = dashboard.post_form(
            client, "/task/submit", name="screenshot", **{"arg.url": "https://e.example", "arg.width": "8"}
        )
        assert response.status_code == 303


def test_job_in_a_paused_queue_explains_why(dashboard: DashboardServer) -> None:
    job = submit_job(dashboard, queue="pausing")
    with dashboard.sign_in("operator") as client:
        dashboard.post_form(client, "/queue/pause", name="pausing", span="1h", reason="429 storm")

        async def count_claimed(conn: Connection) -> int:
            return len(await ManualWorker(conn, "pausing", ["pausing"]).claim_tasks(5))

        assert dashboard.run_query(count_claimed) == 0
        text = re.sub(r"<[^>]+>", "", client.get(f"/jobs/{job}").text)
        assert "Queue pausing is paused by ann" in text
        assert "429 storm" in text
        assert "resumes in 60m" in text
        dashboard.post_form(client, "/queue/resume", name="pausing")
    assert dashboard.run_query(count_claimed) == 1


def test_two_users_cancel_the_same_job(dashboard: DashboardServer) -> None:
    job = submit_job(dashboard)
    with dashboard.sign_in("operator") as first, dashboard.sign_in("admin") as second:
        assert dashboard.post_form(first, f"/jobs/{job}/cancel").status_code == 303
        response = dashboard.post_form(second, f"/jobs/{job}/cancel")
        assert response.status_code == 303
        assert "already ended: cancelled" in second.get(f"/jobs/{job}").text


def test_slow_database_shows_the_last_good_page(dashboard: DashboardServer) -> None:
    """A page is loaded once; then its tables are locked for longer than a page may take."""
    with dashboard.sign_in("viewer") as client:
        assert "Needs attention" in client.get("/?span=24h").text

        async def request_while_locked(conn: Connection) -> list[httpx.Response]:
            async with conn.transaction():
                await conn.execute("lock table holdfast.metric_samples in access exclusive mode")
                async with httpx.AsyncClient(
                    base_url=dashboard.base, cookies=client.cookies, timeout=30
                ) as other:
                    return [await other.get("/?span=24h"), await other.get("/?span=6h")]

        cached, uncached = dashboard.run_query(request_while_locked)
        assert (cached.status_code, uncached.status_code) == (200, 503)
        for response in (cached, uncached):
            assert "took longer than two seconds" in response.text
        assert "Needs attention" in cached.text


def test_csv_export_escapes_formulas(dashboard: DashboardServer) -> None:
    submit_job(dashboard, type="=HYPERLINK(1)")
    with dashboard.sign_in("viewer") as client:
        lines = client.get("/jobs/export", params={"format": "csv", "q": 'task:"=HYPERLINK(1)"'}).text
        assert ",'=HYPERLINK(1)," in lines


def test_schedule_is_previewed_then_saved(dashboard: DashboardServer) -> None:
    with dashboard.sign_in("admin") as client:
        form = {"name": "nightly-report", "cron": "15 4 * * tue", "timezone": "UTC", "missed": "skip"}
        form |= {"max_catch_up": "3", "job": SCHEDULE_JOB_JSON}
        preview = dashboard.post_form(client, "/schedules/edit", **form, preview="yes")
        assert preview.status_code == 200
        assert "Tuesday at 04:15" in preview.text
        assert preview.text.count("<li>Tue ") == 5
        schedule = dashboard.run_query(lambda conn: schedules.get_schedule(conn, "nightly-report"))
        assert schedule.cron == "0 3 * * *", "a preview changes nothing"
        assert dashboard.post_form(client, "/schedules/edit", **form).status_code == 303
        schedule = dashboard.run_query(lambda conn: schedules.get_schedule(conn, "nightly-report"))
        assert (schedule.cron, schedule.timezone, schedule.missed, schedule.max_catch_up) == (
            "15 4 * * tue",
            "UTC",
            "skip",
            3,
        )
        [entry] = dashboard.run_query(lambda conn: engine_audit.list_audit_entries(conn, limit=1))
        assert (entry.action, entry.target) == ("schedule.edit", "nightly-report")
        for field, value in (
            ("cron", "61 * * * *"),
            ("cron", ""),
            ("every_s", "60"),
            ("timezone", "Mars/Olympus"),
            ("missed", "some"),
            ("max_catch_up", "many"),
            ("job", "{"),
            ("job", "[]"),
            ("job", "{}"),
        ):
            response = dashboard.post_form(client, "/schedules/edit", **{**form, field: value})
            assert response.status_code == 422, (field, value)
            assert 'role="alert"' in response.text
        unchanged = dashboard.run_query(lambda conn: schedules.get_schedule(conn, "nightly-report"))
        assert unchanged == schedule
        assert client.get("/schedules/edit?name=nothing").status_code == 404


def test_disabled_webhook_is_shown_and_enabled(dashboard: DashboardServer) -> None:
    with dashboard.sign_in("admin") as client:
        page = client.get("/webhooks").text
        assert "old.example.net" in page
        assert PAYLOAD_SECRET not in page
        assert "410 Gone" in client.get("/").text
        disabled = next(
            webhook for webhook in dashboard.run_query(webhooks.list_webhooks) if "old." in webhook.url
        )
        assert dashboard.post_form(client, f"/webhooks/{disabled.id}/switch", on="yes").status_code == 303
        assert next(
            webhook for webhook in dashboard.run_query(webhooks.list_webhooks) if webhook.id == disabled.id
        ).active
        assert dashboard.post_form(client, f"/webhooks/{UUID(int=7)}/switch", on="yes").status_code == 404
    with dashboard.sign_in("viewer", "acme") as client:
        page = client.get("/webhooks").text
        assert "acme.example.com" in page
        assert "billing.example.org" not in page
