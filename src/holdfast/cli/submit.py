"""`holdfast submit TASK name=text count:=3`: submit a job, and print its result with `--wait`."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, cast

import click
import msgspec

from holdfast.cli import job_watch, parameters, task_lookup
from holdfast.cli.completers import suggest_queue_names, suggest_task_type_names
from holdfast.cli.identifiers import parse_uuid
from holdfast.cli.parameters import DURATION, TIMESTAMP
from holdfast.cli.session import CliSession, json_option, pass_session
from holdfast.client import Client
from holdfast.engine import jobs
from holdfast.errors import ConflictError, InvalidError


@click.command("submit")
@click.argument("task", shell_complete=suggest_task_type_names)
@click.argument("args", nargs=-1)
@click.option(
    "--app",
    metavar="APP",
    help="Read the definition of the task from this file or module. Default: from the database, "
    "where workers register tasks.",
)
@click.option(
    "--queue",
    "-q",
    shell_complete=suggest_queue_names,
    help="Submit the job to this queue. Default: the queue of the task.",
)
@click.option(
    "--key",
    help="Set an idempotency key: a second submit with the same key returns the first job. Default: none.",
)
@click.option(
    "--unique-key",
    help="Set a unique key: while the job has not ended, a second submit with the "
    "same key returns it. Default: none.",
)
@click.option(
    "--on-conflict",
    type=click.Choice(["existing", "fail"]),
    default="existing",
    show_default=True,
    help="Choose what to do if a job with the same key exists: existing prints the existing job, "
    "fail exits with code 4.",
)
@click.option(
    "--priority",
    type=click.IntRange(-100, 100),
    help="Set the priority of the job, from -100 to 100; higher runs first. Default: the priority "
    "of the task.",
)
@click.option(
    "--delay", type=DURATION, help="Start the job after this duration, such as 90s or 5m. Default: at once."
)
@click.option(
    "--at", type=TIMESTAMP, help="Start the job at this time, such as 2026-05-01T12:00:00Z. Default: at once."
)
@click.option(
    "--expires",
    type=DURATION,
    help="Cancel the job if it has not started within this duration, such as 1h. Default: never.",
)
@click.option("--owner", help="Set the owner of the job. Default: none.")
@click.option(
    "--label",
    "-l",
    "labels",
    multiple=True,
    metavar="NAME=TEXT",
    help="Add a label to the job for searches, such as customer=acme. Repeat the option to add "
    "more labels. Default: none.",
)
@click.option("--batch", metavar="ID", help="Add the job to the batch with this id. Default: no batch.")
@click.option(
    "--wait",
    is_flag=True,
    help="Wait until the job ends, print its output, and exit with code 1 if it failed. Default: "
    "print the job's id and exit.",
)
@click.option(
    "--watch",
    is_flag=True,
    help="Show the job's progress until it ends, then print its output as --wait does. Default: "
    "print the job's id and exit.",
)
@click.option(
    "--wait-timeout",
    type=DURATION,
    help="Stop waiting for the job after this duration, such as 5m. Default: wait until the job ends.",
)
@json_option
@pass_session
def submit_command(session: CliSession, /, task: str, args: tuple[str, ...], **options: Any) -> int:
    """Submit a job for TASK with ARGS and print the id of the job.

    ARGS are pairs such as name=text count:=3, a JSON object, @file, or - for standard input.

    Example: holdfast submit resize url=https://e.example/a.png width:=800 --wait
    """
    if options["on_conflict"] == "fail" and not (options["key"] or options["unique_key"]):
        raise click.UsageError("--on-conflict needs --key or --unique-key.")
    if options["delay"] is not None and options["at"] is not None:
        raise click.UsageError("Use either --delay or --at, not both.")
    arguments: Any = parameters.parse_json_or_pairs(args) if args else {}
    if not isinstance(arguments, dict):
        raise InvalidError(
            "The arguments of a task must be a JSON object.", fix="Write pairs: name=text.", field="args"
        )

    async def submit_and_print() -> int:
        async with session.client() as client:
            definition = await task_lookup.find_submit_template(
                client, task, options["app"], options["queue"]
            )
            body = definition.build_submit_body(cast("dict[str, Any]", arguments)) | _build_submit_options(
                options
            )
            async with client.connection() as connection:
                submitted = await jobs.submit(connection, msgspec.json.encode(body))
            if not submitted.created and options["on_conflict"] == "fail":
                raise ConflictError(
                    f"Job {submitted.id} was already submitted with this --key.",
                    fix=f"See `holdfast job show {submitted.id}`.",
                    field="key",
                )
            return await _print_submitted_job(session, client, submitted, options)

    return session.run_async(submit_and_print())


def _build_submit_options(options: dict[str, Any]) -> dict[str, Any]:
    """Convert the command-line options to the fields that the SQL function `submit` expects."""
    delay: timedelta | None = options["delay"]
    body = {
        "queue": options["queue"],
        "key": options["key"],
        "unique_key": options["unique_key"],
        "priority": options["priority"],
        "delay_s": None if delay is None else delay.total_seconds(),
        "run_at": options["at"],
        "owner": options["owner"],
        "labels": parameters.parse_pairs(options["labels"]) or None,
        "batch": None if options["batch"] is None else parse_uuid(options["batch"], "batch"),
    }
    if options["expires"] is not None:
        body["expires_at"] = datetime.now().astimezone() + options["expires"]
    return {name: value for name, value in body.items() if value is not None}


async def _print_submitted_job(
    session: CliSession, client: Client, submitted: jobs.SubmitResult, options: dict[str, Any]
) -> int:
    """Print the id of a submitted job or, with `--wait` or `--watch`, its outcome. Return the exit code."""
    output = session.output
    if not options["wait"] and not options["watch"]:
        if output.json:
            output.print_record(
                {"id": submitted.id, "status": submitted.status, "created": submitted.created}
            )
        else:
            output.print_value("id", submitted.id)
        return 0
    if options["watch"]:
        job = await job_watch.watch_job(output, client, submitted.id, max_wait=options["wait_timeout"])
        return job_watch.print_job_outcome(output, job)
    job = await job_watch.wait_for_job(client, submitted.id, options["wait_timeout"])
    if output.json:
        output.print_record(msgspec.to_builtins(job, enc_hook=str))
    return job_watch.print_job_outcome(output, job)
