"""Start, find and end sessions of users. One coroutine per SQL function."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec

from holdfast.engine.connection import Connection


class NewUserSession(msgspec.Struct, frozen=True, kw_only=True):
    """What is stored about a session of a user when it starts. `digest` is the hash of its cookie."""

    digest: bytes
    owner: str
    claims: dict[str, Any]
    address: str | None = None
    user_agent: str | None = None


class StoredUserSession(msgspec.Struct, frozen=True, kw_only=True):
    """The session of a valid cookie: the claims of the token that opened it, and when it ends."""

    id: UUID
    claims: dict[str, Any]
    expires_at: datetime


async def start_user_session(connection: Connection, session: NewUserSession) -> UUID:
    """Store a session and return its id. It ends with the token that opened it, or after twelve hours."""
    session_id: UUID = await connection.fetchval(
        "select holdfast.start_user_session($1, $2, $3, $4, $5, $6)",
        session.digest,
        session.owner,
        msgspec.json.encode(session.claims).decode(),
        datetime.fromtimestamp(session.claims["exp"], UTC),
        session.address,
        session.user_agent,
    )
    return session_id


async def find_user_session(connection: Connection, digests: Sequence[bytes]) -> StoredUserSession | None:
    """Return the session whose cookie has one of these digests, or None if it has ended."""
    row = await connection.fetchrow(
        "select id, claims::text as claims, expires_at from holdfast.find_user_session($1)", list(digests)
    )
    if row is None:
        return None
    claims = msgspec.json.decode(row["claims"])
    return StoredUserSession(id=row["id"], claims=claims, expires_at=row["expires_at"])


async def end_user_session(connection: Connection, session_id: UUID) -> bool:
    """End a session and return whether it existed."""
    return bool(await connection.fetchval("select holdfast.end_user_session($1)", session_id))
