"""What the keys of `holdfast top` do: select a row, pause or resume a queue, cancel a job, open a job.

An action that changes something asks first; `y` confirms, every other key withdraws it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import msgspec

from holdfast.cli.actor import get_local_actor, record_audit_event
from holdfast.cli.output import strip_control_characters
from holdfast.engine import jobs, limits
from holdfast.engine.connection import Connection
from holdfast.formatting import sanitize_text, shorten_id

MAX_DETAIL_CHARS = 4000


@dataclass(frozen=True)
class PendingAction:
    """An action that waits for `y`: the question, and the function that returns what was changed.

    With shards, an action without a job runs on all of them.
    """

    question: str
    run: Callable[[Connection], Awaitable[str]]
    job_id: UUID | None = None


def build_queue_action(queue: dict[str, Any]) -> PendingAction:
    """Return the action that pauses a queue, or resumes it if it is paused."""
    name = str(queue["queue"])
    shown, is_paused = sanitize_text(name, 60), bool(queue.get("paused_at"))

    async def pause_or_resume(connection: Connection) -> str:
        if is_paused:
            await limits.resume_queue(connection, name)
        else:
            await limits.pause_queue(connection, name, reason="holdfast top", by=get_local_actor())
        await record_audit_event(connection, "queue.resume" if is_paused else "queue.pause", name)
        return f"Queue {shown} is {'resumed' if is_paused else 'paused'}."

    verb = "Resume" if is_paused else "Pause"
    return PendingAction(f"{verb} queue {shown}? Press y.", pause_or_resume)


def build_cancel_action(job: dict[str, Any]) -> PendingAction:
    """Return the action that cancels a job."""
    job_id = UUID(str(job["id"]))
    shown = f"{sanitize_text(job['type'], 40)} {shorten_id(job_id)}"

    async def cancel(connection: Connection) -> str:
        result = await jobs.cancel_job(connection, job_id, "holdfast top")
        if not result["cancelled"]:
            return f"Job {shown} had already ended."
        await record_audit_event(connection, "job.cancel", str(job_id), reason="holdfast top")
        return f"Job {shown} is cancelled."

    return PendingAction(f"Cancel job {shown}? Press y.", cancel, job_id)


async def read_job_text(connection: Connection, job: dict[str, Any]) -> str:
    """Return the stored job as text, for the view that `enter` opens."""
    stored = await jobs.get_job(connection, UUID(str(job["id"])))
    text = msgspec.json.format(msgspec.json.encode(stored or {}), indent=2).decode()
    return strip_control_characters(text[:MAX_DETAIL_CHARS])
