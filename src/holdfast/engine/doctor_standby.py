"""Find out what a failover would lose: whether a standby confirms each commit before it is acknowledged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from holdfast.engine.connection import Connection

DOCS: Final = "docs/operate/high-availability.md"
# Not "off" and "local": with these a commit does not wait for a standby.
WAITING_COMMIT_MODES: Final = frozenset({"on", "remote_write", "remote_apply"})

READ_REPLICATION = """
select
  pg_catalog.current_setting('synchronous_standby_names') <> '' as wants_synchronous,
  pg_catalog.current_setting('synchronous_commit') as commit_mode,
  count(r.pid) as standbys,
  count(r.pid) filter (where r.sync_state in ('sync', 'quorum')) as synchronous,
  count(r.pid) filter (where r.sync_state is null) as hidden,
  coalesce(pg_catalog.pg_size_pretty(max(case when not pg_catalog.pg_is_in_recovery()
    then pg_catalog.pg_wal_lsn_diff(pg_catalog.pg_current_wal_lsn(), r.flush_lsn) end)), 'an unknown amount')
    as behind
from (select 1) one
-- The state is null for a role that may not see it; base backups are not standbys.
left join pg_catalog.pg_stat_replication r on coalesce(r.state, 'streaming') in ('streaming', 'catchup')
"""


@dataclass(frozen=True)
class StandbyFinding:
    """What is known about standbys, with the level of the doctor's finding."""

    level: Literal["ok", "warn"]
    text: str
    fix: str | None = None


async def check_standbys(connection: Connection) -> StandbyFinding:
    """Say whether a synchronous standby is connected, and what would be lost without one."""
    async with connection.transaction():
        row = await connection.fetchrow(READ_REPLICATION)
    assert row is not None  # noqa: S101  (one row always)
    if row["wants_synchronous"] and row["commit_mode"] not in WAITING_COMMIT_MODES:
        return StandbyFinding(
            "warn",
            f"a synchronous standby is configured, but synchronous_commit is {row['commit_mode']}: "
            "a failover loses the last acknowledged jobs",
            "Set synchronous_commit = on for this database and role.",
        )
    if row["hidden"]:
        return StandbyFinding(
            "warn",
            f"{row['standbys']} connected; this role may not see whether one is synchronous",
            "Grant pg_read_all_stats to this role.",
        )
    if row["synchronous"]:
        return StandbyFinding(
            "ok",
            f"{row['synchronous']} of {row['standbys']} synchronous: a failover loses no acknowledged job",
        )
    return _describe_missing_standby(row["wants_synchronous"], row["standbys"], row["behind"])


def _describe_missing_standby(wants_synchronous: bool, standbys: int, behind: str) -> StandbyFinding:
    if wants_synchronous:
        return StandbyFinding(
            "warn",
            "synchronous_standby_names is set, but no such standby is connected: every commit waits for it",
            "Start the standby, or let Patroni or your operator choose another one.",
        )
    if standbys:
        return StandbyFinding(
            "warn",
            f"{standbys} connected, none synchronous: a failover loses the last acknowledged jobs "
            f"({behind} of changes now)",
            f"Make one standby synchronous (synchronous_standby_names); see {DOCS}.",
        )
    return StandbyFinding(
        "ok",
        "none visible: if this server and its disk are lost, everything since the last backup is lost "
        "(managed services may replicate below PostgreSQL)",
    )
