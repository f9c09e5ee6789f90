"""A claim happens and its response is lost: the claimed tasks are released, and nothing is charged."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
from cutting import AbortableProxy, run_abortable_proxy
from manual_worker import ManualWorker, read_task_row, submit_job

from holdfast import Client, Ctx, task
from holdfast.engine import leases
from holdfast.engine.connection import Connection, Database
from holdfast.errors import DatabaseUnavailableError
from holdfast.settings import Secret, Settings
from holdfast.testing import wait_until
from holdfast.worker import lost_claims
from holdfast.worker.heartbeat_protocol import HeartbeatStartMessage
from holdfast.worker.lease_return import return_leases_and_messages
from holdfast.worker.lost_claims import LostClaims
from holdfast.worker.runtime import WorkerRuntime

SOON = timedelta(seconds=30)


def through(proxy: AbortableProxy, url: Secret) -> Secret:
    """Return the database URL with the address of the proxy."""
    direct = urlsplit(url.reveal())
    login = direct.netloc.rpartition("@")[0]
    return Secret(direct._replace(netloc=f"{login}@{urlsplit(proxy.url).netloc}").geturl())


@task(queue="answers")
async def tells(ctx: Ctx) -> int:
    return ctx.attempt


async def test_claim_with_a_lost_response_is_released(
    client: Client, conn: Connection, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[int] = []
    real = leases.finish_and_claim_undecoded

    async def ask(*args: Any, **how: Any) -> leases.UndecodedClaimResponse:
        answer = await real(*args, **how)
        if answer.task_count and len(lost) < 4:  # more than the budget of crashes
            lost.append(answer.task_count)
            raise DatabaseUnavailableError("The connection was closed in the middle of the answer.")
        return answer

    monkeypatch.setattr(leases, "finish_and_claim_undecoded", ask)
    stop = asyncio.Event()
    running = asyncio.create_task(WorkerRuntime(db, {tells.name: tells}).run(stop))
    jobs = [await client.submit(tells()) for _ in range(3)]
    assert all([await job.result(within=SOON) > 1 for job in jobs])
    stop.set()
    await running
    assert len(lost) == 4
    kept = await conn.fetch("select failures, crashes from holdfast.history")
    assert [tuple(row) for row in kept] == [(0, 0)] * 3


async def test_claim_that_runs_long_after_its_connection_was_lost_is_released(
    client: Client, conn: Connection, second: Connection, url: Secret, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The statement waits for a lock while the connection is cut, and claims the task afterwards."""
    released: list[set[int]] = []
    requests: list[int] = []
    claimed = asyncio.Event()
    real_release, real_claim = leases.release_unreceived_tasks, leases.finish_and_claim_undecoded

    async def release(*args: Any) -> set[int]:
        released.append(await real_release(*args))
        return released[-1]

    async def claim(*args: Any, **request: Any) -> leases.UndecodedClaimResponse:
        requests.append(request["slots"])
        if len(requests) > 1:
            await claimed.wait()  # else this claim could get the task before the lost one does
        return await real_claim(*args, **request)

    async def is_claimed() -> bool:
        return bool(await second.fetchval("select status = 'running' from holdfast.tasks"))

    async def count_waiting_claims() -> int:
        return int(
            await second.fetchval(
                "select count(*) from pg_stat_activity where wait_event_type = 'Lock'"
                " and query like '%finish_and_claim%' and datname = current_database()"
            )
        )

    monkeypatch.setattr(leases, "release_unreceived_tasks", release)
    monkeypatch.setattr(leases, "finish_and_claim_undecoded", claim)
    stop = asyncio.Event()
    async with run_abortable_proxy(url.reveal()) as proxy, Database(through(proxy, url), Settings()) as db:
        job = await client.submit(tells())
        async with conn.transaction():
            await conn.execute("lock table holdfast.tasks in share mode")
            running = asyncio.create_task(WorkerRuntime(db, {tells.name: tells}).run(stop))
            await wait_until(count_waiting_claims)
            proxy.abort_connections()
            await wait_until(lambda: len(released) > 0, within=SOON)  # too early: the statement still waits
        await wait_until(is_claimed, within=SOON)
        claimed.set()
        assert await job.result(within=SOON) == 2
        stop.set()
        await running
    assert released[0] == set()
    assert len(released[-1]) == 1
    kept = await second.fetchrow("select failures, crashes from holdfast.history")
    assert kept is not None
    assert tuple(kept) == (0, 0)


