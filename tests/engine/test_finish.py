"""Finish: every outcome, its policy, and what is stored of it."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from manual_worker import (
    QUEUE,
    ManualWorker,
    build_outcome,
    expect_error,
    read_job,
    read_task_row,
    read_task_status,
    submit_job,
)

from holdfast.engine.connection import Connection
from holdfast.testing import Clock

OUTCOME_KINDS = ["succeed", "fail", "reject", "crash", "lost", "snooze", "limited", "cancel", "release"]
BODY: dict[str, Any] = {"type": "ValueError", "message": "no", "traceback": "Traceback ...", "delay_s": 30}


async def test_success_moves_the_task_to_the_history_with_its_output(conn: Connection) -> None:
    created = await submit_job(conn, args={"a": 1}, labels={"l": "x"}, owner="ann")
    manual_worker = ManualWorker(conn)
    assert (
        await manual_worker.finish_task(await manual_worker.claim_one_task(), "succeed", {"answer": 42})
        == "ok"
    )
    assert await conn.fetchval("select count(*) from holdfast.tasks") == 0
    ended = await read_job(conn, created)
    assert ended["status"] == "succeeded"
    assert ended["output"] == {"answer": 42}
    assert ended["progress"]["percent"] == 100
    assert (ended["labels"], ended["owner"], ended["params"]) == ({"l": "x"}, "ann", {"a": 1})


async def test_a_batch_of_all_outcomes_is_answered_in_order(conn: Connection) -> None:
    manual_worker = ManualWorker(conn)
    for _ in OUTCOME_KINDS:
        await submit_job(conn)
    tasks = await manual_worker.claim_tasks(len(OUTCOME_KINDS))
    outcomes: list[Any] = [
        build_outcome(task, kind, BODY)  # type: ignore[arg-type]
        for task, kind in zip(tasks, OUTCOME_KINDS, strict=True)
    ]
    stale = build_outcome(tasks[0], "succeed")
    stale = type(stale)(id=stale.id, attempt=stale.attempt, nonce=stale.nonce + 1, kind="fail")
    outcomes.insert(3, stale)
    answer = await manual_worker.finish_and_claim(outcomes)
    assert list(answer.answers) == ["ok", "ok", "ok", "stale", "ok", "ok", "ok", "ok", "ok", "ok"]
    now = [await read_task_status(conn, task.id) for task in tasks]
    assert now == [
        "succeeded", "scheduled", "failed", "scheduled", "ready", "scheduled", "scheduled",
        "cancelled", "ready",
    ]  # fmt: skip


@pytest.mark.parametrize("kind", OUTCOME_KINDS)
async def test_the_same_outcome_twice_is_answered_alike_and_counted_once(conn: Connection, kind: Any) -> None:
    created = await submit_job(conn)
    manual_worker = ManualWorker(conn)
    task = await manual_worker.claim_one_task()
    assert await manual_worker.finish_task(task, kind, BODY) == "ok"
    before = await read_task_row(conn, created)
    tries = await conn.fetchval("select count(*) from holdfast.attempts")
    assert await manual_worker.finish_task(task, kind, BODY) == "ok"
    assert await read_task_row(conn, created) == before
    assert await conn.fetchval("select count(*) from holdfast.attempts") == tries


@pytest.mark.parametrize("kind", OUTCOME_KINDS)
async def test_a_stale_outcome_is_refused_while_the_next_holder_runs(conn: Connection, kind: Any) -> None:
    created = await submit_job(conn)
    manual_worker = ManualWorker(conn)
    old = await manual_worker.claim_one_task()
    await manual_worker.finish_task(old, "release")
    new = await manual_worker.claim_one_task()
    before = await read_task_row(conn, created)
    assert await manual_worker.finish_task(old, kind, BODY) == "stale"
    for wrong in (
        {"attempt": new.attempt, "nonce": old.nonce},
        {"attempt": old.attempt, "nonce": new.nonce},
        {"attempt": new.attempt + 1, "nonce": new.nonce},
    ):
        forged = build_outcome(new, kind, BODY)
        forged = type(forged)(id=forged.id, kind=forged.kind, body=forged.body, **wrong)
        assert list((await manual_worker.finish_and_claim([forged])).answers) == ["stale"]
    assert await read_task_row(conn, created) == before
    assert await manual_worker.finish_task(new) == "ok"


async def test_failures_are_retried_with_a_growing_jittered_wait_and_then_final(
    conn: Connection, clock: Clock
) -> None:
    created = await submit_job(conn, attempts=4, base_s=10, cap_s=25, jitter=0.5)
    manual_worker = ManualWorker(conn)
    for number, least, limit in ((1, 5, 15), (2, 10, 30), (3, 12.5, 37.5)):
        task = await manual_worker.claim_one_task()
        assert task.attempt == number
        await manual_worker.finish_task(task, "fail", BODY)
        row = await read_task_row(conn, created)
        assert row["status"] == "scheduled"
        now = await conn.fetchval("select holdfast.now()")
        assert least - 1 <= (row["due_at"] - now).total_seconds() <= limit
        await clock.advance(timedelta(seconds=limit + 1))
    await manual_worker.finish_task(await manual_worker.claim_one_task(), "fail", BODY)
    row = await read_task_row(conn, created)
    assert (row["status"], row["failures"], row["attempt"]) == ("failed", 4, 4)
    tried = await conn.fetch("select * from holdfast.list_task_attempts($1)", created)
    assert [each["attempt"] for each in tried] == [1, 2, 3, 4]
    assert {each["error_type"] for each in tried} == {"ValueError"}
    assert tried[0]["worker"] == "hand"
    assert tried[0]["traceback"] == "Traceback ..."


async def test_the_wait_is_finite_for_any_policy(conn: Connection) -> None:
    for base, cap, failures in ((31536000, 31536000, 2_000_000_000), (0, 0, 5), (1e-9, 900, 999_999)):
        wait = await conn.fetchval(
            "select holdfast.compute_retry_delay("
            "row(1, 'q', 't', '{}', 9, $1::float8, $2::float8, 1, 1, 1, 1)::holdfast.task_policies, "
            "$3, null)",
            float(base),
            float(cap),
            failures,
        )
        assert timedelta(0) <= wait <= timedelta(seconds=2 * cap + 1)


async def test_retry_after_lengthens_the_delay(conn: Connection) -> None:
    created = await submit_job(conn)
    manual_worker = ManualWorker(conn)
    await manual_worker.finish_task(
        await manual_worker.claim_one_task(), "fail", {"message": "429", "retry_after_s": 3600}
    )
    row = await read_task_row(conn, created)
    assert (row["due_at"] - await conn.fetchval("select holdfast.now()")).total_seconds() > 3500


@pytest.mark.parametrize("requested", ["soon", -5, None, [], 1e300, True])
async def test_a_failure_with_invalid_values_is_recorded(conn: Connection, requested: Any) -> None:
    created = await submit_job(conn)
    manual_worker = ManualWorker(conn)
    body = {
        "type": 7,
        "message": ["x"],
        "traceback": {"a": 1},
        "retry_after_s": requested,
        "fingerprint": [1],
    }
    assert await manual_worker.finish_task(await manual_worker.claim_one_task(), "fail", body) == "ok"
    assert await read_task_status(conn, created) == "scheduled"


async def test_a_huge_error_is_kept_bounded(conn: Connection) -> None:
    created = await submit_job(conn, attempts=1)
    manual_worker = ManualWorker(conn)
    body = {"type": "E" * 9000, "message": "m" * 5_000_000, "traceback": "t" * 5_000_000 + "the end"}
    assert await manual_worker.finish_task(await manual_worker.claim_one_task(), "fail", body) == "ok"
    error = (await read_job(conn, created))["error"]
    assert len(json.dumps(error)) < 25_000
    assert error["traceback"].endswith("the end")


async def test_an_error_of_fifty_megabytes(conn: Connection) -> None:
    created = await submit_job(conn, attempts=1)
    task = await ManualWorker(conn).claim_one_task()
    await conn.execute(
        "select holdfast.fail_task($1, $2, $3, repeat('m', 25000000), 'E', repeat('t', 25000000))",
        task.id,
        task.attempt,
        task.nonce,
    )
    assert await read_task_status(conn, created) == "failed"
    assert len(json.dumps((await read_job(conn, created))["error"])) < 25_000


async def test_rejection_is_final(conn: Connection) -> None:
    created = await submit_job(conn)
    manual_worker = ManualWorker(conn)
    await manual_worker.finish_task(await manual_worker.claim_one_task(), "reject", BODY)
    assert await read_task_status(conn, created) == "failed"


async def test_snooze_and_release_charge_nothing(conn: Connection, clock: Clock) -> None:
    created = await submit_job(conn, attempts=1)
    manual_worker = ManualWorker(conn)
    for _ in range(3):
        await manual_worker.finish_task(await manual_worker.claim_one_task(), "release")
        await manual_worker.finish_task(await manual_worker.claim_one_task(), "snooze", {"delay_s": 5})
        await clock.advance(timedelta(seconds=6))
    row = await read_task_row(conn, created)
    assert (row["failures"], row["crashes"], row["attempt"]) == (0, 0, 6)


async def test_snoozes_are_limited(conn: Connection) -> None:
    created = await submit_job(conn)
    await conn.execute("update holdfast.tasks set snoozes = 10000")
    manual_worker = ManualWorker(conn)
    await manual_worker.finish_task(await manual_worker.claim_one_task(), "snooze", {"delay_s": 1})
    assert await read_task_status(conn, created) == "failed"


async def test_an_unknown_outcome_is_refused(conn: Connection) -> None:
    await submit_job(conn)
    manual_worker = ManualWorker(conn)
    task = await manual_worker.claim_one_task()
    with expect_error("HF004", "kind"):
        await manual_worker.finish_task(task, "explode")  # type: ignore[arg-type]
    assert await manual_worker.finish_task(task) == "ok"


async def test_effects_and_outcome_commit_together(conn: Connection, second: Connection) -> None:
    created = await submit_job(conn)
    task = await ManualWorker(conn).claim_one_task()
    await conn.execute("create table public.effects (n int)")
    lease = (created, task.attempt, task.nonce)
    transaction = second.transaction()
    await transaction.start()
    await second.execute("insert into public.effects values (1)")
    await second.execute("select holdfast.complete_task($1, $2, $3)", *lease)
    await transaction.rollback()
    assert await read_task_status(conn, created) == "running"
    async with second.transaction():
        await second.execute("insert into public.effects values (1)")
        await second.execute("select holdfast.complete_task($1, $2, $3)", *lease)
    assert await read_task_status(conn, created) == "succeeded"
    assert await conn.fetchval("select count(*) from public.effects") == 1


async def test_plain_outcomes_for_any_language(conn: Connection) -> None:
    manual_worker = ManualWorker(conn)
    for call, expected in (
        ("select holdfast.fail_task($1, $2, $3, 'boom', 'ValueError')", "scheduled"),
        ("select holdfast.fail_task($1, $2, $3, 'boom', p_retry => false)", "failed"),
        ("select holdfast.snooze_task($1, $2, $3, 10)", "scheduled"),
        ("select holdfast.release_task($1, $2, $3)", "ready"),
    ):
        created = await submit_job(conn)
        task = await manual_worker.claim_one_task()
        await conn.execute(call, created, task.attempt, task.nonce)
        assert await read_task_status(conn, created) == expected
        with expect_error("HF001"):
            await conn.execute(call, created, task.attempt, task.nonce + 1)
        await conn.execute("select holdfast.cancel_jobs(jsonb_build_object('queue', $1::text))", QUEUE)


async def test_output_over_the_limit_is_refused_and_the_task_goes_on(conn: Connection) -> None:
    created = await submit_job(conn)
    task = await ManualWorker(conn).claim_one_task()
    with expect_error("HF004", "output"):
        await conn.execute(
            "select holdfast.complete_task($1, $2, $3, $4)",
            created,
            task.attempt,
            task.nonce,
            json.dumps("x" * 300_000),
        )
    assert await read_task_status(conn, created) == "running"
