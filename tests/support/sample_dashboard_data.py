"""Sample data for the dashboard: every kind of object, for tests and for `make screenshots`."""

from __future__ import annotations

import hashlib
import json
import random
import secrets
from collections.abc import AsyncGenerator
from typing import Any
from uuid import UUID

from manual_worker import ManualWorker, build_outcome
from sample_files import SAMPLE_FILES

from holdfast.engine import artifacts, jobs, limits, saved_views, schedules
from holdfast.engine import queues as engine_queues
from holdfast.engine.connection import Connection
from holdfast.engine.limits import LimitRule
from holdfast.storage import ObjectStore

SAFARI_ON_IPHONE = (
    "Mozilla/5.0 (iPhone; CPU iPhone OS 17_5 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) "
    "Version/17.5 Mobile/15E148 Safari/604.1"
)
EDGE_ON_WINDOWS = (
    "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/126.0.0.0 "
    "Safari/537.36 Edg/126.0.0.0"
)
SCHEMA = {
    "type": "object",
    "required": ["url"],
    "additionalProperties": False,
    "properties": {
        "url": {"type": "string", "description": "the page to capture"},
        "width": {"type": "integer", "default": 1280, "minimum": 1},
        "format": {"enum": ["png", "jpeg"], "default": "png"},
        "full_page": {"type": "boolean", "default": False},
        "api_token": {"type": "string"},
    },
}
TRACEBACK = """Traceback (most recent call last):
  File "/srv/app/.venv/lib/python3.12/site-packages/holdfast/worker/executor.py", line 88, in run
    value = await function(ctx, **args)
  File "/srv/app/pipelines/render.py", line 88, in goto
    await page.goto(url, timeout=30_000)
  File "/srv/app/.venv/lib/python3.12/site-packages/playwright/async_api/_page.py", line 9052, in goto
    await self._impl_obj.goto(url=url, timeout=timeout)
TimeoutError: Page.goto: Timeout 30000ms exceeded, token=hunter2-secret
"""
ERRORS = {
    "TimeoutError": ("Page.goto: Timeout 30000ms exceeded.", "TimeoutError render.py:goto"),
    "ConnectError": ("All connection attempts failed", "ConnectError favicon.py:fetch"),
    "ValidationError": ("1 validation error for Caption: length", "ValidationError caption.py:parse"),
}


async def create_sample_data(conn: Connection, store: ObjectStore | None = None) -> dict[str, Any]:
    """Create jobs in every state, workers, schedules, messages, files, a bulk action and statistics.

    Return the ids of some of them. With a store, the files have content too.
    """
    rng = random.Random(7)
    await _register_task_types(conn)
    graph = await _create_graph_job(conn)
    failed = await _create_failed_jobs(conn, rng)
    await _create_finished_jobs(conn, rng)
    running = await _create_running_job(conn)
    await _create_waiting_jobs(conn)
    batch = await _create_batch(conn)
    await _create_schedules(conn)
    await _create_messages(conn)
    files = await _create_files(conn, graph, store)
    await _create_webhooks(conn)
    await _create_sessions(conn)
    await _create_stats(conn, rng)
    bulk = await conn.fetchval(
        "select holdfast.start_bulk_action('retry', $1, 'error:ConnectError', 'ann', 'DNS is back')",
        json.dumps({"error": {"in": ["ConnectError"]}}),
    )
    await conn.execute("select holdfast.advance_bulk_actions(10)")
    await send_worker_heartbeats(conn)
    await saved_views.put_saved_view(conn, "my failures", "jobs", "state:failed owner:acme", by="service key")
    await saved_views.put_saved_view(conn, "slow exports", "jobs", "task:export run:>30s", by="ann")
    await limits.put_limit(conn, LimitRule(name="openai", queue="ai", max_running=4, rate=5, burst=10))
    await limits.put_limit(conn, LimitRule(name="host", queue="browser", per_key=True, max_running=2))
    return {
        "graph": graph,
        "failed": failed[0],
        "running": running,
        "batch": batch,
        "bulk": bulk,
        "files": files,
    }


async def _register_task_types(conn: Connection) -> None:
    types = [
        {
            "name": "screenshot",
            "queue": "browser",
            "schema": SCHEMA,
            "doc": "Capture a page as an image.",
            "version": "1.8.0",
        },
        {
            "name": "caption",
            "queue": "ai",
            "schema": {"type": "object", "properties": {"image": {"type": "string"}}},
            "doc": "Describe an image.",
            "version": "1.8.0",
        },
        {
            "name": "export",
            "queue": "default",
            "schema": None,
            "doc": "Write a document.",
            "version": "1.8.0",
        },
    ]
    await conn.execute("select holdfast.register_task_types('w1', $1)", json.dumps(types))


