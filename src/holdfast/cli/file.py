"""`holdfast file`: the files of jobs, links to them, how long they are kept and how many there may be."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any, BinaryIO
from uuid import UUID, uuid4

import click
import msgspec

from holdfast.cli.naming import uuid_named
from holdfast.cli.session import Session, destructive, json_option, pass_session
from holdfast.cli.values import SPAN, pairs
from holdfast.cli.who import record
from holdfast.client import Client
from holdfast.client.files import OLD_ENOUGH
from holdfast.engine import artifacts
from holdfast.engine.connection import Connection
from holdfast.errors import ConflictError, InvalidError, NotFoundError
from holdfast.model import Artifact

COLUMNS = ("id", "name", "kind", "size", "content_type", "owner", "job_id", "downloads", "expires_at")
_UNITS = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}


@click.group()
def file() -> None:
    """Files that jobs saved: list, fetch, put, delete, link to."""


def client_of(session: Session) -> Client:
    return Client(settings=session.settings)


@file.command("list")
@click.argument("job", required=False)
@click.option("--batch", help="Those of the jobs of a batch.")
@click.option("--owner", help="Only those of this owner.")
@click.option("--kind", help="Only those of this kind.")
@click.option("--name", help="Only those of this name.")
@json_option
@pass_session
def list_files(session: Session, /, job: str | None, **where: str | None) -> None:
    """List the visible files of JOB, or all that fit, oldest first."""

    async def work() -> list[dict[str, Any]]:
        async with client_of(session) as client:
            found = await client.files.list(job=job, **where)
            return [msgspec.structs.asdict(each) for each in found]

    session.out.rows(session.run(work()), COLUMNS)


@file.command()
@click.argument("id")
@click.option("--output", "-o", help="Where to; - is standard output. Default: its name, in this folder.")
@click.option("--force", is_flag=True, help="Overwrite what is there.")
@pass_session
def get(session: Session, id: str, output: str | None, force: bool) -> None:  # noqa: A002
    """Fetch a file and check its hash. Nothing half-fetched is left behind."""

    async def work() -> None:
        async with client_of(session) as client:
            found = await client.files.get(id)
            async with client.files.open(found) as reading:
                if output == "-":
                    await _copy(aiter(reading), sys.stdout.buffer)
                    return
                target = _target(output, found.name, force=force)
                await _fetch(aiter(reading), target)
            session.out.line(f"{found.size:,} bytes in {target}.")

    session.run(work())


def _target(output: str | None, name: str, *, force: bool) -> Path:
    target = Path(output or name)
    target = target / name if target.is_dir() else target
    if target.exists() and not force:
        raise ConflictError(f"{target} is there already.", fix="Add --force, or say -o.", field="output")
    return target


async def _fetch(pieces: AsyncIterator[bytes], target: Path) -> None:
    beside = target.with_name(f".{uuid4().hex}.part")
    try:
        with beside.open("xb") as partial:
            await _copy(pieces, partial)
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)


async def _copy(pieces: AsyncIterator[bytes], target: BinaryIO) -> None:
    async for piece in pieces:
        await asyncio.to_thread(target.write, piece)
    target.flush()


@file.command()
@click.argument("path")
@click.option("--job", help="The job that it belongs to.")
@click.option("--owner", help="Whose it is; a job's file is its owner's.")
@click.option("--name", help="What it is called; needed for - (standard input).")
@click.option("--type", "content_type", help="As in image/png; else guessed by the name.")
@click.option("--kind", default="file", show_default=True, help="What it is for.")
@click.option("--ttl", type=SPAN, help="How long it is kept.")
@click.option("--meta", multiple=True, metavar="NAME=VALUE", help="Notes about it, as in pages:=3.")
@json_option
@pass_session
def put(session: Session, /, path: str, **say: Any) -> None:
    """Store the file at PATH, or standard input (-), and print its id."""
    name = say["name"] or (Path(path).name if path != "-" else None)
    if not name:
        raise click.UsageError("Say --name for standard input.")
    if path != "-" and not Path(path).is_file():
        raise NotFoundError(f"There is no file {path}.")

    async def work() -> Artifact:
        async with client_of(session) as client:
            return await client.files.put(
                name,
                sys.stdin.buffer if path == "-" else Path(path),
                say["content_type"],
                job=say["job"],
                owner=say["owner"],
                kind=say["kind"],
                ttl=say["ttl"],
                meta=pairs(say["meta"]),
            )

    saved = session.run(work())
    if session.out.json:
        session.out.record(msgspec.structs.asdict(saved))
    else:
        session.out.value("id", saved.id)


@file.command()
@click.argument("ids", nargs=-1, required=True)
@destructive
@pass_session
def rm(session: Session, ids: tuple[str, ...], yes: bool, dry_run: bool) -> None:
    """Delete files. Nobody sees them from then on; their bytes go with the next sweep."""

    async def work() -> None:
        async with client_of(session) as client:
            found = [await client.files.get(each) for each in ids]
            names = ", ".join(each.name for each in found[:5]) + (", ..." if len(found) > 5 else "")
            size = sum(each.size for each in found)
            consequence = (
                f"{len(found)} file{'s' * (len(found) != 1)} ({names}; {size:,} bytes) would be gone."
            )
            if session.confirm(consequence, yes=yes, dry_run=dry_run):
                for each in found:
                    await client.files.delete(each.id)
                session.out.line(f"{len(found)} deleted.")

    session.run(work())


@file.command()
@click.argument("id")
@click.option("--expires", type=SPAN, default="1h", show_default=True, help="From 5m to 1h.")
@click.option("--inline", is_flag=True, help="Shown by browsers, if its type is harmless; else saved.")
@json_option
@pass_session
def sign(session: Session, id: str, expires: timedelta, inline: bool) -> None:  # noqa: A002
    """Print a link with which anybody can fetch the file for a while."""

    async def work() -> str:
        async with client_of(session) as client:
            return await client.files.sign(id, expires, inline=inline)

    link, settings = session.run(work()), session.settings
    if link.startswith("/"):  # served by `holdfast api`
        link = f"http://{settings.api_host}:{settings.api_port}{link}"
    session.out.value("url", link)


@file.command()
@click.argument("id")
@pass_session
def remake(session: Session, id: str) -> None:  # noqa: A002
    """Make a file again that is gone: run the task anew that saved it. Prints its job."""

    async def work() -> UUID:
        async with client_of(session) as client:
            return await client.files.remake(id)

    session.out.value("job", session.run(work()))


@file.command()
@click.option("--strangers", is_flag=True, help="Also objects older than a day that no row speaks of.")
@destructive
@json_option
@pass_session
def sweep(session: Session, strangers: bool, yes: bool, dry_run: bool) -> None:
    """Delete what has expired, was deleted, replaced or lost. Workers do this by themselves."""

    async def work() -> dict[str, int]:
        async with client_of(session) as client:
            if dry_run:
                return {"strangers": await _strangers(client, delete=False)} if strangers else {}
            did = msgspec.structs.asdict(await client.files.sweep())
            if strangers:
                consequence = "Every object of the store that no row of this database speaks of goes."
                if session.confirm(consequence, yes=yes, dry_run=False):
                    did["strangers"] = await _strangers(client, delete=True)
            return did

    session.out.record(session.run(work()))


async def _strangers(client: Client, *, delete: bool) -> int:
    count = 0
    async for keys in client.files.strangers(older=OLD_ENOUGH):
        count += len(keys)
        if delete:
            await client.files.store.delete(keys)
    return count


@file.command()
@click.argument("owner", required=False)
@click.option("--bytes", "size", metavar="N|none", help="How many bytes, as in 100M.")
@click.option("--files", "count", metavar="N|none", help="How many files.")
@click.option("--operations", metavar="N|none", help="How many jobs a day.")
@json_option
@pass_session
def quota(session: Session, /, owner: str | None, **given: str | None) -> None:
    """Show what OWNER has and may have; with options, set all three limits (those not named: none).

    Without OWNER it is for everybody who has no quota of their own.
    """

    async def work() -> dict[str, Any]:
        async with client_of(session) as client, (await client.open()).connection() as connection:
            if any(value is not None for value in given.values()):
                limits = {name: None if value is None else _number(value) for name, value in given.items()}
                await artifacts.put_quota(
                    connection,
                    owner,
                    size=limits["size"],
                    files=limits["count"],
                    operations=limits["operations"],
                )
            return await artifacts.get_usage(connection, owner or "")

    session.out.record(session.run(work()))


def _number(text: str) -> int | None:
    if text == "none":
        return None
    try:
        unit = _UNITS.get(text[-1:].lower(), 1)
        return round(float(text[:-1] if unit > 1 else text) * unit)
    except (ValueError, OverflowError):
        raise InvalidError(f"{text!r} is no number.", fix="Write it as 500, 100M or none.") from None


@file.command()
@click.argument("id")
@click.argument("ttl", metavar="SPAN|ever")
@pass_session
def extend(session: Session, id: str, ttl: str) -> None:  # noqa: A002
    """Keep one file for so long from now on, as in 30d, whatever the rules say."""
    span = None if ttl == "ever" else SPAN.convert(ttl, None, None)

    async def work(connection: Connection) -> None:
        until = await artifacts.keep_artifact(connection, uuid_named(id, "file"), span)
        await record(connection, "artifact.keep", id, until=until and until.isoformat())
        session.out.line(f"Kept {'for ever' if until is None else f'until {until:%Y-%m-%d %H:%M} UTC'}.")

    session.ask(work)


@file.command()
@click.argument("ttl", metavar="SPAN|ever")
@click.option("--owner", help="Files of this owner.")
@click.option("--type", "job_type", help="Files of jobs of this type.")
@pass_session
def keep(session: Session, ttl: str, owner: str | None, job_type: str | None) -> None:
    """Keep files so long, unless they were saved with a ttl of their own. The narrowest rule counts."""
    span = None if ttl == "ever" else SPAN.convert(ttl, None, None)

    async def work() -> None:
        async with client_of(session) as client, (await client.open()).connection() as connection:
            await artifacts.put_rule(connection, owner=owner, type=job_type, ttl=span)

    session.run(work())
    whose = " ".join(filter(None, [owner and f"of {owner}", job_type and f"of {job_type} jobs"])) or "all"
    session.out.line(f"Files ({whose}) are kept {'for ever' if span is None else f'for {ttl}'} from now on.")
