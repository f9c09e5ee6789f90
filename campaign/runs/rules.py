"""What must happen exactly once or never too often, while workers die: ticks, callbacks, quotas, poison."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from datetime import timedelta

from campaign import app
from campaign.arena import Arena
from campaign.checker import i4_no_overlap, i7_one_callback, i9_one_job_a_tick, i11_quotas
from campaign.runs import Dose, Run
from campaign.runs.work import killing
from campaign.runs.workers import FLEET
from holdfast import schedule
from holdfast.engine import artifacts, schedules
from holdfast.errors import HoldfastError

SECOND = timedelta(seconds=1)
AT_ONCE = 20
CRASHES = 3  # the budget of a task
TICKS = """select labels ->> 'schedule' as name, labels ->> 'schedule_at' as at from holdfast.history
  where labels ? 'schedule'"""


async def _schedules(arena: Arena, dose: Dose) -> dict[str, object]:
    """Schedules of every second; workers die and the server is crashed, long enough to miss ticks."""
    async with arena.connection() as connection:
        for number in range(dose.tasks):
            missed = ("catch_up", "coalesce", "skip")[number % 3]
            made = schedule(app.work(number), every=SECOND, name=f"{missed}-{number}", most=1000)
            await schedules.put_schedule(connection, {**made.body(), "missed": missed})
    for _ in range(FLEET):
        await arena.worker(*arena.few)
    async with killing(arena, dose.faults):
        for _ in arena.faults(max(2, dose.faults // 10)):
            await asyncio.sleep(arena.random.uniform(2.0, 4.0))
            arena.server.crash()
            await asyncio.sleep(arena.random.uniform(0.5, 4.0))
            arena.server.start()
            await arena.server.ready()
    async with arena.connection() as connection:
        await connection.execute("select holdfast.pause_schedule(name) from holdfast.schedules")
    await arena.drained(300)
    async with arena.connection() as connection:
        ticks = Counter((row["name"], row["at"]) for row in await connection.fetch(TICKS))
    arena.known["ticks"] = ticks
    return {"schedules": dose.tasks, "ticks": len(ticks)}


async def _batches(arena: Arena, dose: Dose) -> dict[str, object]:
    """Many batches at once, closed before, while and after their jobs end."""
    for _ in range(FLEET):
        await arena.worker(*arena.few)
    batches: dict[str, list[str]] = {}

    async def one(number: int) -> None:
        batch = await arena.client.batches.open(then=app.called_back(number))
        members: list[str] = []
        for _ in range(arena.random.randint(1, 3)):
            calls = [app.work(n, arena.random.randint(0, 40)) for n in range(arena.random.randint(1, 4))]
            members += [str(handle.id) for handle in await batch.submit_many(calls)]
            await asyncio.sleep(arena.random.uniform(0.0, 0.3))
        await batch.close()
        batches[f"callback {number}"] = members

    async with killing(arena, dose.faults):
        for start in range(0, dose.tasks, AT_ONCE):
            await asyncio.gather(*(one(n) for n in range(start, min(start + AT_ONCE, dose.tasks))))
        await arena.drained(300)
    arena.known["batches"] = batches
    return {"batches": len(batches)}


async def _quotas(arena: Arena, dose: Dose) -> dict[str, object]:
    """Clients race for the last jobs of a day, and some lose their connection in the middle."""
    await arena.worker(*arena.few)
    owners = [f"owner-{number}" for number in range(max(1, dose.tasks // 20))]
    async with arena.connection() as connection:
        for owner in owners:
            await artifacts.put_quota(connection, owner, operations=10)
    refused = 0

    async def ask(owner: str, number: int) -> None:
        nonlocal refused
        try:
            handle = await arena.client.submit(app.work(number, 1), owner=owner)
        except (HoldfastError, OSError):
            refused += 1  # or lost, which is as good as refused here
        else:
            arena.recorder.write("acknowledged", str(handle.id))

    for owner in owners:
        asking = asyncio.gather(*(ask(owner, number) for number in range(20)))
        if arena.random.random() < 0.3 and list(arena.faults(1)):
            await asyncio.sleep(arena.random.uniform(0.0, 0.01))
            await _end_backends(arena)
        await asking
    await arena.drained(300)
    async with arena.connection() as connection:
        rows = await connection.fetch("select owner, count(*) from holdfast.history group by owner")
    arena.known["quotas"] = {row["owner"]: (10, row["count"]) for row in rows if row["owner"]}
    return {"owners": len(owners), "refused or lost": refused}


async def _end_backends(arena: Arena) -> None:
    with contextlib.suppress(HoldfastError, OSError):
        async with arena.connection() as connection:
            await connection.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where backend_type = 'client backend' and pid <> pg_backend_pid() and random() < 0.3"
            )


async def _poison(arena: Arena, dose: Dose) -> dict[str, object]:
    """Tasks that take their process along, among others that do not."""
    poisons: list[str] = []
    for number in range(dose.faults):
        how = arena.random.choice(["exit", "kill", "segv", "abort"])
        poisons += await arena.submit([app.poison(how)])
        await arena.submit(
            [app.work(number, arena.random.randint(0, 100)) for _ in range(dose.tasks // dose.faults)]
        )
    await arena.drained(600, workers=FLEET)
    async with arena.connection() as connection:
        rows = await connection.fetch("select id, status, crashes, failures from holdfast.history")
    bad = set(poisons)
    crashed = [row["crashes"] for row in rows if str(row["id"]) in bad]
    harmed = [str(row["id"]) for row in rows if str(row["id"]) not in bad and row["status"] != "succeeded"]
    if harmed:
        raise AssertionError(f"{len(harmed)} innocents did not succeed: {harmed[:3]}")
    if len(crashed) != len(poisons) or max(crashed) > CRASHES:
        raise AssertionError(f"{len(poisons)} poisons, crashes of each: {Counter(crashed)}")
    return {"poisons": len(poisons), "crashes of each": dict(Counter(crashed))}


RUNS = [
    Run("schedules", "ticks of schedules while workers die and the server is away", _schedules, Dose(9, 20),
        Dose(30, 300), (i9_one_job_a_tick,)),
    Run("batches", "batches with a callback while workers die", _batches, Dose(40, 15), Dose(2_000, 300),
        (i4_no_overlap, i7_one_callback)),
    Run("quotas", "clients race for what is left of a quota", _quotas, Dose(200, 100), Dose(4_000, 1_000),
        (i11_quotas,)),
    Run("poison", "tasks that kill their process, among others", _poison, Dose(60, 6), Dose(1_000, 100)),
]  # fmt: skip