async def send_worker_heartbeats(conn: Connection) -> None:
    """Send heartbeats of two live workers, and age those of a third. Repeat it in tests that take long."""
    for n, (queues, running, lag) in enumerate(
        [(["browser", "default"], 6, 4), (["ai", "default"], 2, 31)], 1
    ):
        await ManualWorker(conn, f"worker-{n}", queues).claim_tasks(0)
        about = {
            "host": f"host-{n + 6}",
            "pid": 4100 + n,
            "version": "1.8.0" if n == 1 else "1.7.2",
            "slots": 8,
            "running": running,
            "loop_lag_ms": lag,
            "rss": 184_000_000 * n,
            "processes": n,
        }
        await conn.execute("select holdfast.heartbeat_worker($1, $2)", f"worker-{n}", json.dumps(about))
        types = ["screenshot", "caption", "export", "enrich", "favicon", "fetch", "ocr"]
        await conn.execute(
            "update holdfast.workers set types = $2 where name = $1", f"worker-{n}", types[: 7 - n]
        )
    await ManualWorker(conn, "worker-3", ["browser"]).claim_tasks(0)
    await conn.execute(
        "update holdfast.workers set seen_at = seen_at - interval '5 minutes' where name = 'worker-3'"
    )


async def _create_graph_job(conn: Connection) -> UUID:
    job = await jobs.submit(
        conn,
        {
            "type": "enrich_bookmark",
            "queue": "browser",
            "owner": "acme",
            "labels": {"bookmark": 77},
            "params": {"url": "https://example.org/articles/holdfast", "api_token": "hunter2-secret"},
            "tasks": [
                {"name": "fetch", "type": "fetch", "args": {"url": "https://example.org/articles/holdfast"}},
                {
                    "name": "screenshot",
                    "type": "screenshot",
                    "after": ["fetch"],
                    "args": {"url": "https://example.org", "width": 800},
                },
                {"name": "favicon", "type": "favicon", "after": ["fetch"], "base_s": 0},
                {"name": "ocr", "type": "ocr", "after": ["screenshot"]},
                {"name": "caption", "type": "caption", "queue": "ai", "after": ["screenshot"]},
                {"name": "index", "type": "index", "after": ["ocr", "caption", "favicon"]},
            ],
        },
    )
    manual_worker = ManualWorker(conn, "worker-1", ["browser"])
    for kind in ("succeed", "fail", "succeed"):
        for task in await manual_worker.claim_tasks(1):
            await conn.execute("select pg_sleep(0.05)")
            body = (
                {
                    "type": "ConnectError",
                    "message": "All connection attempts failed",
                    "traceback": TRACEBACK,
                    "fingerprint": "ConnectError favicon.py:fetch",
                }
                if kind == "fail"
                else {"key": "shot.png"}
            )
            await manual_worker.finish_and_claim([build_outcome(task, kind, body)])
    for task in await manual_worker.claim_tasks(2):
        progress = json.dumps({str(task.id): {"percent": 62, "phase": "ocr", "message": "page 31 of 50"}})
        await conn.execute("select holdfast.save_progress_of_tasks($1, $2)", progress, [task.id])
    return job.id


async def _create_failed_jobs(conn: Connection, rng: random.Random) -> list[UUID]:
    bodies = [
        {
            "type": "screenshot",
            "queue": "browser",
            "attempts": 1,
            "owner": rng.choice(["acme", "zeta", "umbra"]),
            "args": {"url": f"https://example.org/{n}", "width": 800, "api_token": "hunter2-secret"},
        }
        for n in range(24)
    ]
    submitted = await jobs.submit_many(conn, bodies)
    manual_worker = ManualWorker(conn, "worker-1", ["browser"])
    names = list(ERRORS)
    for n, task in enumerate(await manual_worker.claim_tasks(24, types=["screenshot"])):
        name = names[0] if n < 14 else names[n % 3]
        message, cause = ERRORS[name]
        error = {"type": name, "message": message, "traceback": TRACEBACK, "fingerprint": cause}
        await manual_worker.finish_and_claim([build_outcome(task, "fail", error)])
    return [job.id for job in submitted]


async def _create_finished_jobs(conn: Connection, rng: random.Random) -> None:
    bodies = [
        {
            "type": rng.choice(["caption", "export", "export"]),
            "queue": "default",
            "owner": rng.choice(["acme", "zeta"]),
            "args": {"document": f"report-{n}.typ", "pages": rng.randint(1, 40)},
            "labels": {"team": "media"},
        }
        for n in range(30)
    ]
    await jobs.submit_many(conn, bodies)
    manual_worker = ManualWorker(conn, "worker-2", ["default"])
    tasks = await manual_worker.claim_tasks(30)
    await manual_worker.finish_and_claim(
        [build_outcome(task, "succeed", {"key": "out.pdf"}) for task in tasks]
    )


