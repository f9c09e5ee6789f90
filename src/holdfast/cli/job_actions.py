"""`holdfast job cancel|retry|rerun`: commands that change jobs."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, cast
from uuid import UUID

import click

from holdfast import search as grammar
from holdfast.cli import bulk, job_watch, parameters
from holdfast.cli.actor import get_local_actor, record_audit_event
from holdfast.cli.completers import suggest_job_ids
from holdfast.cli.identifiers import resolve_job_id
from holdfast.cli.job import MAX_LISTED_TASK_NAMES, get_job_or_fail, job_argument, job_command
from holdfast.cli.parameters import DURATION
from holdfast.cli.session import CliSession, json_option, pass_session, run_on_each_shard
from holdfast.client import Client
from holdfast.definitions.payloads import encode_payload
from holdfast.engine import job_detail, jobs
from holdfast.engine.connection import Connection
from holdfast.errors import ConflictError, InvalidError, RefusedError
from holdfast.formatting import format_count


def job_selection_options(command: Any) -> Any:
    """Add the argument JOB... and the option --search to a command that selects jobs."""
    command = click.option(
        "--search",
        metavar="TERMS",
        help="Select jobs by search terms, such as state:failed queue:mail, and start a bulk action on "
        "them. Default: the jobs with the given ids.",
    )(command)
    return click.argument("job_ids", metavar="[JOB]...", nargs=-1, shell_complete=suggest_job_ids)(
        bulk.bulk_options(command)
    )


def _check_job_selection(job_ids: tuple[str, ...], search: str | None) -> None:
    if bool(job_ids) == (search is not None):
        raise click.UsageError("Give job ids or --search, but not both.")


@job_command.command("cancel")
@job_selection_options
@json_option
@pass_session
@run_on_each_shard
def cancel_jobs(session: CliSession, /, job_ids: tuple[str, ...], search: str | None, **options: Any) -> int:
    """Cancel jobs. Their running tasks are stopped, and the results of those tasks are discarded.

    The bulk options (--wait, --max-failure-rate, --max-per-second, --all-at-once) apply to --search only.
    """
    _check_job_selection(job_ids, search)

    async def confirm_and_cancel(connection: Connection) -> int:
        if search is not None:
            query = grammar.parse_search(search)
            return await bulk.start_bulk_action(session, connection, "cancel", query, options)
        selected = [
            await get_job_or_fail(connection, await resolve_job_id(connection, job_id)) for job_id in job_ids
        ]
        unfinished = [row for row in selected if not row.get("finished_at")]
        ended = len(selected) - len(unfinished)
        note = f" ({ended} already ended)" if ended else ""
        consequence = f"This cancels {format_count(len(unfinished), 'job')}{note}."
        if not session.confirm(consequence, yes=options["yes"], dry_run=options["dry_run"]):
            return 0
        results = [await _cancel_job(connection, row["id"], options["reason"]) for row in selected]
        session.output.print_rows(results, ["id", "status", "cancelled"])
        return 0 if all(result["status"] == "cancelled" for result in results) else ConflictError.exit_code

    return session.run_with_connection(confirm_and_cancel)


async def _cancel_job(connection: Connection, job_id: str, reason: str | None) -> dict[str, Any]:
    result = await jobs.cancel_job(connection, UUID(job_id), reason)
    if result["cancelled"]:
        await record_audit_event(connection, "job.cancel", job_id, reason=reason)
    return {"id": job_id, **result}


@job_command.command("retry")
@job_selection_options
@click.option(
    "--from",
    "from_tasks",
    multiple=True,
    metavar="TASK",
    help="Run the task with this name and all tasks after it again, and keep the results of "
    "earlier tasks. Repeat the option to name several tasks. Default: the failed and "
    "cancelled tasks.",
)
@click.option(
    "--delay",
    type=DURATION,
    default="0s",
    show_default=True,
    help="Wait for this duration before the jobs run again, such as 5m.",
)
@json_option
@pass_session
@run_on_each_shard
def retry_jobs(session: CliSession, /, job_ids: tuple[str, ...], search: str | None, **options: Any) -> int:
    """Retry failed and cancelled jobs. They keep their ids and the results of tasks that succeeded.

    The bulk options (--wait, --max-failure-rate, --max-per-second, --all-at-once) apply to --search only.
    """
    _check_job_selection(job_ids, search)

    async def retry_selected_jobs(connection: Connection) -> int:
        if search is not None:
            return await bulk.start_bulk_action(
                session, connection, "retry", grammar.parse_search(search), options
            )
        if options["dry_run"]:
            session.confirm(f"This retries {format_count(len(job_ids), 'job')}.", yes=True, dry_run=True)
            return 0
        results = [await _retry_job(connection, job_id, options) for job_id in job_ids]
        _print_retried_jobs(session, results)
        return 0

    return session.run_with_connection(retry_selected_jobs)


async def _retry_job(connection: Connection, job_id: str, options: dict[str, Any]) -> dict[str, Any]:
    job_uuid, delay = await resolve_job_id(connection, job_id), cast("timedelta", options["delay"])
    from_tasks = options["from_tasks"] or None
    count = await jobs.retry_job(connection, job_uuid, from_tasks=from_tasks, delay=delay)
    if count:
        await record_audit_event(connection, "job.retry", str(job_uuid), tasks=from_tasks)
    return {"id": job_uuid, "restarted": count}


def _print_retried_jobs(session: CliSession, results: list[dict[str, Any]]) -> None:
    """Print how many tasks of each job will run again. Raise `ConflictError` if no task will."""
    if session.output.json:
        session.output.print_rows(results, [])
    for result in results:
        tasks = format_count(result["restarted"], "task") if result["restarted"] else "no task"
        session.output.print_line(f"Job {result['id']}: {tasks} will run again.")
    if not any(result["restarted"] for result in results):
        raise ConflictError(
            "No task of these jobs can be retried.",
            fix="Only failed and cancelled tasks can be retried; `holdfast job rerun` submits a copy of "
            "any job.",
        )


@job_command.command("rerun")
@job_argument
@click.argument("changes", nargs=-1)
@click.option(
    "--task",
    metavar="NAME",
    help="Apply the changed arguments to the task with this name. Required if the job has several tasks.",
)
@click.option("--key", help="Set the idempotency key of the new job. Default: none.")
@click.option(
    "--wait",
    is_flag=True,
    help="Wait until the new job ends, print its output, and exit with code 1 if it failed. "
    "Default: print the new job's id and exit.",
)
@click.option(
    "--print", "print_only", is_flag=True, help="Print the new job as JSON instead of submitting it."
)
@json_option
@pass_session
def rerun_job(session: CliSession, /, job_id: str, changes: tuple[str, ...], **options: Any) -> int:
    """Submit a copy of a job, with changed arguments.

    Print the id of the new job. CHANGES are pairs such as name=text count:=3. The old job stays as it is.
    """

    async def submit_and_wait() -> int:
        async with session.client() as client:
            new_job = await _submit_job_copy(session, client, job_id, changes, options)
            if new_job is None or not options["wait"]:
                return 0
            ended = await job_watch.wait_for_job(client, new_job)
            return job_watch.print_job_outcome(session.output, ended)

    return session.run_async(submit_and_wait())


async def _submit_job_copy(
    session: CliSession, client: Client, job_id: str, changes: tuple[str, ...], options: dict[str, Any]
) -> UUID | None:
    """Submit a copy of a job and return its id. With `--print`, print the copy and return None."""
    async with client.connection() as connection:
        old_id = await resolve_job_id(connection, job_id)
        old_body = await job_detail.build_job_resubmission(connection, old_id)
        body = _change_arguments(old_body, parameters.parse_pairs(changes), options["task"])
        if options["key"]:
            body = {**body, "key": options["key"]}
        if options["print_only"]:
            session.output.print_value("job", encode_payload(body, what="the job").decode())
            return None
        submitted = await jobs.submit(connection, encode_payload(body, what="the job"))
        await job_detail.record_job_rerun(connection, old_id, submitted.id, get_local_actor())
        await record_audit_event(connection, "job.rerun", str(old_id), job=str(submitted.id))
    if session.output.json:
        session.output.print_record({"id": submitted.id, "created": submitted.created, "rerun_of": old_id})
    elif not options["wait"]:
        session.output.print_value("id", submitted.id)
    return submitted.id


def _change_arguments(body: dict[str, Any], changes: dict[str, Any], task: str | None) -> dict[str, Any]:
    """Return a copy of a job's body with changed arguments of the task `task`, or of its only task."""
    tasks: list[dict[str, Any]] | None = body.get("tasks")
    if not changes:
        return body
    if tasks is None:
        return {**body, "args": {**(body.get("args") or {}), **changes}}
    names = [each["name"] for each in tasks]
    listed = ", ".join(names[:MAX_LISTED_TASK_NAMES])
    if task is None:
        raise RefusedError(
            f"The job has {len(tasks)} tasks. Say which one the changed arguments are for.",
            fix=f"Name one with --task: {listed}.",
        )
    if task not in names:
        raise InvalidError(f"The job has no task {task!r}.", fix=f"Its tasks are: {listed}.", field="task")
    return {
        **body,
        "tasks": [
            {**each, "args": {**(each.get("args") or {}), **changes}} if each["name"] == task else each
            for each in tasks
        ],
    }
