"""Alerts over HTTP and with the client: read, acknowledge, silence, and change rules."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

import httpx
import pytest
from api_clients import bearer_headers, make_token
from book_app import SERVICE_KEY

from holdfast import AlertRule, Client
from holdfast.engine import alerts, jobs, limits
from holdfast.engine.connection import Connection
from holdfast.errors import InvalidError, NotFoundError
from holdfast.settings import Secret, Settings

SERVICE = bearer_headers(SERVICE_KEY)
NO_ID = UUID(int=0)


async def fire_alert(conn: Connection) -> None:
    """Pause a queue with a job, which the rule `paused-queue` finds."""
    await jobs.submit(conn, {"type": "t", "queue": "mail"})
    await limits.pause_queue(conn, "mail", reason="moving house", by="ann")
    await alerts.evaluate_alerts(conn, force=True)


async def test_an_alert_is_read_and_acknowledged(api: httpx.AsyncClient, conn: Connection) -> None:
    await fire_alert(conn)
    [alert] = (await api.get("/api/alerts", headers=SERVICE)).json()
    assert (alert["rule"], alert["subject"], alert["status"]) == ("paused-queue", "mail", "firing")
    address = f"/api/alerts/{alert['id']}"
    body = {"note": "I am looking at it"}
    assert (await api.post(f"{address}/acknowledge", json=body, headers=SERVICE)).json() == {"changed": True}
    read = (await api.get(address, headers=SERVICE)).json()
    assert read["note"] == "I am looking at it"
    assert read["acknowledged_by"]
    entry = await conn.fetchrow("select action, target from holdfast.audit_log order by id desc limit 1")
    assert entry is not None
    assert tuple(entry) == ("alert.acknowledge", alert["id"])
    assert (await api.get("/api/alerts?resolved=true", headers=SERVICE)).json() == []
    assert (await api.get(f"/api/alerts/{NO_ID}", headers=SERVICE)).status_code == 404
    assert (await api.post(f"/api/alerts/{NO_ID}/acknowledge", json={}, headers=SERVICE)).status_code == 404


async def test_alerts_are_silenced_until_a_time(api: httpx.AsyncClient, conn: Connection) -> None:
    await fire_alert(conn)
    until = (await conn.fetchval("select holdfast.now()") + timedelta(hours=1)).isoformat()
    body = {"until": until, "subject": "mail", "reason": "maintenance"}
    created = await api.post("/api/alert-silences", json=body, headers=SERVICE)
    assert created.status_code == 201, created.text
    [silence] = (await api.get("/api/alert-silences", headers=SERVICE)).json()
    assert (silence["id"], silence["reason"]) == (created.json()["id"], "maintenance")
    [alert] = (await api.get("/api/alerts", headers=SERVICE)).json()
    assert alert["silenced_until"] is not None
    address = f"/api/alert-silences/{silence['id']}"
    assert (await api.delete(address, headers=SERVICE)).status_code == 204
    assert (await api.delete(address, headers=SERVICE)).status_code == 404
    for wrong, field in (
        ({"until": "2000-01-01T00:00:00Z"}, "until"),
        ({"until": "2030-01-01T00:00:00"}, "until"),  # without a time zone
        ({"subject": "mail"}, "until"),
    ):
        refused = await api.post("/api/alert-silences", json=wrong, headers=SERVICE)
        assert (refused.status_code, refused.json()["field"]) == (422, field)
    unknown = await api.post("/api/alert-silences", json={"until": until, "rule": "nosuch"}, headers=SERVICE)
    assert unknown.status_code == 404


async def test_rules_are_put_and_deleted(api: httpx.AsyncClient) -> None:
    body = {"kind": "queue_age", "subject": "mail", "threshold": 300, "severity": "critical"}
    assert (await api.put("/api/alert-rules/mail-age", json=body, headers=SERVICE)).status_code == 204
    rules = {rule["name"]: rule for rule in (await api.get("/api/alert-rules", headers=SERVICE)).json()}
    assert rules["mail-age"]["threshold"] == 300
    assert rules["mail-age"]["clear_below"] == 300
    wrong_kind = await api.put("/api/alert-rules/x", json={**body, "kind": "mood"}, headers=SERVICE)
    assert (wrong_kind.status_code, wrong_kind.json()["field"]) == (422, "kind")
    clears_late = await api.put("/api/alert-rules/x", json={**body, "clear_below": 900}, headers=SERVICE)
    assert clears_late.status_code == 422
    typo = await api.delete("/api/alert-rules/mail-agee", headers=SERVICE)
    assert typo.status_code == 404
    assert "mail-age" in typo.json()["detail"]
    assert (await api.delete("/api/alert-rules/mail-age", headers=SERVICE)).status_code == 204


async def test_users_may_not_read_alerts(api: httpx.AsyncClient) -> None:
    user = bearer_headers(make_token("ann"))
    for path in ("/api/alerts", "/api/alert-silences", "/api/alert-rules"):
        assert (await api.get(path, headers=user)).status_code == 403
        assert (await api.get(path)).status_code == 401


async def test_the_client_reads_and_changes_alerts(url: Secret, settings: Settings, conn: Connection) -> None:
    await fire_alert(conn)
    async with Client(url.reveal(), settings=settings) as client:
        [alert] = await client.alerts.list()
        assert await client.alerts.acknowledge(alert.id, by="ann", note="mine")
        silence = await client.alerts.silence(timedelta(hours=1), by="ann", rule="paused-queue")
        assert [row.id for row in await client.alerts.list_silences()] == [silence]
        [alert] = await client.alerts.list()
        assert (alert.acknowledged_by, alert.note) == ("ann", "mine")
        assert alert.silenced_until is not None
        assert await client.alerts.end_silence(silence)
        assert not await client.alerts.end_silence(silence)
        await client.alerts.put_rule(AlertRule(name="age", kind="queue_age", threshold=5))
        assert "age" in {rule.name for rule in await client.alerts.list_rules()}
        assert await client.alerts.delete_rule("age")
        assert not await client.alerts.delete_rule("age")
        with pytest.raises(InvalidError, match="must be in the future"):
            await client.alerts.silence(timedelta(hours=-1), by="ann")


async def test_a_worker_without_a_queue_name_breaks_no_suggestion(
    api: httpx.AsyncClient, conn: Connection
) -> None:
    """Everyone who may claim could store a name that is null, and then no queue could be paused."""
    await conn.execute(
        "insert into holdfast.workers (name, queues, started_at, seen_at)"
        " values ('w', '{null,mail}', now(), now())"
    )
    refused = await api.post("/api/queues/mial/pause", json={}, headers=SERVICE)
    assert refused.status_code == 404
    assert "mail" in refused.json()["detail"]


async def test_an_unknown_queue_is_paused_only_on_request(
    api: httpx.AsyncClient, url: Secret, settings: Settings
) -> None:
    await api.post("/api/jobs", json={"type": "t", "queue": "mail"}, headers=SERVICE)
    refused = await api.post("/api/queues/mial/pause", json={}, headers=SERVICE)
    assert refused.status_code == 404
    assert "mail" in refused.json()["detail"]
    assert (await api.get("/api/queues/mial", headers=SERVICE)).status_code == 404
    allowed = await api.post("/api/queues/soon/pause", json={"allow_new": True}, headers=SERVICE)
    assert allowed.status_code == 204
    async with Client(url.reveal(), settings=settings) as client:
        with pytest.raises(NotFoundError, match="did you mean"):
            await client.pause_queue("mial")
        await client.pause_queue("mail")
        await client.pause_queue("later", allow_new=True)
        assert await client.resume_queue("later")
