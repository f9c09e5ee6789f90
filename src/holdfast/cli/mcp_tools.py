"""The tools of `holdfast mcp`. Their results are bounded, and they only read unless an action was allowed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, TypeAlias, cast
from uuid import UUID

import msgspec
from msgspec import Meta

from holdfast import search as grammar
from holdfast.cli.actor import record_audit_event
from holdfast.cli.explain import explain_job
from holdfast.cli.identifiers import resolve_job_id
from holdfast.engine import error_groups, jobs, limits, search, task_types
from holdfast.engine import explain as task_explanations
from holdfast.engine import queues as task_queues
from holdfast.engine import workers as engine_workers
from holdfast.engine.connection import Connection
from holdfast.engine.secret_payloads import load_secret_maskers
from holdfast.errors import InvalidError, NotFoundError, RefusedError
from holdfast.redaction import UNMASKABLE_TEXT, SecretMasker, find_secret_fields, is_secret_field

ToolResult: TypeAlias = dict[str, Any]
MAX_SHOWN_TASKS_PER_JOB = 50
MAX_SHOWN_ATTEMPTS_PER_TASK = 5
MAX_RESULT_TEXT_CHARS = 4000
HIDDEN_PARTS = ("message", "error", "progress", "params", "tasks", "output", "reasons")

SEARCH_TERMS_HELP = (
    "Search terms separated by spaces, for example `state:failed task:screenshot error:Timeout since:2h "
    "args.url:https://e.example`. Fields: state, queue, task, owner, tag, worker, error, since, until, "
    "attempt, wait, run, key, args.NAME, result.NAME. A comma between values means or. A leading - excludes. "
    "Put a value with spaces in double quotes. Empty: all jobs."
)
JobId = Annotated[
    str,
    Meta(description="The id of a job, or its last or first digits if they are unambiguous.", max_length=40),
]


class EmptyToolParameters(msgspec.Struct, forbid_unknown_fields=True):
    pass


class SearchToolParameters(msgspec.Struct, forbid_unknown_fields=True):
    search: Annotated[str, Meta(description=SEARCH_TERMS_HELP, max_length=4000)] = ""
    limit: Annotated[int, Meta(ge=1, le=100, description="Return at most this many jobs, newest first.")] = 20


class JobToolParameters(msgspec.Struct, forbid_unknown_fields=True):
    id: JobId


class ErrorToolParameters(msgspec.Struct, forbid_unknown_fields=True):
    hours: Annotated[
        float,
        Meta(
            gt=0,
            le=720,
            description="Return error groups with a failed attempt within this many hours before now.",
        ),
    ] = 24.0
    limit: Annotated[
        int,
        Meta(ge=1, le=100, description="Return at most this many error groups, most recent failure first."),
    ] = 20


class CancelToolParameters(msgspec.Struct, forbid_unknown_fields=True):
    id: JobId
    reason: Annotated[
        str,
        Meta(
            min_length=1, max_length=500, description="Why the job is cancelled. It is stored with the job."
        ),
    ]


@dataclass(frozen=True)
class McpTool:
    """A tool that an agent can call. `action` is the permission it needs; None for read-only tools."""

    name: str
    description: str
    parameters: Any
    call: Callable[[Connection, Any], Awaitable[ToolResult]]
    action: str | None = None
    find_jobs: Callable[[ToolResult], list[tuple[str, ToolResult]]] = lambda _: []
    """Returns the ids of the jobs in a result, each with the part of the result that is about the job."""

    def build_listing(self) -> ToolResult:
        """Return the name, description and input schema of the tool, for `tools/list`."""
        _, definitions = msgspec.json.schema_components([self.parameters])
        schema = definitions[self.parameters.__name__]
        return {
            "name": self.name,
            "description": self.description,
            "inputSchema": {"type": "object", "properties": schema["properties"],
                            "required": schema["required"], "additionalProperties": False},
            "annotations": {"readOnlyHint": self.action is None, "destructiveHint": self.action == "cancel",
                            "idempotentHint": True, "openWorldHint": False},
        }  # fmt: skip

    async def run(self, connection: Connection, arguments: Any) -> ToolResult:
        """Validate the arguments, call the tool, and mask secrets and cut long texts in its result."""
        try:
            parameters = msgspec.convert(arguments, self.parameters)
        except msgspec.ValidationError as error:
            raise InvalidError(f"The arguments are invalid: {error}.", field="arguments") from None
        result: ToolResult = msgspec.to_builtins(await self.call(connection, parameters), enc_hook=str)
        masker = await _collect_secrets(connection, self.find_jobs(result))
        return cast("ToolResult", _truncate_texts(masker.mask_value(result)))


async def _collect_secrets(connection: Connection, parts: list[tuple[str, ToolResult]]) -> SecretMasker:
    """Return a masker for the secrets of jobs. Hide the texts of jobs whose secrets are not known."""
    masker = SecretMasker()
    known = await load_secret_maskers(connection, [UUID(job_id) for job_id, _ in parts]) if parts else {}
    for job_id, part in parts:
        job_masker = known.get(UUID(job_id))
        if job_masker is not None:
            masker.add_secrets_of(job_masker)
        else:
            part.update({name: UNMASKABLE_TEXT for name in HIDDEN_PARTS if part.get(name)})
    return masker


def _truncate_texts(value: Any) -> Any:
    """Return a copy of a tool's result in which long texts are cut off."""
    if isinstance(value, dict):
        return {name: _truncate_texts(inner) for name, inner in cast("ToolResult", value).items()}
    if isinstance(value, (list, tuple)):
        return [_truncate_texts(inner) for inner in cast("Sequence[Any]", value)]
    if isinstance(value, str) and len(value) > MAX_RESULT_TEXT_CHARS:
        return f"{value[:MAX_RESULT_TEXT_CHARS]}… ({len(value):,} characters)"
    return value


