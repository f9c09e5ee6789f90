"""`holdfast errors`: list, retry and ignore error groups (failed attempts with the same cause)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import click

from holdfast import search as grammar
from holdfast.cli import bulk
from holdfast.cli.actor import get_local_actor, record_audit_event
from holdfast.cli.output import CliOutput, strip_control_characters
from holdfast.cli.parameters import DURATION
from holdfast.cli.rows import get_list_or_empty
from holdfast.cli.session import CliSession, json_option, pass_session, run_on_each_shard
from holdfast.engine import error_groups
from holdfast.engine.connection import Connection
from holdfast.errors import ConflictError, NotFoundError
from holdfast.formatting import format_age, format_bounded_count, format_number, sanitize_text

ERROR_GROUP_COLUMNS = ["cause", "attempts", "jobs", "first", "last", "trend", "error", "tasks"]
TREND_BAR_CHARACTERS = "▁▂▃▄▅▆▇█"
ERROR_GROUP_LOOKUP_PERIOD = timedelta(days=30)
MAX_LOOKUP_ERROR_GROUPS = 1000
MAX_TABLE_CELL_CHARS = 60


def _join_cause_words(_: click.Context, __: click.Parameter, words: tuple[str, ...]) -> str:
    """Join the words of the argument CAUSE, so that the shell needs no quotes around it."""
    return " ".join(words)


cause_argument = click.argument("cause", nargs=-1, required=True, callback=_join_cause_words)


@click.group("errors")
def errors_command() -> None:
    """List, retry and ignore error groups. An error group is all failed attempts with the same cause.

    CAUSE is the first column of `holdfast errors list`, or its beginning if only one group starts with it.
    """


@errors_command.command("list")
@click.option(
    "--since",
    type=DURATION,
    default="24h",
    show_default=True,
    help="List only error groups whose last failed attempt is at most this long ago.",
)
@click.option("--ignored", is_flag=True, help="List ignored error groups too. Default: leave them out.")
@click.option(
    "--limit",
    "-n",
    type=click.IntRange(1, 1000),
    default=50,
    show_default=True,
    help="List at most this many error groups.",
)
@json_option
@pass_session
@run_on_each_shard
def list_errors(session: CliSession, since: timedelta, ignored: bool, limit: int) -> None:
    """List error groups, the most recent failure first."""

    async def fetch_error_groups(connection: Connection) -> list[dict[str, Any]]:
        start = datetime.now(UTC) - since
        return await error_groups.list_error_groups(connection, since=start, ignored=ignored, limit=limit)

    groups = session.run_with_connection(fetch_error_groups)
    rows = groups if session.output.json else [format_error_group(group) for group in groups]
    session.output.print_rows(rows, ERROR_GROUP_COLUMNS)


def format_error_group(group: dict[str, Any]) -> dict[str, Any]:
    """Format an error group as a row of a table."""
    attempts = format_number(group["attempts"])
    return {
        "cause": sanitize_text(group["cause"], MAX_TABLE_CELL_CHARS),
        "attempts": attempts if group["exact"] else format_bounded_count(group["attempts"], exact=False),
        "jobs": group["jobs"] if group["jobs_exact"] else format_bounded_count(group["jobs"], exact=False),
        "first": format_age(group["first_at"]),
        "last": format_age(group["last_at"]),
        "trend": format_trend(get_list_or_empty(group, "trend")),
        "error": sanitize_text(f"{group['type']}: {group['message']}", MAX_TABLE_CELL_CHARS),
        "tasks": ", ".join(get_list_or_empty(group, "tasks")),
    }


def format_trend(counts: list[int]) -> str:
    """Format counts over time as a line of bar characters, scaled to the highest count."""
    highest = max(counts, default=0)
    if not highest:
        return ""
    return "".join(
        TREND_BAR_CHARACTERS[round(n / highest * (len(TREND_BAR_CHARACTERS) - 1))] if n else " "
        for n in counts
    )


async def get_error_group_or_fail(connection: Connection, cause: str, *, samples: int = 1) -> dict[str, Any]:
    """Return the error group with this cause, or the only one whose cause starts with it.

    Raise `NotFoundError` if there is none, and `ConflictError` if several groups start with the text.
    """
    since = datetime.now(UTC) - ERROR_GROUP_LOOKUP_PERIOD
    group = await error_groups.get_error_group(connection, cause, since=since, limit=samples)
    if group is not None:
        return group
    groups = await error_groups.list_error_groups(
        connection, since=since, ignored=True, limit=MAX_LOOKUP_ERROR_GROUPS
    )
    matches = [each["cause"] for each in groups if each["cause"].startswith(cause)]
    if len(matches) > 1:
        raise ConflictError(f"More than one error group starts with {cause!r}.", fix="Give more characters.")
    if not matches:
        raise NotFoundError(
            f"Error group {cause!r} does not exist.", fix="See `holdfast errors list`.", field="cause"
        )
    group = await error_groups.get_error_group(connection, matches[0], since=since, limit=samples)
    assert group is not None  # noqa: S101  (it was in the list a moment ago)
    return group


@errors_command.command("show")
@cause_argument
@click.option(
    "--samples",
    "-n",
    type=click.IntRange(1, 100),
    default=3,
    show_default=True,
    help="Show at most this many tracebacks, of the latest failed attempts.",
)
@json_option
@pass_session
@run_on_each_shard
def show_error_group(session: CliSession, cause: str, samples: int) -> None:
    """Show an error group with its latest tracebacks."""
    group = session.run_with_connection(
        lambda connection: get_error_group_or_fail(connection, cause, samples=samples)
    )
    if session.output.json:
        session.output.print_record(group)
    else:
        _print_error_group(session.output, group)


def _print_error_group(output: CliOutput, group: dict[str, Any]) -> None:
    fields = {name: value for name, value in group.items() if name != "samples" and value is not None}
    fields |= {name: f"{format_age(group[name])} ago" for name in ("first_at", "last_at")}
    output.print_record(fields)
    for sample in get_list_or_empty(group, "samples"):
        output.print_line(
            f"\njob {sample['job']} {sample['name']} attempt {sample['attempt']}, "
            f"{format_age(sample['ended_at'])} ago on {sample['worker'] or '?'}"
        )
        for line in str(sample["traceback"] or "").splitlines():
            output.print_line(f"  {strip_control_characters(line, keep='')}")


@errors_command.command("retry")
@cause_argument
@bulk.bulk_options
@json_option
@pass_session
@run_on_each_shard
def retry_error_group(session: CliSession, /, cause: str, **options: Any) -> int:
    """Retry all failed jobs of the error group CAUSE.

    The retry is a bulk action: it starts with a few jobs and continues if they succeed. See `holdfast bulk`.
    """

    async def start_bulk_retry(connection: Connection) -> int:
        group = await get_error_group_or_fail(connection, cause)
        query = grammar.parse_search(f"state:failed cause:{grammar.quote_search_value(group['cause'])}")
        return await bulk.start_bulk_action(session, connection, "retry", query, options)

    return session.run_with_connection(start_bulk_retry)


@errors_command.command("ignore")
@cause_argument
@click.option(
    "--duration",
    type=DURATION,
    default="7d",
    show_default=True,
    help="Ignore the error group for this duration.",
)
@click.option("--clear", is_flag=True, help="Stop ignoring the error group: lists show it again.")
@click.option(
    "--reason",
    "-r",
    help="Store why this error group is ignored; error lists and the audit log show it. Default: none.",
)
@click.option(
    "--link",
    help="Store a link with the ignored error group, such as the URL of a bug report. Default: none.",
)
@json_option
@pass_session
@run_on_each_shard
def ignore_error_group(
    session: CliSession, cause: str, duration: timedelta, clear: bool, reason: str | None, link: str | None
) -> None:
    """Ignore an error group for some time: error lists leave it out."""

    async def save_ignore_period(connection: Connection) -> dict[str, Any]:
        group = await get_error_group_or_fail(connection, cause)
        until = None if clear else datetime.now(UTC) + duration
        await error_groups.ignore_error_group(
            connection, group["cause"], until=until, by=get_local_actor(), reason=reason, link=link
        )
        await record_audit_event(connection, "error.ignore", group["cause"], until=str(until), reason=reason)
        return {"cause": group["cause"], "ignored_until": until}

    session.output.print_record(session.run_with_connection(save_ignore_period))
