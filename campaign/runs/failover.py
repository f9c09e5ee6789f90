"""Fault runs of failover: the primary dies and its asynchronous or synchronous standby takes over.

Clients and workers reach the current primary through a proxy at one address, as behind a virtual IP.
"""

from __future__ import annotations

import asyncio

from campaign.checker import check_i4_no_attempt_runs_twice
from campaign.environment import DATABASE_NAME, FaultEnvironment
from campaign.proxy import FaultProxy, replace_port
from campaign.runs import FaultDose, FaultRun
from campaign.runs.worker_faults import WORKER_COUNT, submit_load
from campaign.servers import FaultServer
from holdfast import Client
from holdfast.engine import scratch


async def _run_asynchronous(env: FaultEnvironment, dose: FaultDose) -> dict[str, object]:
    """Fail over to an asynchronous standby. The last acknowledged jobs may be lost; other promises hold."""
    env.may_lose_acknowledged = True
    return await _run_failovers(env, dose)


async def _run_synchronous(env: FaultEnvironment, dose: FaultDose) -> dict[str, object]:
    """Fail over to a synchronous standby. No acknowledged job is lost."""
    return await _run_failovers(env, dose, "synchronous_standby_names = '*'")


async def _run_failovers(
    env: FaultEnvironment, dose: FaultDose, setting: str | None = None
) -> dict[str, object]:
    primary = env.server
    proxy = FaultProxy("127.0.0.1", primary.port, env.random)
    await proxy.start()
    await env.client.close()
    env.url = scratch.build_database_url(replace_port(primary.url, proxy.listen_port), DATABASE_NAME)
    env.client = Client(env.url.reveal(), settings=env.settings)
    for _ in range(WORKER_COUNT):
        await env.start_worker(*env.small_worker_options)
    done = 0
    async with submit_load(env, dose.tasks, 200):
        for number in env.iterate_faults(dose.faults):
            done += 1
            standby = FaultServer(env.folder / f"standby{number}", standby_of=primary)
            standby.start()
            await standby.wait_until_ready()
            if setting:
                await _change_server_setting(primary, setting)
            await asyncio.sleep(env.random.uniform(0.5, 1.5))
            primary.crash()
            await standby.promote()
            if setting:  # it has no standby yet and would wait for one
                await _change_server_setting(standby, "synchronous_standby_names = ''")
            proxy.port = standby.port
            proxy.close_connections()
            primary.destroy()
            primary = env.server = standby
    await env.wait_until_drained(300)
    await proxy.stop()
    env.url = scratch.build_database_url(primary.url, DATABASE_NAME)
    return {"failovers": done}


async def _change_server_setting(server: FaultServer, setting: str) -> None:
    connection = await server.connect()
    await connection.execute(f"alter system set {setting}")
    await connection.execute("select pg_reload_conf()")
    await connection.close()


FAULT_RUNS = [
    FaultRun(
        "failover",
        "the primary dies; an asynchronous standby takes over",
        _run_asynchronous,
        FaultDose(200, 2),
        FaultDose(10_000, 100),
        (check_i4_no_attempt_runs_twice,),
    ),
    FaultRun(
        "failover-sync",
        "the primary dies; a synchronous standby takes over",
        _run_synchronous,
        FaultDose(200, 2),
        FaultDose(10_000, 50),
        (check_i4_no_attempt_runs_twice,),
    ),
]
