"""What tasks said about themselves: written by workers, read by people. One coroutine per SQL function."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol
from uuid import UUID

import msgspec

from holdfast.engine.connection import Connection
from holdfast.engine.leases import Lease
from holdfast.model import LogLine

_json = msgspec.json.Decoder()
_READ = "select * from holdfast.read_logs($1, $2, $3, $4, $5, $6)"


class Line(Protocol):
    """As `msgspec.json.encode` takes it, with the keys seq, at, level, message, fields."""

    @property
    def seq(self) -> int: ...


async def write_logs(connection: Connection, batch: Iterable[tuple[Lease, Sequence[Line]]]) -> int:
    """Lines of attempts, all in one round trip. Safe to say twice; how many are new."""
    said = [
        {"id": lease.id, "attempt": lease.attempt, "nonce": lease.nonce, "lines": lines}
        for lease, lines in batch
    ]
    text = msgspec.json.encode(said).decode()
    return int(await connection.fetchval("select holdfast.write_logs($1)", text))


async def read_logs(
    connection: Connection,
    job_id: UUID,
    *,
    after: int = 0,
    limit: int = 500,
    task_id: UUID | None = None,
    level: str = "debug",
    newest: bool = False,
) -> list[LogLine]:
    """Oldest first: those after `after`, or with `newest` the last ones."""
    rows = await connection.fetch(_READ, job_id, after, limit, task_id, level, newest)
    return [msgspec.convert({**row, "fields": _fields(row["fields"])}, LogLine) for row in rows]


def _fields(text: str | None) -> dict[str, Any]:
    return {} if text is None else dict(_json.decode(text))
