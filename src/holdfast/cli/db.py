"""`holdfast db`: the embedded PostgreSQL, and a shell into whichever database is in use."""

from __future__ import annotations

import os
import signal
import subprocess
from datetime import timedelta
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

import click

from holdfast.cli.session import Session, destructive, json_option, pass_session
from holdfast.engine import embedded
from holdfast.errors import RefusedError
from holdfast.settings import Secret, redact_url

URL_LASTS = timedelta(seconds=30)  # long enough to paste it, or for a program to come up and connect


@click.group()
def db() -> None:
    """The PostgreSQL that comes with Holdfast."""


@db.command()
@pass_session
def start(session: Session) -> None:
    """Start it, and let it run until `holdfast db stop`."""
    _refuse_elsewhere(session, "start")
    with embedded.keep(session.settings) as server:
        where = redact_url(server.url.reveal())
        session.out.line(f"PostgreSQL {server.version} runs at {where} until `holdfast db stop`.")


@db.command()
@pass_session
def stop(session: Session) -> None:
    """Stop it, whoever uses it."""
    _refuse_elsewhere(session, "stop")
    found = embedded.stop(session.settings)
    session.out.line("Stopped." if found else "It was not running.")


@db.command()
@json_option
@pass_session
def url(session: Session) -> None:
    """Print the address of the database, password included.

    Starts the embedded one if need be. It then stays up for half a minute, and as long as something uses
    it; `holdfast db start` keeps it up for good.
    """
    address, server = embedded.locate(session.settings)
    if server:
        server.linger(URL_LASTS)
        server.release()
    session.out.value("url", address.reveal())


@db.command(
    context_settings={
        "ignore_unknown_options": True,
        "allow_interspersed_args": False,
        "help_option_names": ["--help"],
    }
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@pass_session
def psql(session: Session, arguments: tuple[str, ...]) -> int:
    """Open psql on the database; arguments are passed on."""
    program = embedded.psql(session.settings)
    address, server = embedded.locate(session.settings)
    try:
        target, password = _without_password(address)
        environment = dict(os.environ)  # house: environment (passed on, not read)
        if password:
            environment["PGPASSWORD"] = password
        return _in_foreground([str(program), "-d", target, *arguments], environment)
    finally:
        if server:
            server.release()


@db.command()
@json_option
@pass_session
def status(session: Session) -> None:
    """Say whether it runs, where, and which version."""
    if session.settings.database_url:
        where = redact_url(session.settings.database_url.reveal())
        session.out.record({"state": "elsewhere", "url": where})
        return
    folder = str(session.settings.home.absolute() / "postgres")
    server = embedded.find(session.settings)
    if server is None:
        session.out.record({"state": "stopped", "folder": folder})
        return
    with server:
        where = redact_url(server.url.reveal())
        found = {"state": "running", "url": where, "version": server.version, "kept": server.kept}
        session.out.record({**found, "folder": folder})


@db.command()
@destructive
@pass_session
def reset(session: Session, *, yes: bool, dry_run: bool) -> None:
    """Destroy its data and start afresh next time."""
    _refuse_elsewhere(session, "reset")
    folder = session.settings.home.absolute() / "postgres"
    consequence = f"All databases in {folder} are destroyed, and the server is stopped whoever uses it."
    if session.confirm(consequence, yes=yes, dry_run=dry_run):
        embedded.reset(session.settings)
        session.out.line("Destroyed. The next start makes an empty one.")


def _refuse_elsewhere(session: Session, verb: str) -> None:
    if session.settings.database_url:
        where = redact_url(session.settings.database_url.reveal())
        raise RefusedError(
            f"`holdfast db {verb}` is for the embedded PostgreSQL, and the database in use is {where}.",
            fix="Unset DATABASE_URL to use the embedded one, or manage that server with its own tools.",
        )


def _without_password(address: Secret) -> tuple[str, str | None]:
    """An address fit for a command line, which everybody on the machine can read, and the password."""
    parts = urlsplit(address.reveal())
    login, at, host = parts.netloc.rpartition("@")
    user, _, password = login.partition(":")
    options = parse_qsl(parts.query, keep_blank_values=True)
    named = dict(options).get("password")
    query = urlencode([option for option in options if option[0] != "password"])
    shown = urlunsplit(parts._replace(netloc=f"{user}{at}{host}", query=query))
    return shown, named or unquote(password) or None


def _in_foreground(command: list[str], environment: dict[str, str]) -> int:
    """Run a program that deals with Ctrl-C itself. We stay its parent, because we hold the claim."""
    before = signal.signal(
        signal.SIGINT, _leave_it_to_the_child
    )  # not SIG_IGN, which the child would inherit
    try:
        code = subprocess.run(command, env=environment, check=False).returncode
    finally:
        signal.signal(signal.SIGINT, before)
    return code if code >= 0 else 128 - code  # as shells report a signal


def _leave_it_to_the_child(number: int, _: object) -> None:
    pass
