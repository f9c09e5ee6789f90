"""Shards on three servers of their own: one is killed or frozen while work goes on with the others."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
from replicated_servers import create_database
from shard_databases import number_shard

from campaign.processes import list_descendants
from campaign.servers import FaultServer
from holdfast import Client, JobHandle, Worker, shard_of, task
from holdfast.client import shard_routing
from holdfast.engine import scratch
from holdfast.errors import DatabaseError
from holdfast.server import create_app
from holdfast.settings import Secret, Settings
from holdfast.testing import wait_until

NUMBERS = (1, 2, 3)
DATABASE = "replicated"


@task(queue="servers", lease=2)
async def echo(text: str) -> str:
    return text


@pytest.fixture(scope="module")
def servers(settings: Settings) -> Generator[dict[int, FaultServer]]:
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="shards-", dir=memory if memory.is_dir() else None))
    folder.chmod(0o755)
    servers = {number: FaultServer(folder / str(number), {"fsync": "off"}) for number in NUMBERS}
    try:
        for number, server in servers.items():
            server.start()
            asyncio.run(server.wait_until_ready())
            asyncio.run(create_database(server, settings))
            asyncio.run(number_shard(build_url(server), number))
        yield servers
    finally:
        for server in servers.values():
            send_signal(server, signal.SIGCONT)
            server.destroy()
        shutil.rmtree(folder, ignore_errors=True)


def build_url(server: FaultServer) -> str:
    return scratch.build_database_url(server.url, DATABASE).reveal()


def send_signal(server: FaultServer, number: signal.Signals) -> None:
    pid = server.pid
    if pid is not None:
        for each in (pid, *list_descendants(pid)):
            os.kill(each, number)


@pytest.fixture
async def client(servers: dict[int, FaultServer], settings: Settings) -> AsyncGenerator[Client]:
    settings = replace(settings, connect_timeout=timedelta(seconds=2), call_timeout=timedelta(seconds=10))
    urls = {number: build_url(server) for number, server in servers.items()}
    async with Client(shards=urls, settings=settings) as client:
        yield client


def find_owner(number: int) -> str:
    """Return an owner whose jobs go to a shard."""
    return next(
        str(owner) for owner in range(1000) if shard_routing.choose_shard(f"owner:{owner}", NUMBERS) == number
    )


async def submit_to_each(client: Client, numbers: tuple[int, ...]) -> list[JobHandle[str]]:
    return [
        await client.submit(echo(str(number)), owner=find_owner(number))
        for number in numbers
        for _ in range(5)
    ]


async def check_results(handles: list[JobHandle[str]]) -> None:
    for handle in handles:
        assert await handle.result(within=60) == str(shard_of(handle.id))


@pytest.mark.parametrize("fault", ["kill", "freeze"])
async def test_other_shards_go_on(client: Client, servers: dict[int, FaultServer], fault: str) -> None:
    async with Worker(client, tasks=[echo], concurrency=6) as worker:
        running = asyncio.create_task(worker.run())
        await check_results(await submit_to_each(client, NUMBERS))
        if fault == "kill":
            servers[2].crash()
        else:
            send_signal(servers[2], signal.SIGSTOP)
        try:
            await check_results(await submit_to_each(client, (1, 3)))
            with pytest.raises((DatabaseError, TimeoutError)):
                async with asyncio.timeout(15):
                    await client.submit(echo("2"), owner=find_owner(2))
            page = await client.search_jobs("queue:servers")
            assert page.missing_shards == (2,)
            assert {shard_of(job.id) for job in page.rows} == {1, 3}

            async def avoids_the_dead_shard() -> bool:
                before = time.monotonic()
                numbers = {shard_of((await client.submit(echo("x"))).id) for _ in range(4)}
                return 2 not in numbers and time.monotonic() - before < 10

            await wait_until(
                lambda: ignore_database_errors(avoids_the_dead_shard),
                within=timedelta(seconds=60),
                what="turns",
            )
        finally:
            if fault == "kill":
                servers[2].start()
                await servers[2].wait_until_ready()
            else:
                send_signal(servers[2], signal.SIGCONT)

        async def serves_again() -> bool:
            handle = await client.submit(echo("2"), owner=find_owner(2))
            return await handle.result(within=20) == "2"

        await wait_until(
            lambda: ignore_database_errors(serves_again), within=timedelta(seconds=90), what="the shard again"
        )
        worker.stop()
        await running


async def ignore_database_errors(check: Callable[[], Awaitable[bool]]) -> bool:
    try:
        return await check()
    except (DatabaseError, TimeoutError):
        return False


async def test_api_leaves_out_a_frozen_shard(servers: dict[int, FaultServer], settings: Settings) -> None:
    text = ",".join(f"{number}={build_url(server)}" for number, server in servers.items())
    own = replace(
        settings,
        database_url=None,
        shards=Secret(text),
        service_key=Secret("hf_test_key"),
        connect_timeout=timedelta(seconds=2),
    )
    app = create_app(own)
    transport = httpx.ASGITransport(app)
    headers = {"authorization": "Bearer hf_test_key"}
    async with httpx.AsyncClient(transport=transport, base_url="http://api", headers=headers) as api:
        assert (await api.get("/api/jobs")).json()["missing_shards"] == []
        send_signal(servers[1], signal.SIGSTOP)  # the first shard, which has no special part here
        try:
            async with asyncio.timeout(60):
                listed = await api.get("/api/jobs")
                assert listed.json()["missing_shards"] == [1]
                job = {"type": echo.name, "queue": "unserved", "args": {"text": "x"}, "owner": find_owner(3)}
                submitted = await api.post("/api/jobs", json=job)
                assert submitted.status_code == 202, submitted.text
                assert (await api.get(f"/api/jobs/{submitted.json()['id']}")).status_code == 200
        finally:
            send_signal(servers[1], signal.SIGCONT)

        async def answers_again() -> bool:
            return bool((await api.get("/api/jobs")).json().get("missing_shards") == [])

        await wait_until(answers_again, within=timedelta(seconds=60), what="the shard again")
    await app.state.holdfast.shards.close()
