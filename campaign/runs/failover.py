"""The primary dies and its standby takes over, with and without having had everything.

Clients and workers reach whoever is primary through a proxy at one address, as behind a virtual IP.
"""

from __future__ import annotations

import asyncio

from campaign.arena import DATABASE, Arena
from campaign.checker import i4_after_a_freeze
from campaign.proxy import Proxy, through
from campaign.runs import Dose, Run
from campaign.runs.workers import FLEET, fed
from campaign.servers import Server
from holdfast import Client
from holdfast.engine import scratch


async def _asynchronous(arena: Arena, dose: Dose) -> dict[str, object]:
    """What was acknowledged last may be lost with the primary; what is left must be sound."""
    arena.forgets = True
    return await _failovers(arena, dose)


async def _synchronous(arena: Arena, dose: Dose) -> dict[str, object]:
    """Nothing that was acknowledged is lost."""
    return await _failovers(arena, dose, "synchronous_standby_names = '*'")


async def _failovers(arena: Arena, dose: Dose, setting: str | None = None) -> dict[str, object]:
    primary = arena.server
    proxy = Proxy("127.0.0.1", primary.port, arena.random)
    await proxy.start()
    await arena.client.close()
    arena.url = scratch.on_database(through(primary.url, proxy.own_port), DATABASE)
    arena.client = Client(arena.url.reveal(), settings=arena.settings)
    for _ in range(FLEET):
        await arena.worker(*arena.few)
    done = 0
    async with fed(arena, dose.tasks, 200):
        for number in arena.faults(dose.faults):
            done += 1
            standby = Server(arena.folder / f"standby{number}", standby_of=primary)
            standby.start()
            await standby.ready()
            if setting:
                await _set(primary, setting)
            await asyncio.sleep(arena.random.uniform(0.5, 1.5))
            primary.crash()
            await standby.promote()
            if setting:  # it has no standby of its own yet, and would wait for one
                await _set(standby, "synchronous_standby_names = ''")
            proxy.port = standby.port
            proxy.drop()
            primary.destroy()
            primary = arena.server = standby
    await arena.drained(300)
    await proxy.stop()
    arena.url = scratch.on_database(primary.url, DATABASE)
    return {"failovers": done}


async def _set(server: Server, setting: str) -> None:
    connection = await server.connect()
    await connection.execute(f"alter system set {setting}")
    await connection.execute("select pg_reload_conf()")
    await connection.close()


RUNS = [
    Run("failover", "the primary dies; an asynchronous standby takes over", _asynchronous, Dose(200, 2),
        Dose(10_000, 100), (i4_after_a_freeze,)),
    Run("failover-sync", "the primary dies; a synchronous standby takes over", _synchronous, Dose(200, 2),
        Dose(10_000, 50), (i4_after_a_freeze,)),
]  # fmt: skip
