"""`holdfast job show|watch|why|logs`: inspect one job. See job_search.py and job_actions.py for the rest."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

import click
import msgspec

from holdfast.cli import explain, job_watch
from holdfast.cli.completers import suggest_job_ids
from holdfast.cli.identifiers import resolve_job_id
from holdfast.cli.output import CliOutput, strip_control_characters
from holdfast.cli.parameters import DURATION
from holdfast.cli.rows import get_list_or_empty
from holdfast.cli.session import CliSession, json_option, pass_session
from holdfast.engine import explain as engine_explain
from holdfast.engine import jobs
from holdfast.engine.connection import Connection
from holdfast.engine.logs import read_logs
from holdfast.errors import NotFoundError
from holdfast.formatting import (
    format_age,
    format_count,
    format_elapsed,
    format_progress,
    format_state,
    sanitize_text,
)

LOG_POLL_INTERVAL_S = 0.3
MAX_SHOWN_TASKS = 200
MAX_LOG_LINES = 5000
MAX_SHOWN_VALUE_CHARS = 2000
MAX_ATTEMPT_ERROR_CHARS = 500
MAX_LISTED_TASK_NAMES = 20


@click.group("job")
def job_command() -> None:
    """List, inspect, watch, retry and cancel jobs.

    A JOB is an id, or its last or first digits if they are unambiguous. Jobs of the same minute share their
    first digits. The short form that Holdfast prints (019a1e38…d5d14) is accepted.
    """


def job_argument(command: Any) -> Any:
    """Add the command-line argument JOB, with shell completion from the newest jobs."""
    return click.argument("job_id", metavar="JOB", shell_complete=suggest_job_ids)(command)


@job_command.command("show")
@job_argument
@json_option
@pass_session
def show_job(session: CliSession, job_id: str) -> None:
    """Show a job with its tasks, its failed attempts and its output."""

    async def fetch_job_with_attempts(connection: Connection) -> dict[str, Any]:
        row = await get_job_or_fail(connection, await resolve_job_id(connection, job_id))
        for task in [task for task in row["tasks"] if _has_failed_attempts(task)][:MAX_SHOWN_TASKS]:
            attempts = await engine_explain.list_task_attempts(connection, UUID(task["id"]))
            task["attempts"] = [msgspec.structs.asdict(attempt) for attempt in attempts]
        return row

    row = session.run_with_connection(fetch_job_with_attempts)
    if session.output.json:
        session.output.print_record(row)
    else:
        _print_job(session.output, row)


def _has_failed_attempts(task: dict[str, Any]) -> bool:
    """Return whether a task has failed attempts. The database stores only attempts that did not succeed."""
    return task["attempt"] > 1 or task["failures"] > 0 or task["status"] in {"failed", "cancelled"}


async def get_job_or_fail(connection: Connection, job_id: UUID) -> dict[str, Any]:
    """Return a job with its tasks, or raise `NotFoundError`."""
    row = await jobs.get_job(connection, job_id)
    if row is None:
        raise NotFoundError(
            f"Job {job_id} does not exist.",
            fix="Its transaction may not be committed yet, or the job was deleted after its retention time.",
            field="id",
        )
    return row


def _print_job(output: CliOutput, row: dict[str, Any]) -> None:
    progress = format_progress(row["progress"])
    output.print_line(f"{row['type']} {row['id']}  {format_state(row['status'])}  {progress}")
    started = row.get("started_at")
    fields = {
        "owner": row.get("owner"),
        "labels": row.get("labels"),
        "params": row.get("params"),
        "created": f"{format_age(row['created_at'])} ago",
        "ran": format_elapsed(started, row.get("finished_at")) if started else None,
        "output": row.get("output"),
    }
    for name, value in fields.items():
        if value is not None:
            output.print_line(
                f"  {name:<8} {sanitize_text(_format_json_value(value), MAX_SHOWN_VALUE_CHARS)}"
            )
    for task in row["tasks"][:MAX_SHOWN_TASKS]:
        elapsed = format_elapsed(task.get("started_at"), task.get("finished_at"))
        output.print_line(
            f"  {format_state(task['status']):<12} {task['name']:<20} queue {task['queue']}  "
            f"attempt {task['attempt']}  {elapsed}  {format_progress(task['progress'])}"
        )
        for attempt in get_list_or_empty(task, "attempts"):
            _print_attempt(output, attempt)
    if len(row["tasks"]) > MAX_SHOWN_TASKS:
        hidden = format_count(len(row["tasks"]) - MAX_SHOWN_TASKS, "more task")
        output.print_line(f"  and {hidden}; --json prints all of them")


def _print_attempt(output: CliOutput, attempt: dict[str, Any]) -> None:
    elapsed = format_elapsed(attempt["started_at"], attempt["ended_at"])
    output.print_line(
        f"      attempt {attempt['attempt']} {attempt['outcome']} after {elapsed} on "
        f"{attempt['worker'] or '?'}: {attempt['error_type'] or ''} "
        f"{sanitize_text(attempt['message'] or '', MAX_ATTEMPT_ERROR_CHARS)}"
    )
    for line in str(attempt["traceback"] or "").splitlines():
        output.print_line(f"        {strip_control_characters(line, keep='')}")


def _format_json_value(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value, enc_hook=str).decode()


@job_command.command("watch")
@job_argument
@click.option(
    "--wait-timeout",
    type=DURATION,
    help="Stop waiting for the job after this duration, such as 5m. Default: wait until the job ends.",
)
@json_option
@pass_session
def watch_job(session: CliSession, job_id: str, wait_timeout: timedelta | None) -> int:
    """Show the progress of a job until it ends, and print its output. Exit with code 1 if it fails."""

    async def follow_until_end() -> int:
        async with session.client() as client:
            async with client.connection() as connection:
                job_uuid = await resolve_job_id(connection, job_id)
            last = await job_watch.watch_job(session.output, client, job_uuid, max_wait=wait_timeout)
            return job_watch.print_job_outcome(session.output, last)

    return session.run_async(follow_until_end())


@job_command.command("why")
@job_argument
@json_option
@pass_session
def explain_job(session: CliSession, job_id: str) -> None:
    """Explain why a job is not running.

    Print one line for each unfinished task and reason.
    """

    async def fetch_reasons(connection: Connection) -> list[dict[str, Any]]:
        return await explain.explain_job(connection, await resolve_job_id(connection, job_id))

    rows = session.run_with_connection(fetch_reasons)
    if not session.output.json:
        rows = [{**row, "status": format_state(row["status"])} for row in rows]
    session.output.print_rows(rows, ["task", "status", "why"])


@job_command.command("logs")
@job_argument
@click.option(
    "--task",
    "task_name",
    metavar="NAME",
    help="Print only log lines of the task with this name. Default: log lines of all tasks.",
)
@click.option(
    "--level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="debug",
    show_default=True,
    help="Print only log lines of this level or a higher level.",
)
@click.option(
    "--limit",
    "-n",
    type=click.IntRange(1, MAX_LOG_LINES),
    default=500,
    show_default=True,
    help="Print at most this many of the latest log lines.",
)
@click.option(
    "--follow",
    "-f",
    is_flag=True,
    help="Print new log lines as they arrive, until the job ends. Default: print the stored log "
    "lines and exit.",
)
@json_option
@pass_session
def print_job_logs(
    session: CliSession, job_id: str, task_name: str | None, level: str, limit: int, follow: bool
) -> None:
    """Print the log lines of a job, oldest first.

    Each line has the name of its task and the number of the attempt.
    """

    async def print_until_end(connection: Connection) -> None:
        row = await get_job_or_fail(connection, await resolve_job_id(connection, job_id))
        reader = _LogPrinter(UUID(row["id"]), _find_task_id(row, task_name), level)
        await reader.print_new_lines(session.output, connection, limit=limit, newest=True)
        while follow and not row.get("finished_at"):
            await asyncio.sleep(LOG_POLL_INTERVAL_S)
            row = await get_job_or_fail(connection, reader.job_id)
            await reader.print_new_lines(session.output, connection, limit=MAX_LOG_LINES)

    session.run_with_connection(print_until_end)


def _find_task_id(row: dict[str, Any], name: str | None) -> UUID | None:
    if name is None:
        return None
    ids = {task["name"]: UUID(task["id"]) for task in row["tasks"]}
    if name not in ids:
        names = ", ".join(list(ids)[:MAX_LISTED_TASK_NAMES])
        raise NotFoundError(f"The job has no task {name!r}.", fix=f"Its tasks are: {names}.")
    return ids[name]


@dataclass
class _LogPrinter:
    """Prints the log lines of a job. Each call starts after the last printed line."""

    job_id: UUID
    task_id: UUID | None
    level: str
    after: int = 0
    task_names: dict[UUID, str] = field(default_factory=dict[UUID, str])

    async def print_new_lines(
        self, output: CliOutput, connection: Connection, *, limit: int, newest: bool = False
    ) -> None:
        lines = await read_logs(
            connection, self.job_id, after=self.after, limit=limit, task_id=self.task_id,
            level=self.level, newest=newest,
        )  # fmt: skip
        if any(line.task_id not in self.task_names for line in lines):
            row = await get_job_or_fail(connection, self.job_id)
            self.task_names = {UUID(task["id"]): task["name"] for task in row["tasks"]}
        for line in lines:
            self.after = line.n
            name = self.task_names.get(line.task_id, str(line.task_id))
            if output.json:
                output.print_record({"task": name, **msgspec.to_builtins(line, enc_hook=str)})
            else:
                fields = " ".join(f"{key}={_format_json_value(value)}" for key, value in line.fields.items())
                text = sanitize_text(f"{line.message} {fields}", MAX_SHOWN_VALUE_CHARS)
                at = line.at.astimezone().strftime("%H:%M:%S")
                output.print_line(f"{at} {line.level:<7} {name}#{line.attempt} {text}")
