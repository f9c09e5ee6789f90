"""`holdfast install`: create the tables of a bundled application (system), or print their SQL."""

from __future__ import annotations

from types import ModuleType

import click

from holdfast.cli.api import import_system
from holdfast.cli.session import CliSession, json_option, pass_session
from holdfast.engine import embedded, install
from holdfast.engine.connection import open_connection
from holdfast.errors import NotFoundError, RefusedError


@click.command("install")
@click.argument("system")
@click.option(
    "--print",
    "print_only",
    is_flag=True,
    help="Print the SQL for an SQL editor instead of running it. This needs no database.",
)
@json_option
@pass_session
def install_command(session: CliSession, system: str, print_only: bool) -> None:
    """Install the tables of SYSTEM, such as clips, into the schema `systems_schema`.

    Tables that exist keep their rows and get the columns that are missing. You can repeat the command.
    `holdfast api --system` installs too.
    """
    module = import_system(system)
    if not hasattr(module, "install"):
        raise NotFoundError(f"System {system!r} does not exist.", field="system")
    schema = session.settings.systems_schema
    if print_only:
        if not hasattr(module, "build_install_sql"):
            raise RefusedError(
                f"The SQL of {system} cannot be printed, because its installation also needs Python.",
                fix=f"Run `holdfast install {system}` with the URL of your database.",
            )
        click.echo(f"begin;\n{module.build_install_sql(schema)}\ncommit;")
        return
    session.run_async(_install_system(session, module))
    session.output.print_change(
        f"{system} is installed in the schema {schema}.", system=system, schema=schema
    )


async def _install_system(session: CliSession, module: ModuleType) -> None:
    url, _server = embedded.locate_database(session.settings)
    async with open_connection(url, session.settings) as connection:
        await install.verify_schema(connection)
        await module.install(connection, session.settings.systems_schema)
