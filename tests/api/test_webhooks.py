"""Webhooks out: signed, retried, once per ended job, to those who may know. Hooks in: by signature."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
import msgspec
import pytest
from books import KEY
from callers import bearer, token
from hands import Hand, submit

from holdfast import webhooks
from holdfast.engine.connection import Connection, Database
from holdfast.settings import Settings
from holdfast.testing import eventually
from holdfast.worker import Worker

ANN, BOB, SERVICE = bearer(token("ann")), bearer(token("bob")), bearer(KEY)


@dataclass
class Receiver:
    """Somebody else's server: answers as told, and keeps what came."""

    url: str = ""
    answers: list[int] = field(default_factory=list[int])
    heard: list[tuple[dict[str, str], bytes]] = field(default_factory=list[tuple[dict[str, str], bytes]])

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {n.lower(): v.strip() for n, _, v in (line.partition(":") for line in head[1:])}
        body = await reader.readexactly(int(headers["content-length"]))
        self.heard.append((headers, body))
        status = self.answers.pop(0) if self.answers else 204
        writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: 0\r\n\r\n".encode())
        await writer.drain()
        writer.close()


@pytest.fixture
async def receiver() -> AsyncGenerator[Receiver]:
    made = Receiver()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook"
    yield made
    server.close()


async def webhook(api: httpx.AsyncClient, url: str, headers: dict[str, str], **more: Any) -> dict[str, Any]:
    body = {"url": url, "events": ["job.succeeded", "job.failed"], **more}
    made = await api.post("/api/webhooks", json=body, headers=headers)
    assert made.status_code == 201, made.text
    return dict(made.json())


async def delivered(url: Database, settings: Settings, until: Any) -> None:
    """Run the delivering task in a real worker until something is true."""
    async with Database(url.url, replace(settings, egress_allow="127.0.0.0/8")) as database:
        deliver = webhooks.delivery(database)
        stop = asyncio.Event()
        running = asyncio.create_task(Worker(database, {deliver.name: deliver}).run(stop))
        try:
            await eventually(until)
        finally:
            stop.set()
            await running


async def test_the_end_of_a_job_is_told_signed_to_those_who_may_know(
    api: httpx.AsyncClient, db: Database, conn: Connection, settings: Settings, receiver: Receiver
) -> None:
    mine = await webhook(api, receiver.url, ANN)
    await webhook(api, receiver.url, BOB)
    await webhook(api, receiver.url, SERVICE, types=["other"])
    hand = Hand(conn)
    job = await submit(conn, owner="ann")
    await hand.finish(await hand.one(), body=1)
    book = (await api.post("/api/jobs/start", json={"type": "book"}, headers=ANN)).json()["id"]
    while tasks := await hand.take(5):
        for task in tasks:
            await hand.finish(task, body=1)
    await delivered(db, settings, lambda: len(receiver.heard) == 2)
    told = {}
    for headers, body in receiver.heard:
        assert webhooks.verify(mine["secret"], headers, body) == headers["webhook-id"]
        assert webhooks.verify(webhooks.new_secret(), headers, body) is None
        sent = msgspec.json.decode(body)
        told[sent["data"]["id"]] = (sent["type"], sent["data"]["status"], sent["data"]["owner"])
    assert told == dict.fromkeys((str(job), book), ("job.succeeded", "succeeded", "ann"))
    count = "select count(*) from holdfast.all_tasks where type = 'holdfast.webhook'"
    assert await conn.fetchval(count) == 2  # the delivery's own end is not news


async def test_a_delivery_is_tried_again_with_the_same_id(
    api: httpx.AsyncClient, db: Database, conn: Connection, settings: Settings, receiver: Receiver
) -> None:
    receiver.answers = [500, 302, 200]
    await webhook(api, receiver.url, SERVICE)
    hand = Hand(conn)
    await submit(conn, owner="ann")
    await hand.finish(await hand.one())
    await conn.execute("update holdfast.kinds set base_s = 0.01, jitter = 0 where type = 'holdfast.webhook'")
    await delivered(db, settings, lambda: len(receiver.heard) == 3)
    assert len({headers["webhook-id"] for headers, _ in receiver.heard}) == 1


