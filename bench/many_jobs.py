"""Insert millions of jobs in minutes, with one statement for each part instead of submits and claims.

The rows are those that submits and outcomes leave, so every page and query works on them. Used by the
benchmark of the dashboard and by the test of a night on call.
"""

from __future__ import annotations

import asyncio

import asyncpg

from holdfast.engine.connection import Connection

TASK_TYPES = 20
# Evaluates nothing of the engine per row: its functions in PL/pgSQL would cost more than the rows.
ROWS_OVER_TIME = """
(select n, at, overlay(overlay(gen_random_uuid()::text
    placing left(ms, 8) || '-' || right(ms, 4) || '-7' from 1 for 15) placing '00' from 22 for 2)::uuid as id
  from (select n, at, lpad(to_hex((date_part('epoch', at) * 1000)::bigint), 12, '0') as ms
    from (select n, c.now - ({rows} - n) * (interval '{period}' / {rows}) as at
      from generate_series({first}, {last}) as n, (select holdfast.now() as now offset 0) as c
    ) as r) as r) as s
"""
INSERT_WAITING_JOBS = f"""
insert into holdfast.tasks (id, lane_id, pos, due_at, status, args, owner)
select s.id, $1, nextval('holdfast.task_positions'), s.at, 'ready',
  jsonb_build_object('n', s.n, 'url', 'https://example.org/' || s.n), 'owner' || s.n % 1000
from {ROWS_OVER_TIME.format(rows="$2::bigint", period="1 hour", first="1", last="$2::bigint")}
"""
INSERT_ENDED_JOBS = f"""
insert into holdfast.history (id, policy_id, nonce, due_at, started_at, finished_at, keep_until, attempt,
  failures, crashes, priority, status, args, output, error, owner)
select s.id, ($4::bigint[])[1 + s.n % cardinality($4::bigint[])], s.n, s.at,
  s.at + interval '1 second', s.at + interval '3 seconds', s.at + interval '7 days 3 seconds', 1, 0, 0, 0,
  case when s.n % 200 = 0 then 'failed' when s.n % 5000 = 1 then 'cancelled' else 'succeeded' end,
  jsonb_build_object('n', s.n, 'url', 'https://example.org/' || s.n),
  case when s.n % 200 > 0 then '{{"ok": true}}'::jsonb end,
  case when s.n % 200 = 0 then '{{"type": "TimeoutError", "message": "slow"}}'::jsonb end,
  'owner' || s.n % 1000
from {ROWS_OVER_TIME.format(rows="$3::bigint", period="6 days", first="$1::bigint", last="$2::bigint")}
"""
INSERT_FAILED_ATTEMPTS = """
insert into holdfast.attempts (task_id, job_id, attempt, outcome, started_at, ended_at, keep_until, owner,
  error_type, message, fingerprint)
select h.id, h.id, 1, 'failed', h.started_at, h.finished_at, h.finished_at + interval '30 days', h.owner,
  'TimeoutError', 'slow', 'TimeoutError f' || (hashtext(h.id::text) & 31)
from holdfast.history h where h.status = 'failed'
"""
# What record_throughput_samples would have stored during the six days.
INSERT_SAMPLES = """
insert into holdfast.metric_samples (span_s, at, queue, type, succeeded, failed, cancelled, wait_histogram,
  run_histogram)
select s.span_s, to_timestamp(floor(extract(epoch from holdfast.now()) / s.span_s) * s.span_s)
    - n * s.span_s * interval '1 second', k.queue, k.type, s.span_s * 99 / 100, s.span_s / 100, 0,
  array_fill(s.span_s / 24, array[24])::bigint[], array_fill(s.span_s / 24, array[24])::bigint[]
from (values (60, 2880), (900, 576)) as s (span_s, samples)
cross join lateral generate_series(1, s.samples) as n
cross join holdfast.task_policies k on conflict do nothing
"""
CREATE_PARTITIONS = """
select holdfast.create_day_partition('history', (holdfast.now() at time zone 'UTC')::date + d),
  holdfast.create_day_partition('attempts', (holdfast.now() at time zone 'UTC')::date + 23 + d)
from generate_series(0, 8) as d
"""


async def insert_waiting_jobs(conn: Connection, count: int, queue: str, task_type: str) -> None:
    """Insert ready jobs of one task type, submitted during the last hour."""
    lane = await conn.fetchval(
        "select holdfast.find_or_create_lane($1, $2, 0::smallint, null, '{}', null)", queue, task_type
    )
    await conn.execute(INSERT_WAITING_JOBS, lane, count)


async def insert_large_backlog(conn: Connection, count: int) -> None:
    """Insert ready jobs of twenty task types in five queues."""
    for number in range(TASK_TYPES):
        await insert_waiting_jobs(conn, count // TASK_TYPES, f"q{number % 5}", f"t{number}")


async def insert_large_history(url: str, count: int, connections: int = 2) -> None:
    """Insert jobs that ended during the last six days, a two-hundredth of them failed."""
    conn = await asyncpg.connect(url)
    await conn.execute(CREATE_PARTITIONS)
    policies = await conn.fetchval("select array_agg(id) from holdfast.task_policies")

    async def insert_range(first: int, last: int) -> None:
        other = await asyncpg.connect(url)
        await other.execute(INSERT_ENDED_JOBS, first, last, count, policies)
        await other.close()

    share = count // connections
    await asyncio.gather(
        *(
            insert_range(n * share + 1, count if n == connections - 1 else (n + 1) * share)
            for n in range(connections)
        )
    )
    await conn.execute(INSERT_FAILED_ATTEMPTS)
    await conn.execute(INSERT_SAMPLES)
    await conn.close()
