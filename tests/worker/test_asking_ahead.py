"""While there is more work than one answer brings, the next question is sent before the answer is read."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from holdfast import Client, Ctx, task, worker
from holdfast.engine import leases
from holdfast.engine.connection import Connection, Database
from holdfast.engine.leases import LeasedTask, Outcome
from holdfast.errors import DatabaseAwayError
from holdfast.settings import Settings
from holdfast.worker import background
from holdfast.worker.fetcher import MAX_CONSECUTIVE_ROUND_TRIPS, TaskFetcher
from holdfast.worker.outbox import Outbox
from holdfast.worker.queue_shares import QueueSelector, QueueShare
from holdfast.worker.runtime import WorkerRuntime

SLOTS = 100
begun: Counter[int] = Counter()
most = 0
now = 0


@task(queue="ahead")
async def counted(ctx: Ctx, n: int, seconds: float = 0.0) -> None:
    global most, now  # noqa: PLW0603  (the test looks at them)
    begun[n] += 1
    now += 1
    most = max(most, now)
    try:
        await asyncio.sleep(seconds)
    finally:
        now -= 1


@task(queue="ahead")
async def stepping(ctx: Ctx) -> int:
    async def count() -> int:
        return len(begun)

    await ctx.step("first", count)
    return len(begun)


class Watched:
    """The real question, with how many were read while the next one was under way."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, loses: Callable[[], bool] = lambda: False) -> None:
        self._ask, self._loses = leases.send_claim, loses
        self.under_way = self.ahead = self.questions = self.lost = 0
        read = leases.UnreadClaimResponse.read

        def reading(unread: leases.UnreadClaimResponse) -> leases.ClaimResponse:
            self.ahead += self.under_way
            return read(unread)

        monkeypatch.setattr(leases, "send_claim", self)
        monkeypatch.setattr(leases.UnreadClaimResponse, "read", reading)

    async def __call__(self, *args: Any, **how: Any) -> leases.UnreadClaimResponse:
        self.questions += 1
        self.under_way += 1
        try:
            answer = await self._ask(*args, **how)
        finally:
            self.under_way -= 1
        if self._loses():
            self.lost += 1
            raise DatabaseAwayError("The connection was closed in the middle of the answer.")
        return answer


@pytest.fixture(autouse=True)
def _counters() -> None:
    global most, now  # noqa: PLW0603
    begun.clear()
    most = now = 0


@asynccontextmanager
async def working(db: Database, **options: Any) -> AsyncGenerator[asyncio.Event]:
    stop = asyncio.Event()
    tasks = {each.name: each for each in (counted, stepping)}
    running = asyncio.create_task(WorkerRuntime(db, tasks, **{"concurrency": SLOTS, **options}).run(stop))
    yield stop
    stop.set()
    async with asyncio.timeout(30):
        await running


async def drained(conn: Connection) -> None:
    async with asyncio.timeout(60):
        while await conn.fetchval("select exists (select from holdfast.tasks)"):
            await asyncio.sleep(0.02)


async def ends(conn: Connection) -> list[tuple[Any, ...]]:
    query = "select status, failures, crashes, count(*) from holdfast.history group by 1, 2, 3"
    return [tuple(row) for row in await conn.fetch(query)]


async def test_a_backlog_is_asked_for_ahead(
    client: Client, conn: Connection, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(monkeypatch)
    await client.submit_many([counted(n) for n in range(3000)])
    async with working(db):
        await drained(conn)
    assert watched.ahead > 10
    assert SLOTS / 4 < most <= SLOTS
    assert set(begun.values()) == {1}
    assert len(begun) == 3000


async def test_slots_that_are_asked_for_are_not_free(client: Client, conn: Connection, db: Database) -> None:
    await client.submit_many([counted(n, 0.01) for n in range(2000)])
    async with working(db):
        await drained(conn)
    assert SLOTS / 2 < most <= SLOTS


async def test_a_few_tasks_need_no_such_hurry(
    client: Client, conn: Connection, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(monkeypatch)
    async with working(db):
        for n in range(5):
            await (await client.submit(counted(n))).result()
    assert watched.ahead == 0


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"queues": [QueueShare("ahead", 60)]}, 1000),
        ({"max_tasks": 700}, 700),
        ({"until": "once"}, SLOTS // 2),
    ],
    ids=["shares", "max_tasks", "once"],
)
async def test_numbers_that_were_promised_are_kept(
    client: Client,
    conn: Connection,
    db: Database,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    expected: int,
) -> None:
    watched = Watched(monkeypatch)
    await client.submit_many([counted(n) for n in range(1000)])
    async with working(db, **options) as stop, asyncio.timeout(60):
        if "queues" in options:
            await drained(conn)
        else:
            await stop.wait()
    assert watched.ahead == 0
    assert most <= (60 if "queues" in options else SLOTS)
    assert len(begun) == expected
    assert await conn.fetchval("select count(*) from holdfast.tasks") == 1000 - expected


