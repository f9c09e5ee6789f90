"""Jobs of several requests in one statement: the same rows as submitted alone, and nothing that waits."""

from __future__ import annotations

from typing import Any

import asyncpg
import msgspec
import pytest
from manual_worker import QUEUE, ManualWorker, submit_job
from wakeup_listener import WakeupListener, forget_wakeups

from holdfast.engine import jobs, quotas, task_types
from holdfast.engine.connection import Connection

CLAIMS = b'{"role": "service_role"}'
PLAIN = {"type": "t", "queue": QUEUE, "args": {"n": 1}}
GRAPH = {"type": "report", "params": {"n": 1}, "tasks": [{"type": "t", "queue": QUEUE, "name": "t"}]}
NAMED_GRAPH = {
    "type": "report",
    "labels": {"a": "b"},
    "tasks": [{"type": "t", "queue": QUEUE, "name": "page", "args": [1], "weight": 1, "attempts": 3}],
}
LARGE_GRAPH = {
    "type": "report",
    "tasks": [{"type": "t", "name": "a"}, {"type": "t", "name": "b", "after": ["a"]}],
}


async def submit_together(
    conn: Connection, *pairs: tuple[dict[str, Any], str | None], max_unfinished: int = 100
) -> list[jobs.SubmitResult | None]:
    return await quotas.submit_together(
        conn,
        [(msgspec.json.encode(job), owner) for job, owner in pairs],
        "service_role",
        CLAIMS,
        max_unfinished=max_unfinished,
    )


async def read_rows(conn: Connection, job: object) -> list[str]:
    """Return the rows of a job without ids and times."""
    return [
        row["row"]
        for row in await conn.fetch(
            "select to_jsonb(t) - '{id,job_id,pos,due_at}'::text[] as row from holdfast.tasks t "
            "where $1 in (t.id, t.job_id) "
            "union all select to_jsonb(j) - '{id}'::text[] from holdfast.jobs j where j.id = $1",
            job,
        )
    ]


@pytest.mark.parametrize("owner", [None, "ann"])
@pytest.mark.parametrize(
    "job", [PLAIN, PLAIN | {"labels": {"a": "b"}, "priority": 7}, PLAIN | {"check": True}, GRAPH, NAMED_GRAPH]
)
async def test_rows_are_those_of_a_job_that_is_submitted_alone(
    conn: Connection, job: dict[str, Any], owner: str | None
) -> None:
    await submit_job(conn, type="t")  # the lane is there
    alone = await jobs.submit(conn, job | ({"owner": owner} if owner else {}))
    results = await submit_together(conn, (job, owner), (job, owner))
    for result in results:
        assert result is not None
        assert (result.created, result.status) == (True, "queued")
        assert result.tasks is not None
        assert list(result.tasks) == list(alone.tasks or {})
        assert await read_rows(conn, result.id) == await read_rows(conn, alone.id) != []


async def test_what_may_wait_is_left_to_a_statement_of_its_own(conn: Connection, second: Connection) -> None:
    await submit_job(conn, type="t")
    transaction = second.transaction()
    await transaction.start()
    await second.execute("select holdfast.lock_job_count('locked')")
    try:
        results = await submit_together(
            conn,
            (PLAIN | {"key": "k"}, None),
            (PLAIN | {"delay_s": 60}, None),
            (PLAIN, "locked"),
            (LARGE_GRAPH, None),
            (PLAIN | {"type": "no lane yet"}, None),
            (PLAIN | {"unique_key": "u"}, None),
            (PLAIN, "free"),
        )
    finally:
        await transaction.rollback()
    assert [result is not None for result in results] == [False] * 6 + [True]
    assert await conn.fetchval("select count(*) from holdfast.tasks") == 2
    assert await conn.fetchval("select count(*) from holdfast.idempotency_keys") == 0


async def test_jobs_of_one_user_in_one_statement_keep_the_limit(conn: Connection) -> None:
    await submit_job(conn, type="t")
    results = await submit_together(conn, *[(PLAIN, "ann")] * 3, *[(GRAPH, "ann")] * 3, max_unfinished=4)
    assert [result is not None for result in results] == [True] * 4 + [False] * 2
    assert await conn.fetchval("select count(*) from holdfast.tasks where owner = 'ann'") == 4


async def test_quotas_and_turns_of_owners_take_the_long_way(conn: Connection) -> None:
    await submit_job(conn, type="t")
    await quotas.put_quota(conn, "ann", operations=1)
    results = await submit_together(conn, (PLAIN, "ann"), (PLAIN, None))
    assert [result is not None for result in results] == [False, True]
    assert await conn.fetchval("select count(*) from holdfast.tasks where owner = 'ann'") == 0


async def test_an_invalid_job_rolls_back_all_of_them(conn: Connection) -> None:
    await submit_job(conn, type="t")
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    await task_types.register_task_types(conn, "w", [{"name": "t", "schema": schema, "hash": "1"}])
    wrong = PLAIN | {"args": {"n": "one"}, "check": True}
    with pytest.raises(asyncpg.PostgresError, match=r"args\.n"):
        await submit_together(conn, (PLAIN, None), (wrong, None))
    assert await conn.fetchval("select count(*) from holdfast.tasks") == 1


async def test_users_may_not_call_it(conn: Connection) -> None:
    await submit_job(conn, type="t")
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await quotas.submit_together(
            conn, [(msgspec.json.encode(PLAIN), "ann")], "authenticated", b'{"sub": "ann"}', max_unfinished=9
        )
    async with conn.transaction():
        await conn.execute("set local role authenticated")
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await conn.fetchval("select holdfast.submit_plain_jobs('{}', '{ann}', 9)")


async def test_a_statement_wakes_the_sleeping_workers_of_its_queues(
    conn: Connection, second: Connection
) -> None:
    wakeups = WakeupListener(second)
    await wakeups.listen()
    await submit_job(conn, type="t")
    worker = ManualWorker(conn)
    [task] = await worker.claim_tasks(5)
    await worker.finish_task(task)
    assert await worker.claim_tasks(5) == []  # it sleeps
    await forget_wakeups(conn)
    await wakeups.received()
    await submit_together(conn, (PLAIN, None), (GRAPH, None))
    assert await wakeups.received() == [QUEUE]
    assert len(await worker.claim_tasks(5)) == 2
