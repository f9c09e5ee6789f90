"""`holdfast cron`: list, add, preview, run, pause, resume and delete schedules."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, TypeVar

import click
import msgspec

from holdfast.cli import job_watch
from holdfast.cli.actor import get_local_actor, record_audit_event
from holdfast.cli.parameters import DURATION, parse_json_or_pairs
from holdfast.cli.session import CliSession, confirmation_options, json_option, pass_session, row_limit_option
from holdfast.engine import schedules
from holdfast.engine.connection import Connection
from holdfast.errors import ConflictError, NotFoundError
from holdfast.model import StoredSchedule

T = TypeVar("T")
SCHEDULE_COLUMNS = ("name", "when", "timezone", "runs", "next_at", "last_at", "state")


@click.group("cron")
def cron_command() -> None:
    """Manage schedules, which submit jobs at set times."""


def _format_schedule(schedule: StoredSchedule) -> dict[str, Any]:
    when = schedule.cron or f"every {schedule.every_s:g}s"
    state = "paused" if schedule.paused_at else "failing" if schedule.last_error else "active"
    runs = schedule.job.get("type") or ", ".join(task["type"] for task in schedule.job["tasks"])
    row = {name: value for name, value in msgspec.structs.asdict(schedule).items() if name != "did"}
    return {**row, "when": when, "runs": runs, "state": state}


@cron_command.command("list")
@click.option("--owner", help="List only schedules of this owner. Default: schedules of all owners.")
@row_limit_option
@json_option
@pass_session
def list_schedules(session: CliSession, owner: str | None) -> None:
    """List schedules, sorted by name."""

    async def fetch_schedules() -> list[StoredSchedule]:
        async with session.client() as client:
            return await client.schedules.list(owner=owner)

    rows = [_format_schedule(schedule) for schedule in session.run_async(fetch_schedules())]
    session.output.print_rows(rows, SCHEDULE_COLUMNS)


@cron_command.command("show")
@click.argument("name")
@json_option
@pass_session
def show_schedule(session: CliSession, name: str) -> None:
    """Show a schedule: its times, its job, its next and its last run."""
    schedule = session.run_with_connection(lambda connection: schedules.get_schedule(connection, name))
    session.output.print_record(_format_schedule(schedule))


@cron_command.command("run")
@click.argument("name")
@click.option("--wait", is_flag=True, help="Wait for the job; exit with 1 if it fails. Default: do not wait.")
@json_option
@pass_session
def run_schedule_now(session: CliSession, name: str, wait: bool) -> int:
    """Submit the job of a schedule now. The next scheduled run does not change. Print the job's id.

    This also works while the schedule is paused.
    """
    submitted = _run_audited_action(session, "run", name, schedules.run_schedule)
    session.output.print_value("job", submitted.id)
    if not wait:
        return 0

    async def wait_until_ended() -> int:
        async with session.client() as client:
            ended = await job_watch.wait_for_job(client, submitted.id)
            return job_watch.get_job_exit_code(ended)

    return session.run_async(wait_until_ended())


def _run_audited_action(
    session: CliSession, verb: str, name: str, act: Callable[[Connection, str], Awaitable[T]]
) -> T:
    """Change or run the schedule `name`, and write the action to the audit log."""

    async def act_and_record(connection: Connection) -> T:
        result = await act(connection, name)
        await record_audit_event(connection, f"schedule.{verb}", name)
        return result

    return session.run_with_connection(act_and_record)


@cron_command.command("pause")
@click.argument("name")
@json_option
@pass_session
def pause_schedule(session: CliSession, name: str) -> None:
    """Pause a schedule: it submits no jobs until you resume it."""
    actor = get_local_actor()
    changed = _run_audited_action(
        session, "pause", name, lambda connection, name: schedules.pause_schedule(connection, name, actor)
    )
    session.output.print_change(
        f"Schedule {name} {'is paused' if changed else 'was already paused'}.", name=name, changed=changed
    )


@cron_command.command("resume")
@click.argument("name")
@json_option
@pass_session
def resume_schedule(session: CliSession, name: str) -> None:
    """Resume a paused schedule at its next time. Runs missed during the pause are skipped."""
    changed = _run_audited_action(session, "resume", name, schedules.resume_schedule)
    session.output.print_change(
        f"Schedule {name} {'is active again' if changed else 'was not paused'}.", name=name, changed=changed
    )


@cron_command.command("preview")
@click.argument("name", required=False)
@click.option(
    "--cron",
    "expression",
    help="Print the next times of this cron expression instead of those of a stored schedule.",
)
@click.option(
    "--every",
    type=DURATION,
    help="Print the next times of this interval, such as 90s or 6h, instead of those of a stored schedule.",
)
@click.option(
    "--timezone",
    default="UTC",
    show_default=True,
    help="Interpret the --cron expression in this IANA time zone, such as Europe/Madrid.",
)
@click.option(
    "--count",
    "-n",
    type=click.IntRange(1, 1000),
    default=10,
    show_default=True,
    help="Print this many of the next run times.",
)
@json_option
@pass_session
def preview_schedule(
    session: CliSession,
    name: str | None,
    expression: str | None,
    every: timedelta | None,
    timezone: str,
    count: int,
) -> None:
    """Print the next run times of a schedule.

    Give the NAME of a schedule, or a cron expression or an interval that is not stored.
    """
    if (name is None) == (expression is None and every is None):
        raise click.UsageError("Give the name of a schedule, or --cron, or --every.")
    if name is not None:
        schedule_name = name
        times = session.run_with_connection(
            lambda connection: schedules.preview_schedule(connection, schedule_name, count)
        )
    else:
        every_s = None if every is None else every.total_seconds()
        times = session.run_with_connection(
            lambda connection: schedules.list_next_run_times(
                connection, cron=expression, every_s=every_s, timezone=timezone, count=count
            )
        )
    session.output.print_rows([{"at": time.isoformat()} for time in times], ["at"])


@cron_command.command("add")
@click.argument("name")
@click.argument("task")
@click.argument("args", nargs=-1)
@click.option(
    "--cron",
    "expression",
    help='Run the schedule at the times of this cron expression, such as "0 3 * * MON-FRI" (minute '
    "hour day month weekday) or @daily.",
)
@click.option(
    "--every", type=DURATION, help="Run the schedule at this interval, such as 90s or 6h, instead of --cron."
)
@click.option(
    "--timezone",
    default="UTC",
    show_default=True,
    help="Interpret the cron expression in this IANA time zone, such as Europe/Madrid.",
)
@click.option("--queue", help="Submit the schedule's jobs to this queue. Default: the queue of the task.")
@click.option("--owner", help="Set the owner of the schedule's jobs. Default: none.")
@click.option(
    "--missed",
    type=click.Choice(["skip", "coalesce", "catch_up"]),
    default="coalesce",
    show_default=True,
    help="Choose what to do about runs missed while no worker was running: skip (do not run them), "
    "coalesce (run once for all of them) or catch_up (run each of them).",
)
@click.option(
    "--unique",
    is_flag=True,
    help="Skip a run while the job of an earlier run has not ended. Default: jobs may overlap.",
)
@click.option(
    "--replace",
    is_flag=True,
    help="Replace an existing schedule with the same name. Default: fail if it exists.",
)
@json_option
@pass_session
def add_schedule(session: CliSession, /, name: str, task: str, args: tuple[str, ...], **options: Any) -> None:
    """Add a schedule NAME that submits a job for TASK with ARGS.

    ARGS are a JSON object, @file, or pairs such as name=text count:=3.

    Example: holdfast cron add nightly report day=yesterday --cron "0 3 * * *"
    """
    job: dict[str, Any] = {"type": task, "args": parse_json_or_pairs(args) if args else {}}
    if options["queue"]:
        job["queue"] = options["queue"]
    if options["unique"]:
        job["unique_key"] = f"schedule:{name}"
    body = {
        "name": name,
        "job": job,
        "cron": options["expression"],
        "every_s": options["every"].total_seconds() if options["every"] else None,
        **{option: options[option] for option in ("timezone", "owner", "missed")},
    }
    save = schedules.put_schedule if options["replace"] else schedules.create_schedule
    try:
        schedule = _run_audited_action(session, "put", name, lambda connection, _: save(connection, body))
    except ConflictError as error:
        raise ConflictError(error.message, fix="Add --replace to replace it.", field="name") from None
    session.output.print_record(_format_schedule(schedule))


@cron_command.command("delete")
@click.argument("name")
@confirmation_options
@json_option
@pass_session
def delete_schedule(session: CliSession, name: str, yes: bool, dry_run: bool) -> None:
    """Delete a schedule. The jobs that it submitted stay."""
    schedule = session.run_with_connection(lambda connection: schedules.get_schedule(connection, name))
    note = f" A worker that runs {schedule.source} adds it again when it starts." if schedule.source else ""
    if session.confirm(f"This deletes schedule {name}; its jobs stay.{note}", yes=yes, dry_run=dry_run):
        if not _run_audited_action(session, "delete", name, schedules.delete_schedule):
            raise NotFoundError(f"Schedule {name!r} does not exist.", field="name")
        session.output.print_change(f"Schedule {name} is deleted.", deleted=name)
