"""Who acts, and what they did: roles for one transaction, service keys, stream tickets, quotas, the audit
log.

One coroutine per SQL function (functions/keys.sql, functions/audit.sql), and `act_as`, which is how a
request becomes a database role: both settings are local to the transaction, so a pooled connection carries
nothing over.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, cast
from uuid import UUID

import msgspec

from holdfast.engine.connection import Connection
from holdfast.engine.jobs import Submitted
from holdfast.errors import InvalidError
from holdfast.model import Json
from holdfast.settings import Secret

_json = msgspec.json.Decoder()

KEY_PREFIX = "hf_"
SCOPES = {
    "jobs": "start, read, cancel and run again every job",
    "files": "read, link to and delete every file",
    "queues": "send, read and archive messages",
    "worker": "claim tasks and hand in their outcomes",
    "rpc": "call the SQL functions that services may call",
    "hooks": "send to inbound hooks without a signature",
    "operate": "pause queues, set limits and schedules, see workers, read the audit log",
    "metrics": "read figures",
    "keys": "make, list and revoke service keys",
    "dashboard:viewer": "open the dashboard to look",
    "dashboard:support": "open the dashboard to look at jobs without their payloads",
    "dashboard:operator": "open the dashboard to retry, cancel, submit and pause",
    "dashboard:admin": "open the dashboard to do everything",
}
ALL = "*"
_LETTERS = "abcdefghijkmnpqrstuvwxyz23456789"

_USABLE = """
select r.rolname::text from pg_catalog.pg_roles r
where r.rolname in ('anon', 'authenticated', 'service_role')
  and pg_catalog.pg_has_role(r.oid, case
    when pg_catalog.current_setting('server_version_num')::integer >= 160000 then 'SET' else 'MEMBER' end)
"""
_ACT = """
select pg_catalog.set_config('request.jwt.claims', $1, true),
  pg_catalog.set_config('statement_timeout', $2, true),
  case when $3::text is not null then pg_catalog.set_config('role', $3, true) end
"""


class ServiceKey(msgspec.Struct, frozen=True, kw_only=True):
    """A service's key as it may be shown: never the key itself."""

    id: UUID
    name: str
    prefix: str
    scopes: tuple[str, ...]
    created_at: datetime
    expires_at: datetime | None = None
    last_used_at: datetime | None = None
    revoked_at: datetime | None = None


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    id: int
    at: datetime
    actor: str
    action: str
    target: str | None
    detail: Json = None


class Ticket(msgspec.Struct, frozen=True, kw_only=True):
    """Whose stream a ticket opens. `owner` is None for a service."""

    job_id: UUID
    kind: str
    owner: str | None
    expires_at: datetime


def new_key() -> tuple[Secret, str, bytes]:
    """A service key, the part of it that may be shown, and what is stored of it."""
    shown = KEY_PREFIX + "".join(secrets.choice(_LETTERS) for _ in range(8))
    key = f"{shown}_{secrets.token_urlsafe(32)}"
    return Secret(key), shown, digest(key)


