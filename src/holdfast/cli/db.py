"""`holdfast db`: start, stop and reset the embedded PostgreSQL server, and open psql on the database."""

from __future__ import annotations

import os
import signal
import subprocess
from datetime import timedelta
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

import click

from holdfast.cli.session import CliSession, confirmation_options, json_option, pass_session
from holdfast.engine import embedded
from holdfast.errors import RefusedError
from holdfast.settings import Secret, redact_url

SERVER_LINGER_TIME = timedelta(
    seconds=30
)  # long enough to paste the URL, or for a program to start and connect


@click.group("db")
def db_command() -> None:
    """Manage the embedded PostgreSQL server.

    Holdfast uses it if DATABASE_URL is not set. Its data is in the folder .holdfast (setting home).
    """


@db_command.command("start")
@json_option
@pass_session
def start_embedded_server(session: CliSession) -> None:
    """Start the embedded PostgreSQL server. It runs until `holdfast db stop`."""
    _refuse_external_database(session, "start")
    with embedded.start_permanent_server(session.settings) as server:
        url = redact_url(server.url.reveal())
        session.output.print_change(
            f"PostgreSQL {server.version} is running at {url} until `holdfast db stop`.",
            url=url,
            version=server.version,
        )


@db_command.command("stop")
@json_option
@pass_session
def stop_embedded_server(session: CliSession) -> None:
    """Stop the embedded PostgreSQL server, even if it is in use."""
    _refuse_external_database(session, "stop")
    was_running = embedded.stop_server(session.settings)
    session.output.print_change(
        "Stopped." if was_running else "The embedded server was not running.", stopped=was_running
    )


@db_command.command("url")
@json_option
@pass_session
def print_database_url(session: CliSession) -> None:
    """Print the connection URL of the database, including the password.

    This command starts the embedded server if it is not running. The server then runs for 30 seconds, and as
    long as a program uses it. `holdfast db start` keeps it running.
    """
    database_url, server = embedded.locate_database(session.settings)
    if server:
        server.keep_running_for(SERVER_LINGER_TIME)
        server.release()
    session.output.print_value("url", database_url.reveal())


@db_command.command(
    "psql",
    context_settings={
        "ignore_unknown_options": True,
        "allow_interspersed_args": False,
        "help_option_names": ["--help"],
    },
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@pass_session
def open_psql(session: CliSession, arguments: tuple[str, ...]) -> int:
    """Open a psql session on the database. ARGUMENTS are passed to psql.

    Example: holdfast db psql -c "select 1"
    """
    program = embedded.find_psql(session.settings)
    database_url, server = embedded.locate_database(session.settings)
    try:
        target, password = _split_password_from_url(database_url)
        environment = dict(os.environ)  # house: environment (passed on, not read)
        if password:
            environment["PGPASSWORD"] = password
        return _run_in_foreground([str(program), "-d", target, *arguments], environment)
    finally:
        if server:
            server.release()


@db_command.command("status")
@json_option
@pass_session
def show_server_status(session: CliSession) -> None:
    """Show the state, URL and version of the embedded PostgreSQL server."""
    if session.settings.database_url:
        external_url = redact_url(session.settings.database_url.reveal())
        session.output.print_record({"state": "external", "url": external_url})
        return
    folder = str(session.settings.home.absolute() / "postgres")
    server = embedded.find_running_server(session.settings)
    if server is None:
        session.output.print_record({"state": "stopped", "folder": folder})
        return
    with server:
        server_url = redact_url(server.url.reveal())
        session.output.print_record(
            {
                "state": "running",
                "url": server_url,
                "version": server.version,
                "kept": server.is_permanent,
                "folder": folder,
            }
        )


@db_command.command("reset")
@confirmation_options
@json_option
@pass_session
def reset_embedded_server(session: CliSession, *, yes: bool, dry_run: bool) -> None:
    """Delete all data of the embedded PostgreSQL server. The next start creates an empty database."""
    _refuse_external_database(session, "reset")
    folder = session.settings.home.absolute() / "postgres"
    consequence = f"This stops the embedded server for all its users and deletes all databases in {folder}."
    if session.confirm(consequence, yes=yes, dry_run=dry_run):
        embedded.reset_server(session.settings)
        session.output.print_change("Deleted. The next start creates an empty database.", deleted=str(folder))


def _refuse_external_database(session: CliSession, verb: str) -> None:
    if session.settings.database_url:
        external_url = redact_url(session.settings.database_url.reveal())
        raise RefusedError(
            f"`holdfast db {verb}` manages the embedded server only, but the database in use is "
            f"{external_url}.",
            fix="Unset DATABASE_URL to use the embedded server, or manage that server with its own tools.",
        )


def _split_password_from_url(database_url: Secret) -> tuple[str, str | None]:
    """Split a database URL into the URL without the password, and the password.

    Everybody on the machine can read the arguments of a process, so the password must not be among them.
    """
    parts = urlsplit(database_url.reveal())
    login, at, host = parts.netloc.rpartition("@")
    user, _, password = login.partition(":")
    options = parse_qsl(parts.query, keep_blank_values=True)
    option_password = dict(options).get("password")
    query = urlencode([option for option in options if option[0] != "password"])
    target = urlunsplit(parts._replace(netloc=f"{user}{at}{host}", query=query))
    return target, option_password or unquote(password) or None


def _run_in_foreground(command: list[str], environment: dict[str, str]) -> int:
    """Run a program that handles Ctrl-C itself, and return its exit code.

    This process stays the parent, because it holds the claim on the embedded server.
    """
    # A handler that does nothing, not SIG_IGN: the child process would inherit SIG_IGN.
    former_handler = signal.signal(signal.SIGINT, _ignore_signal)
    try:
        code = subprocess.run(command, env=environment, check=False).returncode
    finally:
        signal.signal(signal.SIGINT, former_handler)
    return code if code >= 0 else 128 - code  # as shells report a signal


def _ignore_signal(number: int, _: object) -> None:
    """Do nothing on a signal, because the child process handles it."""
