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

KINDS = ["succeed", "fail", "reject", "crash", "snooze", "limited", "cancel", "release"]
BODY: dict[str, Any] = {"type": "ValueError", "message": "no", "traceback": "Traceback ...", "delay_s": 30}


async def test_success_moves_the_task_to_the_history_with_its_output(conn: Connection) -> None:
    created = await submit_job(conn, args={"a": 1}, labels={"l": "x"}, owner="ann")
    hand = ManualWorker(conn)
    assert await hand.finish(await hand.one(), "succeed", {"answer": 42}) == "ok"
    assert await conn.fetchval("select count(*) from holdfast.tasks") == 0
    ended = await read_job(conn, created)
    assert ended["status"] == "succeeded"
    assert ended["output"] == {"answer": 42}
    assert ended["progress"]["percent"] == 100
    assert (ended["labels"], ended["owner"], ended["params"]) == ({"l": "x"}, "ann", {"a": 1})


async def test_a_batch_of_all_outcomes_is_answered_in_order(conn: Connection) -> None:
    hand = ManualWorker(conn)
    for _ in KINDS:
        await submit_job(conn)
    tasks = await hand.take(len(KINDS))
    outcomes: list[Any] = [build_outcome(task, kind, BODY) for task, kind in zip(tasks, KINDS, strict=True)]  # type: ignore[arg-type]
    stale = build_outcome(tasks[0], "succeed")
    stale = type(stale)(id=stale.id, attempt=stale.attempt, nonce=stale.nonce + 1, kind="fail")
    outcomes.insert(3, stale)
    answer = await hand.exchange(outcomes)
    assert list(answer.answers) == ["ok", "ok", "ok", "stale", "ok", "ok", "ok", "ok", "ok"]
    now = [await read_task_status(conn, task.id) for task in tasks]
    assert now == [
        "succeeded", "scheduled", "failed", "scheduled", "scheduled", "scheduled", "cancelled", "ready",
    ]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
async def test_the_same_outcome_twice_is_answered_alike_and_counted_once(conn: Connection, kind: Any) -> None:
    created = await submit_job(conn)
    hand = ManualWorker(conn)
    task = await hand.one()
    assert await hand.finish(task, kind, BODY) == "ok"
    before = await read_task_row(conn, created)
    tries = await conn.fetchval("select count(*) from holdfast.attempts")
    assert await hand.finish(task, kind, BODY) == "ok"
    assert await read_task_row(conn, created) == before
    assert await conn.fetchval("select count(*) from holdfast.attempts") == tries


@pytest.mark.parametrize("kind", KINDS)
async def test_a_stale_outcome_is_refused_while_the_next_holder_runs(conn: Connection, kind: Any) -> None:
    created = await submit_job(conn)
    hand = ManualWorker(conn)
    old = await hand.one()
    await hand.finish(old, "release")
    new = await hand.one()
    before = await read_task_row(conn, created)
    assert await hand.finish(old, kind, BODY) == "stale"
    for wrong in (
        {"attempt": new.attempt, "nonce": old.nonce},
        {"attempt": old.attempt, "nonce": new.nonce},
        {"attempt": new.attempt + 1, "nonce": new.nonce},
    ):
        forged = build_outcome(new, kind, BODY)
        forged = type(forged)(id=forged.id, kind=forged.kind, body=forged.body, **wrong)
        assert list((await hand.exchange([forged])).answers) == ["stale"]
    assert await read_task_row(conn, created) == before
    assert await hand.finish(new) == "ok"


async def test_failures_are_retried_with_a_growing_jittered_wait_and_then_final(
    conn: Connection, clock: Clock
) -> None:
    created = await submit_job(conn, attempts=4, base_s=10, cap_s=25, jitter=0.5)
    hand = ManualWorker(conn)
    for number, least, limit in ((1, 5, 15), (2, 10, 30), (3, 12.5, 37.5)):
        task = await hand.one()
        assert task.attempt == number
        await hand.finish(task, "fail", BODY)
        row = await read_task_row(conn, created)
        assert row["status"] == "scheduled"
        now = await conn.fetchval("select holdfast.now()")
        assert least - 1 <= (row["due_at"] - now).total_seconds() <= limit
        await clock.advance(timedelta(seconds=limit + 1))
    await hand.finish(await hand.one(), "fail", BODY)
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


