"""`holdfast batch zip`: download the files of a batch as one ZIP archive with a manifest."""

from __future__ import annotations

import contextlib
import sys
import zipfile
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, BinaryIO
from uuid import UUID, uuid4

import click
import msgspec

from holdfast.cli.api import check_server_extra
from holdfast.cli.batch import batch_command, get_batch_or_fail
from holdfast.cli.identifiers import parse_uuid
from holdfast.cli.session import CliSession, json_option, pass_session
from holdfast.client import Client
from holdfast.engine import artifacts
from holdfast.errors import ConflictError
from holdfast.formatting import format_count, format_size

FILES_PER_PAGE = 100


@batch_command.command("zip")
@click.argument("batch_id", metavar="BATCH")
@click.option(
    "--output",
    "-o",
    help="Write the ZIP archive to this file; - writes it to standard output. Default: BATCH.zip "
    "in the current folder.",
)
@click.option(
    "--force", is_flag=True, help="Overwrite the output file if it exists. Default: fail if it exists."
)
@json_option
@pass_session
def download_zip(session: CliSession, batch_id: str, output: str | None, force: bool) -> int:
    """Download all files of a batch as a ZIP archive.

    Exit with code 1 if a file could not be read; manifest.json in the archive lists the failures. This
    command needs the extra `server`.
    """
    check_server_extra("holdfast batch zip")
    batch_uuid = parse_uuid(batch_id, "batch")
    target = Path(output or f"{batch_uuid}.zip")
    if output != "-" and target.exists() and not force:
        raise ConflictError(f"{target} already exists.", fix="Choose another name with -o, or add --force.")

    async def write_zip_to_target() -> int:
        async with session.client() as client:
            async with client.connection() as connection:
                await get_batch_or_fail(connection, batch_uuid)
            if output == "-":
                await _write_zip(client, batch_uuid, sys.stdout.buffer)
                return 0
            await _write_zip_file(client, batch_uuid, target)
            return _print_zip_summary(session, target)

    return session.run_async(write_zip_to_target())


async def _write_zip_file(client: Client, batch_id: UUID, target: Path) -> None:
    """Write the ZIP archive to a temporary file, then rename the file to `target`.

    An incomplete archive therefore never has the final name.
    """
    temporary = target.with_name(f"{target.name}.{uuid4().hex[:8]}.part")
    try:
        with temporary.open("xb") as file:
            await _write_zip(client, batch_id, file)
        temporary.replace(target)
    finally:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()


async def _write_zip(client: Client, batch_id: UUID, file: BinaryIO) -> None:
    from holdfast.server.api.batches import build_batch_manifest  # noqa: PLC0415
    from holdfast.server.api.zip_archives import stream_zip  # noqa: PLC0415

    async def fetch_batch_summary() -> dict[str, Any]:
        async with client.connection() as connection:
            return await build_batch_manifest(connection, batch_id)

    async for chunk in stream_zip(_iterate_zip_entries(client, batch_id), fetch_batch_summary):
        file.write(chunk)


async def _iterate_zip_entries(client: Client, batch_id: UUID) -> AsyncGenerator[Any]:
    from holdfast.server.api.zip_archives import make_zip_entry  # noqa: PLC0415

    after: UUID | None = None
    while True:
        async with client.connection() as connection:
            page = await artifacts.list_artifacts(
                connection, {"batch": batch_id}, after=after, limit=FILES_PER_PAGE
            )
        for artifact in page:
            after = artifact.id
            yield make_zip_entry(client.files.store, artifact)
        if len(page) < FILES_PER_PAGE:
            return


def _print_zip_summary(session: CliSession, target: Path) -> int:
    """Print the number of files in a ZIP archive. Return exit code 1 if files are missing, else 0."""
    with zipfile.ZipFile(target) as archive:
        manifest = msgspec.json.decode(archive.read("manifest.json"))
    failures = manifest["failures"]
    if session.output.json:
        session.output.print_record({"file": str(target), **manifest})
    else:
        notes = f", {len(failures)} could not be read" if failures else ""
        if manifest["failed_jobs"]:
            notes += f", {format_count(len(manifest['failed_jobs']), 'job')} did not succeed"
        size = format_size(target.stat().st_size)
        files = format_count(len(manifest["files"]), "file")
        session.output.print_line(f"Saved {files} ({size}) in {target}{notes}.")
    return 1 if failures else 0
