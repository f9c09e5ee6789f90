"""Schedules in code and as data. Run `holdfast worker examples/schedules.py`."""

import asyncio
from datetime import timedelta

from holdfast import Client, schedule, task

client = Client()


@schedule("30 6 * * MON-FRI", timezone="Europe/Madrid")
@task(queue="reports", limit=2)
async def briefing() -> str:
    return "good morning"


@task(queue="reports")
async def report(kind: str) -> str:
    return f"the report about {kind}"


sales = schedule(report("sales"), every=timedelta(hours=1), name="sales", unique=True)
stock = schedule(report("stock"), cron="@daily", name="stock", missed="catch_up", max_catch_up=7)


async def manage_schedules() -> None:
    await client.schedules.create(report("returns"), cron="0 3 * * SUN", name="returns", owner="ada")
    for at in await client.schedules.preview("returns", 3):
        print(at)
    await client.schedules.pause("returns")
    await client.schedules.resume("returns")
    job = await client.schedules.run_now("returns")
    print(job.id)
    await client.schedules.delete("returns")


async def list_failed_jobs() -> None:
    async for job in client.iterate_jobs("state:failed since:1d"):
        print(job.id, job.type, job.error)


async def main() -> None:
    async with client:
        await manage_schedules()
        await list_failed_jobs()


if __name__ == "__main__":
    asyncio.run(main())