async def test_the_other_side_may_ask_for_a_longer_wait(conn: Connection) -> None:
    created = await submit_job(conn)
    hand = ManualWorker(conn)
    await hand.finish(await hand.one(), "fail", {"message": "429", "retry_after_s": 3600})
    row = await read_task_row(conn, created)
    assert (row["due_at"] - await conn.fetchval("select holdfast.now()")).total_seconds() > 3500


@pytest.mark.parametrize("requested", ["soon", -5, None, [], 1e300, True])
async def test_nonsense_in_a_failure_never_stops_it_from_being_recorded(
    conn: Connection, requested: Any
) -> None:
    created = await submit_job(conn)
    hand = ManualWorker(conn)
    body = {
        "type": 7,
        "message": ["x"],
        "traceback": {"a": 1},
        "retry_after_s": requested,
        "fingerprint": [1],
    }
    assert await hand.finish(await hand.one(), "fail", body) == "ok"
    assert await read_task_status(conn, created) == "scheduled"


async def test_a_huge_error_is_kept_bounded(conn: Connection) -> None:
    created = await submit_job(conn, attempts=1)
    hand = ManualWorker(conn)
    body = {"type": "E" * 9000, "message": "m" * 5_000_000, "traceback": "t" * 5_000_000 + "the end"}
    assert await hand.finish(await hand.one(), "fail", body) == "ok"
    error = (await read_job(conn, created))["error"]
    assert len(json.dumps(error)) < 25_000
    assert error["traceback"].endswith("the end")


async def test_an_error_of_fifty_megabytes(conn: Connection) -> None:
    created = await submit_job(conn, attempts=1)
    task = await ManualWorker(conn).one()
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
    hand = ManualWorker(conn)
    await hand.finish(await hand.one(), "reject", BODY)
    assert await read_task_status(conn, created) == "failed"


async def test_snooze_and_release_charge_nothing(conn: Connection, clock: Clock) -> None:
    created = await submit_job(conn, attempts=1)
    hand = ManualWorker(conn)
    for _ in range(3):
        await hand.finish(await hand.one(), "release")
        await hand.finish(await hand.one(), "snooze", {"delay_s": 5})
        await clock.advance(timedelta(seconds=6))
    row = await read_task_row(conn, created)
    assert (row["failures"], row["crashes"], row["attempt"]) == (0, 0, 6)


async def test_snoozing_has_an_end(conn: Connection) -> None:
    created = await submit_job(conn)
    await conn.execute("update holdfast.tasks set snoozes = 10000")
    hand = ManualWorker(conn)
    await hand.finish(await hand.one(), "snooze", {"delay_s": 1})
    assert await read_task_status(conn, created) == "failed"


async def test_an_unknown_outcome_is_refused(conn: Connection) -> None:
    await submit_job(conn)
    hand = ManualWorker(conn)
    task = await hand.one()
    with expect_error("HF004", "kind"):
        await hand.finish(task, "explode")  # type: ignore[arg-type]
    assert await hand.finish(task) == "ok"


async def test_effects_and_outcome_commit_together(conn: Connection, second: Connection) -> None:
    created = await submit_job(conn)
    task = await ManualWorker(conn).one()
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
    hand = ManualWorker(conn)
    for call, expected in (
        ("select holdfast.fail_task($1, $2, $3, 'boom', 'ValueError')", "scheduled"),
        ("select holdfast.fail_task($1, $2, $3, 'boom', p_retry => false)", "failed"),
        ("select holdfast.snooze_task($1, $2, $3, 10)", "scheduled"),
        ("select holdfast.release_task($1, $2, $3)", "ready"),
    ):
        created = await submit_job(conn)
        task = await hand.one()
        await conn.execute(call, created, task.attempt, task.nonce)
        assert await read_task_status(conn, created) == expected
        with expect_error("HF001"):
            await conn.execute(call, created, task.attempt, task.nonce + 1)
        await conn.execute("select holdfast.cancel_jobs(jsonb_build_object('queue', $1::text))", QUEUE)


async def test_output_over_the_limit_is_refused_and_the_task_goes_on(conn: Connection) -> None:
    created = await submit_job(conn)
    task = await ManualWorker(conn).one()
    with expect_error("HF004", "output"):
        await conn.execute(
            "select holdfast.complete_task($1, $2, $3, $4)",
            created,
            task.attempt,
            task.nonce,
            json.dumps("x" * 300_000),
        )
    assert await read_task_status(conn, created) == "running"
