"""What service keys may call by RPC: one scope per function, an audit entry per change, no credentials."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from api_clients import bearer_headers, create_service_key, make_token
from book_app import SERVICE_KEY
from manual_worker import ManualWorker

from holdfast.engine.access import SCOPE_DESCRIPTIONS, generate_service_key
from holdfast.engine.connection import Connection, Database
from holdfast.engine.rpc_functions import NOT_CALLABLE_BY_RPC, RPC_FUNCTIONS

SERVICE = bearer_headers(SERVICE_KEY)
ANN = bearer_headers(make_token("ann"))
PROFILE = {"content-profile": "holdfast", "accept-profile": "holdfast"}
WEBHOOK_SECRET = "whsec_" + "c2VjcmV0" * 5
_GRANTED_FUNCTIONS = """
select p.proname::text as name, p.provolatile = 'v' as is_volatile,
  coalesce(p.proargnames, '{}') as arguments,
  has_function_privilege('authenticated', p.oid, 'execute') as users,
  has_function_privilege('service_role', p.oid, 'execute') as services
from pg_proc p where p.pronamespace = 'holdfast'::regnamespace and p.prokind = 'f'
  and (has_function_privilege('authenticated', p.oid, 'execute')
    or has_function_privilege('service_role', p.oid, 'execute'))
