"""Erasing a user of all systems: everything of the user goes, everything of another user stays."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace
from datetime import timedelta

import httpx
import pytest
from all_systems import list_systems
from api_clients import bearer_headers, serve_app
from owner_traces import count_owner_traces
from system_harness import SERVICE_KEY, SystemHarness, SystemUser

from holdfast import Client
from holdfast.engine.connection import Database
from holdfast.server import create_app
from holdfast.settings import Secret, Settings
from holdfast.systems import exports, mount, reports
from holdfast.testing import Clock, wait_until

KEPT_RECORDS = {"holdfast.audit_log", "holdfast.erasures"}
# Lanes and counters of limits are named after their key, which may be a user. Maintenance removes idle ones.
COUNTERS = {"holdfast.lanes", "holdfast.limit_counters"}
ACTIVITY = "holdfast.activity_samples"  # written when a minute ends, so also during a test
SYSTEMS = list_systems()
OWNER_COLUMNS = """
select format('%I.%I', n.nspname, c.relname) as name, a.attname as owner_column from pg_attribute a
join pg_class c on c.oid = a.attrelid join pg_namespace n on n.oid = c.relnamespace
where c.relkind in ('r', 'p') and n.nspname = 'public' and a.attname in ('user_id', 'owner')
  and not a.attisdropped
order by 1"""


@pytest.fixture
async def product(url: Secret, system_settings: Settings) -> AsyncGenerator[SystemHarness]:
    """Every system of the package, installed and served together. No worker runs."""
    settings = replace(system_settings, egress_allow="127.0.0.1")
    async with Database(url, settings) as db:
        async with db.connection() as connection:
            for system in SYSTEMS:
                await system.install(connection)
        app = create_app(settings, database=db, **mount(*SYSTEMS))
        async with serve_app(app) as address, httpx.AsyncClient(base_url=address, timeout=60) as http:
            yield SystemHarness(db, http, address, [*exports.tasks, *reports.tasks])


async def use_all_systems(user: SystemUser) -> None:
    """Let something of a user wait in every system."""
    batch = {"documentIds": [await user.add_document()], "options": {}}
    assert (await user.post("/api/v1/export/batch", batch)).status_code == 202
    params = {"person1": {"name": "Ann"}, "person2": {"name": "Bo"}, "systems": ["western"]}
    assert (await user.post("/api/jobs/start", {"type": "nuclear_v2", "params": params})).status_code == 202
    clip = {"video_url": "https://example.com/watch?v=1"}
    assert (await user.post("/api/v1/clips", clip)).status_code in (200, 201, 202)
    assert (
        await user.post("/api/v1/bookmarks/add/data", {"url": "https://example.com/a"})
    ).status_code == 200
    assert (await user.post("/api/v1/shares", {"url": "https://example.com/a.mp4"})).status_code in (
        200,
        201,
        202,
    )


async def test_one_request_erases_a_user_of_all_systems(product: SystemHarness, clock: Clock) -> None:
    ann, ben = product.create_user(), product.create_user()
    async with product.run_worker():
        for user in (ann, ben):
            await user.wait_for_export(await user.start_export(await user.add_document()))
    for user in (ann, ben):
        await use_all_systems(user)
    service = bearer_headers(SERVICE_KEY)
    async with product.db.connection() as connection:
        before = await count_owner_traces(connection, ben.id)
    assert {
        f"public.{name}" for name in ("documents", "reports", "bookmarks", "clipnest_videos", "shares")
    } <= set(before)

    response = await product.http.post("/api/erasures", json={"owner": ann.id, "wait_s": 0}, headers=service)
    assert response.status_code == 202, response.text
    async with Client(product.db.url.reveal(), settings=product.db.settings) as client:
        erasure = await client.erase_owner(ann.id)
        kept = [file.owner for file in await client.files.list()]
    assert erasure.finished_at is not None
    response = await product.http.post("/api/erasures", json={"owner": ann.id}, headers=service)
    assert (response.status_code, response.json()["deleted"]) == (200, {})
    async with product.db.connection() as connection:
        left = await count_owner_traces(connection, ann.id)
        assert KEPT_RECORDS <= set(left) <= KEPT_RECORDS | COUNTERS, left
        kept_traces = await count_owner_traces(connection, ben.id)
        assert {**kept_traces, ACTIVITY: 0} == {**before, ACTIVITY: 0}

        async def only_records_are_left() -> bool:
            # Idle lanes are closed after an hour, and deleted with their counters as soon as no older
            # transaction of the server runs, such as one of another test.
            await clock.advance(timedelta(minutes=30))
            await connection.execute("select holdfast.tick(), holdfast.tick()")
            return set(await count_owner_traces(connection, ann.id)) == KEPT_RECORDS

        await wait_until(
            only_records_are_left,
            within=timedelta(seconds=60),
            what="no lanes and counters of the erased user",
        )
    assert kept == [ben.id]


async def test_every_table_with_a_user_is_registered(product: SystemHarness) -> None:
    async with product.db.connection() as connection:
        registered = await connection.fetch("select relation, owner_column from holdfast.owner_tables")
        columns = {(row["name"], row["owner_column"]) for row in await connection.fetch(OWNER_COLUMNS)}
    assert columns == {(row["relation"], row["owner_column"]) for row in registered}


async def test_erasures_are_for_services_with_the_scope_and_name_wrong_fields(product: SystemHarness) -> None:
    ann, service = product.create_user(), bearer_headers(SERVICE_KEY)
    assert (await ann.post("/api/erasures", {"owner": ann.id})).status_code == 403
    assert (await product.http.post("/api/erasures", json={"owner": ann.id})).status_code == 401
    for body, field in (
        ({"owner": ""}, "owner"),
        ({"owner": "a\x1f"}, "owner"),
        ({}, "owner"),
        ({"user": "x"}, "user"),
    ):
        response = await product.http.post("/api/erasures", json=body, headers=service)
        assert response.status_code == 422, (body, response.text)
        assert field in response.text
    response = await product.http.get(f"/api/erasures?owner={ann.id}", headers=service)
    assert response.status_code == 404
