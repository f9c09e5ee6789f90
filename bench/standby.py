"""Benchmark of a standby: what reads cost the primary with and without it, and how long a failover takes.

The transactions and rows that the primary reads are counted. The outage is a time: from the end of the
primary to the first job that a client with both addresses submits to the promoted standby. The promotion
starts at once; with Patroni it starts after its `ttl`.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import httpx

from campaign.proxy import replace_port
from campaign.servers import FaultServer
from holdfast import Client, task
from holdfast.engine import install, scratch
from holdfast.engine.connection import Database, open_connection
from holdfast.errors import HoldfastError
from holdfast.server import create_app
from holdfast.settings import Secret, Settings, load_settings

JOBS = 200
REQUESTS = 50
SERVICE_KEY = "hf_bench_key"
DATABASE_NAME = "standby"
MAX_OUTAGE_S = 120


@task(queue="standby")
async def noop(number: int) -> int:
    return number


async def measure_standby(folder: Path, settings: Settings) -> None:
    primary = FaultServer(folder / "primary", {"fsync": "off"})
    standby: FaultServer | None = None
    try:
        primary.start()
        await primary.wait_until_ready()
        administration = await primary.connect()
        await administration.execute(f"create database {DATABASE_NAME}")
        await administration.close()
        url = scratch.build_database_url(primary.url, DATABASE_NAME)
        await install.migrate_database(url, settings)
        standby = FaultServer(folder / "standby", standby_of=primary)
        standby.start()
        await standby.wait_until_ready()
        async with Client(url.reveal(), settings=settings) as client:
            await client.submit_many(noop(number) for number in range(JOBS))
        read_url = scratch.build_database_url(standby.url, DATABASE_NAME)
        for name, each in (("without", None), ("with", read_url)):
            costs = await _measure_reads(url, replace(settings, read_url=each))
            described = ", ".join(f"{counter} {value:.2f}" for counter, value in costs.items())
            print(f"reads {name} a replica, of the primary for each request: {described}", flush=True)
        outage_s = await _measure_failover(url, primary, standby, settings)
        print(f"failover outage {outage_s:.1f} s, promotion included", flush=True)
    finally:
        for server in (standby, primary):
            if server is not None:
                server.destroy()


async def _measure_reads(url: Secret, settings: Settings) -> dict[str, float]:
    settings = replace(settings, service_key=Secret(SERVICE_KEY))
    async with Database(url, settings) as database:
        app = create_app(settings, database=database)
        headers = {"authorization": f"Bearer {SERVICE_KEY}"}
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://bench", headers=headers
        ) as api:
            await api.get("/api/search")
            before = await _read_counters(url, settings)
            for _ in range(REQUESTS):
                (await api.get("/api/search")).raise_for_status()
        await app.state.holdfast.close()
    after = await _read_counters(url, settings)
    return {name: (after[name] - before[name]) / REQUESTS for name in after}


async def _read_counters(url: Secret, settings: Settings) -> Counter[str]:
    async with open_connection(url, settings) as connection:
        await connection.execute("select pg_stat_force_next_flush()")
        row = await connection.fetchrow(
            """select xact_commit as transactions, tup_fetched as "rows fetched"
               from pg_stat_database where datname = current_database()"""
        )
    assert row is not None
    return Counter(dict(row))


async def _measure_failover(
    url: Secret, primary: FaultServer, standby: FaultServer, settings: Settings
) -> float:
    """Kill the primary, promote the standby, and return the seconds until a submit succeeds."""
    second = f"127.0.0.1:{standby.port}"
    both = replace_port(url, primary.port).reveal().replace(f":{primary.port}/", f":{primary.port},{second}/")
    settings = replace(settings, connect_timeout=timedelta(seconds=2))
    async with Client(both, settings=settings) as client:
        await client.submit(noop(0))
        primary.crash()
        started_at = time.monotonic()
        promotion = asyncio.create_task(standby.promote())
        while time.monotonic() - started_at < MAX_OUTAGE_S:
            try:
                await client.submit(noop(1))
                await promotion
                return time.monotonic() - started_at
            except HoldfastError:
                await asyncio.sleep(0.05)
    raise TimeoutError(f"No submit succeeded within {MAX_OUTAGE_S} s.")


def create_folder() -> Path:
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="bench-standby-", dir=memory if memory.is_dir() else None))
    folder.chmod(0o755)
    return folder


async def main() -> None:
    folder = create_folder()
    try:
        await measure_standby(folder, load_settings({}))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    asyncio.run(main())
