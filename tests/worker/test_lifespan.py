"""What an application opens for its tasks: before the first, closed after the last, failures in words."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Protocol

import pytest
import shared_app as app
from worker_processes import WorkerProcesses

from holdfast import Client, Ctx, lifespan, task
from holdfast.engine.connection import Connection
from holdfast.errors import InvalidError, LifespanError
from holdfast.settings import Secret
from holdfast.testing import wait_until
from holdfast.worker.lifespan import Lifespan, StoppedBeforeStart, open_lifespan

closed: list[str] = []


@lifespan
async def generator() -> AsyncIterator[str]:
    yield "a generator"
    closed.append("generator")


@lifespan
def plain_generator() -> Iterator[str]:
    yield "a plain one"
    closed.append("plain generator")


@lifespan
@asynccontextmanager
async def manager() -> AsyncGenerator[str]:
    yield "a manager"
    closed.append("manager")


@lifespan
@contextmanager
def plain_manager() -> Iterator[str]:
    yield "a plain manager"
    closed.append("plain manager")


@pytest.mark.parametrize("span", [generator, plain_generator, manager, plain_manager], ids=lambda s: s.name)
async def test_every_kind_of_lifespan_opens_and_closes(span: Lifespan[str]) -> None:
    closed.clear()
    async with open_lifespan(span) as state:
        assert state.startswith("a ")
        assert not closed
    assert len(closed) == 1


async def test_lifespan_closes_when_its_block_raises() -> None:
    closed.clear()
    with pytest.raises(OSError, match="work"):
        async with open_lifespan(generator):
            raise OSError("work")
    assert closed == ["generator"]


@lifespan
async def stuck() -> AsyncIterator[None]:
    raise OSError("the shutters are stuck")
    yield


@lifespan
async def stuck_open() -> AsyncIterator[None]:
    yield
    raise OSError("the shutters are stuck")


@lifespan
async def yields_nothing() -> AsyncIterator[None]:
    for _ in ():
        yield


@lifespan
async def yields_twice() -> AsyncIterator[None]:
    yield
    yield


async def coroutine() -> None: ...


@pytest.mark.parametrize(
    ("span", "says"),
    [
        (stuck, r"lifespan stuck did not start: test_lifespan.py:\d+: OSError: the shutters are stuck\."),
        (stuck_open, r"lifespan stuck_open did not close: test_lifespan.py:\d+: OSError: the shutters"),
        (yields_nothing, "did not start.*yield state"),
        (yields_twice, "did not close.*yield state"),
        (Lifespan(coroutine), "does not yield a state.*yield state"),
    ],
    ids=["start", "close", "nothing", "twice", "coroutine"],
)
async def test_lifespan_errors_are_one_sentence(span: Lifespan[Any], says: str) -> None:
    with pytest.raises(LifespanError, match=says):
        async with open_lifespan(span):
            pass


class StateOpener(Protocol):
    def open(self) -> None: ...


@task
async def wants_text(ctx: Ctx[str]) -> None: ...


@task
async def wants_list(ctx: Ctx[list[str]]) -> None: ...


@task
async def wants_nothing(ctx: Ctx) -> None: ...


@task
async def wants_anything(ctx: Ctx[Any], opener: int) -> None: ...


@task
async def wants_protocol(ctx: Ctx[StateOpener]) -> None: ...


async def test_state_type_is_compared_with_the_tasks_context_types() -> None:
    async with open_lifespan(generator, [wants_text, wants_nothing, wants_anything, wants_protocol]):
        pass
    with pytest.raises(
        InvalidError, match=r"wants_list declares ctx.state as list; the lifespan generator yields str"
    ):
        async with open_lifespan(generator, [wants_list]):
            pass
    with pytest.raises(InvalidError, match=r"wants_text declares ctx.state as str, but there is no lifespan"):
        async with open_lifespan(None, [wants_text]):
            pass


async def test_worker_can_be_stopped_while_its_lifespan_hangs() -> None:
    left: list[str] = []

    @lifespan
    async def hangs() -> AsyncIterator[None]:
        try:
            await asyncio.Event().wait()
        finally:
            left.append("tidied")
        yield

    stop = asyncio.Event()
    asyncio.get_running_loop().call_soon(stop.set)
    with pytest.raises(StoppedBeforeStart):
        async with open_lifespan(hangs, stop=stop):
            pass
    assert left == ["tidied"]


@pytest.fixture
async def shop(url: Secret, tmp_path: Path) -> AsyncGenerator[WorkerProcesses]:
    workers = WorkerProcesses(url, tmp_path, Path(app.__file__))
    yield workers
    for process in workers.started:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGKILL)
        await process.wait()


async def test_tasks_use_the_lifespan_in_threads_child_processes_and_the_loop(
    shop: WorkerProcesses, client: Client, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole context, by a real worker: steps, track, logs, children, capture; thrice."""
    monkeypatch.setenv("HOLDFAST_CAPTURE_LOGS", "info")
    worker = await shop.start("--concurrency", "4")
    calls = [app.order(["tea", "milk"]), app.order_plain(["oats"]), app.order_apart(["rice"])]
    for call in calls:
        job = await client.submit(call)
        result = await job.result()
        assert all(box.startswith("box of") for box in result["done"])
        lines = [(x.attempt, x.message) for x in await client.logs(job.id) if x.task_id == job.id]
        assert lines == [(1, "packed"), (1, "attempt 1"), (2, "packed"), (2, "attempt 2")]
        status = await conn.fetchval("select status from holdfast.jobs where id = $1", job.id)
        assert status == "succeeded"  # with its child, which had no part in the result
    packed = sorted(line[2] for line in shop.read_record_lines() if line[1] == "pack")
    assert packed == ["milk", "oats", "rice", "tea"]
    children = await conn.fetch("select message from holdfast.logs where message like 'no context%'")
    assert len(children) == 4
    worker.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(worker.wait(), 60) == 0
    opened = [line[0] for line in shop.read_record_lines() if line[1] == "opening"]
    apart = {line[2] for line in shop.read_record_lines() if line[1] == "apart"}
    assert opened[0] == str(worker.pid)
    assert apart <= set(opened)
    assert str(worker.pid) not in apart
    assert str(worker.pid) in [line[0] for line in shop.read_record_lines() if line[1] == "closed"]


async def test_a_task_that_completed_in_its_own_transaction_is_not_interrupted(
    shop: WorkerProcesses, client: Client, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes on for longer than a heartbeat after its success, which ended its lease."""
    monkeypatch.setenv("AFTER_SALE", "2")
    await conn.execute("create table sales (amount int)")
    await shop.start()
    job = await client.submit(app.sell(7))
    assert await job.result() == 7
    assert not shop.has_recorded("sold", 7, False)
    await wait_until(lambda: shop.has_recorded("sold", 7, False))
    assert await conn.fetchval("select count(*) from sales") == 1


@pytest.mark.parametrize(
    ("how", "code", "says"), [("broken", 1, b"the shutters are stuck"), ("hangs", 0, b"")]
)
async def test_worker_claims_no_tasks_when_its_lifespan_fails_or_hangs(
    shop: WorkerProcesses, client: Client, monkeypatch: pytest.MonkeyPatch, how: str, code: int, says: bytes
) -> None:
    monkeypatch.setenv("SHOP", how)
    job = await client.submit(app.deliver([]))
    worker = await shop.start()
    await wait_until(lambda: shop.has_recorded("opening"))
    if how == "hangs":
        worker.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(worker.wait(), 60) == code
    response = (shop.folder / "worker0.log").read_bytes()
    assert says in response
    assert b"Traceback" not in response
    assert (await job.get()).status == "queued"
