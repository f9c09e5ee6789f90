"""`holdfast job list|export`: find jobs by search text."""

from __future__ import annotations

import csv
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO
from uuid import UUID

import click
import msgspec

from holdfast import search
from holdfast.cli.identifiers import resolve_job_id
from holdfast.cli.job import job_command
from holdfast.cli.output import CliOutput
from holdfast.cli.session import CliSession, json_option, pass_session, run_on_each_shard
from holdfast.engine import search as engine_search
from holdfast.engine.connection import Connection
from holdfast.formatting import (
    format_age,
    format_count,
    format_error,
    format_progress,
    format_state,
    sanitize_text,
)

JOBS_PER_PAGE = 500
MAX_ERROR_CELL_CHARS = 60
JOB_COLUMNS = ["id", "state", "queue", "type", "owner", "progress", "age", "error"]
JOB_CSV_COLUMNS = (
    "id", "type", "status", "queue", "owner", "attempt", "created_at", "started_at", "finished_at",
)  # fmt: skip


@job_command.command("list")
@click.argument("terms", nargs=-1)
@click.option(
    "--limit",
    "-n",
    type=click.IntRange(1, 100_000),
    default=50,
    show_default=True,
    help="List at most this many jobs.",
)
@click.option(
    "--before",
    metavar="JOB",
    help="List only jobs older than the job with this id, to get the next page. Default: start "
    "with the newest job.",
)
@click.option("--count", is_flag=True, help="Print the number of matching jobs instead of listing them.")
@json_option
@pass_session
@run_on_each_shard
def list_jobs(
    session: CliSession, terms: tuple[str, ...], limit: int, before: str | None, count: bool
) -> None:
    """List jobs that match TERMS, newest first. Without TERMS, list all jobs.

    Terms are those of the dashboard's search, such as state:failed queue:browser task:screenshot
    args.url:"https://e.example" since:2h error:Timeout attempt:>3. A comma means or. A leading - excludes;
    write -- before a term that starts with -.

    Example: holdfast job list state:failed queue:mail since:2h
    """
    query = search.parse_search(" ".join(terms))
    if count:
        session.run_with_connection(lambda connection: _print_job_count(session, connection, query))
        return

    async def print_matching_jobs(connection: Connection) -> None:
        cursor = await resolve_job_id(connection, before) if before else None
        rows: list[dict[str, Any]] = []
        truncated = False
        while len(rows) < limit and not truncated:
            page = await engine_search.search_jobs(
                connection, query, before=cursor, limit=min(limit - len(rows), JOBS_PER_PAGE)
            )
            rows, cursor, truncated = rows + page.rows, page.next, page.truncated
            if cursor is None:
                break
        session.output.print_rows([_format_job_row(session.output, row) for row in rows], JOB_COLUMNS)
        if cursor is not None and session.output.console.is_terminal:
            note = "Only the newest jobs were searched. Search older ones" if truncated else "Next page"
            session.output.print_line(f"{note}: --before {cursor}")

    session.run_with_connection(print_matching_jobs)


async def _print_job_count(session: CliSession, connection: Connection, query: search.SearchQuery) -> None:
    result = await engine_search.count_jobs(connection, query)
    if session.output.json:
        session.output.print_record(msgspec.structs.asdict(result))
    else:
        session.output.print_value("count", result.count if result.exact else str(result))


def _format_job_row(output: CliOutput, row: dict[str, Any]) -> dict[str, Any]:
    """Format a job as a table row. With `--json`, return the row unchanged."""
    if output.json:
        return row
    status = str(row.get("state") or row["status"])
    return {
        **row,
        "state": format_state(status),
        "progress": format_progress(row.get("progress")) if row["status"] == "running" else "",
        "age": format_age(row.get("created_at")),
        "error": sanitize_text(format_error(row), MAX_ERROR_CELL_CHARS),
        "owner": row.get("owner") or "",
        "queue": row.get("queue") or "",
    }


@job_command.command("export")
@click.argument("terms", nargs=-1)
@click.option(
    "--format",
    "file_format",
    type=click.Choice(["jsonl", "csv"]),
    default="jsonl",
    show_default=True,
    help="Write the jobs in this format: jsonl (one JSON object per line) or csv (a table).",
)
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the jobs to this file. Default: standard output.",
)
@click.option(
    "--limit", "-n", type=click.IntRange(1), help="Write at most this many jobs. Default: all matching jobs."
)
@pass_session
def export_jobs(
    session: CliSession, terms: tuple[str, ...], file_format: str, output: Path | None, limit: int | None
) -> None:
    """Write all jobs that match TERMS to a file, newest first. Without TERMS, write all jobs.

    See `holdfast job list --help` for the terms. The jobs are read page by page and not kept in memory.
    """
    query = search.parse_search(" ".join(terms))

    async def write_matching_jobs(connection: Connection) -> int:
        count = 0
        with output.open("w", encoding="utf-8", newline="") if output else _open_stdout_for_writing() as file:
            table = csv.writer(file) if file_format == "csv" else None
            if table:
                table.writerow(JOB_CSV_COLUMNS)
            async for row in _iterate_matching_jobs(connection, query, limit):
                count += 1
                if table:
                    table.writerow([row.get(name) for name in JOB_CSV_COLUMNS])
                else:
                    file.write(msgspec.json.encode(row, enc_hook=str).decode() + "\n")
        return count

    count = session.run_with_connection(write_matching_jobs)
    if output:
        session.output.print_line(f"Wrote {format_count(count, 'job')} to {output}.")


@contextmanager
def _open_stdout_for_writing() -> Generator[TextIO]:
    """Yield standard output like an opened file. On exit, flush it and leave it open."""
    try:
        yield sys.stdout
    finally:
        sys.stdout.flush()


async def _iterate_matching_jobs(
    connection: Connection, query: search.SearchQuery, limit: int | None
) -> AsyncGenerator[dict[str, Any]]:
    before: UUID | None = None
    remaining = limit
    while remaining is None or remaining > 0:
        page = await engine_search.search_jobs(
            connection,
            query,
            before=before,
            limit=JOBS_PER_PAGE if remaining is None else min(JOBS_PER_PAGE, remaining),
        )
        for row in page.rows:
            yield row
        remaining = None if remaining is None else remaining - len(page.rows)
        before = page.next
        if before is None:
            return