def digest(text: str) -> bytes:
    """Enough for what nobody can guess: 256 random bits need no slow hash."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def check_scopes(scopes: Sequence[str]) -> None:
    for scope in scopes:
        if scope != ALL and scope not in SCOPES:
            raise InvalidError(
                f"There is no scope {scope!r}.",
                fix=f"Choose of {', '.join(SCOPES)}, or {ALL} for all of them.",
                field="scopes",
            )


async def usable_roles(connection: Connection) -> frozenset[str]:
    """Those of the roles for requests that this login may act as."""
    return frozenset(row["rolname"] for row in await connection.fetch(_USABLE))


async def act_as(
    connection: Connection, role: str | None, claims: Mapping[str, Json], within: timedelta
) -> None:
    """From here to the end of the transaction, be that role with those claims."""
    text = msgspec.json.encode(claims).decode()
    await connection.execute(_ACT, text, f"{int(within.total_seconds() * 1000)}", role)


async def create_key(
    connection: Connection,
    *,
    name: str,
    prefix: str,
    digest: bytes,
    scopes: Sequence[str],
    expires_at: datetime | None = None,
) -> ServiceKey:
    row = await connection.fetchrow(
        "select * from holdfast.create_key($1, $2, $3, $4, $5)",
        name,
        prefix,
        digest,
        list(scopes),
        expires_at,
    )
    return _key(row)


async def check_key(connection: Connection, digest: bytes) -> ServiceKey | None:
    """The live key with this digest, marked as used."""
    row = await connection.fetchrow("select * from holdfast.check_key($1)", digest)
    return None if row is None or row["id"] is None else _key(row)


async def list_keys(connection: Connection) -> list[ServiceKey]:
    return [_key(row) for row in await connection.fetch("select * from holdfast.list_keys()")]


async def revoke_key(connection: Connection, prefix_or_id: str) -> int:
    """How many keys it ended: 0 when there is none that lives."""
    return int(await connection.fetchval("select holdfast.revoke_key($1)", prefix_or_id))


def _key(row: Any) -> ServiceKey:
    shown = {name: row[name] for name in ServiceKey.__struct_fields__}
    return msgspec.convert(shown, ServiceKey)


async def record(
    connection: Connection,
    actor: str,
    action: str,
    target: str | None = None,
    detail: Mapping[str, Json] | None = None,
) -> None:
    """Write down what an operator did, in the transaction in which it is done."""
    text = None if detail is None else msgspec.json.encode(detail).decode()
    await connection.execute("select holdfast.record($1, $2, $3, $4)", actor, action, target, text)


async def list_audit(
    connection: Connection, *, before: int | None = None, limit: int = 50
) -> list[AuditEntry]:
    """Newest first. `before` is the last id of the page before."""
    rows = await connection.fetch("select * from holdfast.list_audit($1, $2)", before, limit)
    return [msgspec.convert({**row, "detail": _decoded(row["detail"])}, AuditEntry) for row in rows]


def _decoded(text: str | None) -> Json:
    return None if text is None else _json.decode(text)


async def issue_ticket(
    connection: Connection, digest: bytes, job_id: UUID, owner: str | None, life: timedelta
) -> None:
    """Something to show once, within `life`, instead of a token."""
    call = "select holdfast.issue_ticket($1, $2, $3, $4, $5)"
    await connection.execute(call, digest, job_id, "ticket", owner, life.total_seconds())


async def redeem_ticket(
    connection: Connection, digest: bytes, job_id: UUID, pass_digest: bytes, life: timedelta
) -> Ticket | None:
    """Use a ticket up. The pass that takes its place lets the same browser come back to the same stream."""
    call = "select * from holdfast.redeem_ticket($1, $2, $3, $4)"
    return _ticket(await connection.fetchrow(call, digest, job_id, pass_digest, life.total_seconds()))


async def check_pass(connection: Connection, digest: bytes, job_id: UUID) -> Ticket | None:
    return _ticket(await connection.fetchrow("select * from holdfast.check_pass($1, $2)", digest, job_id))


def _ticket(row: Any) -> Ticket | None:
    return None if row is None or row["job_id"] is None else Ticket(**dict(row))


async def reserve_jobs(connection: Connection, owner: str, most: int) -> None:
    """TooManyError when the owner has `most` unfinished jobs; holds until the transaction ends."""
    await connection.execute("select holdfast.reserve_jobs($1, $2)", owner, most)


async def submit_within(connection: Connection, job: bytes, owner: str, most: int) -> Submitted:
    """Submit for an owner; TooManyError when they have `most` unfinished jobs, counted as it is done."""
    call = "select holdfast.submit_within($1, $2, $3)"
    return msgspec.json.decode(await connection.fetchval(call, job.decode(), owner, most), type=Submitted)


async def watch_jobs(connection: Connection, watcher: str, jobs: Sequence[UUID]) -> None:
    """Ask to be told of the events of these jobs, and of no others, for the next two minutes."""
    await connection.execute("select holdfast.watch_jobs($1, $2)", watcher, list(jobs))


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """How far a watched job is: enough to know whether to look closer."""

    id: UUID
    seq: int
    status: str


async def glance(connection: Connection, jobs: Sequence[UUID]) -> list[Seen]:
    rows = await connection.fetch("select * from holdfast.glance($1)", list(jobs))
    return [Seen(**dict(row)) for row in rows]


async def watched_events(
    connection: Connection, jobs: Sequence[UUID], after: Sequence[int], limit: int
) -> list[tuple[UUID, int, datetime, str, dict[str, Json]]]:
    """Events of many jobs in one call, each after its own number, in order within each job."""
    rows = await connection.fetch(
        "select * from holdfast.watched_events($1, $2, $3)", list(jobs), list(after), limit
    )
    return [
        (
            row["job_id"],
            row["seq"],
            row["at"],
            row["kind"],
            cast("dict[str, Any]", _json.decode(row["body"])) if row["body"] else {},
        )
        for row in rows
    ]