async def test_unreceived_tasks_are_found_by_worker_and_nonce(conn: Connection) -> None:
    created = [await submit_job(conn) for _ in range(3)]
    manual_worker = ManualWorker(conn)
    old, other, lost = [await manual_worker.claim_one_task() for _ in range(3)]
    assert await leases.release_unreceived_tasks(conn, "another", [lost.nonce]) == set()
    assert await leases.release_unreceived_tasks(conn, "hand", [lost.nonce, 7]) == {lost.nonce}
    assert await leases.release_unreceived_tasks(conn, "hand", [lost.nonce]) == set()
    states = {(row := await read_task_row(conn, each))["id"]: row["status"] for each in created}
    assert states == {old.id: "running", other.id: "running", lost.id: "ready"}
    assert (await read_task_row(conn, lost.id))["crashes"] == 0


async def test_a_claim_that_was_running_when_its_worker_died_is_released(
    conn: Connection, second: Connection, url: Secret, settings: Settings
) -> None:
    """The statement waits for a lock while the heartbeat process returns what the dead worker held."""
    created = await submit_job(conn)
    await ManualWorker(second).claim_tasks(0)  # the worker is known
    start = HeartbeatStartMessage(
        url=url.reveal(), worker="hand", pid=0, connect_timeout_s=10.0, call_timeout_s=30.0,
        log_format="text", loop_blocked_after_s=1.0,
    )  # fmt: skip
    async with conn.transaction():
        await conn.execute("lock table holdfast.tasks in share mode")
        claim = asyncio.create_task(ManualWorker(second).claim_one_task())
        returning = asyncio.create_task(
            return_leases_and_messages(start, settings, [], [], orderly=False, released=False)
        )
        await wait_until(partial(do_two_sessions_wait, conn), within=SOON)
    claimed, _ = await asyncio.gather(claim, returning)
    row = await read_task_row(conn, created)
    assert (claimed.id, row["status"], row["crashes"], row["losses"]) == (created, "ready", 0, None)


async def do_two_sessions_wait(conn: Connection) -> bool:
    """Return whether the claim waits for the table, and the report of the death for the claim."""
    await conn.execute("select pg_stat_clear_snapshot()")
    count = await conn.fetchval(
        "select count(*) from pg_stat_activity where datname = current_database()"
        " and wait_event_type = 'Lock'"
    )
    return bool(count == 2)


async def test_tasks_of_a_worker_that_took_over_the_name_are_kept(conn: Connection) -> None:
    created = [await submit_job(conn) for _ in range(2)]
    before = await ManualWorker(conn).claim_one_task()
    died_at = await leases.mark_worker_lost(conn, "hand")
    after = await ManualWorker(conn).claim_one_task()
    assert await leases.release_tasks_of_lost_worker(conn, "hand", died_at) == 1
    states = {each: (await read_task_row(conn, each))["status"] for each in created}
    assert states == {before.id: "ready", after.id: "running"}


async def test_a_claim_gets_the_nonce_of_the_worker(conn: Connection) -> None:
    await submit_job(conn)
    nonce = leases.create_nonce()
    response = await leases.finish_and_claim(conn, worker="hand", slots=1, queues=["q"], nonce=nonce)
    assert [claimed.nonce for claimed in response.tasks] == [nonce]


async def test_release_is_repeated_with_growing_pauses_until_the_lease_has_ended(
    conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    clock = SimpleNamespace(monotonic=lambda: now)
    monkeypatch.setattr("holdfast.worker.lost_claims.time", clock)
    claims = LostClaims("hand")
    claims.add_claim(7, now)
    pauses: list[float] = []
    while len(claims):
        assert not await claims.release_due_tasks(conn)
        if (pause_s := claims.seconds_until_release) is not None:
            pauses.append(pause_s)
            now += pause_s
    assert len(pauses) < 15
    assert pauses == sorted(pauses)
    assert sum(pauses) >= lost_claims.MIN_LEASE_S
