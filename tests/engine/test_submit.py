"""Submit: transactions, keys, graphs, and input that is refused."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import msgspec
import pytest
from manual_worker import (
    QUEUE,
    ManualWorker,
    expect_error,
    read_job,
    read_task_row,
    read_task_status,
    read_task_statuses,
    run_ticks,
    submit_graph,
    submit_job,
    wait_until_blocked_or_done,
)

from holdfast.engine import jobs
from holdfast.engine.connection import Connection
from holdfast.testing import Clock


async def test_a_job_of_one_task_is_ready_at_once_and_has_no_other_row(conn: Connection) -> None:
    new_jobs = await jobs.submit(conn, {"type": "t", "queue": QUEUE, "args": {"x": 1}})
    assert new_jobs.created
    assert new_jobs.status == "queued"
    assert new_jobs.tasks == {"t": new_jobs.id}
    assert await read_task_status(conn, new_jobs.id) == "ready"
    assert await conn.fetchval("select count(*) from holdfast.jobs") == 0
    assert (await read_job(conn, new_jobs.id))["params"] == {"x": 1}


async def test_a_rolled_back_submit_never_existed(conn: Connection) -> None:
    transaction = conn.transaction()
    await transaction.start()
    new_jobs = await submit_job(conn)
    await transaction.rollback()
    assert await jobs.get_job(conn, new_jobs) is None
    assert await ManualWorker(conn).claim_tasks(5) == []


async def test_ids_are_uuid7_that_rise_and_carry_the_shard(conn: Connection) -> None:
    await conn.execute("insert into holdfast.options values ('shard', '7')")
    new_jobs = [await submit_job(conn) for _ in range(5)]
    assert new_jobs == sorted(new_jobs)
    for each in new_jobs:
        assert each.version == 7
        assert each.variant == "specified in RFC 4122"
        assert each.bytes[9] == 7
    response = await conn.fetchval("select holdfast.get_id_time($1)", new_jobs[0])
    assert abs(response - datetime.now(UTC)) < timedelta(minutes=1)


async def test_a_delayed_task_is_not_claimed_before_it_is_due(conn: Connection, clock: Clock) -> None:
    new_jobs = await submit_job(conn, delay_s=60)
    manual_worker = ManualWorker(conn)
    assert await read_task_status(conn, new_jobs) == "scheduled"
    assert await manual_worker.claim_tasks(5) == []
    assert manual_worker.next_s is not None
    assert 50 < manual_worker.next_s <= 60
    await clock.advance(timedelta(seconds=61))
    assert [task.id for task in await manual_worker.claim_tasks(5)] == [new_jobs]


async def test_run_at_in_the_past_is_now(conn: Connection) -> None:
    new_jobs = await submit_job(conn, run_at="2001-01-01T00:00:00Z")
    assert await read_task_status(conn, new_jobs) == "ready"


async def test_a_task_that_did_not_start_in_time_never_starts(conn: Connection, clock: Clock) -> None:
    new_jobs = await submit_job(conn, expires_at=(datetime.now(UTC) + timedelta(minutes=5)).isoformat())
    await clock.advance(timedelta(minutes=6))
    assert await ManualWorker(conn).claim_tasks(5) == []
    await run_ticks(conn)
    row = await read_task_row(conn, new_jobs)
    assert row["status"] == "cancelled"
    assert msgspec.json.decode(row["error"])["type"] == "Expired"


async def test_the_same_key_and_body_give_the_same_job(conn: Connection) -> None:
    first = await jobs.submit(conn, {"type": "t", "queue": QUEUE, "key": "k", "args": {"a": 1}})
    again = await jobs.submit(conn, {"args": {"a": 1}, "key": "k", "queue": QUEUE, "type": "t"})
    assert (again.id, again.created) == (first.id, False)
    assert again.tasks == first.tasks


async def test_the_same_key_with_another_body_is_refused_also_when_the_job_has_ended(
    conn: Connection,
) -> None:
    await submit_job(conn, key="k", args={"a": 1})
    with expect_error("HF003", "key"):
        await submit_job(conn, key="k", args={"a": 2})
    manual_worker = ManualWorker(conn)
    await manual_worker.finish_task(await manual_worker.claim_one_task())
    with expect_error("HF003", "key"):
        await submit_job(conn, key="k", args={"a": 2})
    assert not (await jobs.submit(conn, {"type": "t", "queue": QUEUE, "key": "k", "args": {"a": 1}})).created


async def test_keys_of_different_owners_do_not_conflict(conn: Connection) -> None:
    assert await submit_job(conn, key="k", owner="a") != await submit_job(conn, key="k", owner="b")


@pytest.mark.parametrize("commits", [True, False])
async def test_two_submits_with_one_key_at_once(
    conn: Connection, second: Connection, url: Any, commits: bool
) -> None:
    """The loser waits for the winner: it gets the winner's job, or makes its own when the winner gives up."""
    watch = await asyncpg.connect(url.reveal())
    transaction = conn.transaction()
    await transaction.start()
    first = await submit_job(conn, key="k")
    pid = second.get_server_pid()
    loser = asyncio.create_task(jobs.submit(second, {"type": "t", "queue": QUEUE, "key": "k"}))
    assert await wait_until_blocked_or_done(watch, pid, loser)
    await (transaction.commit() if commits else transaction.rollback())
    got = await loser
    assert got.created is not commits
    assert (got.id == first) is commits
    assert await conn.fetchval("select count(*) from holdfast.tasks") == 1
    await watch.close()


