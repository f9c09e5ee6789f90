"""Log lines on their way: all of them, once, before the outcome, and without ever being in the way."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Annotated, Any

import asyncpg
import msgspec
import pytest
from manual_worker import ManualWorker, expect_error, submit_job

from holdfast import telemetry
from holdfast.definitions.tasks import task
from holdfast.engine.connection import Connection, Database
from holdfast.engine.logs import read_logs, write_logs
from holdfast.errors import DatabaseUnavailableError
from holdfast.settings import Secret, Settings
from holdfast.testing import Clock, wait_until
from holdfast.worker.context import TaskContext, current
from holdfast.worker.context_factory import ContextFactory
from holdfast.worker.log_buffer import BufferedLogLine, LogBuffer
from holdfast.worker.log_writer import LogWriter, capture_log_records
from holdfast.worker.runtime import WorkerRuntime


@pytest.fixture
async def contexts(db: Database) -> AsyncGenerator[ContextFactory]:
    contexts = ContextFactory(db)
    contexts.start()
    yield contexts
    await contexts.stop()


@pytest.fixture
async def ctx(conn: Connection, contexts: ContextFactory) -> TaskContext:
    await submit_job(conn, owner="ann")
    return contexts.create_context(await ManualWorker(conn).claim_one_task())


def take_log_lines(ctx: TaskContext) -> list[BufferedLogLine]:
    assert ctx.log_buffer is not None
    return ctx.log_buffer.take_lines(ended=True)


async def read_log_messages(conn: Connection, ctx: TaskContext) -> list[str]:
    assert ctx.lease is not None
    return [line.message for line in await read_logs(conn, ctx.lease.id)]


async def test_log_lines_are_stored_while_the_task_runs(
    conn: Connection, ctx: TaskContext, contexts: ContextFactory
) -> None:
    ctx.log("first", level="warning", page=1)

    async def first() -> list[str]:
        return await read_log_messages(conn, ctx)

    assert await wait_until(first) == ["first"]
    await asyncio.to_thread(ctx.log, "second")
    await contexts.write_log_lines(ctx)
    assert ctx.lease is not None
    one, two = await read_logs(conn, ctx.lease.id)
    assert (one.level, one.fields, one.seq, one.attempt) == ("warning", {"page": 1}, 1, 1)
    assert (two.message, two.seq) == ("second", 2)
    assert one.n < two.n


async def test_log_lines_of_a_lost_attempt_are_kept_and_of_an_unknown_lease_refused(
    conn: Connection, contexts: ContextFactory, clock: Clock
) -> None:
    await submit_job(conn)
    manual_worker = ManualWorker(conn)
    lost = await manual_worker.claim_one_task()
    await clock.advance(timedelta(hours=1))
    held = await manual_worker.claim_one_task()  # finds the lost lease and returns the task at once
    assert held.attempt == 2
    lines = LogBuffer()
    lines.add_line("info", "hello", {})
    forged = type(held)(**{**{f: getattr(held, f) for f in held.__struct_fields__}, "nonce": held.nonce + 1})
    for lease, kept in ((lost, 1), (held, 1), (forged, 0)):
        output = lines.take_lines(ended=False)
        assert await write_logs(conn, [(lease, output)]) == kept
        lines.put_lines_back(output)
    assert [line.attempt for line in await read_logs(conn, held.id)] == [1, 2]


async def test_repeated_log_lines_are_stored_once(conn: Connection, ctx: TaskContext) -> None:
    assert ctx.lease is not None
    ctx.on_log = None
    ctx.log("a")
    ctx.log("b")
    output = take_log_lines(ctx)
    assert await write_logs(conn, [(ctx.lease, output)]) == 2
    assert await write_logs(conn, [(ctx.lease, output)]) == 0
    assert await read_log_messages(conn, ctx) == ["a", "b"]


async def test_reading_logs_by_page_level_and_newest(conn: Connection, ctx: TaskContext) -> None:
    assert ctx.lease is not None
    ctx.on_log = None
    for n in range(6):
        ctx.log(str(n), level="error" if n % 2 else "debug")
    await write_logs(conn, [(ctx.lease, take_log_lines(ctx))])
    job = ctx.lease.id
    page = await read_logs(conn, job, limit=2)
    assert [line.message for line in page] == ["0", "1"]
    assert [x.message for x in await read_logs(conn, job, after=page[-1].n, limit=2)] == ["2", "3"]
    assert [x.message for x in await read_logs(conn, job, newest=True, limit=2)] == ["4", "5"]
    assert [x.message for x in await read_logs(conn, job, level="error")] == ["1", "3", "5"]
    with expect_error("HF004", "level"):
        await read_logs(conn, job, level="loud")


async def test_users_read_no_log_lines(conn: Connection, ctx: TaskContext) -> None:
    """Log lines are for operators: the HTTP API does not show them to users either."""
    assert ctx.lease is not None
    ctx.on_log = None
    ctx.log("mine")
    await write_logs(conn, [(ctx.lease, take_log_lines(ctx))])
    for statement in (
        f"select * from holdfast.read_logs('{ctx.lease.id}')",
        "select count(*) from holdfast.logs",
    ):
        async with conn.transaction():
            await conn.execute("set local role authenticated")
            await conn.execute("""set local request.jwt.claims = '{"sub": "ann"}'""")
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                async with conn.transaction():
                    await conn.fetch(statement)


async def test_outcome_does_not_wait_for_log_lines_without_a_database(
    settings: Settings, ctx: TaskContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = Database(Secret("postgresql://nobody@127.0.0.1:1/none"), settings)
    writer = LogWriter(nowhere)
    writer.start()
    ctx.on_log = writer.announce_lines
    ctx.log("kept")
    await asyncio.wait_for(writer.flush_lines(ctx), 20)
    await writer.stop()
    assert [line.message for line in take_log_lines(ctx)] == ["kept"]
    with pytest.raises(DatabaseUnavailableError):
        await nowhere.open()


async def test_refused_log_lines_do_not_block_other_attempts(
    conn: Connection, contexts: ContextFactory, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        await submit_job(conn)
    manual_worker = ManualWorker(conn)
    good, bad = (contexts.create_context(claimed) for claimed in await manual_worker.claim_tasks(2))
    await conn.execute("alter table holdfast.logs add constraint nothing_bad check (message <> 'bad')")
    good.log("good")
    bad.log("bad")
    await asyncio.gather(contexts.write_log_lines(good), contexts.write_log_lines(bad))
    assert await read_log_messages(conn, good) == ["good"]
    assert await read_log_messages(conn, bad) == []
    assert f"Log lines of task {bad.task_id} were not stored" in caplog.text


async def test_records_of_the_logging_module_are_captured(ctx: TaskContext) -> None:
    ctx.on_log = None
    log = logging.getLogger("app.pages")
    with capture_log_records("info"):
        log.warning("outside of any task")
        token = current.set(ctx)
        log.debug("too quiet")
        log.warning("page %d", 7)
        try:
            raise OSError("no route")
        except OSError:
            log.exception("failed")
        await asyncio.to_thread(log.info, "from a thread")
        current.reset(token)
    log.warning("after the worker")
    kept = [(line.level, line.message, line.fields) for line in take_log_lines(ctx)]
    name = {"logger": "app.pages"}
    assert kept == [
        ("warning", "page 7", name),
        ("error", "failed: OSError: no route", name),
        ("info", "from a thread", name),
    ]


class Login(msgspec.Struct):
    pin: Annotated[str, msgspec.Meta(extra_json_schema={"writeOnly": True})]


@task(queue="q", name="leaking")
async def leaking(token: str, login: Login) -> None:
    raise ValueError(f"the server rejected {token} and {login.pin}")


async def test_events_of_failed_tasks_do_not_contain_the_secrets_of_their_arguments(
    db: Database, conn: Connection
) -> None:
    finished: list[str] = []

    def collect(name: str, fields: dict[str, Any]) -> None:
        if name == "task.finished":
            finished.append(str(fields["error"]))

    stop = asyncio.Event()
    with telemetry.subscription(collect):
        args = {"token": "hunter2-token", "login": {"pin": "hunter2-pin"}}
        await submit_job(conn, type="leaking", args=args, attempts=1)
        running = asyncio.create_task(WorkerRuntime(db, {leaking.name: leaking}).run(stop))
        await wait_until(lambda: finished)
        stop.set()
        await running
    assert finished == ["ValueError: the server rejected ••• and •••"]
