"""Store, redeem and find tickets and passes for event streams. One coroutine per SQL function."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, TypeAlias
from uuid import UUID

import msgspec

from holdfast.engine.connection import Connection

TicketIssuer: TypeAlias = Literal["user", "key", "settings_key"]


class StreamPass(msgspec.Struct, frozen=True, kw_only=True):
    """A pass for the event stream of a job: on whose behalf it is used, and until when.

    `owner` is the id of a user. `key_prefix` is the prefix of a service key.
    """

    job_id: UUID
    issuer: TicketIssuer
    owner: str | None
    key_prefix: str | None
    expires_at: datetime


class NewTicket(msgspec.Struct, frozen=True, kw_only=True):
    """A ticket to store, and the credential of the caller with which it ends.

    `not_after` is when the token of a user expires. `key_prefix` names the service key of a service.
    """

    digest: bytes
    job_id: UUID
    issuer: TicketIssuer
    owner: str | None = None
    key_prefix: str | None = None
    not_after: datetime | None = None


async def issue_stream_ticket(connection: Connection, ticket: NewTicket, lifetime: timedelta) -> bool:
    """Store a ticket that opens the stream of a job once. Return False if the caller's right has ended."""
    call = "select holdfast.issue_stream_ticket($1, $2, $3, $4, $5, $6, $7)"
    return bool(await connection.fetchval(call, *msgspec.structs.astuple(ticket), lifetime.total_seconds()))


async def redeem_stream_ticket(
    connection: Connection,
    digests: Sequence[bytes],
    job_id: UUID,
    pass_digests: Sequence[bytes],
    lifetime: timedelta,
) -> StreamPass | None:
    """Replace a stream ticket by a pass, which can be used again. Return None for an invalid ticket.

    The digests are those of `hash_secret` and, if the settings have a service key, `hash_secret_with_key`.
    """
    call = "select * from holdfast.redeem_stream_ticket($1, $2, $3, $4)"
    row = await connection.fetchrow(call, list(digests), job_id, list(pass_digests), lifetime.total_seconds())
    return _stream_pass_from_row(row)


async def find_stream_pass(
    connection: Connection, digests: Sequence[bytes], job_id: UUID
) -> StreamPass | None:
    """Return the valid stream pass with one of these digests, or None."""
    row = await connection.fetchrow("select * from holdfast.find_stream_pass($1, $2)", list(digests), job_id)
    return _stream_pass_from_row(row)


def _stream_pass_from_row(row: Any) -> StreamPass | None:
    return None if row is None else StreamPass(**dict(row))
