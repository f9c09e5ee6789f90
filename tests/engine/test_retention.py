"""What bounds every table: upkeep deletes what is old, and the page about retention names every table."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from manual_worker import run_ticks
from sample_dashboard_data import create_sample_data

from holdfast.engine.connection import Connection
from holdfast.testing import Clock

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operate" / "retention.md"
LIST_TABLES = """
select c.relname::text from pg_class c
where c.relnamespace = 'holdfast'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
"""
LONGER_THAN_ANY_RETENTION = timedelta(days=500)
EMPTY_WHEN_OLD = {
    "activity_samples", "alert_silences", "attempts", "audit_log", "batches", "bulk_action_jobs",
    "bulk_actions", "dashboard_sessions", "dependencies", "erasures", "events", "history", "idempotency_keys",
    "jobs", "login_links", "logs", "maintenance_problems", "metric_samples", "provider_calls", "reruns",
    "step_results", "stream_tickets", "user_sessions", "watched_jobs", "workers",
}  # fmt: skip
# Rows of tables that the sample data leave empty. All of them are as old as they get.
INSERT_ROWS = """
insert into holdfast.user_sessions (id, hash, owner, claims, created_at, expires_at)
  select gen_random_uuid(), sha256('user'), 'ann', '{}', holdfast.now(), holdfast.now();
insert into holdfast.stream_tickets (hash, kind, job_id, issuer, owner, expires_at)
  select sha256('ticket'), 'ticket', gen_random_uuid(), 'user', 'ann', holdfast.now();
insert into holdfast.login_links (hash, name, role, expires_at)
  select 'link', 'ann', 'viewer', holdfast.now();
insert into holdfast.provider_calls (id, kind, provider, model, status, created_at)
  select gen_random_uuid(), 'text', 'local', 'small', 'succeeded', holdfast.now();
insert into holdfast.step_results (task_id, name, job_id, attempt, at)
  select gen_random_uuid(), 'step', gen_random_uuid(), 1, holdfast.now();
insert into holdfast.logs (n, task_id, job_id, attempt, seq, at, keep_until, level, message)
  select 1, gen_random_uuid(), gen_random_uuid(), 1, 1, holdfast.now(), holdfast.now(), 'info', 'line';
insert into holdfast.reruns (new_job_id, old_job_id, started_by, at)
  select gen_random_uuid(), gen_random_uuid(), 'ann', holdfast.now();
insert into holdfast.maintenance_problems (kind, subject, message, first_at, last_at, retry_at)
  select 'lease', gen_random_uuid()::text, 'no', holdfast.now(), holdfast.now(), holdfast.now();
insert into holdfast.watched_jobs (job_id, watcher, until) select gen_random_uuid(), 'api', holdfast.now();
insert into holdfast.alert_silences (id, until, created_by, created_at)
  select gen_random_uuid(), holdfast.now(), 'ann', holdfast.now();
insert into holdfast.activity_samples (span_s, kind, at, name) select 60, 'owner', holdfast.now(), 'ann';
insert into holdfast.erasures (id, owner, requested_by, requested_at, quiet_until, finished_at)
  select gen_random_uuid(), 'bob', 'ann', holdfast.now(), holdfast.now(), holdfast.now();
select holdfast.submit('{"type": "once", "queue": "default", "key": "once"}');
"""
END_ALL_WORK = """
delete from holdfast.schedules;
select holdfast.cancel_job(j.id)
  from (select distinct coalesce(t.job_id, t.id) as id from holdfast.tasks t) as j;
"""


async def count_rows(conn: Connection) -> dict[str, int]:
    names = [row["relname"] for row in await conn.fetch(LIST_TABLES)]
    return {name: await conn.fetchval(f'select count(*) from holdfast."{name}"') for name in names}


async def test_upkeep_deletes_everything_that_is_old(conn: Connection, clock: Clock) -> None:
    await create_sample_data(conn)
    await conn.execute(INSERT_ROWS)
    filled = {name for name, count in (await count_rows(conn)).items() if count}
    assert filled >= EMPTY_WHEN_OLD, "an empty table proves nothing"
    await conn.execute(END_ALL_WORK)
    for _ in range(2):  # what ended just now is old after the second time
        await clock.advance(LONGER_THAN_ANY_RETENTION)
        await run_ticks(conn)
    left = {name: count for name, count in (await count_rows(conn)).items() if count}
    assert {name: left[name] for name in EMPTY_WHEN_OLD if name in left} == {}
    assert left["queue_depths"] <= 2  # of the last hours only


async def test_page_about_retention_names_every_table(conn: Connection) -> None:
    page = PAGE.read_text()
    missing = [name for name in await count_rows(conn) if f"`{name}`" not in page]
    assert not missing, f"say in {PAGE.name} what bounds {missing}"


@pytest.mark.parametrize("retention", ["7 days", None])
async def test_archives_of_messages_are_bounded_by_their_policy(
    conn: Connection, clock: Clock, retention: str | None
) -> None:
    await conn.execute("select pgmq.create('letters')")
    await conn.execute(
        "select holdfast.put_message_policy('letters', p_archive_retention => $1::text::interval)", retention
    )
    await conn.execute("select pgmq.archive('letters', pgmq.send('letters', '{}'))")
    await clock.advance(LONGER_THAN_ANY_RETENTION)
    await run_ticks(conn)
    assert await conn.fetchval("select count(*) from pgmq.a_letters") == (1 if retention is None else 0)