async def _create_running_job(conn: Connection) -> UUID:
    job = await jobs.submit(
        conn, {"type": "export", "queue": "default", "owner": "acme", "args": {"document": "annual.typ"}}
    )
    manual_worker = ManualWorker(conn, "worker-2", ["default"])
    for task in await manual_worker.claim_tasks(1):
        progress = json.dumps(
            {str(task.id): {"percent": 41.5, "phase": "typeset", "message": "chapter 4 of 9"}}
        )
        await conn.execute("select holdfast.save_progress_of_tasks($1, $2)", progress, [task.id])
    retrying = await jobs.submit(
        conn, {"type": "caption", "queue": "ai", "owner": "acme", "args": {"image": "shot.png"}}
    )
    ai = ManualWorker(conn, "worker-2", ["ai"])
    for task in await ai.claim_tasks(1, types=["caption"]):
        if task.id == retrying.id:
            await ai.finish_and_claim(
                [build_outcome(task, "fail", {"type": "RateLimited", "message": "429 from the provider"})]
            )
    return job.id


async def _create_waiting_jobs(conn: Connection) -> None:
    await jobs.submit_many(
        conn,
        [
            {"type": "screenshot", "queue": "browser", "args": {"url": f"https://e.example/{n}"}}
            for n in range(40)
        ],
    )
    await jobs.submit_many(
        conn, [{"type": "caption", "queue": "ai", "args": {"image": f"{n}.png"}} for n in range(12)]
    )
    await jobs.submit_many(
        conn, [{"type": "digest", "queue": "mail", "delay_s": 3600 * n} for n in range(1, 6)]
    )
    await jobs.submit(conn, {"type": "legacy", "queue": "old-queue"})
    await engine_queues.pause_queue_until(
        conn,
        "ai",
        await conn.fetchval("select holdfast.now() + interval '1 hour'"),
        reason="429 storm",
        by="ann",
    )


async def _create_batch(conn: Connection) -> UUID:
    batch = await jobs.open_batch(conn, "export 500 PDF", owner="acme")
    await jobs.submit_many(
        conn,
        [{"type": "export", "queue": "default", "batch": str(batch), "owner": "acme"} for _ in range(20)],
    )
    manual_worker = ManualWorker(conn, "worker-2", ["default"])
    tasks = await manual_worker.claim_tasks(13)
    await manual_worker.finish_and_claim([build_outcome(task) for task in tasks])
    await jobs.close_batch(conn, batch)
    return batch


async def _create_schedules(conn: Connection) -> None:
    for name, cron, zone in (
        ("nightly-report", "0 3 * * *", "Europe/Madrid"),
        ("weekly-digest", "30 8 * * mon", "UTC"),
        ("sweep", "*/15 * * * *", "UTC"),
    ):
        await schedules.put_schedule(
            conn,
            {"name": name, "cron": cron, "timezone": zone, "job": {"type": "export", "queue": "default"}},
        )
    await schedules.put_schedule(conn, {"name": "heartbeat", "every_s": 300, "job": {"type": "export"}})
    await schedules.run_schedule(conn, "sweep")
    await schedules.pause_schedule(conn, "weekly-digest", "ann")


async def _create_messages(conn: Connection) -> None:
    await conn.execute("select pgmq.create('clips')")
    await conn.execute("select pgmq.create('mails')")
    for n in range(12):
        await conn.execute(
            "select pgmq.send('clips', $1::jsonb)", json.dumps({"clip": n, "password": "hunter2-secret"})
        )
    await conn.execute("select * from pgmq.read('clips', 60, 3)")
    await conn.execute(
        "select holdfast.fail_messages('clips', array[receipt], $1) from holdfast.read_messages('clips')",
        "ValueError: hunter2-secret is not a password",
    )


async def _create_files(conn: Connection, job: UUID, store: ObjectStore | None) -> dict[str, UUID]:
    """Create one file of each previewable type, and some whose declared type is wrong."""
    ids: dict[str, UUID] = {}
    for days, (name, (content_type, content)) in enumerate(SAMPLE_FILES.items(), 1):
        staged = await artifacts.stage_artifact_without_task(
            conn,
            {
                "name": name,
                "kind": "file",
                "content_type": content_type,
                "job": str(job),
                "ttl_s": 86400 * days,
            },
        )

        async def read_chunks(content: bytes = content) -> AsyncGenerator[bytes]:
            yield content

        if store is not None:
            await store.put(staged.key, read_chunks())
        digest = hashlib.sha256(content).hexdigest()
        await artifacts.record_artifact_upload(
            conn, staged.id, None, size=len(content), sha256=digest, meta={}
        )
        ids[name] = staged.id
    return ids


