"""Hostile texts in everything that the dashboard shows, for tests and attacks. They set `window.hacked`."""

from __future__ import annotations

import json
import re
from typing import Any
from uuid import UUID

from manual_worker import ManualWorker, build_outcome

from holdfast.engine import artifacts, jobs, queues, saved_views
from holdfast.engine.connection import Connection

HOSTILE_TEXTS = [
    "<script>window.hacked=1</script>",
    '"><img src=x onerror="window.hacked=1">',
    "{{ 7 * 7 }}{% raise %}",
    "</textarea></title></style><svg onload=window.hacked=1>",
    "javascript:window.hacked=1",
    "\u202etxt.exe\u2066\u200f",
    "\u0001\u0007\u001b[31m ﷽ 𒐫",
    "'; drop table holdfast.jobs; --",
    "A" * 200_000,  # the longest that fits into a payload with the rest
]


async def create_hostile_data(conn: Connection) -> dict[str, Any]:
    """Put hostile text into payloads, names, errors, progress messages, files and saved views."""
    job_ids: list[UUID] = []
    for text in HOSTILE_TEXTS:
        name = re.sub(r"[\x01-\x1f]", "", text)[:60]
        job = await jobs.submit(
            conn,
            {
                "type": name,
                "queue": name,
                "owner": name,
                "labels": {name: text},
                "args": {name: text, "big": "x" * 1000},
                "attempts": 1,
            },
        )
        job_ids.append(job.id)
        manual_worker = ManualWorker(conn, name, [name])
        (task,) = await manual_worker.claim_tasks(1)
        progress = json.dumps({str(task.id): {"percent": 50, "phase": text[:200], "message": text[:2000]}})
        await conn.execute("select holdfast.save_progress_of_tasks($1, $2)", progress, [task.id])
        about = {"host": text[:200], "version": text[:50]}
        await conn.execute("select holdfast.heartbeat_worker($1, $2)", name, json.dumps(about))
        error = {
            "type": text[:200],
            "message": text,
            "traceback": f'  File "{text}", line 1\n    {text}',
            "fingerprint": f"x {text}"[:200],
        }
        await manual_worker.finish_and_claim([build_outcome(task, "fail", error)])
        await queues.pause_queue_until(conn, name, None, reason=text[:200], by=name)
        # File names cannot have these characters.
        safe = re.sub(r"[\x00-\x1f\u200e\u200f\u202a-\u202e\u2066-\u2069]", "", text.replace("/", "_"))[:200]
        staged = await artifacts.stage_artifact_without_task(
            conn, {"name": safe, "content_type": "text/html", "job": str(job.id)}
        )
        await artifacts.record_artifact_upload(conn, staged.id, None, size=1, sha256="0" * 64, meta={})
        await conn.execute("select pgmq.send('clips', $1::jsonb)", json.dumps({text: text}))
        await saved_views.put_saved_view(conn, name, "jobs", text[:500].replace("\0", ""), by="ann")
    return {
        "jobs": job_ids,
        "types": [
            row["type"] for row in await conn.fetch("select distinct type from holdfast.task_policies")
        ],
    }
