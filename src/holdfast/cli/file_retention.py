"""`holdfast file quota|extend|retention|sweep`: how many files there may be, and how long they are kept."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import click
import msgspec

from holdfast.cli.actor import record_audit_event
from holdfast.cli.file import file_command
from holdfast.cli.identifiers import parse_uuid
from holdfast.cli.parameters import DURATION
from holdfast.cli.session import CliSession, confirmation_options, json_option, pass_session
from holdfast.client import Client
from holdfast.client.files import MIN_ORPHAN_AGE
from holdfast.engine import artifacts, quotas
from holdfast.engine.connection import Connection
from holdfast.errors import InvalidError

NO_LIMIT_TEXT = "none"
NO_EXPIRY_TEXT = "forever"
_SIZE_UNIT_FACTORS = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}


@file_command.command("sweep")
@click.option(
    "--orphans",
    is_flag=True,
    help="Delete orphaned objects too: stored content older than one day that no file in the "
    "database refers to. Default: keep them.",
)
@confirmation_options
@json_option
@pass_session
def sweep_files(session: CliSession, orphans: bool, yes: bool, dry_run: bool) -> None:
    """Remove the content of deleted files from the storage.

    This includes expired and replaced files. Workers do the same regularly. The command
    prints how many objects it removed for each reason.
    """

    async def remove_content() -> dict[str, int]:
        async with session.client() as client:
            if dry_run:
                return {"orphans": await _sweep_orphans(client, delete=False)} if orphans else {}
            counts = msgspec.structs.asdict(await client.files.sweep())
            if orphans:
                consequence = "This deletes every stored object that no row of this database refers to."
                if session.confirm(consequence, yes=yes, dry_run=False):
                    counts["orphans"] = await _sweep_orphans(client, delete=True)
            return counts

    session.output.print_record(session.run_async(remove_content()))


async def _sweep_orphans(client: Client, *, delete: bool) -> int:
    """Count the stored objects that no file refers to, and delete them if `delete` is set."""
    count = 0
    async for keys in client.files.orphaned_objects(older=MIN_ORPHAN_AGE):
        count += len(keys)
        if delete:
            await client.files.store.delete(keys)
    return count


@file_command.command("quota")
@click.argument("owner", required=False)
@click.option(
    "--bytes",
    "size",
    metavar="N|none",
    help="Limit the total size of the owner's files in bytes, such as 100M, or remove the "
    "limit with `none`. Default: unchanged.",
)
@click.option(
    "--files",
    metavar="N|none",
    help="Limit the number of the owner's files, or remove the limit with `none`. Default: unchanged.",
)
@click.option(
    "--operations",
    metavar="N|none",
    help="Limit the number of the owner's jobs per day, or remove the limit with `none`. Default: unchanged.",
)
@json_option
@pass_session
def show_or_set_quota(
    session: CliSession, owner: str | None, size: str | None, files: str | None, operations: str | None
) -> None:
    """Show the usage and the quota of an owner, or set the quota.

    Options set the quota of OWNER. Limits that you do not name stay as they are; none removes a limit.
    Without OWNER, the command shows or sets the default quota of owners that have none of their own.
    """
    changes = {"bytes": size, "files": files, "operations": operations}
    limits = {name: _parse_quota_limit(text) for name, text in changes.items() if text is not None}

    async def save_and_fetch_usage(connection: Connection) -> dict[str, Any]:
        usage: dict[str, Any] = await quotas.get_owner_usage(connection, owner or "")
        if not limits:
            return usage
        new_limits = {name: usage[name]["limit"] for name in changes} | limits
        await quotas.put_quota(
            connection,
            owner,
            size=new_limits["bytes"],
            files=new_limits["files"],
            operations=new_limits["operations"],
        )
        await record_audit_event(connection, "quota.put", owner, **limits)
        return await quotas.get_owner_usage(connection, owner or "")

    session.output.print_record(session.run_with_connection(save_and_fetch_usage))


def _parse_quota_limit(text: str) -> int | None:
    """Parse a quota such as 500 or 100M (units K, M, G, T). Return None for `none`, which means no limit."""
    if text == NO_LIMIT_TEXT:
        return None
    try:
        factor = _SIZE_UNIT_FACTORS.get(text[-1:].lower(), 1)
        return round(float(text[:-1] if factor > 1 else text) * factor)
    except (ValueError, OverflowError):
        raise InvalidError(f"{text!r} is not a number.", fix="Write 500, 100M or none.") from None


def _parse_ttl(text: str) -> timedelta | None:
    return None if text == NO_EXPIRY_TEXT else DURATION.convert(text, None, None)


@file_command.command("extend")
@click.argument("file_id", metavar="FILE")
@click.argument("ttl", metavar="DURATION|forever")
@json_option
@pass_session
def extend_file_ttl(session: CliSession, file_id: str, ttl: str) -> None:
    """Change how long one file is kept.

    The file is kept for a duration from now, such as 30d, or forever. This overrides the retention rules.
    """
    duration = _parse_ttl(ttl)

    async def save_ttl(connection: Connection) -> None:
        until = await artifacts.set_artifact_ttl(connection, parse_uuid(file_id, "file"), duration)
        await record_audit_event(connection, "artifact.keep", file_id, until=until and until.isoformat())
        end = "forever" if until is None else f"until {until:%Y-%m-%d %H:%M} UTC"
        session.output.print_change(f"The file is kept {end}.", id=file_id, until=until)

    session.run_with_connection(save_ttl)


@file_command.command("retention")
@click.argument("ttl", metavar="DURATION|forever")
@click.option(
    "--owner", help="Apply the retention rule only to files of this owner. Default: files of all owners."
)
@click.option(
    "--type",
    "job_type",
    help="Apply the retention rule only to files of jobs of this type. Default: jobs of all types.",
)
@json_option
@pass_session
def set_retention_rule(session: CliSession, ttl: str, owner: str | None, job_type: str | None) -> None:
    """Set a retention rule: how long files are kept.

    Rules apply to files that were saved without a ttl of their own. If several rules match a file, the
    most specific one applies.
    """
    duration = _parse_ttl(ttl)

    async def save_rule(connection: Connection) -> None:
        await artifacts.put_artifact_retention_rule(connection, owner=owner, job_type=job_type, ttl=duration)
        await record_audit_event(connection, "artifact.retention", owner, type=job_type, ttl=ttl)

    session.run_with_connection(save_rule)
    scope = " ".join(filter(None, [owner and f"of {owner}", job_type and f"of {job_type} jobs"]))
    kept = "forever" if duration is None else f"for {ttl}"
    session.output.print_change(
        f"{f'Files {scope}' if scope else 'All files'} are kept {kept} from now on.",
        owner=owner,
        type=job_type,
        ttl=ttl,
    )
