"""`holdfast job cancel|retry|rerun`: what changes jobs."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, cast
from uuid import UUID

import click

from holdfast import search as grammar
from holdfast.cli import bulk, values, words
from holdfast.cli.job import fetched, job, job_argument
from holdfast.cli.naming import complete_job, job_named
from holdfast.cli.session import Session, json_option, pass_session
from holdfast.cli.values import SPAN
from holdfast.cli.who import record, somebody
from holdfast.definitions.payloads import to_json
from holdfast.engine import insight, jobs, operate
from holdfast.engine.connection import Connection
from holdfast.errors import ConflictError, InvalidError, RefusedError


def many_jobs(command: Any) -> Any:
    """Jobs by their ids, or all that fit a search."""
    command = click.option("--search", metavar="TEXT", help="All that fit, as an action on many.")(command)
    return click.argument("job_ids", metavar="JOB", nargs=-1, shell_complete=complete_job)(
        bulk.options(command)
    )


def _chosen(job_ids: tuple[str, ...], search: str | None) -> None:
    if bool(job_ids) == (search is not None):
        raise click.UsageError("Give ids, or --search, and not both.")


@job.command()
@many_jobs
@json_option
@pass_session
def cancel(session: Session, /, job_ids: tuple[str, ...], search: str | None, **given: Any) -> int:
    """Cancel jobs. What runs is told to stop, and its result is no longer wanted."""
    _chosen(job_ids, search)

    async def work(connection: Connection) -> int:
        if search is not None:
            return await bulk.start(session, connection, "cancel", grammar.parse(search), given)
        chosen = [await fetched(connection, await job_named(connection, word)) for word in job_ids]
        alive = [found for found in chosen if not found.get("finished_at")]
        consequence = f"{words.many(len(alive), 'job')} cancelled ({len(chosen) - len(alive)} ended already)."
        if not session.confirm(consequence, yes=given["yes"], dry_run=given["dry_run"]):
            return 0
        answers = [await _cancelled(connection, found["id"], given["reason"]) for found in chosen]
        session.out.rows(answers, ["id", "status", "cancelled"])
        return 0 if all(answer["status"] == "cancelled" for answer in answers) else ConflictError.exit_code

    return session.ask(work)


async def _cancelled(connection: Connection, job_id: str, reason: str | None) -> dict[str, Any]:
    answer = await jobs.cancel_job(connection, UUID(job_id), reason)
    if answer["cancelled"]:
        await record(connection, "job.cancel", job_id, reason=reason)
    return {"id": job_id, **answer}


@job.command()
@many_jobs
@click.option("--from", "from_tasks", multiple=True, metavar="TASK",
              help="Run this task again and all after it; results before it are used again.")  # fmt: skip
@click.option("--delay", type=SPAN, default="0s", help="Not before so long.")
@json_option
@pass_session
def retry(session: Session, /, job_ids: tuple[str, ...], search: str | None, **given: Any) -> int:
    """Run again what failed or was cancelled: the same jobs, with the same ids."""
    _chosen(job_ids, search)

    async def work(connection: Connection) -> int:
        if search is not None:
            return await bulk.start(session, connection, "retry", grammar.parse(search), given)
        if given["dry_run"]:
            session.confirm(f"{words.many(len(job_ids), 'job')} run again.", yes=True, dry_run=True)
            return 0
        rows = [await _again(connection, word, given) for word in job_ids]
        session.out.rows(rows, ["id", "restarted"])
        return _complain_if_nothing(rows)

    return session.ask(work)


async def _again(connection: Connection, word: str, given: dict[str, Any]) -> dict[str, Any]:
    job_id, delay = await job_named(connection, word), cast("timedelta", given["delay"])
    count = await jobs.retry_job(connection, job_id, from_tasks=given["from_tasks"] or None, delay=delay)
    if count:
        await record(connection, "job.retry", str(job_id), tasks=given["from_tasks"] or None)
    return {"id": job_id, "restarted": count}


def _complain_if_nothing(rows: list[dict[str, Any]]) -> int:
    if any(row["restarted"] for row in rows):
        return 0
    raise ConflictError(
        "Nothing was there to run again.",
        fix="Only what failed or was cancelled is; `holdfast job rerun` makes a new job of any.",
    )


@job.command()
@job_argument
@click.argument("changes", nargs=-1)
@click.option("--task", metavar="NAME", help="In a job of several tasks: whose arguments to change.")
@click.option("--key", help="The new job's key.")
@click.option(
    "--print", "print_only", is_flag=True, help="Print the job that would be submitted; submit nothing."
)
@json_option
@pass_session
def rerun(
    session: Session,
    job_id: str,
    changes: tuple[str, ...],
    task: str | None,
    key: str | None,
    print_only: bool,
) -> None:
    """A new job like JOB, with arguments changed by pairs like name=text count:=3. The old one stays."""

    async def work(connection: Connection) -> None:
        old = await job_named(connection, job_id)
        body = await operate.submission(connection, old)
        changed = _changed(body, values.pairs(changes), task)
        changed = {**changed, **({"key": key} if key else {})}
        if print_only:
            session.out.value("job", to_json(changed, what="the job").decode())
            return
        made = await jobs.submit(connection, to_json(changed, what="the job"))
        await insight.link_rerun(connection, old, made.id, somebody())
        await record(connection, "job.rerun", str(old), job=str(made.id))
        if session.out.json:
            session.out.record({"id": made.id, "created": made.created, "rerun_of": old})
        else:
            session.out.value("id", made.id)

    session.ask(work)


def _changed(body: dict[str, Any], changes: dict[str, Any], task: str | None) -> dict[str, Any]:
    tasks: list[dict[str, Any]] | None = body.get("tasks")
    if not changes:
        return body
    if tasks is None:
        return {**body, "args": {**(body.get("args") or {}), **changes}}
    names = [each["name"] for each in tasks]
    if task is None:
        raise RefusedError(
            f"The job has {len(tasks)} tasks, and the changes could be for any of them.",
            fix=f"Name one with --task: {', '.join(names[:20])}.",
        )
    if task not in names:
        raise InvalidError(
            f"The job has no task {task!r}.", fix=f"It has: {', '.join(names[:20])}.", field="task"
        )
    return {
        **body,
        "tasks": [
            {**each, "args": {**(each.get("args") or {}), **changes}} if each["name"] == task else each
            for each in tasks
        ],
    }
