"""What a task asks of the engine through its context: steps, children, the fence, log lines."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import pytest
from django.db import connections, transaction
from manual_worker import (
    ManualWorker,
    read_job,
    read_task_status,
    read_task_statuses,
    submit_graph,
    submit_job,
)
from transactions import TRANSACTION_FACTORIES, configure_django

from holdfast import Ctx, task
from holdfast.engine import jobs
from holdfast.engine.connection import Connection, Database
from holdfast.engine.leases import LeasedTask
from holdfast.errors import ConflictError, InvalidError, LeaseLostError, RefusedError
from holdfast.settings import Secret
from holdfast.testing import Clock
from holdfast.worker.context import TaskContext
from holdfast.worker.context_factory import ContextFactory
from holdfast.worker.gateway import DatabaseGateway

CreateContext = Callable[[LeasedTask], TaskContext]


@pytest.fixture
async def create_context(db: Database) -> CreateContext:
    gateway = DatabaseGateway(db, asyncio.get_running_loop())
    contexts = ContextFactory(db)

    def create_context(claimed: LeasedTask) -> TaskContext:
        context = contexts.create_context(claimed)
        context.gateway = gateway
        return context

    return create_context


@pytest.fixture
async def manual_worker(conn: Connection) -> ManualWorker:
    return ManualWorker(conn)


async def retry_and_claim(manual_worker: ManualWorker, clock: Clock, claimed: LeasedTask) -> LeasedTask:
    """The next attempt of a task, after this one has failed; whatever else there is succeeds."""
    await manual_worker.finish_task(claimed, "fail", {"message": "once more"})
    await clock.advance(timedelta(hours=1))
    taken = {each.id: each for each in await manual_worker.claim_tasks(9)}
    mine = taken.pop(claimed.id)
    for other in taken.values():
        await manual_worker.finish_task(other)
    return mine


@dataclass
class Page:
    url: str
    size: int


class CallRecorder:
    def __init__(self) -> None:
        self.calls = 0

    async def load(self, url: str) -> Page:
        self.calls += 1
        return Page(url, 3)

    def count(self, n: int) -> int:
        self.calls += 1
        return n + 1


async def test_each_report_is_stored_when_it_returns(
    conn: Connection, manual_worker: ManualWorker, create_context: CreateContext, clock: Clock
) -> None:
    created = await submit_job(conn, owner="ann")
    (claimed,) = await manual_worker.claim_tasks()
    ctx = create_context(claimed)
    for done in (25, 50, 50, 75):
        await ctx.report(done, phase=f"at {done}")
    ctx.progress(60)
    assert (
        ctx.get_unreported_progress() is None
    )  # the bar does not run backwards, and there is nothing left to send
    response = [e.body for e in await jobs.list_job_events(conn, created) if e.kind == "progress"]
    assert [(body["percent"], body["phase"]) for body in response if body] == [
        (25, "at 25"), (50, "at 50"), (75, "at 75"),
    ]  # fmt: skip
    await retry_and_claim(manual_worker, clock, claimed)
    with pytest.raises(LeaseLostError):
        await ctx.report(90)


async def test_completed_step_is_not_run_again(
    conn: Connection, manual_worker: ManualWorker, create_context: CreateContext, clock: Clock
) -> None:
    await submit_job(conn)
    first, spy = await manual_worker.claim_one_task(), CallRecorder()
    ctx: Ctx[Any] = create_context(first)
    page = await ctx.step("load", spy.load, "https://e.example")
    assert page == Page("https://e.example", 3)
    assert await ctx.step("count", spy.count, 1) == 2
    second = create_context(await retry_and_claim(manual_worker, clock, first))
    assert await second.step("load", spy.load, "https://other.example") == Page("https://e.example", 3)
    assert await second.step("count", spy.count, 7) == 2
    assert spy.calls == 2
    assert await second.step("new", spy.count, 7) == 8


async def test_failed_step_is_run_again(
    conn: Connection, manual_worker: ManualWorker, create_context: CreateContext
) -> None:
    await submit_job(conn)
    ctx, calls = create_context(await manual_worker.claim_one_task()), 0

    async def shaky() -> str:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise OSError("no route")
        return "there"

    with pytest.raises(OSError, match="no route"):
        await ctx.step("go", shaky)
    assert await ctx.step("go", shaky) == "there"


async def test_first_result_of_two_concurrent_steps_is_stored(
    conn: Connection, manual_worker: ManualWorker, create_context: CreateContext
) -> None:
    await submit_job(conn)
    claimed = await manual_worker.claim_one_task()
    one, two = create_context(claimed), create_context(claimed)
    values = await asyncio.gather(one.step("n", lambda: 1), two.step("n", lambda: 2))
    assert values[0] == values[1]


async def test_steps_require_the_lease_and_name_invalid_arguments(
    conn: Connection, manual_worker: ManualWorker, create_context: CreateContext, clock: Clock
) -> None:
    await submit_job(conn)
    stale = await manual_worker.claim_one_task()
    await retry_and_claim(manual_worker, clock, stale)
    with pytest.raises(LeaseLostError):
        await create_context(stale).step("late", lambda: 1)
    with pytest.raises(InvalidError, match="step odd"):
        await create_context(stale).step("odd", object)
    with pytest.raises(InvalidError, match="name of a step"):
        await create_context(stale).step("", lambda: 1)


async def test_plain_functions_use_ctx_blocking_in_their_thread(
    conn: Connection, manual_worker: ManualWorker, create_context: CreateContext
) -> None:
    await submit_job(conn)
    ctx, spy = create_context(await manual_worker.claim_one_task()), CallRecorder()

    def plain() -> tuple[int, Page, list[str]]:
        seen = list(ctx.blocking.track(["a", "b"], phase="read"))
        page: Any = ctx.blocking.step("load", spy.load, "u")
        return ctx.blocking.step("count", spy.count, 1), page, seen

    assert await asyncio.to_thread(plain) == (2, Page("u", 3), ["a", "b"])
    with pytest.raises(RefusedError, match="plain functions"):
        ctx.blocking.step("here", lambda: 1)


@task(queue="q")
async def child(x: int) -> int:
    return x


async def test_repeated_submit_of_a_child_task_adds_one_task(
    conn: Connection, manual_worker: ManualWorker, create_context: CreateContext, clock: Clock
) -> None:
    parent = await submit_job(conn, type="parent")
    first = await manual_worker.claim_one_task()

    async def spread(ctx: Ctx[Any]) -> list[UUID]:
        left = await ctx.submit(child(1))
        right = await ctx.submit(child(2), key="right")
        last = await ctx.submit(child(2), after=[left, "right", ctx.task_id])
        return [left, right, last, await ctx.submit(child(1))]

    created = await spread(create_context(first))
    assert len(set(created)) == 4
    second = await retry_and_claim(manual_worker, clock, first)
    assert await spread(create_context(second)) == created
    names = await read_task_statuses(conn, parent)
    assert sorted(names.values()) == ["running", "succeeded", "succeeded", "succeeded", "waiting"]
    await manual_worker.finish_task(second)
    assert (await manual_worker.claim_one_task()).id == created[2]


async def test_concurrently_submitted_child_tasks_are_all_added(
    conn: Connection, manual_worker: ManualWorker, create_context: CreateContext
) -> None:
    parent = await submit_job(conn, type="parent")
    ctx = create_context(await manual_worker.claim_one_task())
    created = await asyncio.gather(*(ctx.submit(child(n)) for n in range(20)))
    assert len(set(created)) == 20
    assert len(await read_task_statuses(conn, parent)) == 21


async def test_detached_job_is_submitted_once_and_requires_the_lease(
    conn: Connection, manual_worker: ManualWorker, create_context: CreateContext, clock: Clock
) -> None:
    await submit_job(conn)
    first = await manual_worker.claim_one_task()
    created = await create_context(first).submit(child(1), detached=True, owner="ann", labels={"a": "b"})
    keyed = await create_context(first).submit(child(2), detached=True, key="mine")
    second = await retry_and_claim(manual_worker, clock, first)
    assert (
        await create_context(second).submit(child(1), detached=True, owner="ann", labels={"a": "b"})
        == created
    )
    rows = await read_job(conn, created)
    assert (rows["owner"], rows["type"]) == ("ann", "child")
    with pytest.raises(ConflictError):
        await create_context(second).submit(child(3), detached=True, key="mine")
    with pytest.raises(LeaseLostError):
        await create_context(first).submit(child(4), detached=True)
    assert await jobs.get_job(conn, keyed) is not None
    assert await conn.fetchval("select count(*) from holdfast.all_tasks where args = '{\"x\": 4}'") == 0


async def test_ctx_owner_in_single_tasks_graphs_and_child_tasks(
    conn: Connection, manual_worker: ManualWorker, create_context: CreateContext, clock: Clock
) -> None:
    await submit_job(conn, owner="ann")
    first = await manual_worker.claim_one_task()
    assert create_context(first).owner == "ann"
    created = await create_context(first).submit(child(1))
    taken = await manual_worker.claim_one_task()
    assert (taken.id, create_context(taken).owner) == (created, "ann")
    assert create_context(await retry_and_claim(manual_worker, clock, first)).owner == "ann"
    await submit_graph(conn, {"name": "a"}, {"name": "b"}, owner="bob", labels={"traceparent": "00-1-2-01"})
    assert {(each.owner, each.trace) for each in await manual_worker.claim_tasks(9)} == {("bob", "00-1-2-01")}
    await submit_job(conn)
    nobody = await manual_worker.claim_one_task()
    assert (nobody.owner, nobody.trace) == (None, None)


async def test_invalid_child_options_are_refused(
    conn: Connection, manual_worker: ManualWorker, create_context: CreateContext
) -> None:
    await submit_job(conn)
    ctx = create_context(await manual_worker.claim_one_task())
    for options in ({"owner": "ann"}, {"detached": True, "after": ["x"]}, {"after": ["nobody"]}):
        with pytest.raises(InvalidError):
            await ctx.submit(child(1), **options)
    wrong: Any = "child"
    with pytest.raises(InvalidError, match=r"ctx\.submit needs the call of a task"):
        await ctx.submit(wrong)


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "rollback"])
@pytest.mark.parametrize("way", TRANSACTION_FACTORIES, ids=lambda way: way.__name__)
async def test_complete_commits_with_the_caller_s_transaction(
    conn: Connection,
    manual_worker: ManualWorker,
    create_context: CreateContext,
    url: Secret,
    way: Any,
    commit: bool,
) -> None:
    task_id = await submit_job(conn)
    claimed = await manual_worker.claim_one_task()
    ctx = create_context(claimed)
    async with way(url.reveal(), commit) as on:
        await ctx.assert_lease(on)
        await ctx.complete(on, {"n": 1})
        assert await read_task_status(conn, task_id) == "running"
    assert ctx.completed
    assert await read_task_status(conn, task_id) == ("succeeded" if commit else "running")
    # What the worker hands in afterwards says the same again.
    assert await manual_worker.finish_task(claimed, "succeed", {"n": 2}) == "ok"
    assert (await read_job(conn, task_id))["output"] == {"n": 1 if commit else 2}


@pytest.mark.parametrize("way", TRANSACTION_FACTORIES, ids=lambda way: way.__name__)
async def test_complete_fails_in_the_caller_s_transaction_after_a_lost_lease(
    conn: Connection,
    manual_worker: ManualWorker,
    create_context: CreateContext,
    url: Secret,
    way: Any,
    clock: Clock,
) -> None:
    await submit_job(conn)
    stale = await manual_worker.claim_one_task()
    await retry_and_claim(manual_worker, clock, stale)
    for act in ("assert_lease", "complete"):
        async with way(url.reveal(), False) as on:
            with pytest.raises(LeaseLostError):
                await getattr(create_context(stale), act)(on)


async def test_complete_with_a_synchronous_connection_needs_no_await(
    conn: Connection,
    manual_worker: ManualWorker,
    create_context: CreateContext,
    url: Secret,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    configure_django(url.reveal())
    monkeypatch.setitem(connections.settings["default"], "NAME", urlsplit(url.reveal()).path[1:])
    task_id = await submit_job(conn)
    ctx = create_context(await manual_worker.claim_one_task())

    def plain() -> None:
        connection = connections["default"]
        try:
            with transaction.atomic():
                ctx.blocking.assert_lease(connection)
                ctx.blocking.complete(connection, "done")
        finally:
            connection.close()

    await asyncio.to_thread(plain)
    assert (await read_job(conn, task_id))["output"] == "done"


async def test_complete_refuses_an_autocommit_connection(
    conn: Connection, manual_worker: ManualWorker, create_context: CreateContext
) -> None:
    await submit_job(conn)
    ctx = create_context(await manual_worker.claim_one_task())
    act: Callable[[object], Awaitable[None]]
    for act in (ctx.assert_lease, ctx.complete):
        with pytest.raises(RefusedError, match="open transaction"):
            await act(conn)