"""


async def call(
    api: httpx.AsyncClient, headers: dict[str, str], name: str, **arguments: Any
) -> httpx.Response:
    return await api.post(f"/rest/v1/rpc/{name}", json=arguments, headers={**headers, **PROFILE})


async def test_every_granted_function_has_a_rule(conn: Connection) -> None:
    """A new function fails here until somebody decides who may call it by RPC."""
    rows = await conn.fetch(_GRANTED_FUNCTIONS)
    assert not RPC_FUNCTIONS.keys() & NOT_CALLABLE_BY_RPC.keys()
    assert {row["name"] for row in rows} == RPC_FUNCTIONS.keys() | NOT_CALLABLE_BY_RPC.keys()
    for row in rows:
        rule = RPC_FUNCTIONS.get(row["name"])
        if rule is None:
            continue
        name = row["name"]
        assert rule.scope in SCOPE_DESCRIPTIONS, name
        assert row["services"], name
        assert rule.users == row["users"], f"{name}: the grant to authenticated and the rule differ"
        assert rule.is_read == (not row["is_volatile"]), f"{name}: a change needs an action or a reason"
        recorded = {*rule.details, *([rule.target] if rule.target else [])}
        assert recorded <= set(row["arguments"]), name
        assert not {argument for argument in recorded if "secret" in argument}, name


async def test_users_have_no_other_function_than_the_list(conn: Connection) -> None:
    granted = {row["name"] for row in await conn.fetch(_GRANTED_FUNCTIONS) if row["users"]}
    policies = {"now", "get_user_id_from_jwt_claims", "get_user_uuid_from_jwt_claims"}
    assert granted == {name for name, rule in RPC_FUNCTIONS.items() if rule.users} | policies


async def test_each_function_needs_its_own_scope(api: httpx.AsyncClient, db: Database) -> None:
    keys = {
        scope: bearer_headers(await create_service_key(db, *{"rpc", scope})) for scope in SCOPE_DESCRIPTIONS
    }
    without_rpc = bearer_headers(await create_service_key(db, *(SCOPE_DESCRIPTIONS.keys() - {"rpc"})))
    for name, rule in RPC_FUNCTIONS.items():
        other = next(scope for scope in ("rpc", "jobs") if scope != rule.scope)
        refused = await call(api, keys[other], name, no_such_argument=1)
        assert (refused.status_code, refused.json()["code"]) == (403, "42501"), name
        assert rule.scope in refused.json()["hint"]
        admitted = await call(api, keys[rule.scope], name, no_such_argument=1)
        assert (admitted.status_code, admitted.json()["code"]) == (404, "PGRST202"), name
    assert (await call(api, without_rpc, "get_job", p_id=str(generate_service_key()))).status_code == 403


async def test_no_key_reaches_credentials(api: httpx.AsyncClient, conn: Connection, db: Database) -> None:
    """S9: a key of the scope rpc made a login link for an admin."""
    link = {"p_hash": "\\\\x" + "00" * 32, "p_name": "eve", "p_role": "admin", "p_lifetime_s": 60}
    for key in (await create_service_key(db, "rpc"), await create_service_key(db, "*")):
        response = await call(api, bearer_headers(key), "store_login_link", **link)
        assert (response.status_code, response.json()["code"]) == (404, "PGRST202")
        for name in NOT_CALLABLE_BY_RPC:
            assert (await call(api, bearer_headers(key), name)).status_code == 404, name
            assert (await call(api, ANN, name)).status_code == 404, name
    assert await conn.fetchval("select count(*) from holdfast.login_links") == 0


INSERT_ALERT = """
insert into holdfast.alerts (id, rule, kind, subject, severity, status, started_at, fired_at, seen_at)
values (holdfast.new_id(), 'r', 'queue_age', 'q', 'warning', 'firing', now(), now(), now()) returning id
"""


async def _build_audited_calls(
    conn: Connection, api: httpx.AsyncClient
) -> list[tuple[str, dict[str, Any], str]]:
    """Return calls of every audited function in an order in which they succeed, with the expected target."""

    async def submit(**job: Any) -> str:
        response = await api.post("/api/jobs", json={"type": "t", "queue": "q", **job}, headers=SERVICE)
        return str(response.json()["id"])

    async def rpc(name: str, **arguments: Any) -> Any:
        return (await call(api, SERVICE, name, **arguments)).json()

    file = await _store_file_of_a_job(conn)
    jobs = [await submit() for _ in range(2)]
    webhook = await rpc(
        "create_webhook", p_url="https://a.test/", p_events=["job.failed"], p_secret=WEBHOOK_SECRET
    )
    schedule = {"p_job": {"type": "t"}, "p_every_s": 3600}
    action: dict[str, Any] = {"p_query": {}, "p_search": "", "p_by": "somebody else", "p_reason": "r"}
    bulk = await rpc("start_bulk_action", p_verb="retry", **action)
    await conn.execute("select pgmq.create('letters')")
    await api.put("/api/hooks/h", json={"type": "t"}, headers=SERVICE)
    await ManualWorker(conn, "w").claim_tasks(0)
    alert = str(await conn.fetchval(INSERT_ALERT))
    tomorrow = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    silence = await rpc("silence_alerts", p_until=tomorrow)
    await conn.execute("select holdfast.put_alert_channel('c', 'slack', 'https://a.test/hook')")
    return [
        ("put_alert_rule", {"p_name": "r", "p_kind": "queue_age", "p_threshold": 60}, "r"),
        ("set_alert_rule_enabled", {"p_name": "r", "p_enabled": False}, "r"),
        ("delete_alert_rule", {"p_name": "r"}, "r"),
        ("acknowledge_alert", {"p_id": alert}, alert),
        ("silence_alerts", {"p_until": tomorrow, "p_subject": "q"}, "result"),
        ("end_alert_silence", {"p_id": silence}, silence),
        ("test_alert_channel", {"p_name": "c"}, "c"),
        ("set_alert_channel_enabled", {"p_name": "c", "p_enabled": False}, "c"),
        ("delete_alert_channel", {"p_name": "c"}, "c"),
        ("cancel_job", {"p_id": jobs[0], "p_reason": "r"}, jobs[0]),
        ("retry_job", {"p_id": jobs[0]}, jobs[0]),
        ("cancel_task", {"p_id": jobs[1]}, jobs[1]),
        ("cancel_jobs", {"p_filter": {"type": "t"}}, ""),
        ("cancel_jobs_chunk", {"p_filter": {"type": "t"}}, ""),
        ("redrive", {"p_filter": {}}, ""),
        (
            "create_webhook",
            {"p_url": "https://a.test/?q=secret", "p_events": ["job.failed"], "p_secret": WEBHOOK_SECRET},
            "result",
        ),
        ("set_webhook_active", {"p_id": webhook, "p_enabled": False}, webhook),
        ("delete_webhook", {"p_id": webhook}, webhook),
        ("set_artifact_ttl", {"p_id": file, "p_ttl_s": 600}, file),
        ("regenerate_artifact", {"p_id": file}, file),
        ("delete_artifact", {"p_id": file}, file),
        ("requeue_messages", {"p_queue": "letters", "p_from": "archive"}, "letters"),
        ("put_message_policy", {"p_queue": "letters", "p_max_reads": 3}, "letters"),
        ("pause_queue", {"p_queue": "q"}, "q"),
        ("pause_queue_until", {"p_queue": "q", "p_until": "2100-01-01T00:00:00Z"}, "q"),
        ("resume_queue", {"p_queue": "q"}, "q"),
        ("put_queue_settings", {"p_queue": "q", "p_keep_s": 60}, "q"),
        ("set_fair_queue", {"p_queue": "q", "p_owners": True}, "q"),
        ("put_limit", {"p_name": "l", "p_queue": "q", "p_max_running": 1}, "l"),
        ("delete_limit", {"p_name": "l"}, "l"),
        ("put_quota", {"p_owner": "ann", "p_bytes": 1}, "ann"),
        ("delete_quota", {"p_owner": "ann"}, "ann"),
        ("put_artifact_retention_rule", {"p_owner": "ann", "p_ttl_s": 60}, "ann"),
        ("create_schedule", {"p_name": "s", **schedule}, "s"),
        ("put_schedule", {"p_name": "s", **schedule}, "s"),
        ("pause_schedule", {"p_name": "s"}, "s"),
        ("resume_schedule", {"p_name": "s"}, "s"),
        ("run_schedule", {"p_name": "s"}, "s"),
        ("delete_schedule", {"p_name": "s"}, "s"),
        ("register_schedules", {"p_source": "app", "p_schedules": []}, "app"),
        ("set_worker_command", {"p_worker": "w", "p_command": "drain"}, "w"),
        ("delete_inbound_webhook", {"p_name": "h"}, "h"),
        ("start_bulk_action", {"p_verb": "cancel", **action}, "result"),
        ("control_bulk_action", {"p_id": bulk, "p_verb": "pause"}, str(bulk)),
        ("undo_bulk_action", {"p_id": bulk}, str(bulk)),
        ("ignore_error_group", {"p_cause": "c", "p_until": None, "p_by": "x"}, "c"),
        ("delete_unseen_task_types", {}, ""),
    ]


async def _store_file_of_a_job(conn: Connection) -> str:
    await conn.execute("""select holdfast.submit('{"type": "t", "queue": "q", "owner": "ann"}')""")
    worker = ManualWorker(conn)
    task = await worker.claim_one_task()
    staged = await conn.fetchval(
        "select holdfast.stage_artifact($1, $2, $3, $4) ->> 'id'",
        *(task.id, task.attempt, task.nonce, '{"name": "a", "kind": "k", "content_type": "text/plain"}'),
    )
    await conn.execute(
        "select holdfast.record_artifact_upload($1::text::uuid, $2, $3, 3, $4)",
        *(staged, task.attempt, task.nonce, "0" * 64),
    )
    await worker.finish_task(task)
    return str(staged)


async def test_every_change_by_rpc_is_audited(api: httpx.AsyncClient, conn: Connection, db: Database) -> None:
    """S9: cancel_job and put_quota left no line in the audit log."""
    calls = await _build_audited_calls(conn, api)
    assert {name for name, _, _ in calls} == {name for name, rule in RPC_FUNCTIONS.items() if rule.action}
    key = await create_service_key(db, "*")
    for name, arguments, target in calls:
        response = await call(api, bearer_headers(key), name, **arguments)
        assert response.status_code in (200, 204), (name, response.text)
        entry = await conn.fetchrow("select * from holdfast.audit_log order by id desc limit 1")
        assert entry is not None
        assert entry["actor"] == f"service:{key[:11]}", name
        assert entry["action"] == RPC_FUNCTIONS[name].action, name
        expected = str(response.json()) if target == "result" else target or None
        assert entry["target"] == expected, name
        assert "secret" not in str(entry["detail"]), name
        await conn.execute("delete from holdfast.audit_log")


async def test_changes_of_services_over_http_are_audited(api: httpx.AsyncClient, conn: Connection) -> None:
    file = await _store_file_of_a_job(conn)
    job = (await call(api, SERVICE, "submit", p_job={"type": "t"})).json()["id"]
    requests = [
        ("POST", f"/api/artifacts/{file}/regenerate", "artifact.regenerate"),
        ("DELETE", f"/api/artifacts/{file}", "artifact.delete"),
        ("DELETE", f"/api/jobs/{job}", "job.cancel"),
        ("POST", f"/api/jobs/{job}/retry", "job.retry"),
    ]
    for method, path, action in requests:
        response = await api.request(method, path, headers=SERVICE)
        assert response.is_success, response.text
        entry = await conn.fetchrow("select action, target from holdfast.audit_log order by id desc limit 1")
        assert entry is not None
        assert (entry["action"], entry["target"]) == (action, file if "artifacts" in path else job)


async def test_reads_and_refused_calls_leave_no_entry(api: httpx.AsyncClient, conn: Connection) -> None:
    await call(api, SERVICE, "list_jobs")
    await call(api, SERVICE, "cancel_job", p_id="00000000-0000-0000-0000-000000000000")
    await api.get("/rest/v1/rpc/list_jobs", headers={**SERVICE, **PROFILE})
    assert await conn.fetchval("select count(*) from holdfast.audit_log") == 0


async def test_users_are_audited_as_over_http(api: httpx.AsyncClient, conn: Connection) -> None:
    """Webhooks of users are audited; what users do to their own jobs is not."""
    await conn.execute("""insert into holdfast.options values ('public_types', '["t"]')""")
    job = (await call(api, ANN, "submit", p_job={"type": "t"})).json()["id"]
    assert (await call(api, ANN, "cancel_job", p_id=job)).status_code == 200
    hook = {"p_url": "https://a.test/", "p_events": ["job.failed"], "p_secret": WEBHOOK_SECRET}
    created = await call(api, ANN, "create_webhook", **hook)
    assert created.status_code == 200, created.text
    assert (await call(api, ANN, "delete_webhook", p_id=created.json())).json() is True
    over_http = await api.post(
        "/api/webhooks", json={"url": "https://a.test/", "events": ["job.failed"]}, headers=ANN
    )
    await api.delete(f"/api/webhooks/{over_http.json()['id']}", headers=ANN)
    rows = await conn.fetch("select actor, action from holdfast.audit_log order by id")
    assert [(row["actor"], row["action"]) for row in rows] == [
        ("user:ann", "webhook.create"),
        ("user:ann", "webhook.delete"),
    ] * 2


async def test_functions_of_other_schemas_need_the_scope_rpc_and_are_audited(
    api: httpx.AsyncClient, conn: Connection, db: Database
) -> None:
    rpc_only = bearer_headers(await create_service_key(db, "rpc"))
    queues = bearer_headers(await create_service_key(db, "rpc", "queues"))
    await conn.execute("select pgmq.create('letters')")
    message = {"queue_name": "letters", "message": {"n": 1}}
    profile = {"content-profile": "pgmq_public"}
    refused = await api.post("/rest/v1/rpc/send", json=message, headers={**rpc_only, **profile})
    assert (refused.status_code, refused.json()["code"]) == (403, "42501")
    sent = await api.post("/rest/v1/rpc/send", json=message, headers={**queues, **profile})
    assert sent.json() == [1]
    assert await conn.fetchval("select count(*) from holdfast.audit_log") == 0


@pytest.mark.parametrize(
    ("own", "other", "allowed"),
    [
        (("keys",), ("*",), False),
        (("keys",), ("jobs",), False),
        (("keys", "jobs"), ("jobs", "files"), False),
        (("keys", "jobs"), ("jobs",), True),
        (("keys",), ("keys",), True),
        (("*",), ("*",), True),
        (tuple(SCOPE_DESCRIPTIONS), ("*",), False),
    ],
)
async def test_a_key_cannot_revoke_or_create_keys_above_itself(
    api: httpx.AsyncClient, db: Database, own: tuple[str, ...], other: tuple[str, ...], allowed: bool
) -> None:
    """S9: a key of the scope keys revoked a key with all scopes."""
    manager = bearer_headers(await create_service_key(db, *own))
    victim = await create_service_key(db, *other)
    revoked = await api.delete(f"/api/keys/{victim[:11]}", headers=manager)
    assert revoked.status_code == (204 if allowed else 403), revoked.text
    listed = await api.get("/api/jobs", headers=bearer_headers(victim))
    assert (listed.status_code == 401) == allowed
    created = await api.post("/api/keys", json={"name": "n", "scopes": list(other)}, headers=manager)
    assert created.status_code == (201 if allowed else 403), created.text


async def test_a_key_that_expires_creates_no_key_that_lives_longer(
    api: httpx.AsyncClient, conn: Connection, db: Database
) -> None:
    key = await create_service_key(db, "keys")
    await conn.execute("update holdfast.service_keys set expires_at = holdfast.now() + interval '1 hour'")
    body = {"name": "n", "scopes": ["keys"]}
    for lifetime in ({}, {"expires_s": 7200}):
        refused = await api.post("/api/keys", json={**body, **lifetime}, headers=bearer_headers(key))
        assert refused.status_code == 403, refused.text
    created = await api.post("/api/keys", json={**body, "expires_s": 600}, headers=bearer_headers(key))
    assert created.status_code == 201, created.text