async def test_a_worker_that_drains_ends_with_the_last_of_them(
    client: Client, conn: Connection, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(monkeypatch)
    await client.submit_many([counted(n) for n in range(2000)])
    async with working(db, until="drained") as stop, asyncio.timeout(60):
        await stop.wait()
    assert watched.ahead > 0
    assert await ends(conn) == [("succeeded", 0, 0, 2000)]


async def test_answers_that_are_lost_in_a_row(
    client: Client, conn: Connection, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was claimed and never arrived is given back; what did arrive is not touched."""
    monkeypatch.setattr(background, "MAX_RETRY_PAUSE_S", background.MIN_RETRY_PAUSE_S)
    chance = random.Random(7)
    watched = Watched(monkeypatch, lambda: chance.random() < 0.2)
    await client.submit_many([counted(n) for n in range(2000)])
    async with working(db):
        await drained(conn)
    assert watched.lost > 3
    assert watched.ahead > 3
    assert set(begun.values()) == {1}, "a task was begun twice"
    assert await ends(conn) == [("succeeded", 0, 0, 2000)]


@pytest.mark.parametrize("grace", [timedelta(0), timedelta(seconds=5)])
async def test_stopping_in_the_middle_of_a_backlog_costs_nobody_anything(
    client: Client, conn: Connection, db: Database, grace: timedelta
) -> None:
    chance = random.Random(11)
    await client.submit_many([counted(n, 0.001) for n in range(4000)])
    for _ in range(3):
        async with working(db, grace=grace):
            await asyncio.sleep(chance.uniform(0.02, 0.15))
        left = await conn.fetch("select status, crashes, failures from holdfast.tasks group by 1, 2, 3")
        assert [tuple(row) for row in left] in ([], [("ready", 0, 0)])
    async with working(db):
        await drained(conn)
    assert await ends(conn) == [("succeeded", 0, 0, 4000)]
    if grace:
        assert set(begun.values()) == {1}, "a task was begun twice"


@pytest.mark.parametrize("seconds", [0.3, 60.0], ids=["late", "never"])
async def test_an_answer_that_is_on_its_way_when_the_worker_stops(
    client: Client, conn: Connection, db: Database, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    """What it brings is run or given back, and never left to its lease."""
    monkeypatch.setattr(worker, "RELEASE", timedelta(seconds=1))
    await client.submit_many([counted(n) for n in range(20)])
    real, claimed = leases.send_claim, asyncio.Event()

    async def ask(*args: Any, **how: Any) -> leases.UnreadClaimResponse:
        answer = await real(*args, **how)
        if answer.task_count:
            claimed.set()
            await asyncio.sleep(seconds)
        return answer

    monkeypatch.setattr(leases, "send_claim", ask)
    async with working(db, grace=timedelta(seconds=1)):
        await claimed.wait()
    left = await conn.fetch("select status, crashes, failures from holdfast.tasks group by 1, 2, 3")
    assert [tuple(row) for row in left] == ([] if seconds < 1 else [("ready", 0, 0)])


async def test_others_get_their_turn_with_the_only_connection(
    client: Client, conn: Connection, db: Database
) -> None:
    total = SLOTS // 2 * MAX_CONSECUTIVE_ROUND_TRIPS * 3
    slim = Database(db.url, Settings(pool_size=1))
    job = await client.submit(stepping())
    await client.submit_many([counted(n) for n in range(total)])
    async with slim, working(slim):
        assert await job.result() < total
        await drained(conn)


class Recorder:
    def __init__(self) -> None:
        self.launched: list[tuple[LeasedTask, float]] = []

    def hold_leases(self, tasks: Sequence[LeasedTask], ended: Sequence[UUID], sent_at: float) -> None:
        pass

    def launch(self, tasks: Sequence[LeasedTask], sent_at: float) -> None:
        self.launched += [(claimed, sent_at) for claimed in tasks]


def fetching(db: Database) -> tuple[TaskFetcher, Recorder, Outbox]:
    outbox, recorder = Outbox(), Recorder()
    fetcher = TaskFetcher(db, "recorder", QueueSelector(["ahead"]), [counted.name], SLOTS, outbox)
    fetcher.sink = recorder
    return fetcher, recorder, outbox


async def running_tasks(conn: Connection) -> set[UUID]:
    rows = await conn.fetch("select id from holdfast.tasks where status = 'running'")
    return {row["id"] for row in rows}


@pytest.mark.parametrize("when", ["sent", "answered"])
async def test_a_loop_that_is_stopped_between_question_and_answer(
    client: Client, conn: Connection, db: Database, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Stopped after the second question: the first answer counts, the second is given back."""
    await client.submit_many([counted(n) for n in range(300)])
    fetcher, recorder, outbox = fetching(db)
    real, questions = leases.send_claim, 0

    async def ask(*args: Any, **how: Any) -> leases.UnreadClaimResponse:
        nonlocal questions
        questions += 1
        mine = questions
        if mine == 2 and when == "sent":
            stepping_.cancel()
        answer = await real(*args, **how)
        if mine == 2 and when == "answered":
            stepping_.cancel()
        return answer

    monkeypatch.setattr(leases, "send_claim", ask)
    stepping_ = asyncio.create_task(fetcher.step())
    with suppress(asyncio.CancelledError):
        await stepping_
    first = {claimed.id for claimed, _ in recorder.launched}
    assert questions == 2
    assert len(first) == SLOTS // 2
    assert fetcher.requested_slots == 0
    for claimed, _ in recorder.launched:  # as if they had ended meanwhile
        outbox.put(Outcome(id=claimed.id, attempt=claimed.attempt, nonce=claimed.nonce, kind="succeed"))
    await fetcher.release_unreceived(conn)
    assert await running_tasks(conn) == first
    assert await conn.fetchval("select sum(crashes + failures) from holdfast.tasks") == 0


async def test_outcomes_of_a_question_without_an_answer_are_sent_again_in_their_order(
    client: Client, conn: Connection, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.submit_many([counted(n) for n in range(10)])
    fetcher, recorder, outbox = fetching(db)
    await fetcher.step()
    made = [Outcome(id=c.id, attempt=c.attempt, nonce=c.nonce, kind="succeed") for c, _ in recorder.launched]
    for outcome in made:
        outbox.put(outcome)

    async def ask(*_: Any, **__: Any) -> leases.UnreadClaimResponse:
        raise DatabaseAwayError("Away.")

    with monkeypatch.context() as patched:
        patched.setattr(leases, "send_claim", ask)
        with pytest.raises(DatabaseAwayError):
            await fetcher.step()
    assert len(outbox) == outbox.unsent_count == 10
    assert outbox.take() == made


async def test_a_lease_is_counted_from_the_question(
    client: Client, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have begun right after it, however late the answer comes."""
    await client.submit(counted(1))
    fetcher, recorder, _ = fetching(db)
    real = leases.send_claim

    async def ask(*args: Any, **how: Any) -> leases.UnreadClaimResponse:
        answer = await real(*args, **how)
        await asyncio.sleep(0.3)
        return answer

    monkeypatch.setattr(leases, "send_claim", ask)
    before = time.monotonic()
    await fetcher.step()
    [(_, asked_at)] = recorder.launched
    assert before <= asked_at < before + 0.3 < time.monotonic()
