"""With more work than one response returns, the next request is sent before the response is read."""

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

from holdfast import Client, Ctx, task
from holdfast.engine import leases
from holdfast.engine.connection import Connection, Database
from holdfast.engine.leases import Lease, LeasedTask, Outcome
from holdfast.errors import DatabaseUnavailableError
from holdfast.settings import Settings
from holdfast.worker import background, runtime
from holdfast.worker.fetcher import MAX_CONSECUTIVE_ROUND_TRIPS, TaskFetcher
from holdfast.worker.outbox import Outbox
from holdfast.worker.queue_shares import QueueSelector, QueueShare
from holdfast.worker.runtime import WorkerRuntime

SLOTS = 100
start_counts: Counter[int] = Counter()
limit = 0
now = 0


@task(queue="ahead")
async def counted(ctx: Ctx, n: int, seconds: float = 0.0) -> None:
    global limit, now  # noqa: PLW0603  (the test looks at them)
    start_counts[n] += 1
    now += 1
    limit = max(limit, now)
    try:
        await asyncio.sleep(seconds)
    finally:
        now -= 1


@task(queue="ahead")
async def stepping(ctx: Ctx) -> int:
    async def count() -> int:
        return len(start_counts)

    await ctx.step("first", count)
    return len(start_counts)


class RequestRecorder:
    """Sends real requests, and counts responses that are read while the next request is in flight."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, loses: Callable[[], bool] = lambda: False) -> None:
        self._ask, self._loses = leases.finish_and_claim_undecoded, loses
        self.in_flight = self.ahead = self.request_count = self.lost = 0
        read = leases.UndecodedClaimResponse.read

        def reading(unread: leases.UndecodedClaimResponse) -> leases.ClaimResponse:
            self.ahead += self.in_flight
            return read(unread)

        monkeypatch.setattr(leases, "finish_and_claim_undecoded", self)
        monkeypatch.setattr(leases.UndecodedClaimResponse, "read", reading)

    async def __call__(self, *args: Any, **request: Any) -> leases.UndecodedClaimResponse:
        self.request_count += 1
        self.in_flight += 1
        try:
            answer = await self._ask(*args, **request)
        finally:
            self.in_flight -= 1
        if self._loses():
            self.lost += 1
            raise DatabaseUnavailableError("The connection was closed in the middle of the answer.")
        return answer


@pytest.fixture(autouse=True)
def _counters() -> None:
    global limit, now  # noqa: PLW0603
    start_counts.clear()
    limit = now = 0


@asynccontextmanager
async def run_worker(db: Database, **options: Any) -> AsyncGenerator[asyncio.Event]:
    stop = asyncio.Event()
    tasks = {each.name: each for each in (counted, stepping)}
    running = asyncio.create_task(WorkerRuntime(db, tasks, **{"concurrency": SLOTS, **options}).run(stop))
    yield stop
    stop.set()
    async with asyncio.timeout(30):
        await running


async def wait_until_drained(conn: Connection) -> None:
    async with asyncio.timeout(60):
        while await conn.fetchval("select exists (select from holdfast.tasks)"):
            await asyncio.sleep(0.02)


async def read_history(conn: Connection) -> list[tuple[Any, ...]]:
    query = "select status, failures, crashes, count(*) from holdfast.history group by 1, 2, 3"
    return [tuple(row) for row in await conn.fetch(query)]


async def test_a_backlog_is_requested_before_responses_are_read(
    client: Client, conn: Connection, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = RequestRecorder(monkeypatch)
    await client.submit_many([counted(n) for n in range(3000)])
    async with run_worker(db):
        await wait_until_drained(conn)
    assert requests.ahead > 10
    assert SLOTS / 4 < limit <= SLOTS
    assert set(start_counts.values()) == {1}
    assert len(start_counts) == 3000


async def test_requested_slots_are_not_free(client: Client, conn: Connection, db: Database) -> None:
    await client.submit_many([counted(n, 0.01) for n in range(2000)])
    async with run_worker(db):
        await wait_until_drained(conn)
    assert SLOTS / 2 < limit <= SLOTS


async def test_a_few_tasks_are_not_requested_ahead(
    client: Client, conn: Connection, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = RequestRecorder(monkeypatch)
    async with run_worker(db):
        for n in range(5):
            await (await client.submit(counted(n))).result()
    assert requests.ahead == 0


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"queues": [QueueShare("ahead", 60)]}, 1000),
        ({"max_tasks": 700}, 700),
        ({"until": "once"}, SLOTS // 2),
    ],
    ids=["shares", "max_tasks", "once"],
)
async def test_limits_on_claims_are_respected(
    client: Client,
    conn: Connection,
    db: Database,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    expected: int,
) -> None:
    requests = RequestRecorder(monkeypatch)
    await client.submit_many([counted(n) for n in range(1000)])
    async with run_worker(db, **options) as stop, asyncio.timeout(60):
        if "queues" in options:
            await wait_until_drained(conn)
        else:
            await stop.wait()
    assert requests.ahead == 0
    assert limit <= (60 if "queues" in options else SLOTS)
    assert len(start_counts) == expected
    assert await conn.fetchval("select count(*) from holdfast.tasks") == 1000 - expected


async def test_a_draining_worker_ends_after_the_last_task(
    client: Client, conn: Connection, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = RequestRecorder(monkeypatch)
    await client.submit_many([counted(n) for n in range(2000)])
    async with run_worker(db, until="drained") as stop, asyncio.timeout(60):
        await stop.wait()
    assert requests.ahead > 0
    assert await read_history(conn) == [("succeeded", 0, 0, 2000)]


async def test_consecutive_lost_responses(
    client: Client, conn: Connection, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks of lost responses are released; tasks of received responses are not touched."""
    monkeypatch.setattr(background, "MAX_RETRY_PAUSE_S", background.MIN_RETRY_PAUSE_S)
    chance = random.Random(7)
    requests = RequestRecorder(monkeypatch, lambda: chance.random() < 0.2)
    await client.submit_many([counted(n) for n in range(2000)])
    async with run_worker(db):
        await wait_until_drained(conn)
    assert requests.lost > 3
    assert requests.ahead > 3
    assert set(start_counts.values()) == {1}, "a task was start_counts twice"
    assert await read_history(conn) == [("succeeded", 0, 0, 2000)]