async def _create_webhooks(conn: Connection) -> None:
    webhook_ids = [
        await conn.fetchval(
            "select holdfast.create_webhook($1, $2, 'whsec_c2FtcGxlIHdlYmhvb2sga2V5', null, $3)",
            f"https://{host}/hooks/holdfast?key=hunter2-secret",
            events,
            owner,
        )
        for host, events, owner in (
            ("billing.example.org", ["job.partial", "batch.completed"], None),
            ("acme.example.com", ["job.partial"], "acme"),
            ("old.example.net", ["artifact.expiring"], "zeta"),
        )
    ]
    await conn.execute(
        "select holdfast.record_webhook_result($1, $2)",
        webhook_ids[1],
        "The endpoint did not respond in time.",
    )
    gone = "The endpoint returned 410 Gone."
    await conn.execute("select holdfast.record_webhook_result($1, $2, true)", webhook_ids[2], gone)


async def _create_sessions(conn: Connection) -> None:
    await conn.execute(
        "select holdfast.create_service_key('on-call', 'hf_k7m2pq9x', $1, '{dashboard:operator}')",
        secrets.token_bytes(32),
    )
    start = "select holdfast.start_dashboard_session($1, $2, $3, $4, $5, null, $6, $7, 43200)"
    for login, key, name, role, address, user_agent in (
        ("key", "hf_k7m2pq9x", "on-call", "operator", "198.51.100.24", SAFARI_ON_IPHONE),
        ("settings_key", None, "service key", "admin", "2001:db8:85a3::8a2e:370:7334", EDGE_ON_WINDOWS),
        ("link", None, "bob", "viewer", "203.0.113.9", "<script>window.hacked=1</script> robot/1.0"),
    ):
        digest = secrets.token_bytes(32)
        await conn.execute(start, digest, login, key, name, role, address, user_agent)


async def _create_stats(conn: Connection, rng: random.Random) -> None:
    """Create statistics of a day."""
    for span, count in ((60, 360), (900, 96)):
        rows = [
            (
                span,
                n,
                queue,
                task_type,
                rng.randint(20, 60) * span // 60,
                rng.randint(0, 4),
                rng.randint(5, 9),
            )
            for n in range(count)
            for queue, task_type in (("browser", "screenshot"), ("ai", "caption"), ("default", "export"))
        ]
        values = []
        for row in rows:
            counts = [0] * 24
            counts[row[6]] = row[4]
            counts[row[6] + 4] = max(row[4] // 12, 1)
            values.append((*row[:6], counts))
        await conn.executemany(
            """insert into holdfast.metric_samples (span_s, at, queue, type, succeeded, failed,
              wait_histogram, run_histogram)
            values ($1::int, to_timestamp(floor(extract(epoch from holdfast.now()) / $1::int) * $1::int)
              - $2::int * $1::int * interval '1 second', $3, $4, $5, $6, $7, $7) on conflict do nothing""",
            values,
        )
    await conn.execute(
        """insert into holdfast.activity_samples (span_s, kind, at, name, succeeded, failed, run_s)
        select s.span, k.kind, to_timestamp(floor(extract(epoch from holdfast.now()) / s.span - n) * s.span),
          k.name, (k.size * (1.5 + sin(n / 9.0 + k.size)) * s.span / 60)::int, (n % 7 = 0)::int,
          k.size * s.span / 60.0
        from (values (60, 360), (900, 96)) as s (span, points)
        cross join lateral generate_series(0, s.points - 1) as n
        cross join (values ('worker', 'worker-1', 30), ('worker', 'worker-2', 18), ('worker', 'worker-3', 4),
          ('owner', 'acme', 20), ('owner', 'globex', 12), ('owner', 'initech', 8), ('owner', 'umbrella', 6),
          ('owner', 'hooli', 5), ('owner', 'stark', 4), ('owner', 'wayne', 3), ('owner', 'tyrell', 2),
          ('owner', 'cyberdyne', 2), ('owner', '<b>owner</b>', 1), ('owner', '', 9)) as k (kind, name, size)
        on conflict do nothing"""
    )
    await conn.execute(
        """insert into holdfast.queue_depths (at, queue, ready, running)
        select date_trunc('minute', holdfast.now()) - n * interval '1 minute', 'browser',
          (60 + 40 * sin(n / 7.0))::int, 8
        from generate_series(1, 60) as n on conflict do nothing"""
    )
