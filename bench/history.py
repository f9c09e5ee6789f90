"""Measure the queries of users on a database with ten million ended jobs, in pages and milliseconds."""

from __future__ import annotations

import time

import asyncpg

Connection = asyncpg.Connection

INSERT_HISTORY_ROWS = """
insert into holdfast.history (id, policy_id, due_at, started_at, finished_at, keep_until, attempt, failures,
  crashes, priority, status, args, output)
select holdfast.new_id(holdfast.build_id_prefix(holdfast.now() - n * interval '1 microsecond'), '00'), k.id,
  h.at, h.at, h.at, h.at + interval '1 day', 1, 0, 0, 0,
  case when n % 100000 = 1 then 'cancelled' when n % 1000 = 1 then 'failed' else 'succeeded' end,
  '{"url": "https://example.com/some/page"}', '1'
from generate_series(1, $1) as n, (select holdfast.now() as at) as h,
  (select id from holdfast.task_policies limit 1) as k
"""
# Queries that users run. None may cost more with more rows.
USER_QUERIES = {
    "explain a task": (
        "select holdfast.explain_task((select id from holdfast.tasks order by id desc limit 1))"
    ),
    "explain an ended task": "select holdfast.explain_task((select id from holdfast.history limit 1))",
    "a job by its id": "select holdfast.get_job((select id from holdfast.history limit 1))",
    "the newest jobs": "select holdfast.list_jobs()",
    "failed jobs": """select holdfast.list_jobs('{"status": "failed"}')""",
    "cancelled jobs": """select holdfast.list_jobs('{"status": "cancelled"}')""",
    "running jobs": """select holdfast.list_jobs('{"status": "running"}')""",
    "jobs of a rare type": """select holdfast.list_jobs('{"type": "rare"}')""",
    "metrics": "select holdfast.metrics()",
    "queues": "select holdfast.list_task_queues()",
    "a search": """select holdfast.search_jobs('{"state": {"in": ["failed"]}}')""",
    "cancel by owner": """select holdfast.cancel_jobs('{"owner": "nobody"}')""",
    "redrive, dry run": """select holdfast.redrive('{"error_type": "None"}', 100, true)""",
}


async def measure_user_queries(conn: Connection) -> None:
    for name, query in USER_QUERIES.items():
        await conn.fetch(query)
        before, started_at = await count_accessed_pages(conn), time.perf_counter()
        await conn.fetch(query)
        seconds = time.perf_counter() - started_at
        print(
            f"    {name:30} {await count_accessed_pages(conn) - before:9,} pages {seconds * 1000:9.1f} ms",
            flush=True,
        )


async def count_accessed_pages(conn: Connection) -> int:
    """Return the number of pages of Holdfast's tables and indexes that were accessed so far."""
    await conn.execute("select pg_stat_force_next_flush()")
    return int(
        await conn.fetchval(
            "select sum(heap_blks_read + heap_blks_hit + coalesce(idx_blks_read + idx_blks_hit, 0))::bigint "
            "from pg_statio_user_tables where schemaname = 'holdfast'"
        )
    )
