"""Quotas: exact under concurrency; a refusal names the usage and the limit."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import asyncpg
import msgspec
import pytest
from manual_worker import ManualWorker, expect_error, submit_job

from holdfast.engine import artifacts, jobs, quotas
from holdfast.engine.connection import Connection, Database
from holdfast.errors import HoldfastError, QuotaExceededError, TooManyRequestsError
from holdfast.model import Artifact
from holdfast.testing import Clock

EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()


async def upload_file(conn: Connection, count: int, **file: Any) -> Artifact:
    staged = await artifacts.stage_artifact_without_task(conn, {"name": "a", "owner": "ann", **file})
    return await artifacts.record_artifact_upload(
        conn, staged.id, None, size=count, sha256=EMPTY_SHA256, meta={}
    )


async def run_concurrently(
    db: Database, count: int, work: Callable[[Connection], Awaitable[object]]
) -> list[str]:
    """What each of many gets, over connections of their own."""

    async def one() -> str:
        try:
            async with db.connection() as connection:
                await work(connection)
        except HoldfastError as problem:
            return problem.sqlstate or "?"
        return "ok"

    return await asyncio.gather(*(one() for _ in range(count)))


async def test_bytes_and_files_are_never_exceeded_together(conn: Connection, db: Database) -> None:
    await quotas.put_quota(conn, "ann", size=1000)
    staged = [
        await artifacts.stage_artifact_without_task(conn, {"name": "a", "owner": "ann"}) for _ in range(30)
    ]
    waiting = iter(staged)

    async def record(connection: Connection) -> None:
        await artifacts.record_artifact_upload(
            connection, next(waiting).id, None, size=90, sha256=EMPTY_SHA256, meta={}
        )

    answers = await run_concurrently(db, 30, record)
    assert sorted(answers) == ["HF007"] * 19 + ["ok"] * 11
    assert (await quotas.get_owner_usage(conn, "ann"))["bytes"] == {"used": 990, "limit": 1000}
    await quotas.put_quota(conn, "bob", files=5)
    answers = await run_concurrently(db, 20, lambda connection: upload_file(connection, 1, owner="bob"))
    assert answers.count("ok") == 5


async def test_operations_a_day_are_never_exceeded_together(
    conn: Connection, db: Database, clock: Clock
) -> None:
    await quotas.put_quota(conn, operations=7)
    answers = await run_concurrently(db, 20, lambda connection: submit_job(connection, owner="ann"))
    assert sorted(answers) == ["HF006"] * 13 + ["ok"] * 7
    assert (await quotas.get_owner_usage(conn, "ann"))["operations"] == {"used": 7, "limit": 7}
    await submit_job(conn)  # nobody's job is nobody's operation
    await submit_job(conn, owner="bob")
    many = [{"type": "t", "queue": "q", "owner": "bob"}] * 7
    with expect_error("HF006", "quota"):
        await jobs.submit_many(conn, many)
    await jobs.submit_many(conn, many[:6])
    await clock.advance(timedelta(days=1))
    await submit_job(conn, owner="ann")


async def test_the_same_job_again_costs_nothing(conn: Connection) -> None:
    await quotas.put_quota(conn, operations=1)
    first = await jobs.submit(conn, {"type": "t", "owner": "ann", "key": "k"})
    again = await jobs.submit(conn, {"type": "t", "owner": "ann", "key": "k"})
    assert (first.id, again.created) == (again.id, False)


async def test_a_submit_that_is_rolled_back_costs_nothing(conn: Connection) -> None:
    await quotas.put_quota(conn, "ann", operations=1)
    transaction = conn.transaction()
    await transaction.start()
    await submit_job(conn, owner="ann")
    await transaction.rollback()
    await submit_job(conn, owner="ann")


async def test_the_answer_names_used_and_limit(conn: Connection, db: Database) -> None:
    await quotas.put_quota(conn, "ann", size=100, operations=1)
    await upload_file(conn, 60)
    with pytest.raises(asyncpg.PostgresError, match="60 of 100 used, 50 more requested") as caught:
        await upload_file(conn, 50, size=50)
    decoded_detail = msgspec.json.decode(str(caught.value.detail))
    assert decoded_detail == {"quota": "bytes", "used": 60, "limit": 100, "requested": 50}
    async with db.connection() as connection:
        staged = await artifacts.stage_artifact_without_task(connection, {"name": "a", "owner": "ann"})
        assert staged.max_bytes == 40
    with pytest.raises(QuotaExceededError, match="60 of 100 used"):
        async with db.connection() as connection:
            await artifacts.record_artifact_upload(
                connection, staged.id, None, size=41, sha256=EMPTY_SHA256, meta={}
            )
    await submit_job(conn, owner="ann")
    with pytest.raises(TooManyRequestsError, match="1 of 1 used"):
        async with db.connection() as connection:
            await submit_job(connection, owner="ann")


async def test_deleting_and_expiring_free_quota_at_once(conn: Connection, clock: Clock) -> None:
    await quotas.put_quota(conn, "ann", size=100, files=2)
    first = await upload_file(conn, 50)
    await upload_file(conn, 50, ttl_s=60)
    with expect_error("HF007", "quota"):
        await upload_file(conn, 1)
    await artifacts.delete_artifact(conn, first.id)
    await upload_file(conn, 50)
    await clock.advance(timedelta(minutes=2))
    await upload_file(conn, 50)  # nobody has swept
    with expect_error("HF007", "quota"):
        await upload_file(conn, 0)


async def test_a_lost_attempt_frees_its_quota_for_the_next(conn: Connection) -> None:
    await quotas.put_quota(conn, "ann", size=100)
    manual_worker = ManualWorker(conn)
    await submit_job(conn, owner="ann")
    for _ in range(3):
        task = await manual_worker.claim_one_task()
        staged = await artifacts.stage_artifact(conn, task, {"name": "a"})
        await artifacts.record_artifact_upload(conn, staged.id, task, size=80, sha256=EMPTY_SHA256, meta={})
        await manual_worker.finish_task(task, "release")
    assert (await quotas.get_owner_usage(conn, "ann"))["bytes"]["used"] == 80


async def test_an_owner_quota_overrides_the_default(conn: Connection) -> None:
    await quotas.put_quota(conn, size=10)
    await quotas.put_quota(conn, "eve", size=None)
    await upload_file(conn, 1000, owner="eve")
    await upload_file(conn, 1000, owner=None)  # belongs to nobody
    with expect_error("HF007"):
        await upload_file(conn, 11)
    assert await conn.fetchval("select holdfast.delete_quota('eve')")
    with expect_error("HF007"):
        await upload_file(conn, 1, owner="eve")
    with expect_error("HF004"):
        await quotas.put_quota(conn, size=-1)


async def test_users_read_their_own_usage_and_set_nothing(conn: Connection) -> None:
    await upload_file(conn, 5)
    async with conn.transaction():
        await conn.execute("select set_config('request.jwt.claims', '{\"sub\": \"bob\"}', true)")
        await conn.execute("set local role authenticated")
        assert (await quotas.get_owner_usage(conn, "ann"))["owner"] == "bob"
        for call in ("holdfast.put_quota('bob', 9)", "holdfast.charge_storage_quota('bob', -5, -1, now())"):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                async with conn.transaction():
                    await conn.execute(f"select {call}")
