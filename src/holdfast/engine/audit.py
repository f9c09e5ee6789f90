"""Write and read the audit log of operators' actions."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from holdfast.engine.connection import Connection
from holdfast.engine.json_rows import decode_optional_object, encode_json
from holdfast.model import Json


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of the audit log: one action of an operator."""

    id: int
    at: datetime
    actor: str
    action: str
    target: str | None
    detail: Json = None


async def record_audit_entry(
    connection: Connection,
    actor: str,
    action: str,
    target: str | None = None,
    detail: Mapping[str, Json] | None = None,
) -> None:
    """Record an action of an operator. Call it in the transaction that performs the action."""
    text = None if detail is None else encode_json(detail)
    await connection.execute(
        "select holdfast.record_audit_entry($1, $2, $3, $4)", actor, action, target, text
    )


async def list_audit_entries(
    connection: Connection, *, before: int | None = None, limit: int = 50
) -> list[AuditEntry]:
    """List audit log entries, newest first. `before` is the last id of the previous page."""
    rows = await connection.fetch("select * from holdfast.list_audit_entries($1, $2)", before, limit)
    return [_convert_entry(row) for row in rows]


def _convert_entry(row: Mapping[str, Any]) -> AuditEntry:
    return msgspec.convert({**row, "detail": decode_optional_object(row["detail"])}, AuditEntry)


async def list_audit_entries_of_target(
    connection: Connection, noun: str, target: str, *, limit: int = 20
) -> list[AuditEntry]:
    """List the changes of one object, newest first. Their actions begin with `noun`, such as `limit`."""
    rows = await connection.fetch(
        "select * from holdfast.list_audit_entries_of_target($1, $2, $3)", noun, target, limit
    )
    return [_convert_entry(row) for row in rows]
