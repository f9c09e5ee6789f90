"""Start, find, list and end dashboard sessions. One coroutine per SQL function."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Literal, TypeAlias
from uuid import UUID

import msgspec

from holdfast.engine.connection import Connection

LoginMethod: TypeAlias = Literal["key", "settings_key", "link"]


class FoundSession(msgspec.Struct, frozen=True, kw_only=True):
    """The session of a valid cookie: its user and when it ends."""

    id: UUID
    name: str
    role: str
    tenant: str | None
    expires_at: datetime


class ListedSession(msgspec.Struct, frozen=True, kw_only=True):
    """An active session as it is listed. `login` tells how it was opened.

    `key_name` and `key_prefix` name the service key that opened it.
    """

    id: UUID
    login: LoginMethod
    key_name: str | None
    key_prefix: str | None
    name: str
    role: str
    tenant: str | None
    address: str | None
    user_agent: str | None
    created_at: datetime
    last_seen_at: datetime
    expires_at: datetime


class NewSession(msgspec.Struct, frozen=True, kw_only=True):
    """What is stored about a session when it starts. `digest` is the hash of its cookie."""

    digest: bytes
    login: LoginMethod
    key_prefix: str | None = None
    name: str
    role: str
    tenant: str | None = None
    address: str | None = None
    user_agent: str | None = None


async def start_session(connection: Connection, session: NewSession, lifetime: timedelta) -> UUID | None:
    """Store a session and return its id, or None if its service key is revoked or has expired."""
    call = "select holdfast.start_dashboard_session($1, $2, $3, $4, $5, $6, $7, $8, $9)"
    session_id: UUID | None = await connection.fetchval(
        call, *msgspec.structs.astuple(session), lifetime.total_seconds()
    )
    return session_id


async def find_session(connection: Connection, digests: Sequence[bytes]) -> FoundSession | None:
    """Return the active session whose cookie has one of these digests, or None."""
    row = await connection.fetchrow("select * from holdfast.find_dashboard_session($1)", list(digests))
    return None if row is None else FoundSession(**dict(row))


async def record_session_use(connection: Connection, session_ids: Sequence[UUID]) -> None:
    """Record that these sessions are in use. At most one use per minute is stored."""
    await connection.execute("select holdfast.record_session_use($1)", list(session_ids))


async def list_sessions(connection: Connection, *, same_login_as: UUID | None = None) -> list[ListedSession]:
    """List active sessions, the last used first: all, or those of the same login as one session."""
    rows = await connection.fetch("select * from holdfast.list_dashboard_sessions($1)", same_login_as)
    return [ListedSession(**dict(row)) for row in rows]


async def end_session(connection: Connection, session_id: UUID) -> bool:
    """End a session and return whether it was active."""
    return bool(await connection.fetchval("select holdfast.end_dashboard_session($1)", session_id))


async def end_sessions(
    connection: Connection,
    *,
    except_id: UUID | None = None,
    same_login_as: UUID | None = None,
    roles: Sequence[str] | None = None,
) -> int:
    """End all sessions but one and return their number.

    `same_login_as` and `roles` restrict it to sessions of one login, or with these roles.
    """
    call = "select holdfast.end_dashboard_sessions($1, $2, $3)"
    chosen_roles = None if roles is None else list(roles)
    return int(await connection.fetchval(call, except_id, same_login_as, chosen_roles))


async def list_ended_access(
    connection: Connection, key_prefixes: Sequence[str], session_ids: Sequence[UUID]
) -> tuple[set[str], set[UUID]]:
    """Return which of these service keys are revoked or expired, and which of these sessions have ended."""
    call = "select * from holdfast.list_ended_access($1, $2)"
    rows = await connection.fetch(call, list(key_prefixes), list(session_ids))
    ended_keys = {row["key_prefix"] for row in rows if row["key_prefix"] is not None}
    return ended_keys, {row["session_id"] for row in rows if row["session_id"] is not None}
