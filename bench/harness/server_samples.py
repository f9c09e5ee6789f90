"""What the server and the machine did in each second of a run, to explain stalls."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import asyncpg

from bench.machine import describe_machine_use, read_machine_ticks

SAMPLE_INTERVAL_S = 1.0
READ_WAITS = """
select backend_type, coalesce(wait_event_type || '/' || wait_event, 'CPU') as wait, count(*) as count
from pg_stat_activity
where pid <> pg_backend_pid() and (state = 'active' or backend_type in ('checkpointer', 'walwriter'))
  and coalesce(wait_event_type, '') <> 'Activity'
group by 1, 2
"""
READ_VACUUMS = "select relid::regclass::text || ' (' || phase || ')' from pg_stat_progress_vacuum"
READ_CHECKPOINTS = {  # by whether the server is version 17 or later
    True: "select num_timed + num_requested as count, write_time, sync_time from pg_stat_checkpointer",
    False: "select checkpoints_timed + checkpoints_req as count, checkpoint_write_time as write_time,"
    " checkpoint_sync_time as sync_time from pg_stat_bgwriter",
}


@dataclass(frozen=True)
class ServerSample:
    """One second of the server: who waited for what, WAL, checkpoints, vacuums; and of the machine."""

    at: float
    waits: dict[str, int]
    vacuums: list[str]
    wal_bytes: int
    checkpoints: int
    checkpoint_write_ms: float
    checkpoint_sync_ms: float
    cpu_ticks: dict[str, int]  # of the machine


@dataclass
class ServerMonitor:
    """Takes a sample every second until it is stopped."""

    url: str
    samples: list[ServerSample] = field(default_factory=list[ServerSample])

    async def run(self) -> None:
        connection = await asyncpg.connect(self.url)
        try:
            is_new = connection.get_server_version().major >= 17
            while True:
                self.samples.append(await self._take_sample(connection, READ_CHECKPOINTS[is_new]))
                await asyncio.sleep(SAMPLE_INTERVAL_S)
        finally:
            await connection.close()

    async def _take_sample(self, connection: asyncpg.Connection, read_checkpoints: str) -> ServerSample:
        waits: dict[str, int] = {}
        for row in await connection.fetch(READ_WAITS):
            is_client = row["backend_type"] == "client backend"
            waits[row["wait"] if is_client else f"{row['backend_type']} {row['wait']}"] = row["count"]
        vacuums = [row[0] for row in await connection.fetch(READ_VACUUMS)]
        wal_bytes = await connection.fetchval("select pg_current_wal_insert_lsn() - '0/0'::pg_lsn")
        [row] = await connection.fetch(read_checkpoints)
        return ServerSample(
            time.time(), waits, vacuums, int(wal_bytes), row["count"], row["write_time"], row["sync_time"],
            read_machine_ticks(),
        )  # fmt: skip

    def describe(self, start: float, end: float) -> str:
        """Say in one line what happened between two times, with the sample before the first."""
        after = [index for index, sample in enumerate(self.samples) if sample.at >= start]
        first = max(after[0] - 1, 0) if after else 0
        chosen = [sample for sample in self.samples[first:] if sample.at <= end + SAMPLE_INTERVAL_S]
        return describe_samples(chosen) if len(chosen) > 1 else "no sample of the server: it did not answer"


def describe_samples(samples: Sequence[ServerSample]) -> str:
    first, last = samples[0], samples[-1]
    waits = sum((Counter(sample.waits) for sample in samples[1:]), Counter[str]())
    wal_mb = (last.wal_bytes - first.wal_bytes) / (last.at - first.at) / 1e6
    parts = [
        "waits " + (", ".join(f"{name} {count}" for name, count in waits.most_common(5)) or "none"),
        f"WAL {wal_mb:.1f} MB/s",
        describe_machine_use(first.cpu_ticks, last.cpu_ticks),
    ]
    write_s = (last.checkpoint_write_ms - first.checkpoint_write_ms) / 1000
    sync_s = (last.checkpoint_sync_ms - first.checkpoint_sync_ms) / 1000
    if last.checkpoints > first.checkpoints or write_s:
        parts.append(f"checkpoint (written in {write_s:.1f} s, synced in {sync_s:.1f} s)")
    if vacuums := sorted({name for sample in samples[1:] for name in sample.vacuums}):
        parts.append("autovacuum of " + ", ".join(vacuums))
    longest_s = max(after.at - before.at for before, after in pairwise(samples))
    if longest_s > 2 * SAMPLE_INTERVAL_S:
        parts.append(f"the server did not answer the monitor for {longest_s:.1f} s")
    return "; ".join(parts)
