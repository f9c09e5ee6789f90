"""`holdfast submit TASK name=text count:=3`: a job from the command line, and its result if you wait."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, cast
from uuid import UUID

import click
import msgspec

from holdfast.cli import catalogue, values, watching
from holdfast.cli.naming import complete_queue, complete_type, uuid_named
from holdfast.cli.session import Session, json_option, pass_session
from holdfast.cli.values import MOMENT, SPAN
from holdfast.client import Client
from holdfast.engine import jobs
from holdfast.errors import ConflictError, HoldfastError, InvalidError
from holdfast.model import Job

FOREVER = timedelta(days=36_500)


@click.command()
@click.argument("task", shell_complete=complete_type)
@click.argument("args", nargs=-1)
@click.option(
    "--app", metavar="APP", help="File or module that has the task: its options and types are used."
)
@click.option("--queue", "-q", shell_complete=complete_queue, help="Queue (default: the task's own).")
@click.option("--key", help="Submitting again with the same key gives the same job.")
@click.option("--unique", metavar="KEY", help="The same, as long as that job has not ended.")
@click.option(
    "--on-conflict",
    type=click.Choice(["same", "fail"]),
    default="same",
    show_default=True,
    help="When --key or --unique is taken: print the job that has it, or exit with 4.",
)
@click.option("--priority", type=click.IntRange(-100, 100), help="Higher goes first.")
@click.option("--delay", type=SPAN, help="Run after so long, as in 90s or 5m.")
@click.option("--at", type=MOMENT, help="Run then.")
@click.option("--expires", type=SPAN, help="Give up if it has not started after so long.")
@click.option("--owner", help="Whose job it is.")
@click.option("--label", "-l", "labels", multiple=True, metavar="NAME=TEXT", help="To find it again.")
@click.option("--batch", metavar="ID", help="Count it as a member of this batch.")
@click.option("--wait", is_flag=True, help="Wait for the end and print the result; exit 1 if it failed.")
@click.option("--watch", is_flag=True, help="The same, with progress.")
@click.option("--within", type=SPAN, help="Wait so long at most.")
@json_option
@pass_session
def submit(session: Session, /, task: str, args: tuple[str, ...], **options: Any) -> int:
    """Submit TASK with ARGS: pairs like name=text count:=3, a JSON object, - for standard input, or @file."""
    if options["on_conflict"] == "fail" and not (options["key"] or options["unique"]):
        raise click.UsageError("--on-conflict needs --key or --unique.")
    if options["delay"] is not None and options["at"] is not None:
        raise click.UsageError("--delay and --at exclude each other.")
    given: Any = values.body_of(args) if args else {}
    if not isinstance(given, dict):
        raise InvalidError("The arguments of a task are a JSON object.", fix="Write name=text.", field="args")

    async def work() -> int:
        async with session.client() as client:
            known = await catalogue.find(client, task, options["app"], options["queue"])
            body = {**known.job(cast("dict[str, Any]", given)), **_options(options)}
            async with (await client.open()).connection() as connection:
                made = await jobs.submit(connection, msgspec.json.encode(body))
            if not made.created and options["on_conflict"] == "fail":
                raise ConflictError(
                    f"Job {made.id} has this key already.",
                    fix=f"See: holdfast job show {made.id}",
                    field="key",
                )
            return await _afterwards(session, client, made, options)

    return session.run(work())


def _options(options: dict[str, Any]) -> dict[str, Any]:
    """What was said, in the words of the SQL function."""
    at: datetime | None = options["at"]
    body = {
        "queue": options["queue"],
        "key": options["key"],
        "unique_key": options["unique"],
        "priority": options["priority"],
        "delay_s": _seconds(options["delay"]),
        "run_at": at,
        "owner": options["owner"],
        "labels": values.pairs(options["labels"]) or None,
        "batch": None if options["batch"] is None else uuid_named(options["batch"], "batch"),
    }
    if options["expires"] is not None:
        body["expires_at"] = datetime.now().astimezone() + options["expires"]
    return {name: value for name, value in body.items() if value is not None}


def _seconds(span: timedelta | None) -> float | None:
    return None if span is None else span.total_seconds()


async def _afterwards(session: Session, client: Client, made: jobs.Submitted, options: dict[str, Any]) -> int:
    out = session.out
    if not options["wait"] and not options["watch"]:
        if out.json:
            out.record({"id": made.id, "status": made.status, "created": made.created})
        else:
            out.value("id", made.id)
        return 0
    if options["watch"]:
        job = await watching.watch(out, client, made.id, within=options["within"])
        return watching.ending(out, job)
    async with watching.hinting(client, made.id):
        job = await _ended(client, made.id, options["within"])
    if out.json:
        out.record(msgspec.to_builtins(job, enc_hook=str))
    return watching.ending(out, job)


async def _ended(client: Client, job_id: UUID, within: timedelta | None) -> Job:
    seen = [job async for job in client.watch(job_id, within=within or FOREVER) if job.ended]
    if not seen:
        raise HoldfastError(
            f"Job {job_id} has not ended in time.", fix=f"It goes on; see `holdfast job watch {job_id}`."
        )
    return seen[-1]
