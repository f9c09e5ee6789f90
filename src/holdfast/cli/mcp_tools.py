"""The tools of `holdfast mcp`: small, bounded, and read-only unless their verb was allowed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, cast
from uuid import UUID

import msgspec
from msgspec import Meta

from holdfast import search as grammar
from holdfast.cli import reasons
from holdfast.cli.naming import job_named
from holdfast.cli.who import record
from holdfast.engine import insight, jobs, operate, search
from holdfast.engine.connection import Connection
from holdfast.errors import InvalidError, NotFoundError, RefusedError
from holdfast.redaction import SECRET, Masker

Found = dict[str, Any]
MOST_TASKS = 50
LONGEST = 4000

SEARCH = (
    "Such as `state:failed task:screenshot error:Timeout since:2h args.url:https://e.example`. Fields: state "
    "queue task owner tag worker error since until attempt wait run key args.x result.x. A comma means or, "
    "a leading - excludes, quotes keep spaces."
)
Id = Annotated[str, Meta(description="Id of a job, or its beginning if that is unambiguous.", max_length=40)]


class Nothing(msgspec.Struct, forbid_unknown_fields=True):
    pass


class Searching(msgspec.Struct, forbid_unknown_fields=True):
    search: Annotated[str, Meta(description=SEARCH, max_length=4000)] = ""
    limit: Annotated[int, Meta(ge=1, le=100, description="At most so many, newest first.")] = 20


class OneJob(msgspec.Struct, forbid_unknown_fields=True):
    id: Id


class Causes(msgspec.Struct, forbid_unknown_fields=True):
    hours: Annotated[float, Meta(gt=0, le=720, description="How far to look back.")] = 24.0
    limit: Annotated[int, Meta(ge=1, le=100)] = 20


class Cancelling(msgspec.Struct, forbid_unknown_fields=True):
    id: Id
    reason: Annotated[str, Meta(min_length=1, max_length=500, description="Why; it is kept with the job.")]


@dataclass(frozen=True)
class Tool:
    name: str
    description: str
    params: Any
    act: Callable[[Connection, Any], Awaitable[Found]]
    verb: str | None = None

    def described(self) -> Found:
        _, definitions = msgspec.json.schema_components([self.params])
        inner = definitions[self.params.__name__]
        return {
            "name": self.name,
            "description": self.description,
            "inputSchema": {"type": "object", "properties": inner["properties"],
                            "required": inner["required"], "additionalProperties": False},
            "annotations": {"readOnlyHint": self.verb is None, "destructiveHint": self.verb == "cancel",
                            "idempotentHint": True, "openWorldHint": False},
        }  # fmt: skip

    async def run(self, connection: Connection, arguments: Any) -> Found:
        try:
            params = msgspec.convert(arguments, self.params)
        except msgspec.ValidationError as problem:
            raise InvalidError(f"The arguments do not fit: {problem}.", field="arguments") from None
        found: Found = msgspec.to_builtins(await self.act(connection, params), enc_hook=str)
        return cast("Found", _shortened(Masker().value(found)))


def _shortened(value: Any) -> Any:
    """With long texts cut: an agent reads all of what it is given."""
    if isinstance(value, dict):
        return {name: _shortened(inner) for name, inner in cast("Found", value).items()}
    if isinstance(value, (list, tuple)):
        return [_shortened(inner) for inner in cast("Sequence[Any]", value)]
    if isinstance(value, str) and len(value) > LONGEST:
        return f"{value[:LONGEST]}… ({len(value):,} characters)"
    return value


async def _list_jobs(connection: Connection, asked: Searching) -> Found:
    query = grammar.parse(asked.search)
    if any(SECRET.search(step) for term in query.terms for step in term.path):
        raise RefusedError("What is hidden cannot be searched for: one could find it out by guessing.")
    page = await search.search_jobs(connection, query, limit=asked.limit)
    return {"jobs": page.rows, "more": page.next is not None, "searched_all": not page.partly}


async def _show_job(connection: Connection, asked: OneJob) -> Found:
    job_id = await job_named(connection, asked.id)
    found = await jobs.get_job(connection, job_id)
    if found is None:
        raise NotFoundError(f"There is no job {job_id}.", field="id")
    found["tasks_left_out"] = max(0, len(found["tasks"]) - MOST_TASKS)
    found["tasks"] = found["tasks"][:MOST_TASKS]
    for task in found["tasks"]:
        tried = await insight.task_attempts(connection, UUID(task["id"])) if task["attempt"] else []
        task["attempts"] = [msgspec.structs.asdict(each) for each in tried[-5:]]
    return found


async def _why(connection: Connection, asked: OneJob) -> Found:
    return {"reasons": await reasons.why(connection, await job_named(connection, asked.id))}


async def _queues(connection: Connection, _: Nothing) -> Found:
    return {"queues": await operate.task_queues(connection), "limits": await operate.list_limits(connection)}


async def _errors(connection: Connection, asked: Causes) -> Found:
    since = datetime.now(UTC) - timedelta(hours=asked.hours)
    return {"causes": await search.error_groups(connection, since=since, limit=asked.limit)}


async def _workers(connection: Connection, _: Nothing) -> Found:
    return {"workers": await operate.list_workers(connection)}


async def _retry(connection: Connection, asked: OneJob) -> Found:
    job_id = await job_named(connection, asked.id)
    count = await jobs.retry_job(connection, job_id)
    await record(connection, "job.retry", str(job_id), by="mcp")
    return {"id": str(job_id), "restarted": count}


async def _cancel(connection: Connection, asked: Cancelling) -> Found:
    job_id = await job_named(connection, asked.id)
    answer = await jobs.cancel_job(connection, job_id, asked.reason)
    await record(connection, "job.cancel", str(job_id), reason=asked.reason, by="mcp")
    return {"id": str(job_id), **answer}


TOOLS = [
    Tool("list_jobs", "Find jobs by search text, newest first.", Searching, _list_jobs),
    Tool("show_job", "One job with its tasks, output and failed attempts.", OneJob, _show_job),
    Tool("why", "Why a job is not running: paused, no worker, a limit, another task.", OneJob, _why),
    Tool(
        "queues", "Queues of tasks with what waits and runs, who serves them, and limits.", Nothing, _queues
    ),
    Tool("errors", "Failed attempts grouped by cause, the one seen last first.", Causes, _errors),
    Tool("workers", "Workers, idle ones too, with their state and load.", Nothing, _workers),
    Tool("retry_job", "Run again what failed or was cancelled of a job.", OneJob, _retry, "retry"),
    Tool("cancel_job", "Cancel a job: what runs is stopped.", Cancelling, _cancel, "cancel"),
]
