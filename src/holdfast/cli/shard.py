"""`holdfast shard`: number, list and drain the databases that clients route work to."""

from __future__ import annotations

from typing import Any

import click

from holdfast.cli.actor import record_audit_event
from holdfast.cli.session import CliSession, confirmation_options, json_option, pass_session, row_limit_option
from holdfast.client import Client
from holdfast.engine import schedules, shards
from holdfast.engine.connection import Connection
from holdfast.engine.shards import ShardState
from holdfast.errors import DatabaseError, InvalidError, NotFoundError, RefusedError
from holdfast.setting_values import parse_shards
from holdfast.settings import Secret, redact_url

SHARD_COLUMNS = ["shard", "database", "state", "unfinished"]


@click.group("shard")
def shard_command() -> None:
    """Number, list and drain shards.

    Shards are independent databases that clients route work to. See docs/operate/shards.md.
    """


@shard_command.command("list")
@row_limit_option
@json_option
@pass_session
def list_shards(session: CliSession) -> None:
    """List the shards with their state and unfinished work."""
    urls = _get_shard_urls(session)

    async def read_all() -> list[dict[str, Any]]:
        return [await _describe_shard(session, number, url) for number, url in urls.items()]

    session.output.print_rows(session.run_async(read_all()), SHARD_COLUMNS)


@shard_command.command("add")
@click.argument("number", type=click.IntRange(0, 255))
@click.argument("url")
@pass_session
def add_shard(session: CliSession, number: int, url: str) -> None:
    """Number the database at URL as shard NUMBER.

    Install its schema before, with `holdfast migrate`. A database that has jobs keeps its number: an existing
    database without shards is shard 0. Add the shard to HOLDFAST_SHARDS of all processes afterwards.
    """
    urls = _get_shard_urls(session, required=False)
    if any(other.reveal() == url for known, other in urls.items() if known != number):
        raise InvalidError("This database is another shard already.", field="url")

    async def add() -> ShardState:
        joined = [(await _read_shard(session, other))[0].joined for other in urls.values()]
        async with Client(url, settings=session.settings) as client, client.connection() as connection:
            if number in urls:  # named in the setting from the start
                state = await shards.set_shard(connection, number)
            else:
                state = await shards.set_shard(connection, number, max(joined) + 1 if joined else 0)
            await record_audit_event(connection, "shard.add", str(number))
            return state

    state = session.run_async(add())
    session.output.print_line(
        f"The database is shard {state.number}. Add {number}=<its URL> to HOLDFAST_SHARDS of all processes: "
        "workers first, then clients."
    )


@shard_command.command("drain")
@click.argument("number", type=click.IntRange(0, 255))
@click.option("--undo", is_flag=True, help="Send new work to the shard again. Default: send none.")
@pass_session
def drain_shard(session: CliSession, number: int, undo: bool) -> None:
    """Send no new work to a shard.

    What is there runs to its end.
    """

    async def drain(connection: Connection) -> None:
        await shards.set_shard_draining(connection, draining=not undo)
        await record_audit_event(connection, "shard.undrain" if undo else "shard.drain", str(number))

    _run_on_shard(session, number, drain)
    state = "takes new work again" if undo else "takes no new work"
    session.output.print_line(f"Shard {number} {state}. Clients notice it within 10 seconds.")


@shard_command.command("remove")
@click.argument("number", type=click.IntRange(0, 255))
@confirmation_options
@pass_session
def remove_shard(session: CliSession, number: int, yes: bool, dry_run: bool) -> None:
    """Check that a drained shard is empty and can be removed.

    Then remove it from HOLDFAST_SHARDS of all processes. The database itself is not changed. Its finished
    jobs are not found any more.
    """

    async def check(connection: Connection) -> None:
        state = await shards.get_shard(connection)
        if not state.draining:
            raise RefusedError(f"Shard {number} is not drained.", fix=f"Run: holdfast shard drain {number}")
        unfinished = await shards.count_unfinished_work(connection)
        if unfinished:
            raise RefusedError(f"Shard {number} has {unfinished} unfinished tasks and batches.", fix="Wait.")
        if await schedules.list_schedules(connection, owner=None, after=None, limit=1):
            raise RefusedError(
                f"Shard {number} has schedules.",
                fix="Delete them there (`holdfast cron delete`) and create them again.",
            )
        consequence = f"Finished jobs of shard {number} are not found any more."
        if session.confirm(consequence, yes=yes, dry_run=dry_run):
            await record_audit_event(connection, "shard.remove", str(number))
            session.output.print_line(f"Remove shard {number} from HOLDFAST_SHARDS of all processes.")

    _run_on_shard(session, number, check)


def _get_shard_urls(session: CliSession, *, required: bool = True) -> dict[int, Secret]:
    if session.settings.shards is None:
        if not required:
            return {}
        raise NotFoundError(
            "There are no shards.", fix="Set HOLDFAST_SHARDS=1=postgresql://…,2=postgresql://…"
        )
    return parse_shards(session.settings.shards.reveal())


def _run_on_shard(session: CliSession, number: int, operation: Any) -> None:
    urls = _get_shard_urls(session)
    if number not in urls:
        raise NotFoundError(
            f"Shard {number} is not in the setting shards.",
            fix=f"The shards are {', '.join(map(str, urls))}.",
        )

    async def run() -> None:
        client = Client(urls[number].reveal(), settings=session.settings)
        async with client, client.connection() as connection:
            if (actual := (await shards.get_shard(connection)).number) != number:
                raise InvalidError(
                    f"The database of shard {number} says that it is shard {actual}.",
                    fix="Correct HOLDFAST_SHARDS.",
                    field="shards",
                )
            await operation(connection)

    session.run_async(run())


async def _read_shard(session: CliSession, url: Secret) -> tuple[ShardState, int]:
    client = Client(url.reveal(), settings=session.settings)
    async with client, client.connection() as connection:
        return await shards.get_shard(connection), await shards.count_unfinished_work(connection)


async def _describe_shard(session: CliSession, number: int, url: Secret) -> dict[str, Any]:
    row: dict[str, Any] = {"shard": number, "database": redact_url(url.reveal()), "unfinished": None}
    try:
        state, unfinished = await _read_shard(session, url)
    except DatabaseError as error:
        return {**row, "state": f"unreachable: {error.message}"}
    if state.number != number:
        return {**row, "state": f"wrong: the database says that it is shard {state.number}"}
    return {**row, "state": "draining" if state.draining else "active", "unfinished": unfinished}
