"""How far a read replica is behind its primary."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.engine.connection import Connection

# A replica that has replayed all it received is up to date while it receives. Otherwise the time of the last
# replayed commit counts, which also grows when nothing is written.
_READ_REPLICA_STATE = """
select pg_catalog.pg_is_in_recovery() as is_replica,
  case when not pg_catalog.pg_is_in_recovery() then 0
    when pg_catalog.pg_last_wal_receive_lsn() = pg_catalog.pg_last_wal_replay_lsn()
      and exists (select from pg_catalog.pg_stat_wal_receiver) then 0
    else extract(epoch from pg_catalog.clock_timestamp() - pg_catalog.pg_last_xact_replay_timestamp())
  end::double precision as age_s
"""


@dataclass(frozen=True)
class ReplicaState:
    """Whether a server is a replica, and how old its data is. `age_s` is None if it does not know."""

    is_replica: bool
    age_s: float | None


async def get_replica_state(connection: Connection) -> ReplicaState:
    row = await connection.fetchrow(_READ_REPLICA_STATE)
    assert row is not None  # noqa: S101  (one row always)
    return ReplicaState(row["is_replica"], row["age_s"])