async def test_a_unique_key_is_free_again_when_its_job_has_ended(conn: Connection) -> None:
    first = await submit_job(conn, unique_key="u", args={"a": 1})
    assert await submit_job(conn, unique_key="u", args={"a": 2}) == first
    manual_worker = ManualWorker(conn)
    await manual_worker.finish_task(await manual_worker.claim_one_task())
    second = await submit_job(conn, unique_key="u", args={"a": 2})
    assert second != first
    await jobs.cancel_job(conn, second)
    third = await submit_job(conn, unique_key="u")
    assert third not in {first, second}


async def test_a_unique_key_of_a_graph_is_free_again_when_it_has_ended(conn: Connection) -> None:
    first = await submit_graph(conn, {"name": "a"}, {"name": "b"}, unique_key="u")
    again = await submit_graph(conn, {"name": "a"}, {"name": "b"}, unique_key="u")
    assert (again.id, again.created, again.tasks) == (first.id, False, first.tasks)
    manual_worker = ManualWorker(conn)
    for task in await manual_worker.claim_tasks(5):
        await manual_worker.finish_task(task)
    assert (await submit_graph(conn, {"name": "a"}, {"name": "b"}, unique_key="u")).created


async def test_duplicates_touch_no_sequence(conn: Connection) -> None:
    await submit_job(conn, key="k")
    before = await conn.fetch(
        "select sequencename, last_value from pg_sequences where schemaname = 'holdfast' order by 1"
    )
    for _ in range(50):
        await submit_job(conn, key="k")
    after = await conn.fetch(
        "select sequencename, last_value from pg_sequences where schemaname = 'holdfast' order by 1"
    )
    assert before == after


async def test_many_jobs_are_created_in_the_given_order(conn: Connection) -> None:
    new_jobs = await jobs.submit_many(
        conn,
        [
            {"type": "t", "queue": QUEUE, "args": {"n": n}, "priority": 0, "delay_s": 30 if n == 3 else 0}
            for n in range(6)
        ],
    )
    assert len({each.id for each in new_jobs}) == 6
    taken = await ManualWorker(conn).claim_tasks(10)
    assert [task.args["n"] for task in taken] == [0, 1, 2, 4, 5]
    assert [new_jobs[n].id for n in (0, 1, 2, 4, 5)] == [task.id for task in taken]


async def test_submit_many_accepts_every_kind_of_job(conn: Connection) -> None:
    new_jobs = await jobs.submit_many(
        conn,
        [
            {"type": "t", "queue": QUEUE, "key": "k"},
            {"type": "g", "queue": QUEUE, "tasks": [{"type": "t"}, {"type": "u", "after": ["t"]}]},
            {"type": "t", "queue": QUEUE, "key": "k"},
        ],
    )
    assert [each.created for each in new_jobs] == [True, True, False]
    assert new_jobs[0].id == new_jobs[2].id


