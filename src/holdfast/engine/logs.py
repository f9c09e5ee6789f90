"""Write and read the log lines of tasks. One coroutine per SQL function."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol
from uuid import UUID

import msgspec

from holdfast.engine.connection import Connection
from holdfast.engine.leases import Lease
from holdfast.model import LogLine

_json_decoder = msgspec.json.Decoder()
_READ_LOGS = "select * from holdfast.read_logs($1, $2, $3, $4, $5, $6)"


class EncodableLogLine(Protocol):
    """A log line that msgspec encodes with the keys seq, at, level, message and fields."""

    @property
    def seq(self) -> int: ...


async def write_logs(
    connection: Connection, batch: Iterable[tuple[Lease, Sequence[EncodableLogLine]]]
) -> int:
    """Store log lines of several attempts in one round trip. Return the number of new lines. Idempotent."""
    attempts = [
        {"id": lease.id, "attempt": lease.attempt, "nonce": lease.nonce, "lines": lines}
        for lease, lines in batch
    ]
    text = msgspec.json.encode(attempts).decode()
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
    """Return log lines of a job, oldest first: the lines after `after`, or the last lines with `newest`."""
    rows = await connection.fetch(_READ_LOGS, job_id, after, limit, task_id, level, newest)
    return [msgspec.convert({**row, "fields": _decode_log_fields(row["fields"])}, LogLine) for row in rows]


def _decode_log_fields(text: str | None) -> dict[str, Any]:
    return {} if text is None else dict(_json_decoder.decode(text))
