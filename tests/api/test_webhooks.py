"""Outgoing webhooks: signed, retried, once per ended job. Inbound webhooks: accepted by signature."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import httpx
import msgspec
import pytest
from api_clients import bearer_headers, make_token
from book_app import SERVICE_KEY
from manual_worker import ManualWorker, run_ticks, submit_job

from holdfast import webhooks
from holdfast.engine.connection import Connection, Database
from holdfast.settings import Settings
from holdfast.testing import Clock, wait_until
from holdfast.worker.runtime import WorkerRuntime

ANN, BOB, SERVICE = (
    bearer_headers(make_token("ann")),
    bearer_headers(make_token("bob")),
    bearer_headers(SERVICE_KEY),
)


@dataclass
class WebhookReceiver:
    """An HTTP server that returns the configured statuses and stores the requests that it receives."""

    url: str = ""
    responses: list[int] = field(default_factory=list[int])
    requests: list[tuple[dict[str, str], bytes]] = field(default_factory=list[tuple[dict[str, str], bytes]])

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {n.lower(): v.strip() for n, _, v in (line.partition(":") for line in head[1:])}
        body = await reader.readexactly(int(headers["content-length"]))
        self.requests.append((headers, body))
        status = self.responses.pop(0) if self.responses else 204
        writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: 0\r\n\r\n".encode())
        await writer.drain()
        writer.close()


@pytest.fixture
async def receiver() -> AsyncGenerator[WebhookReceiver]:
    receiver = WebhookReceiver()
    server = await asyncio.start_server(receiver.serve, "127.0.0.1", 0)
    receiver.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook"
    yield receiver
    server.close()


async def create_webhook(
    api: httpx.AsyncClient, url: str, headers: dict[str, str], **more: Any
) -> dict[str, Any]:
    body = {"url": url, "events": ["job.succeeded", "job.failed"], **more}
    response = await api.post("/api/webhooks", json=body, headers=headers)
    assert response.status_code == 201, response.text
    return dict(response.json())


async def run_deliveries(url: Database, settings: Settings, until: Any) -> None:
    """Run the delivery task in a real worker until the condition is true."""
    changed = replace(settings, egress_allow="127.0.0.0/8", public_url="https://app.example/tasks/")
    async with Database(url.url, changed) as database:
        deliver = webhooks.build_webhook_delivery_task(database)
        stop = asyncio.Event()
        running = asyncio.create_task(WorkerRuntime(database, {deliver.name: deliver}).run(stop))
        try:
            await wait_until(until)
        finally:
            stop.set()
            await running


async def test_job_ends_are_delivered_signed_to_allowed_webhooks(
    api: httpx.AsyncClient, db: Database, conn: Connection, settings: Settings, receiver: WebhookReceiver
) -> None:
    webhook_of_ann = await create_webhook(api, receiver.url, ANN)
    await create_webhook(api, receiver.url, BOB)
    await create_webhook(api, receiver.url, SERVICE, types=["other"])
    worker = ManualWorker(conn)
    job = await submit_job(conn, owner="ann")
    await worker.finish_task(await worker.claim_one_task(), body=1)
    book_job = (await api.post("/api/jobs/start", json={"type": "book"}, headers=ANN)).json()["id"]
    while tasks := await worker.claim_tasks(5):
        for task in tasks:
            await worker.finish_task(task, body=1)
    await run_deliveries(db, settings, lambda: len(receiver.requests) == 2)
    deliveries = {}
    for headers, body in receiver.requests:
        assert webhooks.verify_webhook(webhook_of_ann["secret"], headers, body) == headers["webhook-id"]
        assert webhooks.verify_webhook(webhooks.generate_webhook_secret(), headers, body) is None
        message = msgspec.json.decode(body)
        assert message["data"]["url"] == f"https://app.example/tasks/api/jobs/{message['data']['id']}"
        deliveries[message["data"]["id"]] = (
            message["type"],
            message["data"]["status"],
            message["data"]["owner"],
        )
    assert deliveries == dict.fromkeys((str(job), book_job), ("job.succeeded", "succeeded", "ann"))
    count = "select count(*) from holdfast.all_tasks where type = 'holdfast.webhook'"
    assert await conn.fetchval(count) == 2  # the end of a delivery job creates no delivery


async def test_a_failed_delivery_is_retried_with_the_same_id(
    api: httpx.AsyncClient, db: Database, conn: Connection, settings: Settings, receiver: WebhookReceiver
) -> None:
    receiver.responses = [500, 302, 200]
    await create_webhook(api, receiver.url, SERVICE)
    worker = ManualWorker(conn)
    await submit_job(conn, owner="ann")
    await worker.finish_task(await worker.claim_one_task())
    await conn.execute(
        "update holdfast.task_policies set backoff_base_s = 0.01, jitter = 0 where type = 'holdfast.webhook'"
    )
    await run_deliveries(db, settings, lambda: len(receiver.requests) == 3)
    assert len({headers["webhook-id"] for headers, _ in receiver.requests}) == 1


async def test_private_addresses_are_not_called(
    api: httpx.AsyncClient, db: Database, conn: Connection, settings: Settings, receiver: WebhookReceiver
) -> None:
    await create_webhook(api, receiver.url, ANN)
    worker = ManualWorker(conn)
    await submit_job(conn, owner="ann")
    await worker.finish_task(await worker.claim_one_task())
    deliver = webhooks.build_webhook_delivery_task(db)  # without an egress allowlist
    [task] = await ManualWorker(conn, queues=["webhooks"]).claim_tasks(1)
    with pytest.raises(Exception, match="public internet"):
        await deliver.function(
            **msgspec.convert(task.args, dict[str, Any]) | {"webhook": task.args["webhook"]}
        )
    assert receiver.requests == []
    for url in ("ftp://x.test/", "https://u:p@x.test/", "nonsense"):
        body = {"url": url, "events": ["job.failed"]}
        assert (await api.post("/api/webhooks", json=body, headers=ANN)).status_code in (403, 422)


async def test_users_see_their_own_webhooks_and_deleted_ones_create_no_tasks(
    api: httpx.AsyncClient, conn: Connection
) -> None:
    webhook_of_ann = await create_webhook(api, "https://example.org/x", ANN)
    assert (await api.get("/api/webhooks", headers=BOB)).json() == []
    [listed] = (await api.get("/api/webhooks", headers=ANN)).json()
    assert webhook_of_ann["secret"] not in str(listed)
    assert (await api.delete(f"/api/webhooks/{webhook_of_ann['id']}", headers=BOB)).status_code == 404
    assert (await api.delete(f"/api/webhooks/{webhook_of_ann['id']}", headers=ANN)).status_code == 204
    await submit_job(conn, owner="ann")
    worker = ManualWorker(conn)
    await worker.finish_task(await worker.claim_one_task())
    assert await ManualWorker(conn, queues=["webhooks"]).claim_tasks(1) == []
    for _ in range(20):
        await create_webhook(api, "https://example.org/x", ANN)
    body = {"url": "https://example.org/x", "events": ["job.failed"]}
    assert (await api.post("/api/webhooks", json=body, headers=ANN)).status_code == 429


async def test_a_webhook_that_fails_for_days_is_disabled_and_can_be_enabled(
    api: httpx.AsyncClient, conn: Connection, clock: Clock
) -> None:
    webhook = await create_webhook(api, "https://example.org/x", ANN)
    note = "select holdfast.record_webhook_result($1, $2)"
    for _ in range(30):
        assert await conn.fetchval(note, webhook["id"], "The endpoint returned 500.") is False
    await clock.advance(timedelta(days=2))
    await conn.fetchval(note, webhook["id"], None)  # one success resets the failure count
    assert (await api.get("/api/webhooks", headers=ANN)).json()[0]["failing_since"] is None
    for _ in range(19):
        await conn.fetchval(note, webhook["id"], "The endpoint returned 500.")
    await clock.advance(timedelta(days=4))
    [listed] = (await api.get("/api/webhooks", headers=ANN)).json()
    assert (listed["active"], listed["failures"]) == (True, 19)
    assert await conn.fetchval(note, webhook["id"], "The endpoint returned 502.") is True
    [listed] = (await api.get("/api/webhooks", headers=ANN)).json()
    assert (listed["active"], listed["disabled_reason"]) == (False, "The endpoint returned 502.")
    worker = ManualWorker(conn)
    await submit_job(conn, owner="ann")
    await worker.finish_task(await worker.claim_one_task())
    assert await ManualWorker(conn, queues=["webhooks"]).claim_tasks(1) == []
    audit = "select actor, action from holdfast.audit_log where target = $1 order by id"
    assert [tuple(row) for row in await conn.fetch(audit, webhook["id"])][-1] == (
        "holdfast",
        "webhook.disabled",
    )
    switch = f"/api/webhooks/{webhook['id']}"
    assert (await api.patch(switch, json={"active": True}, headers=BOB)).status_code == 404
    assert (await api.patch(switch, json={"active": "yes"}, headers=ANN)).status_code == 422
    assert (await api.patch(switch, json={"active": True}, headers=ANN)).status_code == 204
    [listed] = (await api.get("/api/webhooks", headers=ANN)).json()
    assert (listed["active"], listed["failures"], listed["disabled_reason"]) == (True, 0, None)
    assert [tuple(row) for row in await conn.fetch(audit, webhook["id"])][-1] == (
        "user:ann",
        "webhook.enabled",
    )


async def test_an_endpoint_that_returns_410_is_not_called_again(
    api: httpx.AsyncClient, db: Database, conn: Connection, settings: Settings, receiver: WebhookReceiver
) -> None:
    receiver.responses = [410]
    await create_webhook(api, receiver.url, ANN)
    worker = ManualWorker(conn)
    for _ in range(2):
        await submit_job(conn, owner="ann")
        await worker.finish_task(await worker.claim_one_task())
    off = "select disabled_reason from holdfast.webhooks where not active"

    async def gone() -> object:
        return await conn.fetchval(off)

    await run_deliveries(db, settings, gone)
    assert await conn.fetchval(off) == "The endpoint returned 410 Gone."


async def test_delivery_errors_reveal_nothing_about_the_network(
    api: httpx.AsyncClient, db: Database, conn: Connection, settings: Settings, receiver: WebhookReceiver
) -> None:
    await create_webhook(api, "http://nowhere.invalid/hook", ANN)
    await create_webhook(api, receiver.url, ANN)
    worker = ManualWorker(conn)
    await submit_job(conn, owner="ann")
    await worker.finish_task(await worker.claim_one_task())
    for task in await ManualWorker(conn, queues=["webhooks"]).claim_tasks(2):
        with pytest.raises(Exception):  # noqa: B017, PT011  (whatever it is, the owner reads our words)
            await webhooks.build_webhook_delivery_task(db).function(
                **msgspec.convert(task.args, dict[str, Any])
            )
    deliveries = {each["last_error"] for each in (await api.get("/api/webhooks", headers=ANN)).json()}
    assert deliveries == {"The host does not exist or is not allowed."}


async def test_expiring_files_are_reported_once(
    api: httpx.AsyncClient, conn: Connection, clock: Clock
) -> None:
    events = {"events": ["artifact.expiring"]}
    await create_webhook(api, "https://example.org/ann", ANN, **events)
    await create_webhook(api, "https://example.org/bob", BOB, **events)
    await create_webhook(api, "https://example.org/all", SERVICE, **events, types=["other"])
    for name, owner, hours in (("a", "ann", 30), ("b", "ann", 31), ("c", "eve", 30), ("short", "ann", 2)):
        await save_file(conn, name, owner=owner, hours=hours)
    delivery_query = "select args from holdfast.all_tasks where type = 'holdfast.webhook' order by id"
    await run_ticks(conn)
    first = [msgspec.json.decode(row["args"]) for row in await conn.fetch(delivery_query)]
    assert [[each["name"] for each in deliveries["body"]["artifacts"]] for deliveries in first] == [["short"]]
    await clock.advance(timedelta(hours=6.5))
    await run_ticks(conn)
    await clock.advance(timedelta(hours=1))
    await run_ticks(conn)
    deliveries = [msgspec.json.decode(row["args"]) for row in await conn.fetch(delivery_query)]
    names = [each["name"] for one in deliveries for each in one["body"]["artifacts"]]
    assert sorted(names) == ["a", "b", "short"]
    assert {one["event"] for one in deliveries} == {"artifact.expiring"}
    assert {one["body"]["owner"] for one in deliveries} == {"ann"}


async def save_file(conn: Connection, name: str, *, owner: str, hours: float) -> None:
    """Insert a visible file that belongs to no task."""
    add = """insert into holdfast.artifacts (id, job_id, owner, kind, name, key, content_type, size, sha256,
        status, created_at, touched_at, expires_at)
      select i, i, $2, 'file', $1, $1, 'text/plain', 1, repeat('0', 64), 'visible', n, n,
        n + $3 * interval '1 hour'
      from holdfast.new_id() as i, holdfast.now() as n"""
    await conn.execute(add, name, owner, hours)


async def send_signed(api: httpx.AsyncClient, secret: str, body: bytes, **changes: str) -> httpx.Response:
    headers = {**webhooks.build_webhook_headers(secret, "message-1", body), **changes}
    return await api.post("/hooks/orders", content=body, headers=headers)


async def test_a_signed_message_to_an_inbound_webhook_submits_one_job(api: httpx.AsyncClient) -> None:
    webhook = await api.put(
        "/api/hooks/orders", json={"type": "order", "queue": "q", "owner": "ann"}, headers=SERVICE
    )
    secret = webhook.json()["secret"]
    body = b'{"n": 1}'
    first = await send_signed(api, secret, body)
    assert first.status_code == 202
    again = await send_signed(api, secret, body)
    assert (again.status_code, again.json()["id"]) == (200, first.json()["id"])
    job = (await api.get(f"/api/jobs/{first.json()['id']}", headers=ANN)).json()
    assert (job["type"], job["params"]) == ("order", {"payload": {"n": 1}})
    assert (await send_signed(api, secret, b'{"n": 2}')).status_code == 409


async def test_forged_replayed_and_changed_messages_are_rejected(api: httpx.AsyncClient) -> None:
    webhook = await api.put("/api/hooks/orders", json={"type": "order"}, headers=SERVICE)
    secret, body = webhook.json()["secret"], b'{"n": 1}'
    old = str(int(time.time()) - 400)
    late = webhooks.sign_webhook(secret, "message-1", old, body)
    good = webhooks.build_webhook_headers(secret, "message-1", body)["webhook-signature"]
    changes: list[dict[str, str]] = [
        {"webhook-signature": ""},
        {"webhook-signature": "v1,"},
        {"webhook-signature": "v1," + "A" * 44},
        {"webhook-signature": good[3:]},
        {"webhook-signature": "v2" + good[2:]},
        {"webhook-signature": good[:-4]},
        {"webhook-id": "message-2"},
        {"webhook-id": ""},
        {"webhook-timestamp": old},
        {"webhook-timestamp": old, "webhook-signature": late},
        {"webhook-timestamp": str(int(time.time()) + 400)},
        {"webhook-timestamp": "soon"},
        {"webhook-timestamp": "-1"},
        {"webhook-timestamp": "9" * 30},
    ]
    for change in changes:
        assert (await send_signed(api, secret, body, **change)).status_code == 401, change
    unsigned = await api.post("/hooks/orders", content=body)
    missing = await api.post("/hooks/nothing", content=body)
    assert unsigned.status_code == missing.status_code == 401
    assert unsigned.content == missing.content
    wrong = webhooks.build_webhook_headers(webhooks.generate_webhook_secret(), "m", body)
    assert (await api.post("/hooks/orders", content=body, headers=wrong)).status_code == 401
    tampered = await api.post(
        "/hooks/orders", content=b'{"n": 9}', headers=webhooks.build_webhook_headers(secret, "m", body)
    )
    assert tampered.status_code == 401


async def test_a_database_webhook_authenticates_with_a_key(api: httpx.AsyncClient) -> None:
    await api.put("/api/hooks/rows", json={"type": "row"}, headers=SERVICE)
    assert (await api.post("/hooks/rows", json={"type": "INSERT"}, headers=SERVICE)).status_code == 202
    assert (await api.post("/hooks/rows", json={}, headers=ANN)).status_code == 401
    assert (await api.post("/hooks/nothing", json={}, headers=SERVICE)).status_code == 404
