"""What an operator relies on at night: confirmations, undo, all attempts, logs and small responses."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import httpx
import pytest
from dashboard_server import DashboardServer
from manual_worker import ManualWorker

from holdfast.engine import jobs, limits, logs, queues
from holdfast.engine.connection import Connection
from holdfast.engine.limits import LimitRule
from holdfast.server.dashboard.live import RenderBudget
from holdfast.server.dashboard.sessions import form_token_matches, mask_form_token
from holdfast.server.dashboard.timeline import build_timeline


@pytest.fixture
def admin(dashboard: DashboardServer) -> Iterator[httpx.Client]:
    with dashboard.sign_in("admin") as client:
        yield client


def press_undo(dashboard: DashboardServer, client: httpx.Client, page: str) -> httpx.Response:
    """Submit the undo form of the message on a page."""
    form = re.search(r'<div class="flash".*?</form>', page, re.DOTALL)
    assert form, "the page offers no undo"
    path = re.search(r'action="([^"]+)"', form[0])
    assert path
    fields = dict(re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)"', form[0]))
    return dashboard.post_form(client, path[1].removeprefix("/dashboard"), **fields)


def test_removing_a_limit_says_what_it_does_and_can_be_undone(
    dashboard: DashboardServer, admin: httpx.Client
) -> None:
    rule = LimitRule(name="night", queue="browser", type="screenshot", per_key=True, max_running=3, rate=2.5)
    dashboard.run_query(lambda conn: limits.put_limit(conn, rule))
    listed = admin.get("/limits").text
    assert "Limit night is removed. All tasks that it holds back may start at once." in listed
    response = dashboard.post_form(admin, "/limits/remove", name="nihgt")
    assert response.status_code == 404
    assert "did you mean &#39;night&#39;?" in response.text
    removed = dashboard.post_form(admin, "/limits/remove", name="night")
    page = admin.get(removed.headers["location"].removeprefix("/dashboard")).text

    def read_rule() -> dict[str, Any] | None:
        rows = dashboard.run_query(limits.list_limits)
        return next((row for row in rows if row["name"] == "night"), None)

    assert read_rule() is None
    press_undo(dashboard, admin, page)
    restored = read_rule()
    assert restored is not None
    fields = ("queue", "type", "per_key", "max_running", "rate")
    assert [restored[field] for field in fields] == ["browser", "screenshot", True, 3, 2.5]


@pytest.mark.parametrize(
    ("path", "form", "state"),
    [
        ("/queue/pause", {"name": "browser", "span": "1h"}, ["browser", None]),
        ("/schedules/pause", {"name": "heartbeat"}, None),
        ("/worker/command", {"name": "worker-2", "command": "drain"}, None),
    ],
)
def test_actions_can_be_undone(
    dashboard: DashboardServer, admin: httpx.Client, path: str, form: dict[str, str], state: Any
) -> None:
    done = dashboard.post_form(admin, path, **form)
    page = admin.get(done.headers["location"].removeprefix("/dashboard")).text
    assert press_undo(dashboard, admin, page).status_code == 303
    if state:
        [queue] = dashboard.run_query(lambda conn: queues.list_task_queues(conn, "browser"))
        assert [queue["queue"], queue["paused_at"]] == state


def test_an_unknown_queue_is_not_paused(dashboard: DashboardServer, admin: httpx.Client) -> None:
    response = dashboard.post_form(admin, "/queue/pause", name="browsr", span="1h")
    assert response.status_code == 404
    assert "Queue &#39;browsr&#39; does not exist; did you mean &#39;browser&#39;?" in response.text
    assert dashboard.run_query(lambda conn: queues.list_task_queues(conn, "browsr")) == []


def test_job_page_lists_all_attempts_with_their_logs(dashboard: DashboardServer, admin: httpx.Client) -> None:
    """A second attempt that runs shows the error of the first one beside it, not as the state of the job."""

    async def fail_and_claim_again(conn: Connection) -> UUID:
        job = await jobs.submit(conn, {"type": "twice", "queue": "twice", "base_s": 0})
        worker = ManualWorker(conn, "night-worker", ["twice"])
        [first] = await worker.claim_tasks(1)
        await worker.finish_task(first, "fail", {"type": "BoomError", "message": "boom"})
        await conn.execute("select holdfast.tick(100)")
        [second] = await worker.claim_tasks(1)
        line = {"seq": 1, "at": datetime.now(UTC), "level": "info", "message": "second try", "fields": {}}
        await logs.write_logs(conn, [(second, [line])])  # type: ignore[list-item]
        return job.id

    job = dashboard.run_query(fail_and_claim_again)
    page = admin.get(f"/jobs/{job}").text
    assert "error-card" not in page
    assert "The previous attempt failed: BoomError boom" in page
    assert [int(n) for n in re.findall(r"<b>Attempt (\d)</b>", page)] == [2, 1]
    assert "second try" in page
    filtered = admin.get(f"/jobs/{job}?tab=logs&level=warning").text
    assert "second try" not in filtered
    assert "second try" in admin.get(f"/jobs/{job}?tab=logs&find=SECOND").text
    download = admin.get(f"/jobs/{job}/logs")
    assert "attachment" in download.headers["content-disposition"]
    assert re.search(r"INFO +twice#2 second try", download.text)


def test_timeline_starts_at_the_submit_with_failures_first() -> None:
    start = datetime(2026, 11, 17, 3, tzinfo=UTC)

    def make_task(number: int, state: str) -> dict[str, Any]:
        began = start + timedelta(seconds=10 + number)
        return {
            "id": str(UUID(int=number)), "name": f"page-{number}", "type": "render" if number else "collect",
            "state": state, "status": state, "due_at": began, "started_at": began,
            "finished_at": began + timedelta(seconds=5), "percent": None,
        }  # fmt: skip

    tasks = [make_task(n, "failed" if n == 177 else "succeeded") for n in range(300)]
    timeline = build_timeline(start, tasks, [], start + timedelta(hours=1))
    assert timeline is not None
    assert (timeline.start, timeline.span_s) == (start, 10 + 299 + 5)
    failing, other = timeline.groups
    assert (failing.type, failing.is_open, failing.summary) == (
        "render",
        True,
        "299 tasks: 1 failed, 298 succeeded",
    )
    assert (other.type, other.is_open) == ("collect", False)
    assert (failing.lines[0].name, failing.lines[0].state) == ("page-177", "failed")
    assert 'class="danger"' in failing.lines[0].bar
    assert (len(failing.lines), failing.omitted) == (100, 199)


def test_job_list_has_one_line_for_each_job_and_chosen_columns(
    dashboard: DashboardServer, admin: httpx.Client
) -> None:
    page = admin.get("/jobs?q=state:failed").text
    assert page.count("<tr data-row=") == len(re.findall(r'name="id" value="', page)) > 10
    assert 'class="job-details"' in page
    assert 'class="job-worker"' not in page
    form = {"column": ["id", "worker"], "token": dashboard.get_form_token(admin), "q": "state:failed"}
    chosen = admin.post("/jobs/columns", data=form, headers={"sec-fetch-site": "same-origin"})
    assert chosen.headers["location"].endswith("/jobs?q=state%3Afailed")
    page = admin.get("/jobs?q=state:failed").text
    assert 'class="job-worker"' in page
    assert 'class="job-details"' not in page


def test_responses_are_compressed(dashboard: DashboardServer, admin: httpx.Client) -> None:
    plain = admin.get("/jobs", headers={"accept-encoding": "identity"})
    assert "content-encoding" not in plain.headers
    with admin.stream("GET", "/jobs", headers={"accept-encoding": "gzip"}) as response:
        raw = b"".join(response.iter_raw())
    assert response.headers["content-encoding"] == "gzip"
    assert "accept-encoding" in response.headers["vary"].lower()
    assert len(raw) * 5 < len(plain.content)
    assert b"<h1>Jobs</h1>" in gzip.decompress(raw)
    with admin.stream("GET", "/live?path=/queues", headers={"accept-encoding": "gzip"}) as stream:
        assert stream.headers["content-encoding"] == "gzip"
        assert next(chunk for chunk in stream.iter_text() if "event: page" in chunk)


def test_form_tokens_differ_in_each_response() -> None:
    """The size of a compressed response must not tell the token."""
    token = "a7f0" * 8
    first, second = mask_form_token(token), mask_form_token(token)
    assert first != second
    assert all(form_token_matches(text, token) for text in (first, second, token))
    assert not any(form_token_matches(text, token) for text in ("", "x" * 128, first[:-1] + "g", "b7f0" * 8))
    assert not form_token_matches(mask_form_token("b7f0" * 8), token)


def test_many_open_pages_render_for_a_quarter_of_the_time() -> None:
    now = 0.0
    budget = RenderBudget(lambda: now)
    rendered = 0
    for _ in range(4000):  # fifty pages that are always due, in steps of 10 ms
        if budget.allows_render():
            rendered += 1
            now += 0.03
            budget.record_render(0.03)
        now += 0.01
    assert rendered * 0.03 / now < 0.26


def test_charts_of_a_chosen_time_compare_with_the_day_before(admin: httpx.Client) -> None:
    end = datetime.now(UTC)
    times = {"from": (end - timedelta(hours=3)).isoformat(), "until": end.isoformat(), "compare": "day"}
    page = admin.get("/", params=times).text
    assert "day before" in page
    assert "before line" in page
    assert "data-points=" in page
    assert admin.get("/?from=nonsense&until=2026").status_code == 200
    assert admin.get("/queue?name=browser&span=30d").status_code == 200


def test_queue_page_lists_the_limits_of_its_tasks_only(
    dashboard: DashboardServer, admin: httpx.Client
) -> None:
    for name, kind in (("for-shots", "screenshot"), ("for-others", "elsewhere")):
        rule = LimitRule(name=name, type=kind, max_running=1)
        dashboard.run_query(lambda conn, rule=rule: limits.put_limit(conn, rule))  # type: ignore[misc]
    page = admin.get("/queue?name=browser").text
    assert "for-shots" in page
    assert "for-others" not in page


def test_time_zone_of_the_reader_can_be_chosen(dashboard: DashboardServer, admin: httpx.Client) -> None:
    assert "data-relative" in admin.get("/jobs").text
    dashboard.post_form(admin, "/settings", time="local")
    page = admin.get("/jobs").text
    assert "data-local" in page
    assert 'data-times="local"' in page
