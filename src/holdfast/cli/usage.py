"""`holdfast usage`: show what calls of providers used and cost."""

from __future__ import annotations

from datetime import date, datetime
from typing import Any

import click

from holdfast.cli.identifiers import parse_uuid
from holdfast.cli.session import CliSession, json_option, pass_session
from holdfast.engine import provider_usage
from holdfast.engine.connection import Connection

UNIT_COLUMNS = [
    "calls",
    "failed",
    "unknown",
    "tokens_in",
    "tokens_out",
    "audio_s",
    "images",
    "cost",
    "unpriced",
]
JOB_COLUMNS = ["task_id", "attempt", "kind", "provider", "model", *UNIT_COLUMNS]
DAY = click.DateTime(["%Y-%m-%d"])


@click.command("usage")
@click.option("--owner", help="Show the calls of this owner only. Default: of all owners.")
@click.option("--since", type=DAY, help="Leave out calls before this day (UTC). Default: none.")
@click.option("--until", type=DAY, help="Leave out calls after this day (UTC). Default: none.")
@click.option(
    "--by",
    "group_by",
    multiple=True,
    type=click.Choice(provider_usage.PROVIDER_USAGE_GROUPS),
    help="Sum up by this column; repeat it for several. Default: kind, provider and model.",
)
@click.option("--job", metavar="ID", help="Show the calls of this job by task and attempt. Default: totals.")
@json_option
@pass_session
def usage_command(
    session: CliSession,
    owner: str | None,
    since: datetime | None,
    until: datetime | None,
    group_by: tuple[str, ...],
    job: str | None,
) -> None:
    """Show what calls of language models, speech servers and other providers used and cost.

    `unknown` counts calls without a usable answer, `unpriced` those whose cost is not known. The setting
    `provider_prices` has the prices.

    Example: holdfast usage --by owner --since 2026-11-01
    """
    groups = group_by or ("kind", "provider", "model")

    async def fetch_usage(connection: Connection) -> list[dict[str, Any]]:
        if job is not None:
            return await provider_usage.list_job_provider_usage(connection, parse_uuid(job, "job"))
        return await provider_usage.list_provider_usage(
            connection, owner=owner, since=_get_day(since), until=_get_day(until), group_by=groups
        )

    rows = session.run_with_connection(fetch_usage)
    columns = JOB_COLUMNS if job is not None else [*groups, *UNIT_COLUMNS]
    session.output.print_rows([_format_usage(row, columns) for row in rows], columns)


def _get_day(moment: datetime | None) -> date | None:
    return moment.date() if moment is not None else None


def _format_usage(row: dict[str, Any], columns: list[str]) -> dict[str, Any]:
    numbers = {"cost": float(row["cost"]), "audio_s": round(row["audio_s"], 1)}
    texts = {name: str(row[name]) for name in ("day", "task_id") if row.get(name) is not None}
    return {name: ({**row, **numbers, **texts})[name] for name in columns}