async def test_private_addresses_are_not_called(
    api: httpx.AsyncClient, db: Database, conn: Connection, settings: Settings, receiver: Receiver
) -> None:
    await webhook(api, receiver.url, ANN)
    hand = Hand(conn)
    await submit(conn, owner="ann")
    await hand.finish(await hand.one())
    deliver = webhooks.delivery(db)  # as it is without an allowance
    [task] = await Hand(conn, queues=["webhooks"]).take(1)
    with pytest.raises(Exception, match="public internet"):
        await deliver.function(
            **msgspec.convert(task.args, dict[str, Any]) | {"webhook": task.args["webhook"]}
        )
    assert receiver.heard == []
    for url in ("ftp://x.test/", "https://u:p@x.test/", "nonsense"):
        body = {"url": url, "events": ["job.failed"]}
        assert (await api.post("/api/webhooks", json=body, headers=ANN)).status_code in (403, 422)


async def test_webhooks_are_ones_own_and_cost_nothing_when_gone(
    api: httpx.AsyncClient, conn: Connection
) -> None:
    triggers = "select count(*) from pg_trigger where tgname = 'tell_webhooks' and tgparentid = 0"
    mine = await webhook(api, "https://example.org/x", ANN)
    assert await conn.fetchval(triggers) == 3
    assert (await api.get("/api/webhooks", headers=BOB)).json() == []
    [listed] = (await api.get("/api/webhooks", headers=ANN)).json()
    assert mine["secret"] not in str(listed)
    assert (await api.delete(f"/api/webhooks/{mine['id']}", headers=BOB)).status_code == 404
    assert (await api.delete(f"/api/webhooks/{mine['id']}", headers=ANN)).status_code == 204
    assert await conn.fetchval(triggers) == 0
    for _ in range(20):
        await webhook(api, "https://example.org/x", ANN)
    body = {"url": "https://example.org/x", "events": ["job.failed"]}
    assert (await api.post("/api/webhooks", json=body, headers=ANN)).status_code == 429


async def sent(api: httpx.AsyncClient, secret: str, body: bytes, **changes: str) -> httpx.Response:
    headers = {**webhooks.headers(secret, "message-1", body), **changes}
    return await api.post("/hooks/orders", content=body, headers=headers)


async def test_an_inbound_hook_submits_once_what_is_signed(api: httpx.AsyncClient) -> None:
    made = await api.put(
        "/api/hooks/orders", json={"type": "order", "queue": "q", "owner": "ann"}, headers=SERVICE
    )
    secret = made.json()["secret"]
    body = b'{"n": 1}'
    first = await sent(api, secret, body)
    assert first.status_code == 202
    again = await sent(api, secret, body)
    assert (again.status_code, again.json()["id"]) == (200, first.json()["id"])
    job = (await api.get(f"/api/jobs/{first.json()['id']}", headers=ANN)).json()
    assert (job["type"], job["params"]) == ("order", {"payload": {"n": 1}})
    assert (await sent(api, secret, b'{"n": 2}')).status_code == 409


async def test_forged_replayed_and_changed_messages_are_refused(api: httpx.AsyncClient) -> None:
    made = await api.put("/api/hooks/orders", json={"type": "order"}, headers=SERVICE)
    secret, body = made.json()["secret"], b'{"n": 1}'
    old = str(int(time.time()) - 400)
    late = webhooks.signature(secret, "message-1", old, body)
    good = webhooks.headers(secret, "message-1", body)["webhook-signature"]
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
        assert (await sent(api, secret, body, **change)).status_code == 401, change
    unsigned = await api.post("/hooks/orders", content=body)
    missing = await api.post("/hooks/nothing", content=body)
    assert unsigned.status_code == missing.status_code == 401
    assert unsigned.content == missing.content
    wrong = webhooks.headers(webhooks.new_secret(), "m", body)
    assert (await api.post("/hooks/orders", content=body, headers=wrong)).status_code == 401
    tampered = await api.post(
        "/hooks/orders", content=b'{"n": 9}', headers=webhooks.headers(secret, "m", body)
    )
    assert tampered.status_code == 401


async def test_a_database_webhook_sends_a_key_instead(api: httpx.AsyncClient) -> None:
    await api.put("/api/hooks/rows", json={"type": "row"}, headers=SERVICE)
    assert (await api.post("/hooks/rows", json={"type": "INSERT"}, headers=SERVICE)).status_code == 202
    assert (await api.post("/hooks/rows", json={}, headers=ANN)).status_code == 401
    assert (await api.post("/hooks/nothing", json={}, headers=SERVICE)).status_code == 404
