"""Benchmark of the dashboard's queries with many rows: `python bench/dashboard.py [millions]`.

Fills a new database with that many million ended jobs, some of them failed, and a tenth as many waiting jobs.
Then runs each query of the pages. Prints the CPU time of the server and the elapsed time per call, in ms.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg

from holdfast import settings as settings_module
from holdfast.engine import embedded, error_groups, install, maintenance, overview, queues, search
from holdfast.engine.connection import Connection

CALLS_PER_QUERY = 3
INSERT_SAMPLE_ROWS = """
insert into holdfast.task_policies (queue, type)
  select 'q' || n % 5, 't' || n from generate_series(0, 19) as n;
insert into holdfast.lanes (policy_id, queue, type) select id, queue, type from holdfast.task_policies;
insert into holdfast.history (id, policy_id, nonce, due_at, started_at, finished_at, keep_until, attempt,
  failures, crashes, priority, status, args, error, owner)
select holdfast.new_id(holdfast.build_id_prefix(at), '00'), 1 + n % 20, n, at, at + interval '1 second',
  at + interval '3 seconds', at + interval '8 days', 1, 0, 0, 0,
  case when n % 200 = 0 then 'failed' else 'succeeded' end,
  jsonb_build_object('n', n, 'url', 'https://example.org/' || n),
  case when n % 200 = 0 then '{"type": "TimeoutError", "message": "slow"}'::jsonb end, 'owner' || n % 1000
from (
  select n, now() - (%(rows)s - n) * (interval '6 days' / %(rows)s) as at
  from generate_series(1, %(rows)s) as n
) as s;
insert into holdfast.attempts (task_id, job_id, attempt, outcome, started_at, ended_at, keep_until,
  error_type, message, fingerprint)
select h.id, h.id, 1, 'failed', h.started_at, h.finished_at, h.finished_at + interval '30 days',
  'TimeoutError', 'slow', 'TimeoutError f' || (hashtext(h.id::text) & 31)
from holdfast.history h where h.status = 'failed';
insert into holdfast.tasks (id, lane_id, pos, due_at, status, args)
select holdfast.new_id(holdfast.build_id_prefix(now()), '00'), 1 + n % 20,
  nextval('holdfast.task_positions'),
  now(), 'ready', '{}' from generate_series(1, %(rows)s / 10) as n;
"""


async def main(millions: float) -> None:
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as home:
        Path(home).chmod(0o755)  # noqa: ASYNC240
        settings = settings_module.load_settings({"home": home}, environ={})
        server = embedded.start_server(settings, options={"fsync": "off", "shared_buffers": "512MB"})
        try:
            await install.migrate_database(server.url, settings)
            connection = await asyncpg.connect(server.url.reveal())
            await connection.execute(INSERT_SAMPLE_ROWS.replace("%(rows)s", str(int(millions * 1e6))))
            await connection.execute("vacuum analyze")
            await measure_queries(connection)
            await connection.close()
        finally:
            server.release()
            embedded.stop_server(settings)


async def measure_queries(connection: Connection) -> None:
    now = await connection.fetchval("select holdfast.now()")
    queries: dict[str, Callable[[], Awaitable[Any]]] = {
        "jobs, first page": lambda: search.search_jobs(connection, "", with_count=True),
        "jobs, failed": lambda: search.search_jobs(connection, "state:failed", with_count=True),
        "jobs, a type": lambda: search.search_jobs(connection, "task:t7", with_count=True),
        "jobs, an owner": lambda: search.search_jobs(connection, "owner:owner77", with_count=True),
        "jobs, running (none)": lambda: search.search_jobs(connection, "state:running", with_count=True),
        "jobs, payload not there": lambda: search.search_jobs(
            connection, "args.url:nowhere", with_count=True
        ),
        "jobs, a word not there": lambda: search.search_jobs(connection, "nowhere", with_count=True),
        "jobs, cancelled (none)": lambda: search.search_jobs(connection, "state:cancelled", with_count=True),
        "errors": lambda: error_groups.list_error_groups(connection),
        "errors, 7 days": lambda: error_groups.list_error_groups(connection, since=now - timedelta(days=7)),
        "queues": lambda: queues.list_task_queues(connection),
        "problems": lambda: overview.count_problems(connection, now - timedelta(hours=24)),
        "samples of an hour": lambda: maintenance.tick_operations(connection),
        "throughput chart": lambda: overview.get_throughput_chart(connection, 6),
        "stats by task type": lambda: overview.get_task_type_stats(connection, 24),
        "database": lambda: overview.get_database_health(connection),
    }
    for name, run_query in queries.items():
        before, started_at = read_cpu_ms(connection), time.monotonic()
        for _ in range(CALLS_PER_QUERY):
            await run_query()
        elapsed_ms = (time.monotonic() - started_at) * 1000 / CALLS_PER_QUERY
        cpu_ms = (read_cpu_ms(connection) - before) / CALLS_PER_QUERY
        print(f"{name:28} CPU {cpu_ms:7.0f} ms   elapsed {elapsed_ms:7.0f} ms")


def read_cpu_ms(connection: Connection) -> float:
    """Return the CPU time that the backend of a connection has used, in milliseconds.

    CPU time varies less than elapsed time on a shared machine.
    """
    fields = Path(f"/proc/{connection.get_server_pid()}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * 1000 / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    asyncio.run(main(float(sys.argv[1]) if len(sys.argv) > 1 else 1))