@pytest.mark.parametrize("grace", [timedelta(0), timedelta(seconds=5)])
async def test_stopping_during_a_backlog_charges_no_attempt(
    client: Client, conn: Connection, db: Database, grace: timedelta
) -> None:
    chance = random.Random(11)
    await client.submit_many([counted(n, 0.001) for n in range(4000)])
    for _ in range(3):
        async with run_worker(db, grace=grace):
            await asyncio.sleep(chance.uniform(0.02, 0.15))
        left = await conn.fetch("select status, crashes, failures from holdfast.tasks group by 1, 2, 3")
        assert [tuple(row) for row in left] in ([], [("ready", 0, 0)])
    async with run_worker(db):
        await wait_until_drained(conn)
    assert await read_history(conn) == [("succeeded", 0, 0, 4000)]
    if grace:
        assert set(start_counts.values()) == {1}, "a task was start_counts twice"


@pytest.mark.parametrize("seconds", [0.3, 60.0], ids=["late", "never"])
async def test_a_response_in_flight_when_the_worker_stops(
    client: Client, conn: Connection, db: Database, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    """Its tasks run or are released; none waits for the end of its lease."""
    monkeypatch.setattr(runtime, "ATTEMPT_RELEASE_TIMEOUT", timedelta(seconds=1))
    await client.submit_many([counted(n) for n in range(20)])
    real, claimed = leases.finish_and_claim_undecoded, asyncio.Event()

    async def ask(*args: Any, **request: Any) -> leases.UndecodedClaimResponse:
        answer = await real(*args, **request)
        if answer.task_count:
            claimed.set()
            await asyncio.sleep(seconds)
        return answer

    monkeypatch.setattr(leases, "finish_and_claim_undecoded", ask)
    async with run_worker(db, grace=timedelta(seconds=1)):
        await claimed.wait()
    left = await conn.fetch("select status, crashes, failures from holdfast.tasks group by 1, 2, 3")
    assert [tuple(row) for row in left] == ([] if seconds < 1 else [("ready", 0, 0)])


async def test_other_users_of_the_only_connection_get_a_turn(
    client: Client, conn: Connection, db: Database
) -> None:
    total = SLOTS // 2 * MAX_CONSECUTIVE_ROUND_TRIPS * 3
    slim = Database(db.url, Settings(pool_size=1))
    job = await client.submit(stepping())
    await client.submit_many([counted(n) for n in range(total)])
    async with slim, run_worker(slim):
        assert await job.result() < total
        await wait_until_drained(conn)


class RecordingSink:
    def __init__(self) -> None:
        self.launched: list[tuple[LeasedTask, float]] = []

    def hold_leases(self, tasks: Sequence[LeasedTask], ended: Sequence[Lease], sent_at: float) -> None:
        pass

    def start_attempts(self, tasks: Sequence[LeasedTask], sent_at: float) -> None:
        self.launched += [(claimed, sent_at) for claimed in tasks]


def create_fetcher(db: Database) -> tuple[TaskFetcher, RecordingSink, Outbox]:
    outbox, recorder = Outbox(), RecordingSink()
    fetcher = TaskFetcher(db, "recorder", QueueSelector(["ahead"]), [counted.name], SLOTS, outbox)
    fetcher.sink = recorder
    return fetcher, recorder, outbox


async def running_tasks(conn: Connection) -> set[UUID]:
    rows = await conn.fetch("select id from holdfast.tasks where status = 'running'")
    return {row["id"] for row in rows}


@pytest.mark.parametrize("when", ["sent", "answered"])
async def test_a_fetcher_stopped_between_request_and_response(
    client: Client, conn: Connection, db: Database, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Stopped after the second request: the first response counts, tasks of the second are released."""
    await client.submit_many([counted(n) for n in range(300)])
    fetcher, recorder, outbox = create_fetcher(db)
    real, request_count = leases.finish_and_claim_undecoded, 0

    async def ask(*args: Any, **request: Any) -> leases.UndecodedClaimResponse:
        nonlocal request_count
        request_count += 1
        number = request_count
        if number == 2 and when == "sent":
            stepping_.cancel()
        answer = await real(*args, **request)
        if number == 2 and when == "answered":
            stepping_.cancel()
        return answer

    monkeypatch.setattr(leases, "finish_and_claim_undecoded", ask)
    stepping_ = asyncio.create_task(fetcher.run_round())
    with suppress(asyncio.CancelledError):
        await stepping_
    first = {claimed.id for claimed, _ in recorder.launched}
    assert request_count == 2
    assert len(first) == SLOTS // 2
    assert fetcher.requested_slots == 0
    for claimed, _ in recorder.launched:  # as if they had ended meanwhile
        outbox.put_outcome(
            Outcome(id=claimed.id, attempt=claimed.attempt, nonce=claimed.nonce, kind="succeed")
        )
    await fetcher.release_unreceived_tasks(conn)
    assert await running_tasks(conn) == first
    assert await conn.fetchval("select sum(crashes + failures) from holdfast.tasks") == 0


async def test_outcomes_without_a_response_are_sent_again_in_order(
    client: Client, conn: Connection, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.submit_many([counted(n) for n in range(10)])
    fetcher, recorder, outbox = create_fetcher(db)
    await fetcher.run_round()
    created = [
        Outcome(id=c.id, attempt=c.attempt, nonce=c.nonce, kind="succeed") for c, _ in recorder.launched
    ]
    for outcome in created:
        outbox.put_outcome(outcome)

    async def ask(*_: Any, **__: Any) -> leases.UndecodedClaimResponse:
        raise DatabaseUnavailableError("Away.")

    with monkeypatch.context() as patched:
        patched.setattr(leases, "finish_and_claim_undecoded", ask)
        with pytest.raises(DatabaseUnavailableError):
            await fetcher.run_round()
    assert len(outbox) == outbox.unsent_count == 10
    assert outbox.take_unsent_outcomes() == created


async def test_a_lease_counts_from_the_request(
    client: Client, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have start_counts right after it, however late the answer comes."""
    await client.submit(counted(1))
    fetcher, recorder, _ = create_fetcher(db)
    real = leases.finish_and_claim_undecoded

    async def ask(*args: Any, **request: Any) -> leases.UndecodedClaimResponse:
        answer = await real(*args, **request)
        await asyncio.sleep(0.3)
        return answer

    monkeypatch.setattr(leases, "finish_and_claim_undecoded", ask)
    before = time.monotonic()
    await fetcher.run_round()
    [(_, asked_at)] = recorder.launched
    assert before <= asked_at < before + 0.3 < time.monotonic()
