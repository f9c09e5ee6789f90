"""Batches, limits and control from Python: `client.batches`, `client.limits`, `retry`, `explain`, `pause`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from datetime import timedelta
from uuid import uuid4

import pytest

from holdfast import Client, task
from holdfast.engine.connection import Connection, Database
from holdfast.errors import ConflictError, InvalidError, NotFoundError
from holdfast.settings import Secret, Settings
from holdfast.worker.runtime import WorkerRuntime

SOON = timedelta(seconds=30)
repaired: set[str] = set()


@task(queue="pages", retries=0)
async def page(number: int) -> int:
    if number < 0:
        raise ValueError("a page before the first")
    return number


@task(queue="pages", retries=0)
async def broken(what: str) -> str:
    if what not in repaired:
        raise RuntimeError(f"{what} is broken")
    return what


@task(queue="after")
async def bind(title: str) -> str:
    return title


@pytest.fixture
async def client(url: Secret, settings: Settings) -> AsyncGenerator[Client]:
    async with Client(url.reveal(), settings=settings) as client:
        yield client


@pytest.fixture
async def worker(db: Database) -> AsyncGenerator[WorkerRuntime]:
    worker = WorkerRuntime(db, {each.name: each for each in (page, broken, bind)})
    stop = asyncio.Event()
    running = asyncio.create_task(worker.run(stop))
    yield worker
    stop.set()
    await running


async def test_the_follow_up_job_of_a_batch_runs_once_after_all_others(
    client: Client, worker: WorkerRuntime
) -> None:
    async with client.batches.open("a book", then=bind("a book"), owner="ann") as batch:
        await batch.submit(page(1))
        await batch.submit_many(page(n) for n in (2, 3, -1))
        assert (await batch.get()).closed_at is None
    seen = await batch.wait(within=SOON)
    assert (seen.name, seen.owner, seen.total, seen.ended, seen.failed) == ("a book", "ann", 4, 4, 1)
    assert seen.then is not None
    async for after in client.watch(seen.then, within=SOON):
        last = after
    assert last.output == "a book"
    assert [job.id for job in (await client.search_jobs("type:bind")).rows] == [seen.then]


async def test_an_exception_leaves_the_batch_open_without_a_follow_up_job(
    client: Client, worker: WorkerRuntime
) -> None:
    with pytest.raises(ZeroDivisionError):  # noqa: PT012
        async with client.batches.open(then=bind("half")) as batch:
            job = await batch.submit(page(1))
            raise ZeroDivisionError
    assert await job.result(within=SOON) == 1
    seen = await client.batches.get(batch.id)
    assert (seen.ended, seen.closed_at, seen.then) == (1, None, None)
    with pytest.raises(TimeoutError, match="has not ended"):
        await batch.wait(within=timedelta(0))
    await client.batches.handle(batch.id).close()
    assert (await batch.wait(within=SOON)).then is not None


async def test_a_closed_batch_refuses_jobs_and_an_empty_one_ends_at_once(client: Client) -> None:
    batch = await client.batches.open("empty")
    assert (await batch.close()).finished_at is not None
    with pytest.raises(ConflictError, match="does not exist or is closed"):
        await batch.submit(page(1))
    with pytest.raises(InvalidError, match="cannot be set"):
        await batch.submit_many([], batch=uuid4())
    for wrong, error in ((uuid4(), NotFoundError), ("nonsense", InvalidError)):
        with pytest.raises(error):
            await client.batches.get(wrong)


async def test_cancelling_a_batch_cancels_its_waiting_jobs(client: Client) -> None:
    async with client.batches.open() as batch:
        handles = await batch.submit_many(page(n) for n in range(5))
    assert await batch.cancel(reason="changed my mind") == 5
    assert {(await job.get()).status for job in handles} == {"cancelled"}
    assert (await batch.wait(within=SOON)).ended == 5


async def test_retry_runs_a_failed_job_again(client: Client, worker: WorkerRuntime) -> None:
    job = await client.submit(broken("pump"))
    with pytest.raises(Exception, match="pump is broken"):
        await job.result(within=SOON)
    repaired.add("pump")
    assert not (await job.retry()).ended
    assert await job.result(within=SOON) == "pump"
    with pytest.raises(NotFoundError):
        await client.retry(uuid4())


async def test_explain_says_why_a_job_is_not_running(client: Client) -> None:
    await client.pause_queue("pages", reason="moving house", by="ann", allow_new=True)
    job = await client.submit(page(1))
    reasons = {each.reason: each for each in await job.explain()}
    assert reasons["paused"].details["paused_reason"] == "moving house"
    assert (reasons["paused"].task, reasons["paused"].status) == ("page", "ready")
    assert "no_worker" in reasons
    assert await client.resume_queue("pages")
    assert not await client.resume_queue("pages")
    assert {each.reason for each in await client.explain(job.id)} == {"no_worker"}


async def test_limits_are_put_changed_listed_and_removed(client: Client, conn: Connection) -> None:
    await client.limits.put("openai", type="page", per_key=True, max_running=4)
    await client.limits.put("openai", type="page", per_key=True, max_running=2, rate=0.5)
    (limit,) = await client.limits.list()
    assert (limit.name, limit.type, limit.per_key, limit.max_running, limit.rate, limit.running) == (
        "openai", "page", True, 2, 0.5, 0,
    )  # fmt: skip
    with pytest.raises(InvalidError):
        await client.limits.put("nothing", type="page")
    assert await client.limits.remove("openai")
    assert not await client.limits.remove("openai")
    assert await client.limits.list() == []
