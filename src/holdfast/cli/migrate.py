"""`holdfast migrate`: install or upgrade the schema, or print its SQL for another tool."""

from __future__ import annotations

from typing import Any

import click

from holdfast.cli import log_output
from holdfast.cli.session import CliSession, json_option, pass_session, run_on_each_shard
from holdfast.engine import embedded, install, migration_plan, roles
from holdfast.engine.schema_status import SchemaStatus
from holdfast.settings import Secret


@click.group("migrate", invoke_without_command=True)
@click.pass_context
def migrate_command(context: click.Context) -> None:
    """Install or upgrade the database schema to this version of Holdfast.

    Without a subcommand, run `migrate up`.
    """
    if context.invoked_subcommand is None:
        context.invoke(apply_migrations)


def _get_database_url(session: CliSession) -> Secret:
    log_output.configure_logging(session.settings)
    url, _server = embedded.locate_database(session.settings)
    return url


@migrate_command.command("up")
@json_option
@pass_session
@run_on_each_shard
def apply_migrations(session: CliSession) -> None:
    """Apply pending migrations to the database. Several processes can do this at the same time."""
    applied = session.run_async(install.migrate_database(_get_database_url(session), session.settings))
    if session.output.json:
        session.output.print_record(
            {
                "version": applied.version,
                "applied": list(applied.versions),
                "functions": applied.functions_replaced,
                "missing_roles": list(applied.missing_roles),
                "seconds": round(applied.seconds, 3),
            }
        )
    elif applied.versions or applied.functions_replaced:
        migrations = f"{len(applied.versions)} migrations applied, " if applied.versions else ""
        session.output.print_line(
            f"The schema is at version {applied.version}: {migrations}functions updated, "
            f"{applied.seconds:.1f} s."
        )
    else:
        session.output.print_line(f"The schema is at version {applied.version}: nothing to do.")


@migrate_command.command("status")
@json_option
@pass_session
@run_on_each_shard
def show_schema_status(session: CliSession) -> None:
    """Show the installed schema version and the pending migrations."""
    current = session.run_async(install.read_schema_status(_get_database_url(session), session.settings))
    session.output.print_record(_format_schema_status(current))


@migrate_command.command("check")
@json_option
@pass_session
@run_on_each_shard
def check_schema(session: CliSession) -> int:
    """Check that the database schema is up to date. Exit with code 1 if it is not."""
    current = session.run_async(install.read_schema_status(_get_database_url(session), session.settings))
    ok = current.is_current and not current.unknown_migrations
    session.output.print_record({"ok": ok, **_format_schema_status(current)})
    return 0 if ok else 1


def _format_schema_status(status: SchemaStatus) -> dict[str, Any]:
    return {
        "database": status.installed.latest_version,
        "code": status.files.latest_version,
        "pending": [migration.file_name for migration in status.pending_migrations],
        "changed": list(status.changed_migrations),
        "newer": [f"{migration.version:04}_{migration.name}" for migration in status.unknown_migrations],
        "functions": status.function_set_state,
        "skipped": list(status.skipped_files),
        "owner": status.installed.owner,
        "missing_roles": list(roles.find_missing_roles(status.installed.roles)),
    }


@migrate_command.command("plan")
@json_option
@pass_session
@run_on_each_shard
def show_migration_plan(session: CliSession) -> None:
    """Show locks and times of pending migrations; change nothing.

    The migrations run in a transaction that is rolled back. It holds the same locks for the same time as the
    migration itself, and waits for them no longer than the setting lock_timeout. The columns rewrites and
    scans name locked tables that are written or read as a whole, which takes longer the larger they are.
    """
    url = _get_database_url(session)
    steps = session.run_async(migration_plan.plan_migration(url, session.settings))
    if not steps:
        session.output.print_line("Nothing is pending.")
    rows = [_format_planned_step(step) for step in steps]
    session.output.print_rows(rows, ["migration", "seconds", "breaking", "rewrites", "scans", "locks"])


def _format_planned_step(step: migration_plan.PlannedStep) -> dict[str, Any]:
    return {
        "migration": step.name,
        "seconds": "not rehearsed" if step.seconds is None else round(step.seconds, 3),
        "breaking": step.breaking,
        "rewrites": ", ".join(step.rewritten) or "none",
        "scans": ", ".join(step.scanned) or "none",
        "locks": ", ".join(f"{lock.table} {lock.mode} ({lock.rows} rows)" for lock in step.locks) or "none",
    }


@migrate_command.command("sql")
@click.option(
    "--from",
    "from_version",
    type=int,
    default=0,
    show_default=True,
    help="Print only migrations after this schema version; 0 is an empty database.",
)
@click.option(
    "--to",
    "to_version",
    type=int,
    help="Print only migrations up to this schema version. Default: the latest version, with the "
    "SQL functions.",
)
@click.option(
    "--no-transaction",
    is_flag=True,
    help="Leave out BEGIN and COMMIT, for migration tools that add their own. Default: print them.",
)
def print_migration_sql(from_version: int, to_version: int | None, no_transaction: bool) -> None:
    """Print the SQL of the migrations. This command needs no database."""
    click.echo(install.build_migration_script(from_version, to_version, bare=no_transaction), nl=False)


@migrate_command.command("grants")
@click.option(
    "--role",
    required=True,
    help="Grant the privileges to this database role: the role of your application.",
)
@click.option(
    "--access",
    type=click.Choice(["worker", "submit"]),
    default="worker",
    show_default=True,
    help="Choose the privileges to grant: worker (run tasks) or submit (only submit and read jobs).",
)
@click.option(
    "--print", "print_only", is_flag=True, help="Print the GRANT statements instead of executing them."
)
@pass_session
@run_on_each_shard
def grant_privileges(session: CliSession, role: str, access: roles.GrantPurpose, print_only: bool) -> None:
    """Grant a database role the privileges to use Holdfast.

    The role can then run workers, or only submit and read jobs.
    """
    url = _get_database_url(session)
    statements = session.run_async(
        roles.build_grant_statements(url, session.settings, role, access, check_role=not print_only)
    )
    if print_only:
        for statement in statements:
            click.echo(f"{statement};")
        return
    session.run_async(roles.execute_grants(url, session.settings, statements))
    verb = "run workers" if access == "worker" else "submit and read jobs"
    session.output.print_line(f"Role {role} can now {verb}.")
