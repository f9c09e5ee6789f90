"""Search and count jobs."""

from __future__ import annotations

from uuid import UUID

import msgspec

from holdfast.engine.connection import Connection
from holdfast.engine.json_rows import JsonObject, encode_json
from holdfast.formatting import round_estimate
from holdfast.search import SearchQuery, parse_search


class JobCount(msgspec.Struct, frozen=True, kw_only=True):
    """A number of jobs. If `exact` is False, it is an estimate or, with `at_least`, a lower bound."""

    count: int
    exact: bool
    at_least: bool = False

    def __str__(self) -> str:
        if self.exact:
            return f"{self.count:,}"
        return f"at least {self.count:,}" if self.at_least else f"about {round_estimate(self.count):,}"


class JobSearchPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of jobs.

    `next` is the value of `before` for the following page. `truncated` means that the search stopped after
    `scan` rows before the page was full, so older jobs may match too.
    """

    rows: list[JsonObject]
    next: UUID | None = None
    truncated: bool = False
    scan: int = 0
    count: int | None = None
    exact: bool = True
    at_least: bool = False


async def search_jobs(
    connection: Connection,
    query: SearchQuery | str,
    *,
    before: UUID | None = None,
    limit: int = 50,
    owner: str | None = None,
    with_count: bool = False,
) -> JobSearchPage:
    """Return a page of matching jobs, newest first.

    With `owner`, only the jobs of that owner; with `with_count`, also how many jobs match.
    """
    where = build_search_filter(query, owner)
    text = await connection.fetchval("select holdfast.search_jobs($1, $2, $3)", where, before, limit)
    page = msgspec.json.decode(text, type=JobSearchPage)
    if not with_count:
        return page
    if before is None and (page.next is None or page.truncated):  # the page has every row that was searched
        return msgspec.structs.replace(
            page, count=len(page.rows), exact=not page.truncated, at_least=page.truncated
        )
    count = await count_jobs(connection, query, owner=owner)
    return msgspec.structs.replace(page, count=count.count, exact=count.exact, at_least=count.at_least)


async def count_jobs(
    connection: Connection, query: SearchQuery | str, *, owner: str | None = None, max_rows: int = 10_000
) -> JobCount:
    """Count matching jobs: exactly up to `max_rows`, otherwise as an estimate."""
    call = "select holdfast.count_jobs($1, $2)"
    text = await connection.fetchval(call, build_search_filter(query, owner), max_rows)
    return msgspec.json.decode(text, type=JobCount)


def build_search_filter(query: SearchQuery | str, owner: str | None) -> str:
    """Build the JSON filter of a search, restricted to the jobs of `owner` unless `owner` is None."""
    where = (parse_search(query) if isinstance(query, str) else query).json_filter
    if owner is not None:
        where["owner"] = {"in": [owner]}
    return encode_json(where)
