"""The HTTP API over several shards: what is routed, what is merged, and what one dead shard changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import httpx
import pytest
from api_clients import bearer_headers, make_token
from book_app import SERVICE_KEY, book_job, page
from shard_databases import create_shard_databases
from starlette.applications import Starlette

from holdfast import shard_of
from holdfast.client import shard_routing
from holdfast.client.shard_merging import add_up, merge_metrics
from holdfast.engine import maintenance
from holdfast.server import create_app
from holdfast.server.api import shard_requests
from holdfast.settings import Secret, Settings
from holdfast.testing import wait_until

SERVICE = bearer_headers(SERVICE_KEY)
DEAD_URL = "postgresql://nobody@127.0.0.1:1/nothing"


@pytest.fixture(scope="module")
def urls(server_url: Secret, template: str, settings: Settings) -> dict[int, str]:
    return asyncio.run(create_shard_databases(server_url, template, settings, [1, 2]))


def build_sharded_settings(settings: Settings, urls: dict[int, str]) -> Settings:
    text = ",".join(f"{number}={url}" for number, url in urls.items())
    return replace(settings, database_url=None, shards=Secret(text))


@pytest.fixture
def app(urls: dict[int, str], api_settings: Settings) -> Starlette:
    return create_app(build_sharded_settings(api_settings, urls), job_types=[book_job], tasks=[page])


async def open_api(app: Starlette) -> AsyncGenerator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://api", headers=SERVICE) as client:
        yield client
    await app.state.holdfast.shards.close()


@pytest.fixture
async def api(app: Starlette) -> AsyncGenerator[httpx.AsyncClient]:
    async for client in open_api(app):
        yield client


@pytest.fixture
async def api_with_dead_shard(
    urls: dict[int, str], api_settings: Settings
) -> AsyncGenerator[httpx.AsyncClient]:
    """Shard 0, which is the first, does not answer."""
    settings = replace(api_settings, connect_timeout=timedelta(seconds=2))
    app = create_app(build_sharded_settings(settings, {0: DEAD_URL, **urls}), tasks=[page])
    async for client in open_api(app):
        yield client


def find_owner(number: int, numbers: tuple[int, ...] = (1, 2)) -> str:
    return next(
        owner
        for owner in map(str, range(1000))
        if shard_routing.choose_shard(f"owner:{owner}", numbers) == number
    )


async def submit(api: httpx.AsyncClient, **job: Any) -> UUID:
    body = {"type": page.name, "queue": "q", "args": {"number": 1}, **job}
    response = await api.post("/api/jobs", json=body)
    assert response.status_code in (200, 202), response.text
    return UUID(response.json()["id"])


async def test_job_is_found_by_its_id_on_every_shard(api: httpx.AsyncClient) -> None:
    for number in (1, 2):
        owner = find_owner(number)
        job = await submit(api, owner=owner, key=f"once-{number}")
        assert shard_of(job) == number
        assert await submit(api, owner=owner, key=f"once-{number}") == job
        read = await api.get(f"/api/jobs/{job}")
        assert read.json()["id"] == str(job)
        assert read.headers["holdfast-shard"] == str(number)
        task_id = read.json()["tasks"][0]["id"]
        explained = await api.get(f"/api/tasks/{task_id}/explain")
        assert explained.json()["status"] == "ready"
        assert (await api.post(f"/api/jobs/{job}/ticket")).status_code == 201
        assert (await api.delete(f"/api/jobs/{job}")).json()["status"] == "cancelled"
        assert (await api.post(f"/api/jobs/{job}/retry", json={})).json() == {"restarted": 1}


async def test_user_has_one_shard_and_sees_own_jobs_only(api: httpx.AsyncClient) -> None:
    for number in (1, 2):
        ann, other = find_owner(number), f"not-{find_owner(number)}"
        token = bearer_headers(make_token(ann))
        started = await api.post("/api/jobs/start", json={"type": "book"}, headers=token)
        job = started.json()["id"]
        assert shard_of(job) == number
        assert (await api.get(f"/api/jobs/{job}", headers=token)).status_code == 200
        stranger = bearer_headers(make_token(other))
        assert (await api.get(f"/api/jobs/{job}", headers=stranger)).status_code == 404
        listed = (await api.get("/api/jobs", headers=token)).json()
        assert {row["owner"] for row in listed["jobs"]} == {ann}
    assert (await api.get("/api/jobs", headers=bearer_headers("wrong"))).status_code == 401


async def test_events_of_a_job_come_from_its_shard(api: httpx.AsyncClient) -> None:
    job = await submit(api, owner=find_owner(2))
    await api.delete(f"/api/jobs/{job}")
    async with asyncio.timeout(20):
        response = await api.get(f"/api/jobs/{job}/events")
    assert "cancelled" in response.text


async def test_lists_are_merged_page_by_page(api: httpx.AsyncClient) -> None:
    jobs = {await submit(api, owner=find_owner(number), type="listed") for number in (1, 2) for _ in range(4)}
    for path, field, filters in (
        ("/api/jobs", "jobs", {"type": "listed"}),
        ("/api/search", "rows", {"q": "type:listed"}),
    ):
        seen: list[str] = []
        before: dict[str, str] = {}
        while True:
            response = await api.get(path, params={**filters, "limit": "3", **before})
            body = response.json()
            assert body["missing_shards"] == []
            seen += [row["id"] for row in body[field]]
            assert all(shard_of(row["id"]) == row["shard"] for row in body[field])
            if body["next"] is None:
                break
            before = {"before": body["next"]}
        assert seen == sorted(map(str, jobs), reverse=True)


async def test_one_shard_can_be_selected(api: httpx.AsyncClient) -> None:
    job = await submit(api, owner=find_owner(2), type="selected")
    on_first = await api.get("/api/jobs", params={"type": "selected", "shard": "1"})
    on_second = await api.get("/api/jobs", params={"type": "selected", "shard": "2"})
    assert on_first.json()["jobs"] == []
    assert [row["id"] for row in on_second.json()["jobs"]] == [str(job)]
    unknown = await api.get("/api/jobs?shard=7")
    assert unknown.status_code == 422
    assert "The shards are 1, 2" in unknown.json()["detail"]
    needed = await api.get("/api/audit")
    assert needed.status_code == 403
    assert "/api/audit?shard=1" in needed.json()["detail"]
    assert (await api.get("/api/audit?shard=2")).status_code == 200


async def test_id_of_another_shard_is_not_found(api: httpx.AsyncClient) -> None:
    foreign = "01900000-0000-7000-8009-000000000000"
    assert shard_of(foreign) not in (1, 2)
    response = await api.get(f"/api/jobs/{foreign}")
    assert response.status_code == 404


async def test_numbers_are_added_up(api: httpx.AsyncClient) -> None:
    for number in (1, 2):
        await submit(api, owner=find_owner(number), queue="counted")
    queue = (await api.get("/api/queues/counted")).json()
    assert queue["ready"] == 2
    listed = {row["queue"]: row for row in (await api.get("/api/queues")).json()}
    assert listed["counted"]["ready"] == 2
    metrics = (await api.get("/metrics")).text
    for number in (1, 2):
        assert f'holdfast_queue_ready{{shard="{number}",queue="counted"}} 1' in metrics
    assert metrics.count("# TYPE holdfast_queue_ready ") == 1
    assert (await api.get("/api/stats")).json()["missing_shards"] == []
    assert (await api.get("/readyz")).json()["status"] == "ready"


async def test_queue_is_paused_on_all_shards(api: httpx.AsyncClient) -> None:
    assert (
        await api.post("/api/queues/halted/pause", json={"reason": "test", "allow_new": True})
    ).status_code == 204
    for number in (1, 2):
        assert (await api.get(f"/api/queues/halted?shard={number}")).json()["paused_at"]
    assert (await api.post("/api/queues/halted/resume")).json() == {"changed": True}
    assert not (await api.get("/api/queues/halted")).json()["paused_at"]


async def test_jobs_of_all_shards_are_cancelled_by_a_search(api: httpx.AsyncClient) -> None:
    jobs = [await submit(api, owner=find_owner(number), queue="bulk") for number in (1, 2, 2)]
    body = {"verb": "cancel", "search": "queue:bulk", "reason": "test"}
    counted = await api.post("/api/bulk-actions", json={**body, "dry_run": True})
    assert counted.json() == {"matching": 3, "matching_exact": True, "actions": []}
    started = await api.post("/api/bulk-actions", json=body)
    assert started.status_code == 201
    actions = {row["shard"]: row for row in started.json()["actions"]}
    assert {number: row["total"] for number, row in actions.items()} == {1: 1, 2: 2}
    assert all(shard_of(row["id"]) == number for number, row in actions.items())
    listed = (await api.get("/api/bulk-actions")).json()
    assert {row["id"] for row in actions.values()} <= {row["id"] for row in listed}
    paused = await api.post(f"/api/bulk-actions/{actions[2]['id']}/command", json={"command": "pause"})
    assert paused.json() == {"changed": True}
    assert paused.headers["holdfast-shard"] == "2"
    await api.post(f"/api/bulk-actions/{actions[2]['id']}/command", json={"command": "resume"})
    await run_maintenance(api)
    assert (await api.get(f"/api/bulk-actions/{actions[2]['id']}")).json()["done"] == 2
    statuses = [(await api.get(f"/api/jobs/{job}")).json()["status"] for job in jobs]
    assert statuses == ["cancelled"] * 3
    everything = await api.post("/api/bulk-actions", json={**body, "search": " "})
    assert everything.status_code == 422


async def run_maintenance(api: httpx.AsyncClient) -> None:
    transport = api._transport  # the application of the client
    assert isinstance(transport, httpx.ASGITransport)
    for services in transport.app.state.holdfast.shards.by_number.values():  # type: ignore[attr-defined]
        async with services.database.transaction() as connection:
            await maintenance.tick_operations(connection)


async def test_limit_over_all_keys_is_refused(api: httpx.AsyncClient) -> None:
    refused = await api.put("/api/limits/all", json={"queue": "q", "max_running": 2})
    assert refused.status_code == 403
    assert "per_key" in refused.json()["detail"]
    rule = {"queue": "limited", "max_running": 2, "per_key": True, "allow_new": True}
    assert (await api.put("/api/limits/each", json=rule)).status_code == 204
    limits = {row["name"]: row for row in (await api.get("/api/limits")).json()}
    assert limits["each"]["max_running"] == 2
    assert (await api.delete("/api/limits/each")).status_code == 204
    assert (await api.delete("/api/limits/each")).status_code == 404


async def test_names_of_a_limit_are_checked_over_all_shards(api: httpx.AsyncClient) -> None:
    await submit(api, owner=find_owner(2), queue="second-only")
    rule = {"queue": "second-onyl", "max_running": 2, "per_key": True}
    for query in ({}, {"shard": "1"}):
        refused = await api.put("/api/limits/checked", json=rule, params=query)
        assert refused.status_code == 404
        assert "did you mean 'second-only'?" in refused.text
    assert (await api.get("/api/limits")).json() == []
    task_rule = {"type": f"{page.name}x", "max_running": 2, "per_key": True}
    assert f"did you mean {page.name!r}?" in (await api.put("/api/limits/checked", json=task_rule)).text
    known = {**rule, "queue": "second-only"}
    assert (await api.put("/api/limits/checked", json=known)).status_code == 204
    [row] = (await api.get("/api/limits")).json()
    assert (row["queue"], row["max_running"]) == ("second-only", 2)
    assert (await api.delete("/api/limits/checked")).status_code == 204


async def test_schedules_and_message_queues_have_one_shard(api: httpx.AsyncClient) -> None:
    names = sorted(f"name{number}" for number in range(6))
    assert len({shard_routing.choose_shard(f"name:{name}", (1, 2)) for name in names}) == 2
    for name in names:
        schedule = {"cron": "0 4 * * *", "job": {"type": page.name, "queue": "q", "args": {"number": 1}}}
        put = await api.put(f"/api/schedules/{name}", json=schedule)
        assert put.status_code in (200, 201, 204), put.text
        assert (await api.get(f"/api/schedules/{name}")).json()["name"] == name
        assert (await api.put(f"/api/messages/{name}", json={})).status_code in (200, 201, 204)
        sent = await api.post(f"/api/messages/{name}", json={"messages": [{"n": 1}]})
        assert sent.status_code in (200, 201), sent.text
    rows = (await api.get("/api/schedules")).json()
    assert [row["name"] for row in rows] == names
    assert len({row["shard"] for row in rows}) == 2


async def test_service_key_works_on_all_shards_until_it_is_revoked(api: httpx.AsyncClient) -> None:
    created = (await api.post("/api/keys", json={"name": "both", "scopes": ["jobs"]})).json()
    own = bearer_headers(created["key"])
    for number in (1, 2):
        job = await submit(api, owner=find_owner(number))
        assert (await api.get(f"/api/jobs/{job}", headers=own)).status_code == 200
    assert (await api.get("/api/jobs", headers=own)).status_code == 200
    assert (await api.delete(f"/api/keys/{created['id']}")).status_code == 204

    async def refused_on_both() -> bool:  # a verified key is cached for one second
        answers = [await api.get(f"/api/jobs?shard={number}", headers=own) for number in (1, 2)]
        return [answer.status_code for answer in answers] == [401, 401]

    await wait_until(refused_on_both)


async def test_one_dead_shard_makes_lists_partial_and_nothing_else(
    api_with_dead_shard: httpx.AsyncClient,
) -> None:
    api = api_with_dead_shard
    owner = find_owner(2, (0, 1, 2))
    job = await submit(api, owner=owner, type="survivor")
    assert shard_of(job) == 2
    assert (await api.get(f"/api/jobs/{job}")).status_code == 200
    listed = await api.get("/api/jobs", params={"type": "survivor"})
    assert [row["id"] for row in listed.json()["jobs"]] == [str(job)]
    assert listed.json()["missing_shards"] == [0]
    assert listed.headers["holdfast-missing-shards"] == "0"
    assert (await api.get("/api/queues")).headers["holdfast-missing-shards"] == "0"
    assert (await submit(api)) is not None  # work without a key avoids the dead shard
    paused = await api.post("/api/queues/half/pause", json={"allow_new": True})
    assert paused.status_code == 503
    assert "Shards with the change: 1, 2" in paused.json()["detail"]
    bulk = {"verb": "cancel", "search": "type:survivor", "reason": "test"}
    cancelled = await api.post("/api/bulk-actions", json=bulk)
    assert cancelled.status_code == 503
    assert "Shards that did not answer: 0. Shards with the change: 1, 2" in cancelled.json()["detail"]
    dead = str(job)[:21] + "00" + str(job)[23:]
    assert (await api.get(f"/api/jobs/{dead}")).status_code == 503


async def test_shard_that_does_not_answer_in_time_is_left_out(
    api: httpx.AsyncClient, app: Starlette, urls: dict[int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_requests, "FAN_OUT_TIMEOUT_S", 0.5)
    slow = app.state.holdfast.shards.by_number[2].database
    await api.get("/api/jobs")  # opens the connections
    original = slow.transaction

    class HangingTransaction:
        async def __aenter__(self) -> None:
            await asyncio.Event().wait()

        async def __aexit__(self, *_: object) -> None:
            raise AssertionError

    monkeypatch.setattr(slow, "transaction", HangingTransaction)
    listed = await api.get("/api/jobs")
    assert listed.json()["missing_shards"] == [2]
    monkeypatch.setattr(slow, "transaction", original)
    assert (await api.get("/api/jobs")).json()["missing_shards"] == []


def test_values_of_rows_are_added_up_by_their_meaning() -> None:
    merged = add_up(
        [
            {
                "ready": 1,
                "ready_exact": True,
                "oldest_s": 3.0,
                "first_at": "2",
                "last_at": "2",
                "rate": 4,
            },
            {
                "ready": 2,
                "ready_exact": False,
                "oldest_s": None,
                "first_at": "1",
                "last_at": "1",
                "rate": 4,
            },
        ]
    )
    assert merged == {
        "ready": 3,
        "ready_exact": False,
        "oldest_s": 3.0,
        "first_at": "1",
        "last_at": "2",
        "rate": 4,
    }


def test_metrics_keep_one_header_for_each_name() -> None:
    text = '# HELP a Text.\n# TYPE a gauge\na 1\n# HELP b Text.\n# TYPE b gauge\nb{x="1"} 2\n'
    assert merge_metrics({1: text, 2: text}, {}) == (
        '# HELP a Text.\n# TYPE a gauge\na{shard="1"} 1\na{shard="2"} 1\n'
        '# HELP b Text.\n# TYPE b gauge\nb{shard="1",x="1"} 2\nb{shard="2",x="1"} 2\n'
    )
