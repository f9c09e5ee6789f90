"""`HOLDFAST_READ_URL`: lists, search and metrics come from a real streaming standby, decisions never do."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from dataclasses import replace

import httpx
import pytest
from replicated_servers import ReplicatedServers, run_replicated_servers

from holdfast import Client, task
from holdfast.engine.connection import Database
from holdfast.server import create_app, create_dashboard
from holdfast.server.api import replica_reads
from holdfast.settings import Secret, Settings
from holdfast.testing import wait_until

SERVICE_KEY = "hf_replica_test"


@task(queue="replicated")
async def count_words(text: str) -> int:
    return len(text.split())


@pytest.fixture(scope="module")
def servers(settings: Settings) -> Generator[ReplicatedServers]:
    with run_replicated_servers(settings) as servers:
        yield servers


@pytest.fixture
def read_settings(servers: ReplicatedServers, settings: Settings) -> Settings:
    return replace(settings, service_key=Secret(SERVICE_KEY), read_url=servers.standby_url)


@pytest.fixture
async def api(servers: ReplicatedServers, read_settings: Settings) -> AsyncGenerator[httpx.AsyncClient]:
    async with run_app(servers, read_settings) as client:
        yield client


@asynccontextmanager
async def run_app(servers: ReplicatedServers, settings: Settings) -> AsyncGenerator[httpx.AsyncClient]:
    async with Database(servers.primary_url, settings) as database:
        app = create_app(settings, database=database, dashboard=create_dashboard)
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app),
            base_url="http://test",
            headers={"authorization": f"Bearer {SERVICE_KEY}", "sec-fetch-site": "same-origin"},
        ) as client:
            yield client
        await app.state.holdfast.close()


async def sign_in(api: httpx.AsyncClient) -> None:
    response = await api.post("/dashboard/login", data={"key": SERVICE_KEY})
    assert response.status_code == 303
    assert "holdfast_session" in api.cookies


async def submit_job(servers: ReplicatedServers, settings: Settings, text: str) -> str:
    async with Client(servers.primary_url.reveal(), settings=settings) as client:
        return str((await client.submit(count_words(text))).id)


@asynccontextmanager
async def pause_replay(servers: ReplicatedServers) -> AsyncGenerator[None]:
    """Let the standby receive changes without showing them, as one that is behind."""
    connection = await servers.standby.connect()
    await connection.execute("select pg_wal_replay_pause()")

    async def is_paused() -> bool:
        return await connection.fetchval("select pg_get_wal_replay_pause_state() = 'paused'") is True

    await wait_until(is_paused, what="paused replay")
    try:
        yield
    finally:
        await connection.execute("select pg_wal_replay_resume()")
        await connection.close()


async def find_job(api: httpx.AsyncClient, job_id: str) -> httpx.Response | None:
    response = await api.get("/api/search", params={"q": "queue:replicated"})
    assert response.status_code == 200
    return response if job_id in response.text else None


async def test_search_shows_what_the_replica_has_and_how_old_it_is(
    api: httpx.AsyncClient, servers: ReplicatedServers, settings: Settings
) -> None:
    first_id = await submit_job(servers, settings, "zero")

    async def has_first_job() -> bool:
        return await find_job(api, first_id) is not None

    await wait_until(has_first_job, what="the first job on the replica")
    async with pause_replay(servers):
        job_id = await submit_job(servers, settings, "one two")

        async def is_behind() -> bool:
            response = await api.get("/api/search", params={"q": "queue:replicated"})
            assert response.headers["holdfast-read-source"] == "replica"
            assert job_id not in response.text
            return float(response.headers["holdfast-data-age"]) > 0.5

        await wait_until(is_behind, what="old data")
        exact = await api.get(f"/api/jobs/{job_id}")
        assert exact.status_code == 200  # one job is read from the primary

    async def has_job() -> bool:
        response = await find_job(api, job_id)
        return response is not None and float(response.headers["holdfast-data-age"]) < 0.5

    await wait_until(has_job, what="the replica to catch up")


async def test_dashboard_lists_come_from_the_replica_and_say_so(
    api: httpx.AsyncClient, servers: ReplicatedServers, settings: Settings
) -> None:
    await sign_in(api)
    async with pause_replay(servers):
        job_id = await submit_job(servers, settings, "three words here")
        for path in ("/jobs", "/", "/errors", "/tasks", "/queues", "/workers", "/files", "/audit"):
            page = await api.get(f"/dashboard{path}")
            assert page.status_code == 200, path
            assert "From the read replica" in page.text, path
            assert job_id not in page.text
        job_page = await api.get(f"/dashboard/jobs/{job_id}")
        assert job_page.status_code == 200
        assert "read replica" not in job_page.text


async def test_page_after_an_action_is_read_from_the_primary(
    api: httpx.AsyncClient, servers: ReplicatedServers, settings: Settings
) -> None:
    await sign_in(api)
    async with pause_replay(servers):
        job_id = await submit_job(servers, settings, "fresh")
        api.cookies.set("holdfast_flash", "anything")
        page = await api.get("/dashboard/jobs?q=queue:replicated")
    assert job_id in page.text
    assert "read replica" not in page.text


async def test_metrics_say_how_old_the_replica_is(
    api: httpx.AsyncClient, servers: ReplicatedServers, settings: Settings
) -> None:
    await submit_job(servers, settings, "metrics")

    async def has_metrics() -> bool:
        text = (await api.get("/metrics")).text
        assert "holdfast_read_replica_used 1" in text
        assert "holdfast_read_replica_age_seconds " in text
        return 'holdfast_queue_desired_workers{queue="replicated"} 1' in text

    await wait_until(has_metrics, what="metrics of the queue")
    stats = await api.get("/api/stats")
    assert stats.headers["holdfast-read-source"] == "replica"


async def test_primary_is_read_while_the_replica_is_gone(
    api: httpx.AsyncClient,
    servers: ReplicatedServers,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await sign_in(api)
    servers.standby.stop()
    try:
        job_id = await submit_job(servers, settings, "without a replica")
        page = await api.get("/dashboard/jobs?q=queue:replicated")
        assert job_id in page.text
        assert "The read replica does not answer. This page shows the primary." in page.text
        response = await find_job(api, job_id)
        assert response is not None
        assert response.headers["holdfast-read-source"].startswith("primary, because")
        assert "holdfast_read_replica_used 0" in (await api.get("/metrics")).text
    finally:
        servers.standby.start()
        await servers.standby.wait_until_ready()
    monkeypatch.setattr(replica_reads, "RETRY_REPLICA_AFTER_S", 0.0)

    async def reads_replica_again() -> bool:
        return "From the read replica" in (await api.get("/dashboard/jobs")).text

    await wait_until(reads_replica_again, what="the replica to be read again")


async def test_address_of_a_primary_is_noticed(servers: ReplicatedServers, read_settings: Settings) -> None:
    async with run_app(servers, replace(read_settings, read_url=servers.primary_url)) as api:
        await sign_in(api)
        assert "leads to a primary" in (await api.get("/dashboard/jobs")).text


async def test_nothing_is_said_without_a_replica(servers: ReplicatedServers, read_settings: Settings) -> None:
    async with run_app(servers, replace(read_settings, read_url=None)) as api:
        await sign_in(api)
        assert "read-note" not in (await api.get("/dashboard/jobs")).text
        assert "read_replica" not in (await api.get("/metrics")).text
        assert (await api.get("/api/stats")).headers["holdfast-read-source"] == "primary"
