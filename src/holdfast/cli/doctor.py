"""`holdfast doctor`: is everything as it should be? One line a question, and a fix for each problem."""

from __future__ import annotations

import click

from holdfast.cli.session import Session, json_option, pass_session
from holdfast.engine import checks, embedded, install
from holdfast.engine.checks import Finding
from holdfast.engine.connection import connected
from holdfast.errors import DatabaseAwayError, HoldfastError
from holdfast.settings import Secret, Settings


@click.command()
@click.option(
    "--probe",
    type=click.Choice(["live", "ready"]),
    help="For orchestrators, silent when all is well: live looks at this machine only, ready also at the "
    "database and its schema.",
)
@json_option
@click.pass_context
@pass_session
def doctor(session: Session, context: click.Context, probe: str | None) -> None:
    """Check the database, the schema, the rights and the storage.

    Exit 0 when nothing fails (warnings are fine), 1 when something does, 6 when the database is away.
    """
    if probe:
        session.run(_probe(session.settings, ready=probe == "ready"))
        return
    findings = session.run(_findings(session.settings))
    for finding in findings:
        _show(session, finding)
    if any(finding.away for finding in findings):
        context.exit(6)
    if any(finding.level == "fail" for finding in findings):
        context.exit(1)


async def _findings(settings: Settings) -> list[Finding]:
    try:
        url, _server = embedded.locate(settings)
    except HoldfastError as problem:
        return [
            Finding("database", "fail", problem.message, problem.fix, away=True),
            checks.storage(settings),
        ]
    return await checks.examine(url, settings)


def _show(session: Session, finding: Finding) -> None:
    if session.out.json:
        session.out.record(
            {"check": finding.check, "level": finding.level, "text": finding.text, "fix": finding.fix}
        )
        return
    session.out.line(f"{finding.level:<4}  {finding.check:<12}  {finding.text}")
    if finding.fix and finding.level != "ok":
        session.out.line(f"      {'':<12}  fix: {finding.fix}")


async def _probe(settings: Settings, *, ready: bool) -> None:
    storage = checks.storage(settings)
    if storage.level == "fail":
        raise HoldfastError(storage.text, fix=storage.fix)
    if ready:
        async with connected(_running(settings), settings) as connection:
            await install.verify(connection)


def _running(settings: Settings) -> Secret:
    """Where the database is, without starting one: a probe only looks."""
    if settings.database_url:
        return settings.database_url
    server = embedded.find(settings)
    if server is None:
        raise DatabaseAwayError("The embedded database does not run.", fix="Start it: holdfast db start")
    return server.url
