"""`holdfast schema TASK`: print the JSON Schema of a task's arguments."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from holdfast.cli import task_lookup
from holdfast.cli.completers import suggest_task_type_names
from holdfast.cli.session import CliSession, pass_session
from holdfast.errors import NotFoundError


@click.command("schema")
@click.argument("task", shell_complete=suggest_task_type_names)
@click.option(
    "--app",
    metavar="APP",
    help="Read the task's schema from the code in this file or module. Default: from the database.",
)
@pass_session
def schema_command(session: CliSession, task: str, app: str | None) -> None:
    """Print the JSON Schema of a task's arguments.

    The schema comes from the database, where workers register their tasks, or from the code of --app.
    """

    async def find_in_database() -> task_lookup.SubmitTemplate | None:
        async with session.client() as client:
            return await task_lookup.build_template_of_registered_task(client, task)

    definition = (
        task_lookup.load_submit_template_from_app(app, task) if app else session.run_async(find_in_database())
    )
    if definition is None or definition.schema is None:
        raise NotFoundError(
            f"No worker has registered task {task!r}.",
            fix="Start its worker, or name the code: --app app.py.",
            field="task",
        )
    click.echo(format_json(definition.schema))


def format_json(value: Any) -> str:
    """Format a value as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(value, enc_hook=str), indent=2).decode()
