"""`holdfast doctor`: check the installation. It prints one line per check, and a fix for each problem."""

from __future__ import annotations

import importlib

import click

from holdfast.cli.session import CliSession, json_option, pass_session, run_on_each_shard
from holdfast.client import Client
from holdfast.engine import doctor as engine_doctor
from holdfast.engine import embedded, install, shards
from holdfast.engine.connection import open_connection
from holdfast.engine.doctor import DoctorFinding
from holdfast.errors import DatabaseUnavailableError, HoldfastError
from holdfast.settings import Secret, Settings
from holdfast.systems.capture.chromium_command import find_chromium
from holdfast.systems.capture.errors import BrowserStartError

# The name of a system and the function that checks it. It may need an extra, so it is imported by name.
SYSTEM_CHECKS = (
    ("bookmarks", "holdfast.systems.bookmarks.doctor", "check_bookmarks"),
    ("media", "holdfast.systems.media.doctor", "check_media"),
    ("clips", "holdfast.systems.clips.doctor", "check_clips"),
)


@click.command("doctor")
@click.option(
    "--probe",
    type=click.Choice(["live", "ready"]),
    help="Run one health probe and print nothing on success. `live`: check this machine. `ready`: also "
    "check the database and its schema. Default: run all checks and print the results.",
)
@json_option
@pass_session
@run_on_each_shard
def doctor_command(session: CliSession, probe: str | None) -> int:
    """Check the configuration, the database, its schema and permissions, and the file storage.

    Exit with code 0 if no check fails (warnings do not count), 1 if a check fails, 6 if the database is not
    available. With shards, each of them is checked.
    """
    if probe:
        session.run_async(_run_health_probe(session.settings, ready=probe == "ready"))
        return 0
    findings = session.run_async(_run_checks(session.settings))
    for finding in findings:
        _print_finding(session, finding)
    if any(finding.unreachable for finding in findings):
        return DatabaseUnavailableError.exit_code
    return 1 if any(finding.level == "fail" for finding in findings) else 0


async def _run_checks(settings: Settings) -> list[DoctorFinding]:
    chromium = _check_chromium(settings)
    try:
        url, _server = embedded.locate_database(settings)
    except HoldfastError as error:
        return [
            DoctorFinding("database", "fail", error.message, error.fix, unreachable=True),
            engine_doctor.check_storage_folder(settings),
            *chromium,
        ]
    findings = await engine_doctor.run_doctor_checks(url, settings)
    if not any(finding.check in ("database", "schema") and finding.level == "fail" for finding in findings):
        findings += await _check_shard_number(url, settings)
        findings += await _check_systems(url, settings)
    return [*findings, *chromium]


async def _check_shard_number(url: Secret, settings: Settings) -> list[DoctorFinding]:
    """Check that the database of a shard has the number under which it is configured."""
    if settings.shard is None:
        return []
    async with open_connection(url, settings) as connection:
        state = await shards.get_shard(connection)
    if state.number != settings.shard:
        text = f"The database says that it is shard {state.number}, not {settings.shard}."
        return [DoctorFinding("shard", "fail", text, "Correct the addresses in HOLDFAST_SHARDS.")]
    text = "drained: it takes no new work" if state.draining else f"the database is shard {state.number}"
    return [DoctorFinding("shard", "ok", text)]


async def _check_systems(url: Secret, settings: Settings) -> list[DoctorFinding]:
    """Check the systems that are installed in the database."""
    findings: list[DoctorFinding] = []
    async with Client(url.reveal(), settings=settings) as client:
        for name, module, function in SYSTEM_CHECKS:
            findings += await _check_system(client, name, module, function)
    return findings


async def _check_system(client: Client, name: str, module: str, function: str) -> list[DoctorFinding]:
    try:
        check_system = getattr(importlib.import_module(module), function)
    except ImportError:  # without the extra of a system, this machine does not run it
        return []
    try:
        checks = await check_system(client)
    except HoldfastError as error:
        return [DoctorFinding(name, "warn", f"could not run: {error.message}", error.fix)]
    return [DoctorFinding(name, check.level, check.text, check.fix) for check in checks]


def _check_chromium(settings: Settings) -> list[DoctorFinding]:
    """Check the settings of Chromium. Only some applications need it, so its absence is no finding."""
    findings: list[DoctorFinding] = []
    if settings.chromium is not None:
        try:
            path = find_chromium(settings.chromium)
            findings.append(DoctorFinding("chromium", "ok", f"Chromium is {path}."))
        except BrowserStartError as error:
            findings.append(DoctorFinding("chromium", "fail", error.message, error.fix))
    if settings.chromium_sandbox == "off":
        findings.append(
            DoctorFinding(
                "chromium",
                "warn",
                "Chromium runs without its sandbox, so a page can use holes of the browser.",
                "Allow unprivileged user namespaces and remove HOLDFAST_CHROMIUM_SANDBOX=off.",
            )
        )
    return findings


def _print_finding(session: CliSession, finding: DoctorFinding) -> None:
    if session.output.json:
        session.output.print_record(
            {"check": finding.check, "level": finding.level, "text": finding.text, "fix": finding.fix}
        )
        return
    session.output.print_line(f"{finding.level:<4}  {finding.check:<12}  {finding.text}")
    if finding.fix and finding.level != "ok":
        session.output.print_line(f"      {'':<12}  fix: {finding.fix}")


async def _run_health_probe(settings: Settings, *, ready: bool) -> None:
    storage = engine_doctor.check_storage_folder(settings)
    if storage.level == "fail":
        raise HoldfastError(storage.text, fix=storage.fix)
    if ready:
        async with open_connection(_get_running_database_url(settings), settings) as connection:
            await install.verify_schema(connection)


def _get_running_database_url(settings: Settings) -> Secret:
    """Return the URL of the database. Raise an error if the embedded server is not running.

    A probe never starts a server.
    """
    if settings.database_url:
        return settings.database_url
    server = embedded.find_running_server(settings)
    if server is None:
        raise DatabaseUnavailableError(
            "The embedded server is not running.", fix="Start it: holdfast db start"
        )
    return server.url
