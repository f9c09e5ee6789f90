"""Find jobs, see errors by cause, act on many at once. One coroutine per SQL function."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal, cast
from uuid import UUID

import msgspec

from holdfast.engine.connection import Connection
from holdfast.model import Json
from holdfast.search import Query, parse

_json = msgspec.json.Decoder()
Row = dict[str, Json]
Verb = Literal["retry", "cancel"]
Control = Literal["pause", "resume", "stop"]


class Count(msgspec.Struct, frozen=True, kw_only=True):
    """`exact` is false when counting stopped early or the statistics were asked."""

    count: int
    exact: bool

    def __str__(self) -> str:
        return f"{self.count:,}" if self.exact else f"about {self.count:,}"


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """`next` is `before` of the page that follows. `partly`: the walk ended at `scan` rows before the page
    was full, and there may be older ones."""

    rows: list[Row]
    next: UUID | None = None
    partly: bool = False
    scan: int = 0
    count: int | None = None
    exact: bool = True


class Bulk(msgspec.Struct, frozen=True, kw_only=True):
    """An action on many jobs. `again` of the `known` outcomes failed again; `pending` have not ended."""

    id: UUID
    verb: Verb
    status: Literal["running", "paused", "stopped", "done", "undone"]
    search: str
    by: str = msgspec.field(name="started_by")
    why: str
    total: int
    done: int
    passed: int
    again: int
    undone: int
    wave: int
    ramp: list[int]
    per_s: float | None
    stop_share: float
    stopped_why: str | None
    owner: str | None
    created_at: datetime
    waved_at: datetime | None
    finished_at: datetime | None
    known: int = 0
    pending: int = 0

    @property
    def open(self) -> bool:
        return self.status in {"running", "paused"}


class Ramp(msgspec.Struct, frozen=True, kw_only=True):
    """How carefully a bulk retry goes: sizes of the first waves, most per second, when to stop by itself."""

    waves: tuple[int, ...] = (10, 100)
    per_s: float | None = None
    stop_share: float = 0.2
    limit: int | None = None

    @property
    def options(self) -> Row:
        found = {
            "ramp": list(self.waves),
            "per_s": self.per_s,
            "stop_share": self.stop_share,
            "limit": self.limit,
        }
        return {name: value for name, value in found.items() if value is not None}


async def search_jobs(
    connection: Connection,
    query: Query | str,
    *,
    before: UUID | None = None,
    limit: int = 50,
    owner: str | None = None,
    counted: bool = False,
) -> Page:
    """Newest first. With `owner` only that owner's; with `counted` also how many there are in all."""
    where = _filter(query, owner)
    answer = await connection.fetchval("select holdfast.search_jobs($1, $2, $3)", where, before, limit)
    page = msgspec.json.decode(answer, type=Page)
    if not counted:
        return page
    if before is None and (page.next is None or page.partly):  # all that was looked at is on this page
        return msgspec.structs.replace(page, count=len(page.rows), exact=not page.partly)
    count = await count_jobs(connection, query, owner=owner)
    return msgspec.structs.replace(page, count=count.count, exact=count.exact)


async def count_jobs(
    connection: Connection, query: Query | str, *, owner: str | None = None, most: int = 10_000
) -> Count:
    answer = await connection.fetchval("select holdfast.count_jobs($1, $2)", _filter(query, owner), most)
    return msgspec.json.decode(answer, type=Count)


async def error_groups(
    connection: Connection,
    *,
    since: datetime | None = None,
    owner: str | None = None,
    ignored: bool = False,
    limit: int = 100,
) -> list[Row]:
    """Causes of failed attempts, the one seen last first; within 24 hours unless `since` says otherwise."""
    call = "select holdfast.error_groups($1, $2, $3, $4)"
    return await _rows(connection, call, since, owner, ignored, limit)


async def error_group(
    connection: Connection,
    cause: str,
    *,
    since: datetime | None = None,
    owner: str | None = None,
    limit: int = 20,
) -> Row | None:
    """One cause with its newest attempts."""
    call = "select holdfast.error_group($1, $2, $3, $4)"
    answer = await connection.fetchval(call, cause, since, owner, limit)
    return None if answer is None else cast("Row", _json.decode(answer))


async def ignore_cause(
    connection: Connection,
    cause: str,
    *,
    until: datetime | None,
    by: str,
    why: str | None = None,
    link: str | None = None,
) -> None:
    """Known until then; None takes it back."""
    await connection.execute("select holdfast.ignore_cause($1, $2, $3, $4, $5)", cause, until, by, why, link)


async def bulk_preview(
    connection: Connection, verb: Verb, query: Query | str, *, owner: str | None = None
) -> Count:
    """How many jobs the action would be about."""
    answer = await connection.fetchval("select holdfast.bulk_preview($1, $2)", verb, _filter(query, owner))
    return msgspec.json.decode(answer, type=Count)


async def bulk_start(
    connection: Connection,
    verb: Verb,
    query: Query | str,
    *,
    by: str,
    why: str,
    ramp: Ramp | None = None,
    owner: str | None = None,
) -> UUID:
    text = query if isinstance(query, str) else query.text
    options = _text((ramp or Ramp()).options)
    call = "select holdfast.bulk_start($1, $2, $3, $4, $5, $6)"
    answer = await connection.fetchval(call, verb, _filter(query, owner), text, by, why, options)
    return cast("UUID", answer)


async def drive_bulk(connection: Connection, *, limit: int = 200) -> int:
    """The next step of every action that runs; how many jobs it acted on."""
    return int(await connection.fetchval("select holdfast.drive_bulk($1)", limit))


async def bulk_control(connection: Connection, bulk_id: UUID, verb: Control) -> bool:
    return bool(await connection.fetchval("select holdfast.bulk_control($1, $2)", bulk_id, verb))


async def bulk_undo(connection: Connection, bulk_id: UUID, *, limit: int = 1000) -> int:
    """How many jobs were taken back. Call again until it answers 0."""
    return int(await connection.fetchval("select holdfast.bulk_undo($1, $2)", bulk_id, limit))


async def get_bulk(connection: Connection, bulk_id: UUID) -> Bulk | None:
    answer = await connection.fetchval("select holdfast.get_bulk($1)", bulk_id)
    return None if answer is None else msgspec.json.decode(answer, type=Bulk)


async def list_bulk(connection: Connection, *, before: UUID | None = None, limit: int = 50) -> list[Bulk]:
    rows = await connection.fetch("select holdfast.list_bulk($1, $2)", before, limit)
    return [msgspec.json.decode(row[0], type=Bulk) for row in rows]


async def bulk_members(
    connection: Connection, bulk_id: UUID, *, after: UUID | None = None, limit: int = 50
) -> list[Row]:
    return await _rows(connection, "select holdfast.bulk_members($1, $2, $3)", bulk_id, after, limit)


def _filter(query: Query | str, owner: str | None) -> str:
    where = (parse(query) if isinstance(query, str) else query).filter
    if owner is not None:
        where["owner"] = {"in": [owner]}
    return _text(where)


def _text(value: Mapping[str, Json]) -> str:
    return msgspec.json.encode(value).decode()


async def _rows(connection: Connection, call: str, *arguments: Any) -> list[Row]:
    return [cast("Row", _json.decode(row[0])) for row in await connection.fetch(call, *arguments)]
