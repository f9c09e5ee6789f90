from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Generator, Iterator
from datetime import timedelta

import psycopg
import pytest

from holdfast import Call, Client, task
from holdfast.engine.connection import Database
from holdfast.errors import InvalidError, NotFoundError
from holdfast.settings import Secret, Settings
from holdfast.worker.runtime import WorkerRuntime


@task
def double(x: int) -> int:
    return 2 * x


@pytest.fixture
def client(url: Secret, settings: Settings) -> Generator[Client]:
    client = Client(url.reveal(), settings=settings)
    yield client
    client.blocking.close()


async def run_worker_until_done(db: Database, calls: int) -> None:
    """A worker that stays until so many tasks were done elsewhere."""
    stop = asyncio.Event()
    running = asyncio.create_task(WorkerRuntime(db, {"double": double}).run(stop))
    async with db.connection() as connection:
        while await connection.fetchval("select count(*) from holdfast.history") < calls:
            await asyncio.sleep(0.02)
    stop.set()
    await running


async def test_blocking_code_submits_and_waits(client: Client, db: Database) -> None:
    def plain() -> tuple[int, list[int]]:
        one = client.blocking.submit(double(2))
        many = client.blocking.submit_many([double(3), double(4)])
        soon = timedelta(seconds=20)
        return one.result(within=soon), [each.result(within=soon) for each in many]

    results, _ = await asyncio.gather(asyncio.to_thread(plain), run_worker_until_done(db, 3))
    assert results == (4, [6, 8])


def test_blocking_get_and_cancel(client: Client) -> None:
    job = client.blocking.submit(double(2), key="k")
    assert not client.blocking.submit(double(2), key="k").created
    assert job.get().status == "queued"
    assert job.cancel(reason="no").status == "cancelled"
    assert client.blocking.get(job.id).status == "cancelled"
    assert client.blocking.cancel(job.id).status == "cancelled"
    with pytest.raises(NotFoundError):
        client.blocking.get("00000000-0000-7000-8000-000000000000")


def test_handles_and_the_client_have_all_methods(client: Client) -> None:
    job = client.blocking.submit(double(2))
    assert [each.reason for each in job.explain()] == ["no_worker"]
    assert [each.status for each in job.watch(within=timedelta(0))] == ["queued"]
    watching = client.blocking.watch(job.id)
    assert next(watching).status == "queued"
    job.cancel(reason="no")
    assert next(watching).status == "cancelled"
    assert list(watching) == []
    assert job.retry(delay=timedelta(hours=1)).status == "queued"
    assert job.logs() == client.blocking.logs(job.id) == []
    assert [each.id for each in client.blocking.iterate_jobs("task:double")] == [job.id]
    client.blocking.pause_queue("default", reason="moving", by="ann")
    assert client.blocking.resume_queue("default")
    client.blocking.limits.put("one", type="double", max_running=1)
    assert [each.name for each in client.blocking.limits.list()] == ["one"]
    with pytest.raises(TimeoutError):
        job.result(within=timedelta(milliseconds=10))


def test_blocking_batches(client: Client) -> None:
    calling_thread = threading.get_ident()

    def calls() -> Iterator[Call[int]]:
        assert threading.get_ident() == calling_thread  # a generator may use connections of its thread
        yield double(1)
        yield double(2)

    with client.blocking.batches.open("numbers", then=double(9)) as batch:
        assert len(batch.submit_many(calls())) == 2
        batch.submit(double(3))
    assert (batch.get().total, batch.cancel()) == (3, 3)
    assert client.blocking.batches.handle(batch.id).wait(within=timedelta(seconds=20)).ended == 3
    with pytest.raises(ZeroDivisionError), client.blocking.batches.open() as other:
        raise ZeroDivisionError
    assert other.get().closed_at is None


def test_blocking_files(client: Client) -> None:
    files = client.blocking.files
    stored = files.put("a.txt", b"hello", owner="ann")
    with files.open(stored) as reader:
        assert b"".join(reader) == b"hello"
    with pytest.raises(ZeroDivisionError), files.open(stored.id):
        raise ZeroDivisionError
    assert files.read(stored) == b"hello"
    assert [each.name for each in files.list(owner="ann")] == ["a.txt"]
    assert list(files.orphaned_objects()) == []
    assert files.create_download_link(stored).startswith("/files/")
    files.delete(stored.id)
    assert files.sweep().deleted == 1


def test_the_thread_ends_with_its_client(url: Secret, settings: Settings) -> None:
    client = Client(url.reveal(), settings=settings)
    client.blocking.submit(double(1))
    thread = client.blocking._thread._thread
    assert thread is not None
    assert thread.is_alive()
    del client
    gc.collect()
    thread.join(10)
    assert not thread.is_alive()


@pytest.mark.parametrize("commit", [True, False])
def test_submit_on_a_connection_runs_in_the_calling_thread(client: Client, url: Secret, commit: bool) -> None:
    with psycopg.connect(url.reveal()) as connection:
        job = client.blocking.submit(double(2), on=connection)
        (connection.commit if commit else connection.rollback)()
    if commit:
        assert job.get().status == "queued"
    else:
        with pytest.raises(NotFoundError):
            job.get()


async def test_blocking_submit_refuses_an_asynchronous_connection(client: Client, url: Secret) -> None:
    async with await psycopg.AsyncConnection.connect(url.reveal()) as connection:
        call = double(2)
        with pytest.raises(InvalidError, match="asynchronous"):
            client.blocking.submit(call, on=connection)


async def test_a_blocking_call_in_a_running_loop_is_refused(client: Client) -> None:
    call = double(2)
    with pytest.raises(RuntimeError, match="without an event loop"):
        client.blocking.submit(call)
    call.mark_used()


def test_blocking_queues(client: Client, url: Secret) -> None:
    queues = client.blocking.queues
    queues.create("q")
    assert queues.send("q", {"n": 1}) == 1
    assert queues.send_batch("q", [{"n": 2}, {"n": 3}]) == [2, 3]
    first, second = queues.read("q", qty=2, type=dict[str, int])
    assert (first.body, second.body) == ({"n": 1}, {"n": 2})
    assert queues.set_vt("q", second, timedelta(0)) == [2]
    with psycopg.connect(url.reveal()) as connection:
        assert queues.archive("q", first, on=connection) == [1]
        connection.rollback()
        queues.send("q", 4, on=connection)
    assert queues.archive("q", first) == [1]
    assert [m.id for m in queues.peek("q")] == [2, 3, 4]
    assert [m.id for m in queues.pop("q")] == [2]
    assert queues.delete("q", [3]) == [3]
    assert queues.requeue("q", place="archive") == {1: 5}
    assert queues.put_policy("q", max_reads=3) == queues.policy("q")
    assert (queues.metrics("q").total, [m.queue for m in queues.metrics_all()]) == (2, ["q"])
    assert [q.name for q in queues.list()] == ["q"]
    assert (queues.purge("q"), queues.drop("q")) == (2, True)
    with pytest.raises(NotFoundError):
        queues.purge("q")
    with pytest.raises(InvalidError, match="pg_partman"):
        queues.create_partitioned("p")
