"""Options of single calls on a real engine: `.options(...)`, keys and limit keys in `submit_many`."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Any

import pytest

from holdfast import Client, Ctx, Graph, task
from holdfast.engine.connection import Connection
from holdfast.errors import RefusedError
from holdfast.settings import Secret, Settings
from holdfast.testing import Holdfast


@task
async def page_title(url: str) -> str:
    return url.title()


@pytest.fixture
async def client(url: Secret, settings: Settings) -> AsyncGenerator[Client]:
    async with Client(url.reveal(), settings=settings) as client:
        yield client


async def read_tasks(conn: Connection) -> list[dict[str, Any]]:
    rows = await conn.fetch(
        """select coalesce(t.name, p.type) as name, p.queue, l.priority, l.limit_key, t.status,
          p.policy ->> 'attempts' as attempts, p.policy ->> 'timeout_s' as timeout_s
        from holdfast.tasks t join holdfast.lanes l on l.id = t.lane_id
        join holdfast.task_policies p on p.id = l.policy_id order by t.pos nulls last, t.id"""
    )
    return [dict(row) for row in rows]


async def test_options_of_a_call_reach_the_engine(client: Client, conn: Connection) -> None:
    call = page_title("a").options(queue="slow", retries=9, timeout=30, priority=5, limit_key="e.example")
    await client.submit(call)
    assert await read_tasks(conn) == [
        {"name": "page_title", "queue": "slow", "priority": 5, "limit_key": "e.example", "status": "ready",
         "attempts": "10", "timeout_s": "30.0"}
    ]  # fmt: skip


async def test_submit_many_takes_a_key_and_a_limit_key_of_each_call(client: Client, conn: Connection) -> None:
    calls = [page_title(url).options(key=url, limit_key=url) for url in ("a", "b")]
    first = await client.submit_many(calls)
    again = await client.submit_many(page_title(url).options(key=url, limit_key=url) for url in ("b", "c"))
    assert [handle.created for handle in (*first, *again)] == [True, True, False, True]
    assert again[0].id == first[1].id
    assert [row["limit_key"] for row in await read_tasks(conn)] == ["a", "b", "c"]


async def test_submit_many_with_different_options_keeps_the_order(client: Client, conn: Connection) -> None:
    calls = [page_title(str(n)).options(queue=f"q{n % 2}", delay=60 if n == 2 else 0) for n in range(4)]
    handles = await client.submit_many(calls)
    jobs = [await handle.get() for handle in handles]
    assert [job.tasks[0].queue for job in jobs] == ["q0", "q1", "q0", "q1"]
    assert [job.tasks[0].status for job in jobs] == ["ready", "ready", "scheduled", "ready"]


async def test_tasks_of_a_graph_have_options_of_their_own(client: Client, conn: Connection) -> None:
    graph = Graph("book")
    graph.add(page_title("a").options(queue="slow", retries=0, priority=3, limit_key="x"), name="first")
    graph.add(page_title("b"), name="second", limit_key="y")
    await client.submit(graph)
    rows = {row["name"]: row for row in await read_tasks(conn)}
    assert (rows["first"]["queue"], rows["first"]["attempts"], rows["first"]["priority"]) == ("slow", "1", 3)
    assert (rows["second"]["queue"], rows["second"]["limit_key"]) == ("default", "y")


@task
async def parent(ctx: Ctx) -> None:
    await ctx.submit(page_title("a").options(queue="slow", priority=7, limit_key="x"), delay=5)


@task
def saves_nothing(ctx: Ctx) -> None:
    ctx.save("a.txt", b"lost")  # type: ignore[unused-coroutine]


@task
def saves_a_step(ctx: Ctx) -> int:
    return ctx.blocking.step("add", lambda: 3)


async def test_a_child_task_has_options_of_its_own(hf: Holdfast) -> None:
    hf.use(parent, page_title)
    await hf.client.submit(parent())
    await hf.drain()
    [child] = hf.submitted(page_title)
    assert (child.queue, child.status) == ("slow", "scheduled")
    await hf.drain(until=60)
    assert hf.submitted(page_title)[0].status == "succeeded"


async def test_an_asynchronous_method_in_a_plain_function_is_refused(hf: Holdfast) -> None:
    with pytest.raises(RefusedError) as caught:
        await hf.run(saves_nothing().options(retries=0), until=timedelta(0))
    assert str(caught.value) == (
        "ctx.save is asynchronous, and this task is a plain function. Write ctx.blocking.save(...), or "
        "declare the task with `async def`."
    )
    assert await hf.run(saves_a_step()) == 3
