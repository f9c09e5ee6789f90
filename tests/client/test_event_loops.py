"""One client object works in several event loops, in threads, through `client.blocking` and after a fork."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import threading
import time
import traceback
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection as Pipe
from uuid import UUID

import psycopg
import pytest

from holdfast import Client, task
from holdfast.settings import Secret, Settings


@task(queue="loops")
def double(x: int) -> int:
    return 2 * x


@pytest.fixture
def client(url: Secret, settings: Settings) -> Generator[Client]:
    client = Client(url.reveal(), settings=settings)
    yield client
    client.blocking.close()


def count_connections(url: Secret) -> int:
    """The sessions that other programs have open in the database of the test."""
    with psycopg.connect(url.reveal(), autocommit=True) as connection:
        row = connection.execute(
            "select count(*) from pg_stat_activity "
            "where datname = current_database() and pid <> pg_backend_pid() "
            "and backend_type = 'client backend'"
        ).fetchone()
        assert row is not None
        return int(row[0])


def wait_for_connections(url: Secret, expected: int) -> None:
    """The server needs a moment to notice that a client has closed its connection."""
    deadline = time.monotonic() + 10
    while (count := count_connections(url)) != expected:
        assert time.monotonic() < deadline, f"{count} connections are open, expected {expected}"
        time.sleep(0.02)


async def submit_and_get(client: Client, number: int) -> UUID:
    """Several calls at once, and one that needs the listener."""
    jobs = await asyncio.gather(*(client.submit(double(number + n)) for n in range(5)))
    await asyncio.gather(*(job.get() for job in jobs))
    async for job in jobs[0].watch():
        assert job.status == "queued"
        break
    return jobs[0].id


def test_one_asyncio_run_after_another(client: Client, url: Secret) -> None:
    for number in range(3):
        asyncio.run(submit_and_get(client, number))
        wait_for_connections(url, 0)


def test_loops_in_different_threads_at_once(client: Client, url: Secret) -> None:
    with ThreadPoolExecutor(4) as threads:
        ids = set(threads.map(lambda n: asyncio.run(submit_and_get(client, n)), range(8)))
    assert len(ids) == 8
    wait_for_connections(url, 0)


def test_async_and_blocking_calls_at_the_same_time(client: Client, url: Secret) -> None:
    def submit_blocking(number: int) -> UUID:
        handle = client.blocking.submit(double(number))
        assert handle.get().status == "queued"
        return handle.id

    async def submit_async_and_blocking() -> list[UUID]:
        plain = [asyncio.to_thread(submit_blocking, n) for n in range(10)]
        return await asyncio.gather(*plain, *(submit_and_get(client, n) for n in range(5)))

    assert len(set(asyncio.run(submit_async_and_blocking()))) == 15
    assert client.blocking.get(client.blocking.submit(double(1)).id).status == "queued"
    client.blocking.close()
    wait_for_connections(url, 0)


def test_many_threads_share_one_blocking_client(client: Client, url: Secret) -> None:
    with ThreadPoolExecutor(16) as threads:
        handles = list(threads.map(lambda n: client.blocking.submit(double(n)), range(100)))
    assert len({handle.id for handle in handles}) == 100
    client.blocking.close()
    wait_for_connections(url, 0)
    assert handles[0].get().status == "queued"  # the next call opens a connection again


def test_a_loop_that_is_closed_without_a_shutdown_leaves_no_connection(client: Client, url: Secret) -> None:
    loop = asyncio.new_event_loop()
    loop.run_until_complete(client.submit(double(1)))
    loop.close()
    asyncio.run(submit_and_get(client, 2))
    wait_for_connections(url, 0)


async def test_close_is_for_the_running_loop_and_the_next_call_opens_again(
    client: Client, url: Secret
) -> None:
    for _ in range(2):
        async with client:
            await submit_and_get(client, 1)
            assert await asyncio.to_thread(count_connections, url) > 0
        await asyncio.to_thread(wait_for_connections, url, 0)


def test_close_ends_calls_that_wait_in_other_threads(client: Client) -> None:
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            handle.result()
        except RuntimeError as error:
            errors.append(error)

    handle = client.blocking.submit(double(1))
    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.2)
    client.blocking.close()
    thread.join(10)
    assert "client.blocking was closed" in str(errors[0])


def _run_in_fork(action: Callable[[], object]) -> int:
    """The exit code of a forked child that runs `action`; 0 when it raised nothing."""
    child = os.fork()
    if child == 0:
        try:
            action()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_opens_connections_of_its_own(client: Client, url: Secret) -> None:
    parent = client.blocking.submit(double(1))

    def in_child() -> None:
        for number in range(5):
            assert client.blocking.submit(double(number)).get().status == "queued"
        asyncio.run(submit_and_get(client, 7))
        client.blocking.close()

    for _ in range(3):
        assert _run_in_fork(in_child) == 0
        assert parent.get().status == "queued"
    assert len(client.blocking.search_jobs("queue:loops", limit=100).rows) == 1 + 3 * 10
    client.blocking.close()
    wait_for_connections(url, 0)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_child_forked_while_threads_hold_the_client_does_not_hang(client: Client) -> None:
    stop = threading.Event()

    def submit_until_stopped(number: int) -> None:
        while not stop.is_set():
            client.blocking.submit(double(number))

    threads = [threading.Thread(target=submit_until_stopped, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    try:
        codes = [_run_in_fork(lambda: client.blocking.submit(double(9)).get()) for _ in range(10)]
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert codes == [0] * 10


def _submit_in_process(client: Client, pipe: Pipe) -> None:
    pipe.send(client.blocking.submit(double(3)).id)
    pipe.send(asyncio.run(submit_and_get(client, 4)))


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_client_works_in_a_forked_multiprocessing_child(client: Client) -> None:
    client.blocking.submit(double(1))
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=_submit_in_process, args=(client, theirs))
    process.start()
    for _ in range(2):
        assert ours.poll(30)
        assert client.blocking.get(ours.recv()).status == "queued"
    process.join(30)
    assert process.exitcode == 0
