"""`@schedule`, `client.schedules`, and the schedules of an application."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast import Client, Graph, schedule, task
from holdfast.cli import app_loader
from holdfast.engine import task_types
from holdfast.engine.connection import Connection
from holdfast.errors import ConflictError, InvalidError, NotFoundError
from holdfast.settings import Secret, Settings
from holdfast.testing import Clock
from holdfast.worker.registration import register_definitions


@schedule("0 3 * * *", timezone="Europe/Madrid")
@schedule(timedelta(minutes=5), name="often")
@task(queue="words", limit=3)
async def tidy(days: int = 7) -> int:
    return days


@task(queue="words")
async def report(kind: str) -> str:
    return kind


sales = schedule(report("sales"), cron="@daily", name="sales report", unique=True, missed="skip")


@pytest.fixture
async def client(url: Secret, settings: Settings) -> AsyncGenerator[Client]:
    async with Client(url.reveal(), settings=settings) as client:
        yield client


async def test_schedules_are_created_changed_and_run(client: Client, clock: Clock, conn: Connection) -> None:
    created = await client.schedules.create(report("x"), cron="0 3 * * *", timezone="America/New_York")
    assert (created.name, created.job["args"]) == ("report", {"kind": "x"})
    with pytest.raises(ConflictError):
        await client.schedules.create(report("x"), cron="@daily")
    changed = await client.schedules.put(report("y"), cron="0 3 * * *", timezone="America/New_York")
    assert (changed.change, changed.next_at) == ("changed", created.next_at)
    graph = Graph("pair")
    first = graph.add(report("a"))
    graph.add(report("b"), after=[first])
    await client.schedules.create(graph, every=timedelta(hours=1))
    assert [s.name for s in await client.schedules.list()] == ["pair", "report"]
    job = await client.schedules.run_now("pair")
    assert len((await job.get()).tasks) == 2
    await client.schedules.pause("pair", by="ada")
    assert (await client.schedules.get("pair")).paused_by == "ada"
    assert await client.schedules.resume("pair")
    assert len(await client.schedules.preview("report", 3)) == 3
    assert len(await client.schedules.next_times("@hourly", count=2)) == 2
    assert await client.schedules.delete("pair")
    with pytest.raises(NotFoundError):
        await client.schedules.get("pair")
    await clock.advance(timedelta(days=1))
    assert await conn.fetchval("select holdfast.tick_schedules(10)") == 1


async def test_blocking_schedules(client: Client) -> None:
    def use() -> list[Any]:
        blocking = client.blocking.schedules
        blocking.create(report("x"), cron="@daily", name="one")
        blocking.put(report("x"), cron="@daily", name="two")
        names = [blocking.get("one").name, *(s.name for s in blocking.list())]
        done = [blocking.pause("one"), blocking.resume("one"), len(blocking.preview("two", 2))]
        return [*names, *done, blocking.run_now("one").created, blocking.delete("one")]

    assert await asyncio.to_thread(use) == ["one", "one", "two", True, True, 2, True, True]
    await asyncio.to_thread(client.blocking.close)
    assert len(await client.schedules.list()) == 1


def test_a_scheduled_task_is_still_a_task() -> None:
    call = tidy(3)
    call.mark_used()
    assert call.args == {"days": 3}
    assert tidy.queue == "words"
    assert [s.name for s in tidy.schedules] == ["often", "tidy"]


def test_invalid_schedule_declarations_are_refused() -> None:
    with pytest.raises(InvalidError, match="either a cron expression or an interval"):
        schedule(report("x"))
    with pytest.raises(InvalidError, match="kind"):
        schedule("@daily")(report)
    with pytest.raises(InvalidError, match="above @task"):
        schedule("@daily")(lambda: None)  # type: ignore[arg-type]


async def test_a_worker_registers_the_definitions_of_an_application(
    conn: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    code = tmp_path / "declaring.py"
    code.write_text(
        "from holdfast import schedule, task\n"
        '@schedule("@daily")\n@task(limit=2)\ndef tidy() -> None:\n    "Tidies."\n'
        'often = schedule(tidy(), cron="@hourly", name="often")\n'
    )
    app = app_loader.load_app(str(code))
    assert (sorted(app.schedules), app.source) == (["often", "tidy"], "declaring")
    await register_definitions(conn, app.source, app.tasks.values(), app.schedules.values())
    [known] = await task_types.list_task_types(conn)
    assert (known["name"], known["doc"], known["options"]["limit"]) == ("tidy", "Tidies.", 2)
    rule = "select max_running from holdfast.limit_rules where name = 'task:tidy'"
    assert await conn.fetchval(rule) == 2
    await conn.execute("select holdfast.put_limit('task:tidy', p_type => 'tidy', p_max_running => 9)")
    await register_definitions(conn, app.source, app.tasks.values(), [])
    assert await conn.fetchval(rule) == 9  # the code did not change
    assert await conn.fetchval("select count(*) from holdfast.schedules") == 2
