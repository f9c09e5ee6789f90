from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from datetime import timedelta
from uuid import UUID, uuid4

import pytest

from holdfast import Client, Graph, TaskFailedError, task
from holdfast.client import open_client_database
from holdfast.engine.connection import Connection, Database
from holdfast.errors import ConflictError, InvalidError, NotFoundError
from holdfast.settings import Secret, Settings
from holdfast.worker.runtime import WorkerRuntime


@task(queue="words")
async def upper(text: str) -> str:
    return text.upper()


@task(queue="words")
def join(parts: list[str]) -> str:
    return " ".join(parts)


@task(queue="words", retries=0)
async def fails(text: str) -> str:
    raise ValueError(text)


TASKS = {each.name: each for each in (upper, join, fails)}


@pytest.fixture
async def client(url: Secret, settings: Settings) -> AsyncGenerator[Client]:
    async with Client(url.reveal(), settings=settings) as client:
        yield client


@pytest.fixture
async def worker(db: Database) -> AsyncGenerator[WorkerRuntime]:
    worker = WorkerRuntime(db, TASKS)
    stop = asyncio.Event()
    running = asyncio.create_task(worker.run(stop))
    yield worker
    stop.set()
    await running


async def test_result_returns_the_value_of_the_task(client: Client, worker: WorkerRuntime) -> None:
    job = await client.submit(upper("hello"))
    assert await job.result(within=timedelta(seconds=20)) == "HELLO"
    stored = await job.get()
    assert (stored.status, stored.type, stored.progress.percent) == ("succeeded", "upper", 100)


async def test_a_graph_passes_results_to_later_tasks(client: Client, worker: WorkerRuntime) -> None:
    g = Graph("greeting")
    first, second = g.add(upper("good")), g.add(upper("morning"))
    g.add(join([first.result, second.result]))
    job = await client.submit(g)
    assert await job.result(within=timedelta(seconds=20)) == "GOOD MORNING"
    assert [t.status for t in (await job.get()).tasks] == ["succeeded"] * 3


async def test_result_of_a_failed_job_raises_its_error(client: Client, worker: WorkerRuntime) -> None:
    job = await client.submit(fails("no such page"))
    with pytest.raises(TaskFailedError, match="ValueError: no such page") as caught:
        await job.result(within=timedelta(seconds=20))
    assert (caught.value.status, caught.value.error_type) == ("failed", "ValueError")


async def test_submit_many_keeps_the_order(client: Client, worker: WorkerRuntime) -> None:
    handles = await client.submit_many([upper(f"w{n}") for n in range(50)])
    results = await asyncio.gather(*(h.result(within=timedelta(seconds=20)) for h in handles))
    assert results == [f"W{n}" for n in range(50)]


async def test_a_key_returns_the_same_job_and_refuses_other_arguments(client: Client) -> None:
    first = await client.submit(upper("a"), key="k")
    again = await client.submit(upper("a"), key="k")
    assert (again.id, first.created, again.created) == (first.id, True, False)
    with pytest.raises(ConflictError) as caught:
        await client.submit(upper("b"), key="k")
    assert caught.value.field == "key"


async def test_cancel_returns_the_new_state(client: Client) -> None:
    job = await client.submit(upper("a"))
    assert (await job.cancel(reason="changed my mind")).status == "cancelled"
    with pytest.raises(TaskFailedError, match="cancelled"):
        await job.result()


async def test_result_raises_timeout_error(client: Client) -> None:
    job = await client.submit(upper("a"))
    with pytest.raises(TimeoutError):
        await job.result(within=timedelta(milliseconds=30))


async def test_unknown_and_invalid_ids_are_refused(client: Client) -> None:
    with pytest.raises(NotFoundError):
        await client.get(uuid4())
    with pytest.raises(InvalidError, match="not the id of a job"):
        await client.get("no-uuid")


async def test_a_delayed_job_is_scheduled(client: Client) -> None:
    job = await client.submit(upper("a"), delay=timedelta(hours=1))
    assert [t.status for t in (await job.get()).tasks] == ["scheduled"]


async def test_an_empty_graph_and_shared_keys_are_refused_before_anything_is_sent(client: Client) -> None:
    with pytest.raises(InvalidError, match="no tasks"):
        await client.submit(Graph("empty"))
    calls = [upper("a")]
    with pytest.raises(InvalidError, match="one key"):
        await client.submit_many(calls, key="k")
    calls[0].mark_used()


async def test_a_client_connects_when_it_is_first_used() -> None:
    client = Client("postgresql://nobody@127.0.0.1:1/none")
    database = await open_client_database(client)
    assert database.url.reveal().endswith("/none")
    await client.close()


async def test_ids_are_sortable_by_time(client: Client, conn: Connection) -> None:
    ids: list[UUID] = [(await client.submit(upper(str(n)))).id for n in range(5)]
    assert [each.version for each in ids] == [7] * 5


@pytest.mark.parametrize(
    "error", [ConnectionError("no mail server"), TimeoutError("too slow"), OSError("disk")]
)
async def test_an_error_of_the_caller_in_a_transaction_stays_what_it_is(
    client: Client, error: OSError
) -> None:
    with pytest.raises(type(error)) as caught:
        async with client.transaction():
            raise error
    assert caught.value is error
    with pytest.raises(type(error)):
        async with client.connection():
            raise error
