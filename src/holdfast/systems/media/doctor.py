"""The checks of `holdfast doctor` for media: programs, transcription, confinement, downloads, storage."""

from __future__ import annotations

import importlib.metadata
import re
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from holdfast import Client
from holdfast.errors import HoldfastError
from holdfast.systems.media.ffmpeg import find_ffmpeg
from holdfast.systems.media.transcription_providers import create_transcription_provider
from holdfast.systems.sandbox.confinement import get_landlock_version
from holdfast.systems.sandbox.programs import ProgramCall, ProgramLimits, run_program
from holdfast.systems.system_checks import SystemFinding, check_storage, format_age, run_system_checks
from holdfast.systems.tables import qualify_tables

WORKER_COMMAND: Final = "holdfast worker holdfast.systems.media"
INSTALL_COMMAND: Final = "pip install --upgrade 'holdfast[media]'"
MAX_WAITING_TIME: Final = timedelta(minutes=15)
MAX_YTDLP_AGE: Final = timedelta(days=180)
MIN_LANDLOCK_VERSION_FOR_CONNECTIONS: Final = 4
VERSION_LIMITS: Final = ProgramLimits(timeout_s=20, max_file_bytes=1_000_000, max_folder_bytes=1_000_000)


async def check_media(client: Client) -> list[SystemFinding]:
    """Run the checks, or return an empty list if the media system is not installed in the database."""
    async with client.connection() as connection:
        table = qualify_tables("{}.share_starts", client.settings.systems_schema)
        if await connection.fetchval("select pg_catalog.to_regclass($1) is null", table):
            return []
    checks = (
        check_ffmpeg, check_ytdlp, check_transcription, check_confinement, check_downloads, check_storage,
    )  # fmt: skip
    return await run_system_checks(client, checks)


async def check_ffmpeg(_: Client) -> SystemFinding:
    """Start ffmpeg as a worker does. A machine without it can still serve the API."""
    try:
        program = find_ffmpeg()
    except HoldfastError as error:
        return SystemFinding("warn", f"This machine cannot process media: {error.message}", error.fix)
    lines: list[str] = []
    with tempfile.TemporaryDirectory(prefix="holdfast-media-doctor-") as folder:
        call = ProgramCall(
            command=[str(program), "-version"],
            folder=Path(folder),
            readable=(str(program), str(program.resolve())),
            limits=VERSION_LIMITS,
        )
        exit_code, log = await run_program(call, lines.append)
    version = re.match(r"ffmpeg version (\S+)", lines[0] if lines else "")
    if exit_code or version is None:
        last = (log.strip().splitlines() or ["it wrote nothing"])[-1]
        text = f"{program} does not start: {last}"
        return SystemFinding("warn", text, f"Set HOLDFAST_FFMPEG, or {INSTALL_COMMAND}")
    return SystemFinding("ok", f"ffmpeg {version[1]} starts.")


async def check_ytdlp(_: Client) -> SystemFinding:
    """Report the version of yt-dlp, which is a date. Old versions fail on sites that have changed."""
    try:
        version = importlib.metadata.version("yt-dlp")
    except importlib.metadata.PackageNotFoundError:
        text = "yt-dlp is not installed: only links to files can be downloaded."
        return SystemFinding("warn", text, INSTALL_COMMAND)
    date = re.match(r"(\d{4})\.(\d{1,2})\.(\d{1,2})", version)
    if date is not None:
        age = datetime.now(UTC) - datetime(int(date[1]), int(date[2]), int(date[3]), tzinfo=UTC)
        if age > MAX_YTDLP_AGE:
            text = f"yt-dlp {version} is {age.days} days old. Websites change, and old versions fail on them."
            return SystemFinding("warn", text, "pip install --upgrade yt-dlp")
    return SystemFinding("ok", f"yt-dlp {version} is installed.")


async def check_transcription(client: Client) -> SystemFinding:
    """Report which engine writes transcripts."""
    settings = client.settings
    try:
        provider = create_transcription_provider(settings)
        await provider.close()
    except HoldfastError as error:
        return SystemFinding("warn", f"Transcripts cannot be made: {error.message}", error.fix)
    if settings.transcription_url is not None:
        return SystemFinding("ok", "Transcripts are made by the server of transcription_url.")
    if settings.transcription_model_path is not None:
        return SystemFinding("ok", "Transcripts are made with the model of transcription_model_path.")
    try:
        importlib.metadata.version("pocketsphinx")
    except importlib.metadata.PackageNotFoundError:
        return SystemFinding("warn", "No transcription engine is installed.", INSTALL_COMMAND)
    text = "Transcripts are made by pocketsphinx, which gets many words wrong and knows English only."
    return SystemFinding("ok", text, "Set transcription_url or transcription_model_path.")


async def check_confinement(_: Client) -> SystemFinding:
    """Report how well programs that read files of strangers are confined."""
    version = get_landlock_version()
    if version is None:
        text = "The kernel has no Landlock: media programs can read files of the worker's machine."
        return SystemFinding(
            "warn", text, "Use Linux 6.7 or newer, or run workers in a container of their own."
        )
    if version < MIN_LANDLOCK_VERSION_FOR_CONNECTIONS:
        text = "The kernel confines media programs to their folder, but cannot forbid connections."
        return SystemFinding("warn", text, "Use Linux 6.7 or newer.")
    return SystemFinding("ok", "Media programs are confined to their folder and to the guarded proxy.")


async def check_downloads(client: Client) -> SystemFinding:
    """Report how many downloads wait, and warn if one waits although its time has come."""
    query = (
        "select count(*) as total, count(*) filter (where download_status = 'processing') as running,"
        " holdfast.now() - min(coalesce(run_after, updated_at)) filter (where slot_taken_at is null"
        " and download_status in ('pending', 'retry')) as waiting"
        " from {}.shares where download_status in ('pending', 'processing', 'retry')"
    )
    async with client.connection() as connection:
        row = await connection.fetchrow(qualify_tables(query, client.settings.systems_schema))
    if row is None or not row["total"]:
        return SystemFinding("ok", "No download is waiting.")
    text = f"{row['total']} downloads are not complete; {row['running']} of them are running."
    if row["waiting"] is not None and row["waiting"] > MAX_WAITING_TIME:
        reason = f"{text} One has been waiting for {format_age(row['waiting'])}."
        return SystemFinding("warn", reason, f"Start a worker, or more of them: {WORKER_COMMAND}")
    return SystemFinding("ok", text)
