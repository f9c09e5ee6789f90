"""`holdfast batch zip`: every file that the jobs of a batch saved, in one archive with a manifest."""

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

from holdfast.cli import words
from holdfast.cli.batch import batch, named
from holdfast.cli.naming import uuid_named
from holdfast.cli.session import Session, json_option, pass_session
from holdfast.client import Client
from holdfast.engine import artifacts
from holdfast.errors import ConflictError, HoldfastError

PAGE = 100


@batch.command("zip")
@click.argument("batch_id", metavar="BATCH")
@click.option("--output", "-o", help="Where to; - is standard output. Default: BATCH.zip in this folder.")
@click.option("--force", is_flag=True, help="Overwrite what is there.")
@json_option
@pass_session
def zip_files(session: Session, batch_id: str, output: str | None, force: bool) -> int:
    """Fetch all files of a batch as a ZIP; exit 1 if one could not be read (see its manifest.json)."""
    asked = uuid_named(batch_id, "batch")
    target = Path(output or f"{asked}.zip")
    if output != "-" and target.exists() and not force:
        raise ConflictError(f"{target} is there already.", fix="Give another name, or --force.")

    async def work() -> int:
        async with session.client() as client:
            async with (await client.open()).connection() as connection:
                await named(connection, asked)
            if output == "-":
                await _write(client, asked, sys.stdout.buffer)
                return 0
            await _whole(client, asked, target)
            return _tell(session, target)

    return session.run(work())


async def _whole(client: Client, batch_id: UUID, target: Path) -> None:
    """The file appears under its name when it is complete, and not at all if it is not."""
    growing = target.with_name(f"{target.name}.{uuid4().hex[:8]}.part")
    try:
        with growing.open("xb") as file:
            await _write(client, batch_id, file)
        growing.replace(target)
    finally:
        with contextlib.suppress(FileNotFoundError):
            growing.unlink()


async def _write(client: Client, batch_id: UUID, file: BinaryIO) -> None:
    try:  # the web framework is an extra
        from holdfast.server.api.batches import batch_told  # noqa: PLC0415
        from holdfast.server.api.zips import zip_stream  # noqa: PLC0415
    except ImportError as problem:
        raise HoldfastError(
            f"ZIPs need a package that is not installed: {problem.name}.",
            fix="pip install 'holdfast[server]'",
        ) from problem

    async def about() -> dict[str, Any]:
        async with (await client.open()).connection() as connection:
            return await batch_told(connection, batch_id)

    async for piece in zip_stream(_entries(client, batch_id), about):
        file.write(piece)


async def _entries(client: Client, batch_id: UUID) -> AsyncGenerator[Any]:
    from holdfast.server.api.zips import entry_of  # noqa: PLC0415

    after: UUID | None = None
    while True:
        async with (await client.open()).connection() as connection:
            page = await artifacts.list_artifacts(connection, {"batch": batch_id}, after=after, limit=PAGE)
        for each in page:
            after = each.id
            yield entry_of(client.files.store, each)
        if len(page) < PAGE:
            return


def _tell(session: Session, target: Path) -> int:
    with zipfile.ZipFile(target) as archive:
        manifest = msgspec.json.decode(archive.read("manifest.json"))
    failures = manifest["failures"]
    if session.out.json:
        session.out.record({"file": str(target), **manifest})
    else:
        failed = f", {len(failures)} could not be read" if failures else ""
        if manifest["failed_jobs"]:
            failed += f", {words.many(len(manifest['failed_jobs']), 'job')} did not succeed"
        size = words.size(target.stat().st_size)
        session.out.line(f"{words.many(len(manifest['files']), 'file')}{failed}, {size} in {target}.")
    return 1 if failures else 0
