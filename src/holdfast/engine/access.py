"""Access control: database roles of transactions, service keys and login links.

One coroutine per SQL function, and `set_transaction_role`, which runs a request with a database role. The
role and its claims are settings of the transaction, so a pooled connection carries nothing over.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from holdfast.engine.connection import Connection
from holdfast.engine.json_rows import JsonObject, decode_optional_object, encode_json
from holdfast.errors import InvalidError
from holdfast.model import Json
from holdfast.settings import Secret

SERVICE_KEY_PREFIX = "hf_"
SCOPE_DESCRIPTIONS = {
    "jobs": "start, read, cancel and retry every job",
    "files": "read, link to and delete every file",
    "queues": "send, read and archive messages",
    "worker": "claim tasks and report their outcomes",
    "rpc": "call SQL functions of your own schemas; those of Holdfast need their scope besides",
    "hooks": "send to inbound webhooks without a signature",
    "operate": "pause queues, set limits and schedules, list workers, read the audit log",
    "metrics": "read metrics",
    "keys": "create, list and revoke service keys, list and end dashboard sessions",
    "dashboard:viewer": "open the dashboard read-only",
    "dashboard:support": "open the dashboard read-only, without payloads",
    "dashboard:operator": "open the dashboard and retry, cancel, submit and pause",
    "dashboard:admin": "open the dashboard and do everything",
}
ALL_SCOPES_WILDCARD = "*"
_SERVICE_KEY_ALPHABET = "abcdefghijkmnpqrstuvwxyz23456789"  # without characters that look alike

_LIST_USABLE_ROLES = """
select r.rolname::text from pg_catalog.pg_roles r
where r.rolname in ('anon', 'authenticated', 'service_role')
  and pg_catalog.pg_has_role(r.oid, case
    when pg_catalog.current_setting('server_version_num')::integer >= 160000 then 'SET' else 'MEMBER' end)
"""
_CAN_SUBMIT_AS_ROLE = """
select pg_catalog.has_function_privilege(
  'holdfast.submit_as_role(text, text, integer, jsonb, text, boolean)', 'execute')
"""
_SET_TRANSACTION_ROLE = """
select pg_catalog.set_config('request.jwt.claims', $1, true),
  pg_catalog.set_config('statement_timeout', $2, true), pg_catalog.set_config('holdfast.user_jobs', $4, true),
  case when $3::text is not null then pg_catalog.set_config('role', $3, true) end
"""


class ServiceKey(msgspec.Struct, frozen=True, kw_only=True):
    """A service key as it is listed: its prefix and scopes, never the key itself."""

    id: UUID
    name: str
    prefix: str
    scopes: tuple[str, ...]
    created_at: datetime
    expires_at: datetime | None = None
    last_used_at: datetime | None = None
    revoked_at: datetime | None = None


def generate_service_key() -> tuple[Secret, str, bytes]:
    """Return a new service key, the prefix under which it is listed, and the digest to store."""
    prefix = SERVICE_KEY_PREFIX + "".join(secrets.choice(_SERVICE_KEY_ALPHABET) for _ in range(8))
    key = f"{prefix}_{secrets.token_urlsafe(32)}"
    return Secret(key), prefix, hash_secret(key)


def hash_secret(text: str) -> bytes:
    """Return the SHA-256 digest of a random secret. Random secrets need no slow password hash."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def hash_secret_with_key(text: str, key: Secret) -> bytes:
    """Return a digest of a random secret that depends on a key, so that a new key makes it invalid."""
    return hmac.digest(key.reveal().encode(), text.encode("utf-8", "surrogatepass"), "sha256")


def check_scopes(scopes: Sequence[str]) -> None:
    """Raise InvalidError for a scope that does not exist."""
    for scope in scopes:
        if scope != ALL_SCOPES_WILDCARD and scope not in SCOPE_DESCRIPTIONS:
            raise InvalidError(
                f"Scope {scope!r} does not exist.",
                fix=f"Choose from {', '.join(SCOPE_DESCRIPTIONS)}, or {ALL_SCOPES_WILDCARD} for all of them.",
                field="scopes",
            )


async def list_usable_roles(connection: Connection) -> frozenset[str]:
    """Return the API roles (anon, authenticated, service_role) that this login may switch to."""
    return frozenset(row["rolname"] for row in await connection.fetch(_LIST_USABLE_ROLES))


async def can_submit_as_role(connection: Connection) -> bool:
    """Return whether this login may call `submit_as_role`. A login that inherits no rights may not."""
    return bool(await connection.fetchval(_CAN_SUBMIT_AS_ROLE))


async def set_transaction_role(
    connection: Connection,
    role: str | None,
    claims: Mapping[str, Json],
    statement_timeout: timedelta,
    max_user_jobs: int | None = None,
) -> None:
    """Set the role, JWT claims, statement timeout and job limit of users for the rest of the transaction."""
    timeout_ms = f"{int(statement_timeout.total_seconds() * 1000)}"
    user_jobs = "" if max_user_jobs is None else str(max_user_jobs)
    await connection.execute(_SET_TRANSACTION_ROLE, encode_json(claims), timeout_ms, role, user_jobs)


async def create_service_key(
    connection: Connection,
    *,
    name: str,
    prefix: str,
    digest: bytes,
    scopes: Sequence[str],
    expires_at: datetime | None = None,
) -> ServiceKey:
    """Store the digest of a service key from `generate_service_key`."""
    row = await connection.fetchrow(
        "select * from holdfast.create_service_key($1, $2, $3, $4, $5)",
        name,
        prefix,
        digest,
        list(scopes),
        expires_at,
    )
    return _service_key_from_row(row)


async def verify_service_key(connection: Connection, digest: bytes) -> ServiceKey | None:
    """Return the valid key with this digest and record its use, or return None."""
    row = await connection.fetchrow("select * from holdfast.verify_service_key($1)", digest)
    return None if row is None or row["id"] is None else _service_key_from_row(row)


async def list_service_keys(connection: Connection) -> list[ServiceKey]:
    """List service keys, newest first."""
    rows = await connection.fetch("select * from holdfast.list_service_keys()")
    return [_service_key_from_row(row) for row in rows]


async def find_service_key(connection: Connection, prefix_or_id: str) -> ServiceKey | None:
    """Return the key with this prefix or id, valid or not, or None."""
    row = await connection.fetchrow("select * from holdfast.find_service_key($1)", prefix_or_id)
    return None if row is None or row["id"] is None else _service_key_from_row(row)


async def revoke_service_key(connection: Connection, prefix_or_id: str) -> int:
    """Revoke a service key. Return the number of revoked keys, 0 if no valid key matches."""
    return int(await connection.fetchval("select holdfast.revoke_service_key($1)", prefix_or_id))


def _service_key_from_row(row: Any) -> ServiceKey:
    fields = {name: row[name] for name in ServiceKey.__struct_fields__}
    return msgspec.convert(fields, ServiceKey)


async def store_login_link(
    connection: Connection, digest: bytes, *, name: str, role: str, lifetime: timedelta
) -> None:
    """Store a link that logs somebody in to the dashboard once, within `lifetime`."""
    call = "select holdfast.store_login_link($1, $2, $3, $4)"
    await connection.execute(call, digest, name, role, lifetime.total_seconds())


async def redeem_login_link(connection: Connection, digest: bytes) -> JsonObject | None:
    """Redeem a login link once and return {name, role}. Return None for a used or expired link."""
    return decode_optional_object(await connection.fetchval("select holdfast.redeem_login_link($1)", digest))
