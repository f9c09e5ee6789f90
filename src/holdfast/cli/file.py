"""`holdfast file list|get|put|delete|sign|regenerate`: the files that jobs saved."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any, BinaryIO
from uuid import uuid4

import click
import msgspec

from holdfast.cli import job_watch
from holdfast.cli.actor import record_client_audit_event
from holdfast.cli.parameters import DURATION, parse_pairs
from holdfast.cli.session import CliSession, confirmation_options, json_option, pass_session, row_limit_option
from holdfast.errors import ConflictError, NotFoundError
from holdfast.formatting import format_count
from holdfast.model import Artifact

FILE_COLUMNS = ("id", "name", "kind", "size", "content_type", "owner", "job_id", "downloads", "expires_at")
MAX_LISTED_FILE_NAMES = 5


@click.group("file")
def file_command() -> None:
    """List, download, upload and delete files of jobs, and set how long they are kept."""


@file_command.command("list")
@click.argument("job", required=False)
@click.option(
    "--batch", help="List only files of the jobs in the batch with this id. Default: files of all jobs."
)
@click.option("--owner", help="List only files of this owner. Default: files of all owners.")
@click.option(
    "--kind",
    help="List only files of this kind, a word chosen when the file was saved. Default: files of all kinds.",
)
@click.option("--name", help="List only files with exactly this name. Default: files of any name.")
@row_limit_option
@json_option
@pass_session
def list_files(session: CliSession, /, job: str | None, **filters: str | None) -> None:
    """List files, oldest first.

    List the files of JOB, or all files that match the options.
    """

    async def fetch_file_rows() -> list[dict[str, Any]]:
        async with session.client() as client:
            artifacts = await client.files.list(job=job, **filters)
            return [msgspec.structs.asdict(artifact) for artifact in artifacts]

    session.output.print_rows(session.run_async(fetch_file_rows()), FILE_COLUMNS)


@file_command.command("get")
@click.argument("file_id", metavar="FILE")
@click.option(
    "--output",
    "-o",
    help="Write the content to this file or folder; - writes it to standard output. Default: a "
    "file with the same name in the current folder.",
)
@click.option(
    "--force", is_flag=True, help="Overwrite the output file if it exists. Default: fail if it exists."
)
@json_option
@pass_session
def download_file(session: CliSession, file_id: str, output: str | None, force: bool) -> None:
    """Download the file with the id FILE and verify its hash."""

    async def save_content() -> None:
        async with session.client() as client:
            artifact = await client.files.get(file_id)
            async with client.files.open(artifact) as reader:
                if output == "-":
                    await _copy_chunks(aiter(reader), sys.stdout.buffer)
                    return
                target = _choose_download_path(output, artifact.name, force=force)
                await _download_to_file(aiter(reader), target)
            session.output.print_change(
                f"Saved {artifact.size:,} bytes in {target}.", path=str(target), bytes=artifact.size
            )

    session.run_async(save_content())


def _choose_download_path(output: str | None, name: str, *, force: bool) -> Path:
    target = Path(output or name)
    target = target / name if target.is_dir() else target
    if target.exists() and not force:
        raise ConflictError(
            f"{target} already exists.", fix="Choose another name with -o, or add --force.", field="output"
        )
    return target


async def _download_to_file(chunks: AsyncIterator[bytes], target: Path) -> None:
    """Write a download to a temporary file, then rename the file to `target`.

    An incomplete file therefore never has the final name.
    """
    temporary = target.with_name(f".{uuid4().hex}.part")
    try:
        with temporary.open("xb") as file:
            await _copy_chunks(chunks, file)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


async def _copy_chunks(chunks: AsyncIterator[bytes], target: BinaryIO) -> None:
    async for chunk in chunks:
        await asyncio.to_thread(target.write, chunk)
    target.flush()


@file_command.command("put")
@click.argument("path")
@click.option("--job", help="Attach the file to the job with this id. Default: no job.")
@click.option("--owner", help="Set the owner of the file. Default: the owner of the job.")
@click.option(
    "--name",
    help="Store the file under this name. Default: the file name in PATH. Required for standard input.",
)
@click.option(
    "--type",
    "content_type",
    help="Set the media type of the file, such as image/png. Default: guessed from the file name.",
)
@click.option(
    "--kind",
    default="file",
    show_default=True,
    help="Set the kind of the file, a word of your choice to filter files by.",
)
@click.option(
    "--ttl",
    type=DURATION,
    help="Delete the file after this duration, such as 30d. Default: the duration of the matching "
    "retention rule.",
)
@click.option(
    "--meta",
    multiple=True,
    metavar="NAME=VALUE",
    help="Store a metadata field with the file: name=text or name:=json, such as pages:=3. Repeat "
    "the option to store more fields. Default: none.",
)
@json_option
@pass_session
def upload_file(session: CliSession, /, path: str, **options: Any) -> None:
    """Upload the file PATH and print its id. The PATH - reads standard input."""
    name = options["name"] or (Path(path).name if path != "-" else None)
    if not name:
        raise click.UsageError("Standard input has no name; give one with --name.")
    if path != "-" and not Path(path).is_file():
        raise NotFoundError(f"File {path} does not exist.")

    async def store_file() -> Artifact:
        async with session.client() as client:
            return await client.files.put(
                name,
                sys.stdin.buffer if path == "-" else Path(path),
                options["content_type"],
                job=options["job"],
                owner=options["owner"],
                kind=options["kind"],
                ttl=options["ttl"],
                meta=parse_pairs(options["meta"]),
            )

    artifact = session.run_async(store_file())
    if session.output.json:
        session.output.print_record(msgspec.structs.asdict(artifact))
    else:
        session.output.print_value("id", artifact.id)


@file_command.command("delete")
@click.argument("file_ids", metavar="FILE...", nargs=-1, required=True)
@confirmation_options
@json_option
@pass_session
def delete_files(session: CliSession, file_ids: tuple[str, ...], yes: bool, dry_run: bool) -> None:
    """Delete files by id. The next sweep removes their content from the storage."""

    async def confirm_and_delete() -> None:
        async with session.client() as client:
            artifacts = [await client.files.get(file_id) for file_id in file_ids]
            names = ", ".join(artifact.name for artifact in artifacts[:MAX_LISTED_FILE_NAMES])
            names += ", ..." if len(artifacts) > MAX_LISTED_FILE_NAMES else ""
            size = sum(artifact.size for artifact in artifacts)
            count = format_count(len(artifacts), "file")
            if session.confirm(f"This deletes {count} ({names}; {size:,} bytes).", yes=yes, dry_run=dry_run):
                for artifact in artifacts:
                    await client.files.delete(artifact.id)
                    await record_client_audit_event(
                        client, "artifact.delete", str(artifact.id), name=artifact.name
                    )
                session.output.print_change(
                    f"Deleted {count}.", deleted=[str(artifact.id) for artifact in artifacts]
                )

    session.run_async(confirm_and_delete())


@file_command.command("sign")
@click.argument("file_id", metavar="FILE")
@click.option(
    "--expires",
    type=DURATION,
    default="1h",
    show_default=True,
    help="Make the download link expire after this duration, from 5m to 1h.",
)
@click.option(
    "--inline",
    is_flag=True,
    help="Let browsers display the file instead of downloading it, if its media type is safe. "
    "Default: download.",
)
@json_option
@pass_session
def print_download_link(session: CliSession, file_id: str, expires: timedelta, inline: bool) -> None:
    """Print a signed download link for a file.

    Anybody who has the link can download the file until the link expires.
    """

    async def sign_link() -> str:
        async with session.client() as client:
            return await client.files.create_download_link(file_id, expires, inline=inline)

    link, settings = session.run_async(sign_link()), session.settings
    if link.startswith("/"):  # a path of `holdfast api`
        link = f"http://{settings.api_host}:{settings.api_port}{link}"
    session.output.print_value("url", link)


@file_command.command("regenerate")
@click.argument("file_id", metavar="FILE")
@click.option("--wait", is_flag=True, help="Wait for the job; exit with 1 if it fails. Default: do not wait.")
@json_option
@pass_session
def regenerate_file(session: CliSession, file_id: str, wait: bool) -> int:
    """Regenerate a deleted or expired file.

    The command runs the task that saved the file again, and prints the id of its job.
    """

    async def submit_regeneration() -> int:
        async with session.client() as client:
            job_id = await client.files.regenerate(file_id)
            await record_client_audit_event(client, "artifact.regenerate", file_id, job=str(job_id))
            session.output.print_value("job", job_id)
            return job_watch.get_job_exit_code(await job_watch.wait_for_job(client, job_id)) if wait else 0

    return session.run_async(submit_regeneration())
