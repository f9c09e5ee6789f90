"""`holdfast migrate`: install and upgrade the schema, or hand its SQL to another tool."""

from __future__ import annotations

from typing import Any

import click

from holdfast.cli import logs
from holdfast.cli.session import Session, json_option, pass_session
from holdfast.engine import embedded, install, roles
from holdfast.engine.state import Status
from holdfast.settings import Secret


@click.group(invoke_without_command=True)
@click.pass_context
def migrate(context: click.Context) -> None:
    """Bring the database's schema to this version of Holdfast.

    Without a subcommand: up.
    """
    if context.invoked_subcommand is None:
        context.invoke(up)


def _url(session: Session) -> Secret:
    logs.configure(session.settings)
    url, _server = embedded.locate(session.settings)
    return url


@migrate.command()
@json_option
@pass_session
def up(session: Session) -> None:
    """Apply what is pending; safe from any number of processes at once."""
    done = session.run(install.migrate(_url(session), session.settings))
    if session.out.json:
        session.out.record(
            {
                "version": done.version,
                "applied": list(done.versions),
                "functions": done.functions,
                "missing_roles": list(done.missing_roles),
                "seconds": round(done.seconds, 3),
            }
        )
    elif done.versions or done.functions:
        applied = f"applied {len(done.versions)}, " if done.versions else ""
        session.out.line(
            f"Schema at version {done.version}: {applied}functions renewed, {done.seconds:.1f} s."
        )
    else:
        session.out.line(f"Schema at version {done.version}: nothing to do.")


@migrate.command()
@json_option
@pass_session
def status(session: Session) -> None:
    """Show what is installed and what is pending."""
    found = session.run(install.status(_url(session), session.settings))
    session.out.record(_shown(found))


@migrate.command()
@json_option
@click.pass_context
@pass_session
def check(session: Session, context: click.Context) -> None:
    """Exit 1 when something is pending or changed; for deployments."""
    found = session.run(install.status(_url(session), session.settings))
    session.out.record({"ok": found.current and not found.unknown, **_shown(found)})
    if not found.current or found.unknown:
        context.exit(1)


def _shown(found: Status) -> dict[str, Any]:
    return {
        "database": found.installed.latest,
        "code": found.files.latest,
        "pending": [migration.file for migration in found.pending],
        "changed": list(found.changed),
        "newer": [f"{migration.version:04}_{migration.name}" for migration in found.unknown],
        "functions": found.functions,
        "skipped": list(found.skipped),
        "owner": found.installed.owner,
        "missing_roles": list(roles.missing(found.installed.roles)),
    }


@migrate.command()
@click.option("--from", "from_version", type=int, default=0, help="The version the database is at.")
@click.option("--to", "to_version", type=int, help="The version it shall have; functions come with the last.")
@click.option("--bare", is_flag=True, help="Without begin and commit, for tools that add their own.")
def sql(from_version: int, to_version: int | None, bare: bool) -> None:
    """Print the SQL, the same bytes every time; needs no database."""
    click.echo(install.script(from_version, to_version, bare=bare), nl=False)


@migrate.command()
@click.option("--role", required=True, help="The role your application logs in as.")
@click.option(
    "--for",
    "purpose",
    type=click.Choice(["worker", "submit"]),
    default="worker",
    show_default=True,
    help="Run workers, or only submit and look.",
)
@click.option("--print", "print_only", is_flag=True, help="Print the SQL and change nothing.")
@pass_session
def grants(session: Session, role: str, purpose: roles.Purpose, print_only: bool) -> None:
    """Give an application's role what it needs, and no more."""
    url = _url(session)
    statements = session.run(roles.grants(url, session.settings, role, purpose))
    if print_only:
        for statement in statements:
            click.echo(f"{statement};")
        return
    session.run(roles.grant(url, session.settings, statements))
    session.out.line(f"The role {role} may now {'work' if purpose == 'worker' else 'submit'}.")
