"""List batches for dashboards."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from holdfast.engine.connection import Connection
from holdfast.engine.json_rows import JsonObject, fetch_objects


async def list_batches(connection: Connection, *, owner: str | None, before: UUID | None) -> list[JsonObject]:
    """List batches, newest first. With `owner`, only the batches of that owner."""
    return await fetch_objects(connection, "select holdfast.list_batches($1, $2)", owner, before)


async def list_batch_states(connection: Connection, batches: Sequence[JsonObject]) -> dict[str, str]:
    """Return the state of each batch by its id: `open`, `running`, `paused`, `queued` or `done`.

    A batch is paused if none of its jobs runs and some wait in a paused queue.
    """
    ids = [UUID(str(batch["id"])) for batch in batches if not batch["finished_at"]]
    rows = await connection.fetch("select * from holdfast.list_batch_activity($1)", ids)
    activity = {str(row["batch_id"]): row for row in rows}
    states = {str(batch["id"]): "done" if batch["finished_at"] else "open" for batch in batches}
    for batch in batches:
        row = activity.get(str(batch["id"]))
        if row is not None and (row["running"] or row["paused_queues"] or batch["closed_at"]):
            state = "running" if row["running"] else "paused" if row["paused_queues"] else "queued"
            states[str(batch["id"])] = state
    return states