async def test_many_jobs_are_all_or_none(conn: Connection) -> None:
    with expect_error("HF004", "type"):
        await jobs.submit_many(conn, [{"type": "t", "queue": QUEUE}, {"queue": QUEUE}])
    assert await conn.fetchval("select count(*) from holdfast.tasks") == 0


async def test_a_graph_starts_with_its_roots(conn: Connection) -> None:
    new_jobs = await submit_graph(
        conn, {"name": "b", "after": ["a"]}, {"name": "a"}, {"name": "c", "after": ["a", "b", "a"]}
    )
    assert await read_task_statuses(conn, new_jobs.id) == {"a": "ready", "b": "waiting", "c": "waiting"}
    assert new_jobs.tasks is not None
    assert list(new_jobs.tasks) == ["a", "b", "c"] or set(new_jobs.tasks) == {"a", "b", "c"}
    assert (await read_job(conn, new_jobs.id))["counts"]["total"] == 3


_CYCLIC_JOB = {
    "tasks": [{"type": "t", "name": "a", "after": ["b"]}, {"type": "t", "name": "b", "after": ["a"]}]
}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ([], "job"),
        ("x", "job"),
        (None, "job"),
        ({}, "type"),
        ({"type": ""}, "type"),
        ({"type": "t" * 201}, "type"),
        ({"type": "\x01"}, "type"),
        ({"type": "t", "queue": "q\n"}, "queue"),
        ({"type": "t", "queue": "ä" * 101}, "queue"),
        ({"type": "t", "priority": 101}, "priority"),
        ({"type": "t", "priority": "high"}, "priority"),
        ({"type": "t", "attempts": 0}, "attempts"),
        ({"type": "t", "attempts": 1e300}, "attempts"),
        ({"type": "t", "timeout_s": -1}, "timeout_s"),
        ({"type": "t", "lease_s": 0}, "lease_s"),
        ({"type": "t", "jitter": 2}, "jitter"),
        ({"type": "t", "delay_s": -5}, "delay_s"),
        ({"type": "t", "delay_s": 1e12}, "delay_s"),
        ({"type": "t", "run_at": "tomorrow-ish"}, "run_at"),
        ({"type": "t", "run_at": "infinity"}, "run_at"),
        ({"type": "t", "expires_at": 7e40}, "expires_at"),
        ({"type": "t", "args": "x" * 300_000}, "args"),
        ({"type": "t", "key": ""}, "key"),
        ({"type": "t", "key": "x" * 1001}, "key"),
        ({"type": "t", "after": ["a"]}, "after"),
        ({"tasks": []}, "tasks"),
        ({"tasks": {}}, "tasks"),
        ({"tasks": ["a", "b"]}, "name"),
        ({"tasks": [{"type": "t"}, {"type": "t"}]}, "name"),
        ({"tasks": [{"type": "t", "name": "a"}, {"type": "t", "name": "b", "after": ["z"]}]}, "after"),
        ({"tasks": [{"type": "t", "name": "a"}, {"type": "t", "name": "b", "after": [None]}]}, "after"),
        (
            {
                "tasks": [
                    {"type": "t", "name": "a"},
                    {"type": "t", "name": "b", "after": [{"name": "a", "on_failure": "x"}]},
                ]
            },
            "on_failure",
        ),
        (_CYCLIC_JOB, "after"),
        ({"tasks": [{"type": "t", "name": "a", "after": ["a"]}, {"type": "t", "name": "b"}]}, "after"),
        ({"tasks": [{"type": "t", "name": "a", "weight": -1}, {"type": "t", "name": "b"}]}, "weight"),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_bad_jobs_are_refused_and_leave_nothing(conn: Connection, body: Any, field: str) -> None:
    with expect_error("HF004", field):
        await conn.fetchval(
            "select holdfast.submit($1)", None if body is None else msgspec.json.encode(body).decode()
        )
    assert await conn.fetchval("select count(*) from holdfast.tasks") == 0
    assert await conn.fetchval("select count(*) from holdfast.jobs") == 0


