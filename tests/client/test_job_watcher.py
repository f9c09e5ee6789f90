"""Results arrive by notification, and by polling without a listener."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from manual_worker import ManualWorker, run_ticks

from holdfast import Client, Graph, task
from holdfast.client import job_watcher
from holdfast.engine import jobs
from holdfast.engine.connection import Connection, Database
from holdfast.settings import Secret, Settings
from holdfast.testing import Clock, wait_until
from holdfast.worker.runtime import WorkerRuntime

WITHIN = timedelta(seconds=40)


@task(queue="words")
async def upper(text: str) -> str:
    return text.upper()


@task(queue="words", retries=0)
async def fails() -> None:
    raise ValueError("no")


@pytest.fixture
async def client(url: Secret, settings: Settings) -> AsyncGenerator[Client]:
    async with Client(url.reveal(), settings=settings) as client:
        yield client


@pytest.fixture
async def running_worker(db: Database) -> AsyncGenerator[None]:
    stop = asyncio.Event()
    running = asyncio.create_task(WorkerRuntime(db, {t.name: t for t in (upper, fails)}).run(stop))
    yield
    stop.set()
    await running


@pytest.fixture
async def disable_polling(client: Client, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Awaitable[None]]:
    """From now on only an announcement can bring news before the test times out."""

    async def ready() -> None:
        job = await client.submit(upper("first"))
        await wait_until((await client._connections.open_watcher()).is_listening, what="a listener")
        assert await job.result(within=WITHIN) == "FIRST"
        monkeypatch.setattr(job_watcher, "POLL_PAUSES_WITH_LISTENER_S", (600.0,))

    job = await client.submit(upper("zero"))
    async with (await client._connections.open_watcher()).watch(job.id):
        pass
    return ready


@pytest.mark.usefixtures("running_worker")
async def test_a_result_arrives_by_notification(
    client: Client, disable_polling: Callable[[], Awaitable[None]]
) -> None:
    await disable_polling()
    first = await client.submit(upper("x"))
    assert await first.result(within=WITHIN) == "X"
    several = await client.submit_many([upper(str(n)) for n in range(20)])
    results = await asyncio.gather(*(job.result(within=WITHIN) for job in several))
    assert results == [str(n) for n in range(20)]
    graph = Graph("pair")
    node = graph.add(upper("a"))
    graph.add(upper(node.result), name="again")
    owned = await client.submit(graph, owner="ada")
    assert (await anext(aiter(owned.watch()))).type == "pair"
    assert await owned.result(within=WITHIN) == "A"
    wrong = await client.submit(fails())
    with pytest.raises(Exception, match="ValueError"):
        await wrong.result(within=WITHIN)


@pytest.mark.usefixtures("running_worker")
@pytest.mark.parametrize(
    "how", ["cancel", "cancel by filter", "expire", "lose the lease", "lose it for good"]
)
async def test_an_end_that_no_worker_reports_arrives_by_notification(
    client: Client,
    disable_polling: Callable[[], Awaitable[None]],
    conn: Connection,
    clock: Clock,
    how: str,
) -> None:
    await disable_polling()
    body: dict[str, Any] = {"type": "never", "queue": "elsewhere"}
    if how == "expire":
        body["expires_at"] = (datetime.now(UTC) + timedelta(minutes=1)).isoformat()
    if how.startswith("lose"):
        body["lease_s"] = 30
    job = (await jobs.submit(conn, body)).id
    if how.startswith("lose"):
        await ManualWorker(conn, queues=["elsewhere"]).claim_one_task()
    if how == "lose it for good":
        await conn.execute("update holdfast.tasks set losses = 49 where id = $1", job)
    changes = client.watch(job, within=WITHIN)
    assert (await anext(changes)).status == ("running" if how.startswith("lose") else "queued")
    if how == "cancel":
        await client.cancel(job)
    elif how == "cancel by filter":
        assert await conn.fetchval("""select holdfast.cancel_jobs('{"queue": "elsewhere"}')""") == 1
    else:
        await clock.advance(timedelta(minutes=2))
        await run_ticks(conn)
    after = {"lose the lease": "queued", "lose it for good": "failed"}.get(how, "cancelled")
    assert (await anext(changes)).status == after


@pytest.mark.usefixtures("running_worker")
@pytest.mark.parametrize("how", ["exchange", "claim_tasks", "limited"])
async def test_the_start_of_a_job_arrives_by_notification(
    client: Client, disable_polling: Callable[[], Awaitable[None]], conn: Connection, how: str
) -> None:
    await disable_polling()
    if how == "limited":
        await conn.execute("select holdfast.put_limit('few', 'elsewhere', p_max_running => 1)")
    job = (await jobs.submit(conn, {"type": "never", "queue": "elsewhere"})).id
    changes = client.watch(job, within=WITHIN)
    assert (await anext(changes)).status == "queued"
    if how == "claim_tasks":
        await conn.fetch("select holdfast.claim_tasks('outside', 5, null, array['elsewhere'])")
    else:
        await ManualWorker(conn, queues=["elsewhere"]).claim_one_task()
    async with asyncio.timeout(WITHIN.total_seconds() / 2):  # at its end the watch looks by itself
        assert (await anext(changes)).status == "running"


@pytest.mark.usefixtures("running_worker")
async def test_the_listener_reconnects(
    client: Client, disable_polling: Callable[[], Awaitable[None]], conn: Connection
) -> None:
    await disable_polling()
    watcher = await client._connections.open_watcher()
    await conn.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity "
        "where datname = current_database() and pid <> pg_backend_pid() and query ilike 'notify%'"
    )
    await wait_until(lambda: not watcher.is_listening(), what="the listener to notice")
    await wait_until(watcher.is_listening, what="the listener again")
    assert await (await client.submit(upper("back"))).result(within=WITHIN) == "BACK"


@pytest.mark.usefixtures("running_worker")
async def test_results_arrive_by_polling_without_a_listener(url: Secret, settings: Settings) -> None:
    async with Client(url.reveal(), settings=replace(settings, listen="off")) as client:
        assert await (await client.submit(upper("x"))).result(within=WITHIN) == "X"


async def test_watched_jobs_are_removed_from_the_watch_list(client: Client, conn: Connection) -> None:
    job = await client.submit(upper("never"))
    with pytest.raises(TimeoutError):
        await job.result(within=timedelta(milliseconds=50))
    assert await conn.fetchval("select count(*) from holdfast.watched_jobs") == 1
    other = await client.submit(upper("never"))
    with pytest.raises(TimeoutError):
        await other.result(within=timedelta(milliseconds=50))
    assert await conn.fetchval("select array_agg(job_id) from holdfast.watched_jobs") == [other.id]


async def test_search_jobs_returns_pages(client: Client) -> None:
    ids = [(await client.submit(upper(str(n)), owner="ada" if n % 2 else "bob")).id for n in range(7)]
    first = await client.search_jobs("state:queued", limit=3)
    assert [job.id for job in first.rows] == ids[:-4:-1]
    second = await client.search_jobs("state:queued", limit=3, before=first.next)
    assert [job.id for job in second.rows] == ids[3:0:-1]
    ids_of_ada = [job_id for number, job_id in enumerate(ids) if number % 2]
    assert [job.id async for job in client.iterate_jobs("owner:ada")] == ids_of_ada[::-1]
    assert [job.id async for job in client.iterate_jobs(owner="bob")] == ids[::-2]
