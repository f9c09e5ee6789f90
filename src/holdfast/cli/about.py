"""`holdfast version|openapi|schema`: what this is, what it speaks, and what a task takes."""

from __future__ import annotations

import platform
from typing import Any

import click
import msgspec

from holdfast.cli import catalogue
from holdfast.cli.naming import complete_type
from holdfast.cli.session import Session, json_option, pass_session
from holdfast.errors import HoldfastError, NotFoundError
from holdfast.version import __version__


@click.command()
@json_option
@pass_session
def version(session: Session) -> None:
    """Print the version."""
    if session.out.json:
        session.out.record({"holdfast": __version__, "python": platform.python_version()})
    else:
        session.out.value("holdfast", f"holdfast {__version__} (Python {platform.python_version()})")


@click.command()
@click.argument("task", shell_complete=complete_type)
@click.option("--app", metavar="APP", help="File or module that has it (default: ask the database).")
@pass_session
def schema(session: Session, task: str, app: str | None) -> None:
    """Print the JSON Schema of a task's arguments."""

    async def work() -> catalogue.Known | None:
        async with session.client() as client:
            return await catalogue.registered(client, task)

    found = catalogue.in_app(app, task) if app else session.run(work())
    if found is None or found.schema is None:
        raise NotFoundError(
            f"No worker has told of a task {task!r}.",
            fix="Start one, or name the code: --app app.py.",
            field="task",
        )
    click.echo(pretty(found.schema))


@click.command()
@pass_session
def openapi(session: Session) -> None:
    """Print the OpenAPI description of the HTTP API; needs no database."""
    try:  # the web framework is an extra
        from holdfast.server import api as describing  # noqa: PLC0415
    except ImportError as problem:
        raise HoldfastError(
            f"The API needs a package that is not installed: {problem.name}.",
            fix="pip install 'holdfast[server]'",
        ) from problem
    click.echo(pretty(describing.document()))


def pretty(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value, enc_hook=str), indent=2).decode()