async def _list_jobs(connection: Connection, parameters: SearchToolParameters) -> ToolResult:
    query = grammar.parse_search(parameters.search)
    paths = [step for term in query.terms for step in term.path]
    types = await task_types.list_task_types(connection) if paths else []
    secret_fields = frozenset[str]().union(*(find_secret_fields(each["schema"]) for each in types))
    if any(is_secret_field(step, secret_fields) for step in paths):
        raise RefusedError("Masked fields cannot be searched, because a search would reveal their values.")
    # A search that matches a masked message would confirm a guess of the secret in it.
    query = replace(query, skip_error_messages=True)
    page = await search.search_jobs(connection, query, limit=parameters.limit)
    return {"jobs": page.rows, "more": page.next is not None, "searched_all": not page.truncated}


async def _get_job(connection: Connection, parameters: JobToolParameters) -> ToolResult:
    job_id = await resolve_job_id(connection, parameters.id)
    job = await jobs.get_job(connection, job_id)
    if job is None:
        raise NotFoundError(f"Job {job_id} does not exist.", field="id")
    job["tasks_left_out"] = max(0, len(job["tasks"]) - MAX_SHOWN_TASKS_PER_JOB)
    job["tasks"] = job["tasks"][:MAX_SHOWN_TASKS_PER_JOB]
    for task in job["tasks"]:
        attempts = (
            await task_explanations.list_task_attempts(connection, UUID(task["id"]))
            if task["attempt"]
            else []
        )
        task["attempts"] = [msgspec.structs.asdict(each) for each in attempts[-MAX_SHOWN_ATTEMPTS_PER_TASK:]]
    return job


async def _explain_job(connection: Connection, parameters: JobToolParameters) -> ToolResult:
    job_id = await resolve_job_id(connection, parameters.id)
    return {"id": str(job_id), "reasons": await explain_job(connection, job_id)}


async def _list_queues(connection: Connection, _: EmptyToolParameters) -> ToolResult:
    return {
        "queues": await task_queues.list_task_queues(connection),
        "limits": await limits.list_limits(connection),
    }


async def _list_errors(connection: Connection, parameters: ErrorToolParameters) -> ToolResult:
    since = datetime.now(UTC) - timedelta(hours=parameters.hours)
    return {"causes": await error_groups.list_error_groups(connection, since=since, limit=parameters.limit)}


async def _list_workers(connection: Connection, _: EmptyToolParameters) -> ToolResult:
    return {"workers": await engine_workers.list_workers(connection)}


async def _retry_job(connection: Connection, parameters: JobToolParameters) -> ToolResult:
    job_id = await resolve_job_id(connection, parameters.id)
    count = await jobs.retry_job(connection, job_id)
    await record_audit_event(connection, "job.retry", str(job_id), by="mcp")
    return {"id": str(job_id), "restarted": count}


async def _cancel_job(connection: Connection, parameters: CancelToolParameters) -> ToolResult:
    job_id = await resolve_job_id(connection, parameters.id)
    result = await jobs.cancel_job(connection, job_id, parameters.reason)
    await record_audit_event(connection, "job.cancel", str(job_id), reason=parameters.reason, by="mcp")
    return {"id": str(job_id), **result}


MCP_TOOLS = [
    McpTool(
        "list_jobs",
        "Find jobs by search terms, newest first. `more` says whether there are further jobs, and "
        "`searched_all` whether the whole history was searched.",
        SearchToolParameters,
        _list_jobs,
        find_jobs=lambda result: [(row["id"], row) for row in result["jobs"]],
    ),
    McpTool(
        "get_job",
        "Return one job with its status, arguments, output, tasks, and the errors of its failed attempts.",
        JobToolParameters,
        _get_job,
        find_jobs=lambda result: [(result["id"], result)],
    ),
    McpTool(
        "explain_job",
        "Explain why a job is not running, for each unfinished task: its queue is paused, no worker serves "
        "it, a limit is full, it waits for another task, or it is scheduled for later.",
        JobToolParameters,
        _explain_job,
        find_jobs=lambda result: [(result["id"], result)],
    ),
    McpTool(
        "list_queues",
        "List task queues with their numbers of ready, running and scheduled tasks, their workers, and "
        "whether they are paused. Also list all concurrency limits and rate limits.",
        EmptyToolParameters,
        _list_queues,
    ),
    McpTool(
        "list_errors",
        "List error groups (failed attempts with the same cause), with counts and the first and last time, "
        "most recent failure first.",
        ErrorToolParameters,
        _list_errors,
        find_jobs=lambda result: [(row["newest_job"], row) for row in result["causes"]],
    ),
    McpTool(
        "list_workers",
        "List workers, also idle ones, with their state, queues, load and last heartbeat.",
        EmptyToolParameters,
        _list_workers,
    ),
    McpTool(
        "retry_job",
        "Run the failed and cancelled tasks of a job again. `restarted` is their number; 0 means that there "
        "was nothing to retry.",
        JobToolParameters,
        _retry_job,
        "retry",
    ),
    McpTool(
        "cancel_job",
        "Cancel a job. Its running tasks are stopped and their results are discarded.",
        CancelToolParameters,
        _cancel_job,
        "cancel",
    ),
]
