"""`holdfast job list|export`: jobs by the search text of the dashboard, a page of them or all."""

from __future__ import annotations

import csv
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any
from uuid import UUID

import click
import msgspec

from holdfast import search
from holdfast.cli import words
from holdfast.cli.job import job
from holdfast.cli.naming import job_named
from holdfast.cli.output import Output
from holdfast.cli.session import Session, json_option, pass_session
from holdfast.engine import search as engine_search
from holdfast.engine.connection import Connection

PAGE = 500
COLUMNS = ["id", "state", "queue", "type", "owner", "progress", "age", "error"]
EXPORTED = ("id", "type", "status", "queue", "owner", "attempt", "created_at", "started_at", "finished_at")


@job.command("list")
@click.argument("terms", nargs=-1)
@click.option(
    "--limit", "-n", type=click.IntRange(1, 100_000), default=50, show_default=True, help="At most."
)
@click.option("--before", metavar="JOB", help="Only those older than this one: the next page.")
@click.option("--count", is_flag=True, help="Only say how many there are.")
@json_option
@pass_session
def list_jobs(session: Session, terms: tuple[str, ...], limit: int, before: str | None, count: bool) -> None:
    """Jobs that fit the search text, newest first.

    The text is that of the dashboard: state:failed queue:browser task:screenshot args.url:"https://e.example"
    since:2h error:Timeout attempt:>3. A comma means or, a leading - excludes; write -- before a term with it.
    """
    query = search.parse(" ".join(terms))
    if count:
        session.ask(lambda connection: _count(session, connection, query))
        return

    async def work(connection: Connection) -> None:
        after = await job_named(connection, before) if before else None
        found: list[dict[str, Any]] = []
        partly = False
        while len(found) < limit and not partly:
            page = await engine_search.search_jobs(
                connection, query, before=after, limit=min(limit - len(found), PAGE)
            )
            found, after, partly = found + page.rows, page.next, page.partly
            if after is None:
                break
        session.out.rows([_row(session.out, row) for row in found], COLUMNS)
        if after is not None and session.out.console.is_terminal:
            searched = "Searched the newest ones only; older" if partly else "There are more"
            session.out.line(f"{searched}: --before {after}")

    session.ask(work)


async def _count(session: Session, connection: Connection, query: search.Query) -> None:
    found = await engine_search.count_jobs(connection, query)
    if session.out.json:
        session.out.record({"count": found.count, "exact": found.exact})
    else:
        session.out.value("count", found.count if found.exact else f"about {found.count}")


def _row(out: Output, found: dict[str, Any]) -> dict[str, Any]:
    """A job as a row: whole for programs, in words for people."""
    if out.json:
        return found
    status = str(found.get("state") or found["status"])
    return {
        **found,
        "state": words.state(status),
        "progress": words.doing(found.get("progress")) if found["status"] == "running" else "",
        "age": words.since(found.get("created_at")),
        "error": words.clean(words.failure(found), 60),
        "owner": found.get("owner") or "",
        "queue": found.get("queue") or "",
    }


@job.command()
@click.argument("terms", nargs=-1)
@click.option("--format", "form", type=click.Choice(["jsonl", "csv"]), default="jsonl", show_default=True)
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A file (default: standard output).",
)
@click.option("--limit", "-n", type=click.IntRange(1), help="At most so many.")
@pass_session
def export(
    session: Session, terms: tuple[str, ...], form: str, output: Path | None, limit: int | None
) -> None:
    """Write the jobs that fit the search text, all of them, without holding them in memory."""
    query = search.parse(" ".join(terms))

    async def work(connection: Connection) -> int:
        count = 0
        with output.open("w", encoding="utf-8", newline="") if output else _keep_open() as file:
            table = csv.writer(file) if form == "csv" else None
            if table:
                table.writerow(EXPORTED)
            async for row in _pages(connection, query, limit):
                count += 1
                if table:
                    table.writerow([row.get(name) for name in EXPORTED])
                else:
                    file.write(msgspec.json.encode(row, enc_hook=str).decode() + "\n")
        return count

    count = session.ask(work)
    if output:
        session.out.line(f"{words.many(count, 'job')} in {output}.")


class _keep_open:  # noqa: N801  (a context manager that is used like a function)
    def __enter__(self) -> Any:
        return sys.stdout

    def __exit__(self, *_: object) -> None:
        sys.stdout.flush()


async def _pages(
    connection: Connection, query: search.Query, limit: int | None
) -> AsyncGenerator[dict[str, Any]]:
    before: UUID | None = None
    left = limit
    while left is None or left > 0:
        page = await engine_search.search_jobs(
            connection, query, before=before, limit=PAGE if left is None else min(PAGE, left)
        )
        for row in page.rows:
            yield row
        left = None if left is None else left - len(page.rows)
        before = page.next
        if before is None:
            return
