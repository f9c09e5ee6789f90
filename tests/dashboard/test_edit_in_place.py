"""Limits and schedules: edited in place, with their runs and the history of their changes."""

from __future__ import annotations

import html

from dashboard_server import DashboardServer

from holdfast.engine import limits, schedules
from holdfast.engine.limits import LimitRule
from holdfast.model import Json


def test_a_limit_is_edited_in_place_and_its_changes_are_listed(dashboard: DashboardServer) -> None:
    rule = LimitRule(name="edited", queue="ai", max_running=3, rate=2.5)
    dashboard.run_query(lambda conn: limits.put_limit(conn, rule))
    with dashboard.sign_in("admin") as client:
        page = client.get("/limits").text
        assert 'name="rate"' in page
        assert 'value="2.5"' in page  # the form has the stored values
        form = {"name": "edited", "queue": "ai", "max_running": "7", "rate": "2.5"}
        assert dashboard.post_form(client, "/limits/set", **form).status_code == 303
        stored = {row["name"]: row for row in dashboard.run_query(limits.list_limits)}["edited"]
        assert (stored["max_running"], stored["rate"], stored["queue"]) == (7, 2.5, "ai")
        unknown = dashboard.post_form(client, "/limits/set", name="new", queue="aii", max_running="1")
        assert unknown.status_code == 404
        assert "did you mean" in html.unescape(unknown.text)
        history = html.unescape(client.get("/limits", params={"history": "edited"}).text)
        assert "Changes of edited" in history
        assert '"max_running":7' in history
        assert "ann (admin)" in history
    with dashboard.sign_in("viewer") as client:  # without the permission audit.view
        assert "Changes of" not in client.get("/limits", params={"history": "edited"}).text


def test_a_schedule_shows_runs_changes_and_two_zones(dashboard: DashboardServer) -> None:
    schedule: dict[str, Json] = {"name": "madrid", "job": {"type": "report"}, "cron": "30 9 * * *"}
    schedule["timezone"] = "Europe/Madrid"
    dashboard.run_query(lambda conn: schedules.put_schedule(conn, schedule))
    with dashboard.sign_in("admin") as client:
        assert dashboard.post_form(client, "/schedules/run", name="madrid").status_code == 303
        assert dashboard.post_form(client, "/schedules/pause", name="madrid").status_code == 303
        assert "The schedule is paused." in client.get("/schedules/show", params={"name": "madrid"}).text
        assert dashboard.post_form(client, "/schedules/resume", name="madrid").status_code == 303
        page = client.get("/schedules/show", params={"name": "madrid"}).text
        assert "09:30 CE" in page  # CET or CEST, the zone of the schedule
        assert "data-local" in page  # the script shows the zone of the reader
        assert page.count("schedule.pause") == 1
        assert "All runs" in page
        assert "/schedules/show?name=madrid" in client.get("/schedules").text
        assert client.get("/schedules/show", params={"name": "nosuch"}).status_code == 404
