"""Values that are executed later are validated when they are stored.

Callbacks, schedules, webhooks, limits, quotas, retention and queue settings are executed in transactions of
others: of a worker that records an outcome, or of maintenance. Each test attacks one function with hostile
values, and then everybody else's work still succeeds.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import asyncpg
import msgspec
import pytest
from manual_worker import ManualWorker, run_ticks, submit_job

from holdfast.engine.connection import Connection
from holdfast.testing import Clock

NAN, INFINITE = float("nan"), float("inf")
LONG, CONTROL = "x" * 900_000, "a\nb"
SECRET = "whsec_" + "A" * 44
HOSTILE_JOBS: dict[str, Any] = {
    "no fields": {},
    "a list": [],
    "a text": "t",
    "a number": 1,
    "JSON null": None,
    "no type": {"args": {}},
    "empty type": {"type": ""},
    "null type": {"type": None},
    "long type": {"type": LONG},
    "control character in the type": {"type": CONTROL},
    "control character in the queue": {"type": "t", "queue": CONTROL},
    "long queue": {"type": "t", "queue": LONG},
    "long name": {"type": "t", "name": LONG},
    "long arguments": {"type": "t", "args": {"text": "x" * 300_000}},
    "priority out of range": {"type": "t", "priority": 101},
    "priority is a text": {"type": "t", "priority": "high"},
    "negative attempts": {"type": "t", "attempts": -1},
    "endless lease": {"type": "t", "lease_s": 1e300},
    "timeout is a text": {"type": "t", "timeout_s": "soon"},
    "negative delay": {"type": "t", "delay_s": -1},
    "endless delay": {"type": "t", "delay_s": 1e300},
    "expiry is no time": {"type": "t", "expires_at": "never"},
    "start is no time": {"type": "t", "run_at": "never"},
    "long limit key": {"type": "t", "limit_key": "k" * 2000},
    "long unique key": {"type": "t", "unique_key": "k" * 2000},
    "debounce without a key": {"type": "t", "debounce_s": 1},
    "throttle without a key": {"type": "t", "throttle_s": 1},
    "batch is no id": {"type": "t", "batch": "x"},
    "dependencies of a single task": {"type": "t", "after": ["x"]},
    "arguments of an unknown type are checked": {"type": "nosuch", "check": True, "tasks": [{"type": None}]},
    "tasks are an object": {"tasks": {}},
    "no tasks": {"tasks": []},
    "a task is a number": {"tasks": [1]},
    "a task without a type": {"tasks": [{}]},
    "two tasks of one name": {"tasks": [{"type": "a"}, {"type": "a"}]},
    "an unknown parent": {"tasks": [{"type": "a", "after": ["b"]}]},
    "a cycle": {"tasks": [{"type": "a", "after": ["b"]}, {"type": "b", "after": ["a"]}]},
    "an unknown policy": {
        "tasks": [{"type": "a"}, {"type": "b", "after": [{"name": "a", "on_failure": "x"}]}]
    },
    "a negative weight": {"tasks": [{"type": "a", "weight": -1}, {"type": "b"}]},
    "long arguments of a task": {"tasks": [{"type": "a", "args": "x" * 300_000}, {"type": "b"}]},
    "partial is a text": {"partial": "maybe", "tasks": [{"type": "a"}, {"type": "b"}]},
}
# A statement with its argument list, and the hostile values of its arguments.
HOSTILE_CALLS: dict[str, tuple[str, list[tuple[Any, ...]]]] = {
    "open_batch": (
        "select holdfast.open_batch($1, null, $2)",
        [(LONG, None), (CONTROL, None), ("", None), ("b", LONG), ("b", CONTROL), ("b", "")],
    ),
    "put_schedule": (
        """select holdfast.put_schedule($1, '{"type": "t"}', $2, $3, $4, $5, $6, $7, $8)""",
        [
            (LONG, None, 60, "UTC", "skip", 1, None, None),
            (CONTROL, None, 60, "UTC", "skip", 1, None, None),
            ("s", None, NAN, "UTC", "skip", 1, None, None),
            ("s", None, INFINITE, "UTC", "skip", 1, None, None),
            ("s", None, 1e-300, "UTC", "skip", 1, None, None),
            ("s", LONG, None, "UTC", "skip", 1, None, None),
            ("s", "0 0 31 2 *", None, "UTC", "skip", 1, None, None),
            ("s", None, 60, LONG, "skip", 1, None, None),
            ("s", None, 60, None, "skip", 1, None, None),
            ("s", None, 60, "UTC", None, 1, None, None),
            ("s", None, 60, "UTC", "catch_up", 2_000_000_000, None, None),
            ("s", None, 60, "UTC", "skip", 1, LONG, None),
            ("s", None, 60, "UTC", "skip", 1, CONTROL, None),
            ("s", None, 60, "UTC", "skip", 1, None, LONG),
        ],
    ),
    "create_webhook": (
        "select holdfast.create_webhook($1, $2, $3, $4, $5)",
        [
            *(
                (url, ["job.failed"], SECRET, None, None)
                for url in (
                    "",
                    "nonsense",
                    "ftp://x.test/",
                    "https://u:p@x.test/",
                    "https://",
                    None,
                    "https://a b/",
                )
            ),
            ("https://x.test/" + LONG, ["job.failed"], SECRET, None, None),
            ("https://x.test/\r\nhost: y", ["job.failed"], SECRET, None, None),
            ("https://x.test/", [], SECRET, None, None),
            ("https://x.test/", None, SECRET, None, None),
            ("https://x.test/", [None], SECRET, None, None),
            ("https://x.test/", ["job.exploded"], SECRET, None, None),
            ("https://x.test/", ["job.failed"] * 1000, SECRET, None, None),
            ("https://x.test/", ["job.failed"], SECRET, [LONG], None),
            ("https://x.test/", ["job.failed"], SECRET, [None], None),
            ("https://x.test/", ["job.failed"], SECRET, ["t"] * 1000, None),
            ("https://x.test/", ["job.failed"], "", None, None),
            ("https://x.test/", ["job.failed"], "whsec_not base64", None, None),
            ("https://x.test/", ["job.failed"], "whsec_A" * 9, None, None),
            ("https://x.test/", ["job.failed"], None, None, None),
            ("https://x.test/", ["job.failed"], SECRET, None, LONG),
        ],
    ),
    "put_inbound_webhook": (
        "select holdfast.put_inbound_webhook($1, $2, $3, $4, $5)",
        [
            ("h", LONG, "q", None, "secret"),
            ("h", CONTROL, "q", None, "secret"),
            ("h", None, "q", None, "secret"),
            ("h", "t", LONG, None, "secret"),
            ("h", "t", None, None, "secret"),
            ("h", "t", "q", LONG, "secret"),
            ("h", "t", "q", None, LONG),
            ("h", "t", "q", None, None),
            ("H /", "t", "q", None, "secret"),
        ],
    ),
    "put_limit": (
        "select holdfast.put_limit($1, $2, $3, false, $4, $5, $6)",
        [
            (LONG, "q", None, 1, None, None),
            ("l", LONG, None, 1, None, None),
            ("l", "q", CONTROL, 1, None, None),
            ("l", "q", None, -1, None, None),
            ("l", "q", None, 2_147_483_647, None, None),
            *(("l", "q", None, None, rate, None) for rate in (NAN, INFINITE, -INFINITE, 0, 1e-300, 1e300)),
            *(("l", "q", None, None, 1, burst) for burst in (NAN, INFINITE, -1, 0, 1e300)),
        ],
    ),
    "put_quota": (
        "select holdfast.put_quota($1, $2, $3, $4)",
        [(LONG, 1, 1, 1), ("ann", -1, None, None), ("ann", None, -1, None), ("ann", None, None, -1)],
    ),
    "put_queue_settings": (
        "select holdfast.put_queue_settings($1, $2, $3, $4)",
        [
            (LONG, 1, 1, 1),
            *(("q", seconds, None, None) for seconds in (-1, 2**62, 9_223_372_036_854_775_807)),
            *(("q", None, seconds, None) for seconds in (-1, 2**62, 9_223_372_036_854_775_807)),
            *(("q", None, None, seconds) for seconds in (NAN, INFINITE, 0, -1, 1e-300, 1e300)),
        ],
    ),
    "put_artifact_retention_rule": (
        "select holdfast.put_artifact_retention_rule($1, $2, $3)",
        [(LONG, None, 1), (None, LONG, 1), *((None, None, ttl) for ttl in (NAN, INFINITE, 0, -1, 1e300))],
    ),
    "put_message_policy": (
        "select holdfast.put_message_policy('letters', $1, null, $2::text::interval, $3::text::interval, "
        "$4::text::interval, $5::text::interval)",
        [
            (0, "5s", "5s", None, "30s"),
            (1, "170000000 years", "5s", None, "30s"),
            (1, "5s", "170000000 years", None, "30s"),
            (1, "5s", "5s", "170000000 years", "30s"),
            (1, "5s", "5s", None, "170000000 years"),
            (1, "-5s", "5s", None, "30s"),
        ],
    ),
}


async def expect_refusal(conn: Connection, statement: str, *arguments: Any) -> str | None:
    """Run a statement. Return None if it was refused as invalid input, otherwise what happened."""
    try:
        await conn.fetchval(statement, *arguments)
    except asyncpg.PostgresError as error:
        state = str(error.sqlstate)
        return None if state == "HF004" or state[:2] in ("22", "23") else f"{state}: {error}"
    return "accepted"


async def check_that_everybody_else_works(conn: Connection, clock: Clock) -> None:
    """Run a batch with a callback, a schedule, a webhook and maintenance, as if nothing had happened."""
    callback = msgspec.json.encode({"type": "callback", "queue": "q"}).decode()
    batch = await conn.fetchval("select holdfast.open_batch('b', $1)", callback)
    await submit_job(conn, batch=str(batch))
    await submit_job(conn, owner="ann")
    await conn.fetchval("select holdfast.close_batch($1)", batch)
    scheduled = msgspec.json.encode({"type": "scheduled", "queue": "q"}).decode()
    await conn.execute("select holdfast.put_schedule('healthy', $1, null, 60)", scheduled)
    await clock.advance(timedelta(minutes=2))
    finished: list[str] = []
    worker = ManualWorker(conn)
    for _ in range(5):
        await run_ticks(conn)
        for task in await worker.claim_tasks(10):
            assert await worker.finish_task(task) == "ok"
            finished.append(task.type)
    assert {"t", "callback", "scheduled"} <= set(finished)
    assert await conn.fetch("select * from holdfast.maintenance_problems") == []
    assert await conn.fetchval("select count(*) from holdfast.tasks where status = 'running'") == 0


@pytest.mark.parametrize(
    "statement",
    [
        "select holdfast.open_batch('b', $1)",
        "select holdfast.open_batch('b', $1, 'ann')",
        "select holdfast.put_schedule('s', $1, null, 60)",
        "select holdfast.create_schedule('s', $1, '* * * * *')",
        "select holdfast.register_schedules('app', jsonb_build_array("
        "jsonb_build_object('name', 's', 'every_s', 60, 'job', $1::jsonb)))",
    ],
    ids=["batch", "batch of a user", "put schedule", "create schedule", "register schedules"],
)
async def test_a_stored_job_is_validated_as_submit_validates_it(
    conn: Connection, clock: Clock, statement: str
) -> None:
    accepted: dict[str, str] = {}
    for name, job in HOSTILE_JOBS.items():
        result = await expect_refusal(conn, statement, msgspec.json.encode(job).decode())
        if result is not None:
            accepted[name] = result
    assert accepted == {}
    await check_that_everybody_else_works(conn, clock)


async def test_json_that_postgresql_cannot_store_is_refused(conn: Connection, clock: Clock) -> None:
    for statement in (
        "select holdfast.open_batch('b', $1)",
        "select holdfast.put_schedule('s', $1, null, 60)",
    ):
        text = '{"type": "t", "args": {"text": "a\\u0000b"}}'
        assert await expect_refusal(conn, statement, text) is None
    await check_that_everybody_else_works(conn, clock)


@pytest.mark.parametrize("function", HOSTILE_CALLS)
async def test_hostile_values_are_refused_when_they_are_stored(
    conn: Connection, clock: Clock, function: str
) -> None:
    await conn.execute("select pgmq.create('letters')")
    statement, calls = HOSTILE_CALLS[function]
    accepted: list[str] = []
    for arguments in calls:
        result = await expect_refusal(conn, statement, *arguments)
        if result is not None:
            accepted.append(f"{str(arguments)[:200]}: {result}")
    assert accepted == []
    await check_that_everybody_else_works(conn, clock)


async def test_the_largest_accepted_values_do_not_stop_claims_and_outcomes(
    conn: Connection, clock: Clock
) -> None:
    await conn.execute("select pgmq.create('letters')")
    await conn.execute("select holdfast.put_queue_settings('q', 3155760000, 3155760000, 0.001)")
    await conn.execute("select holdfast.put_limit('slow', 'other', null, true, null, 0.0001, 1000000)")
    await conn.execute("select holdfast.put_limit('fast', 'q', null, true, 1000000, 1000000, 1000000)")
    await conn.execute("select holdfast.put_quota(null, $1, $1, $1)", 9_223_372_036_854_775_807)
    await conn.execute("select holdfast.put_artifact_retention_rule(null, null, 3155760000)")
    await conn.execute(
        "select holdfast.put_message_policy('letters', 2147483647, null, '1 year', '1 year', "
        "'100 years', '1 year')"
    )
    await submit_job(conn, limit_key="k", queue="other")
    other = ManualWorker(conn, queues=["other"])
    await other.finish_task(await other.claim_one_task())
    await check_that_everybody_else_works(conn, clock)


async def test_a_callback_that_slips_through_fails_alone(conn: Connection, clock: Clock) -> None:
    """A value that was stored before it was validated, or that became invalid later, stops nobody else."""
    batch = await conn.fetchval("select holdfast.open_batch('b')")
    await conn.execute("update holdfast.batches set callback = '{}' where id = $1", batch)
    await submit_job(conn, batch=str(batch))
    await submit_job(conn)
    await conn.fetchval("select holdfast.close_batch($1)", batch)
    worker = ManualWorker(conn)
    for task in await worker.claim_tasks(2):
        assert await worker.finish_task(task) == "ok"
    [problem] = await conn.fetch("select kind, subject from holdfast.maintenance_problems")
    assert (problem["kind"], problem["subject"]) == ("batch callback", str(batch))
    await conn.execute("delete from holdfast.batches")
    await conn.execute("delete from holdfast.maintenance_problems")
    await check_that_everybody_else_works(conn, clock)
