"""Fault run of a cluster under Patroni with a synchronous standby: switchovers, killed and frozen leaders.

Clients and workers have one address with all three nodes and no proxy in front.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise

import asyncpg

from campaign import app
from campaign.checker import check_i4_no_overlap
from campaign.environment import DATABASE_NAME, FaultEnvironment, create_database
from campaign.patroni import TTL_S, PatroniCluster
from campaign.runs import FaultDose, FaultRun
from campaign.runs.worker_faults import WORKER_COUNT, submit_load
from holdfast import Client
from holdfast.errors import HoldfastError

TARGET_OUTAGE_S = TTL_S + 5
PROBE_PAUSE_S = 0.05
MAX_FREEZE_S = 90.0
FAULT_KINDS = ("switchover", "kill", "freeze")


@dataclass
class SubmitProbe:
    """Submits one job after the other and remembers when each was acknowledged."""

    acknowledged_at: list[float] = field(default_factory=list[float])

    async def wait_for_acknowledgement(self, timeout_s: float = MAX_FREEZE_S) -> None:
        """Wait until another submit is acknowledged, at most for `timeout_s`."""
        before, deadline = len(self.acknowledged_at), time.monotonic() + timeout_s
        while len(self.acknowledged_at) == before and time.monotonic() < deadline:
            await asyncio.sleep(0.05)

    def get_outage_s(self, began_at: float, ended_at: float) -> float:
        """Return the longest time without an acknowledged submit, from a fault until it was over."""
        times = [at for at in self.acknowledged_at if began_at <= at <= ended_at]
        moments = [began_at, *times, ended_at]
        return max(after - before for before, after in pairwise(moments))


async def _run_patroni(env: FaultEnvironment, dose: FaultDose) -> dict[str, object]:
    """Switch over, kill and freeze the leader in turn. No acknowledged job is lost, no execution overlaps."""
    await _move_to_cluster(env)
    cluster = env.cluster
    assert cluster is not None
    for _ in range(WORKER_COUNT):
        await env.start_worker(*env.small_worker_options)
    outages: dict[str, list[float]] = {kind: [] for kind in FAULT_KINDS}
    async with submit_load(env, dose.tasks, 200), _probe_submits(env) as probe:
        for kind in plan_faults(env, dose.faults):
            if not list(env.iterate_faults(1)):
                break
            await env.wait_for_progress()
            began_at = time.monotonic()
            await _inject_fault(env, cluster, kind, probe)
            await env.wait_for_progress(60)
            await cluster.wait_until_healthy()
            outages[kind].append(round(probe.get_outage_s(began_at, time.monotonic()), 1))
    await env.wait_until_drained(300)
    longest = max((seconds for times in outages.values() for seconds in times), default=0.0)
    return {
        "failovers": sum(map(len, outages.values())),
        "outages s": outages,
        "ttl + 5 s kept": longest <= TARGET_OUTAGE_S,
    }


def plan_faults(env: FaultEnvironment, number: int) -> list[str]:
    """Return the faults in random order: one in five is a freeze, the rest switchovers and kills."""
    freezes = -(-number // 5)
    switchovers = (number - freezes + 1) // 2
    kinds = ["switchover"] * switchovers + ["freeze"] * freezes
    kinds += ["kill"] * (number - len(kinds))
    env.random.shuffle(kinds)
    return kinds


async def _move_to_cluster(env: FaultEnvironment) -> None:
    """Replace the single server of the environment by a cluster."""
    await env.client.close()
    env.close_status_connection()
    env.server.destroy()
    env.cluster = PatroniCluster(env.folder / "cluster")
    await env.cluster.start()
    env.url = env.cluster.build_url(DATABASE_NAME)
    await create_database(env.cluster.build_url("postgres"), env.url, env.settings)
    env.client = Client(env.url.reveal(), settings=env.settings)


async def _inject_fault(
    env: FaultEnvironment, cluster: PatroniCluster, kind: str, probe: SubmitProbe
) -> None:
    await asyncio.sleep(env.random.uniform(0.0, 1.0))
    if kind == "switchover":
        await cluster.switch_over()
    elif kind == "kill":
        node = await cluster.kill_leader()
        await asyncio.sleep(env.random.uniform(0.0, 3.0))
        cluster.start_node(node)
    else:
        node = await cluster.freeze_leader()
        # Clients must leave the frozen server by themselves: it stays silent until a submit works again.
        await probe.wait_for_acknowledgement()
        await asyncio.sleep(env.random.uniform(0.0, 3.0))
        cluster.thaw(node)


@asynccontextmanager
async def _probe_submits(env: FaultEnvironment) -> AsyncGenerator[SubmitProbe]:
    probe = SubmitProbe()

    async def submit_on_and_on() -> None:
        while True:
            try:
                await env.submit([app.work(0, 5)])
            except (HoldfastError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                pass
            else:
                probe.acknowledged_at.append(time.monotonic())
            await asyncio.sleep(PROBE_PAUSE_S)

    probing = asyncio.create_task(submit_on_and_on())
    try:
        yield probe
    finally:
        probing.cancel()
        await asyncio.wait([probing])


FAULT_RUNS = [
    FaultRun(
        "patroni",
        "switchovers, killed and frozen leaders under Patroni, with a synchronous standby",
        _run_patroni,
        FaultDose(400, 6),
        FaultDose(20_000, 50),
        (check_i4_no_overlap,),
        tiny=FaultDose(100, 3),
    )
]