@pytest.mark.parametrize(
    "args", [r'"a\u0000b"', r'"\ud800"', "NaN", '"' + chr(0x110000 - 1) + r'\udc00"', "{", "1e400000"]
)
async def test_invalid_text_is_refused_by_the_server(conn: Connection, args: str) -> None:
    """Whatever the caller's language lets through: the server reads JSON strictly."""
    with pytest.raises(asyncpg.DataError):
        await conn.fetchval("select holdfast.submit($1)", f'{{"type": "t", "args": {{"a": {args}}}}}')
    assert await conn.fetchval("select count(*) from holdfast.tasks") == 0


async def test_a_large_cycle_is_refused_and_a_long_chain_is_not(conn: Connection) -> None:
    backwards = [{"name": f"n{n}", "after": [f"n{n + 1}"] if n < 199 else []} for n in range(200)]
    new_jobs = await submit_graph(conn, *backwards)
    assert (await read_job(conn, new_jobs.id))["counts"]["total"] == 200
    backwards[199]["after"] = ["n100"]
    with expect_error("HF004", "after"):
        await submit_graph(conn, *backwards)


async def test_an_open_batch_is_needed_to_join_one(conn: Connection) -> None:
    with expect_error("HF003", "batch"):
        await submit_job(conn, batch=str(UUID(int=1)))


async def test_submit_works_from_a_trigger(conn: Connection) -> None:
    await conn.execute(
        """
        create table public.orders (id int);
        create function public.on_order() returns trigger language plpgsql as $$
        begin
          perform holdfast.submit(jsonb_build_object(
            'type', 'ship', 'queue', 'q', 'args', jsonb_build_object('id', new.id)));
          return new;
        end $$;
        create trigger on_order after insert on public.orders for each row execute function public.on_order();
        insert into public.orders values (1), (2);
        """
    )
    assert [task.args for task in await ManualWorker(conn).claim_tasks(5)] == [{"id": 1}, {"id": 2}]


async def test_a_debounced_job_waits_for_the_last_of_many(conn: Connection, clock: Clock) -> None:
    manual_worker = ManualWorker(conn)
    first = await submit_job(conn, unique_key="u", debounce_s=10, args={"n": 1})
    for n in (2, 3):
        await clock.advance(timedelta(seconds=8))
        assert await manual_worker.claim_tasks(5) == []
        assert await submit_job(conn, unique_key="u", debounce_s=10, args={"n": n}) == first
    await clock.advance(timedelta(seconds=11))
    task = await manual_worker.claim_one_task()
    assert (task.id, task.args) == (first, {"n": 3})
    later = await submit_job(conn, unique_key="u", debounce_s=10, args={"n": 4})  # the first one has started
    assert later != first
    await manual_worker.finish_task(task)
    assert await submit_job(conn, unique_key="u", debounce_s=10, args={"n": 5}) == later
    await clock.advance(timedelta(seconds=11))
    assert (await manual_worker.claim_one_task()).args == {"n": 5}


async def test_a_throttled_job_is_created_once_per_interval(conn: Connection, clock: Clock) -> None:
    manual_worker = ManualWorker(conn)
    first = await submit_job(conn, unique_key="u", throttle_s=60)
    await manual_worker.finish_task(await manual_worker.claim_one_task())
    await clock.advance(timedelta(seconds=50))
    assert await submit_job(conn, unique_key="u", throttle_s=60) == first
    await clock.advance(timedelta(seconds=11))
    second = await submit_job(conn, unique_key="u", throttle_s=60)
    assert second != first
    assert await submit_job(conn, unique_key="u", throttle_s=60) == second


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"debounce_s": 5}, "unique_key"),
        ({"unique_key": "u", "debounce_s": 5, "delay_s": 1}, "debounce_s"),
        ({"unique_key": "u", "throttle_s": -5}, "throttle_s"),
        ({"unique_key": "u", "debounce_s": "soon"}, "debounce_s"),
    ],
    ids=str,
)
async def test_invalid_debounce_options_are_refused(
    conn: Connection, body: dict[str, Any], field: str
) -> None:
    with expect_error("HF004", field):
        await submit_job(conn, **body)
