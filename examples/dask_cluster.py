"""Heavy computation on a Dask cluster: a task spreads the parts, relays progress and stops them when it ends.

pip install distributed
export DASK_SCHEDULER=tcp://scheduler:8786       (without it, a small cluster starts on this machine)
holdfast worker examples/dask_cluster.py         in one terminal
python examples/dask_cluster.py                  in another
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import distributed

from holdfast import Client, Ctx, lifespan, task

PARTS = 10


@lifespan
async def dask_cluster() -> AsyncIterator[Any]:
    address = os.environ.get("DASK_SCHEDULER")
    if address:
        async with distributed.Client(address, asynchronous=True) as cluster:
            yield cluster
    else:
        local = distributed.LocalCluster(n_workers=2, asynchronous=True, dashboard_address=None)
        async with local, distributed.Client(local, asynchronous=True) as cluster:
            yield cluster


@task(queue="compute", timeout=timedelta(hours=1))
async def count_primes(ctx: Ctx[Any], limit: int) -> int:
    size = limit // PARTS
    parts = ctx.state.map(count_primes_between, range(0, limit, size), size=size, pure=False)
    total = 0
    try:
        async for part in distributed.as_completed(parts):
            total += await part.result()  # raises the error of the remote function, with its type
            ctx.progress(sum(each.done() for each in parts), PARTS, phase="count")
    finally:  # also when the job is cancelled, or the lease was lost
        await ctx.state.cancel(parts)
    return total


def count_primes_between(start: int, size: int) -> int:
    """Run on a machine of the cluster."""
    count = 0
    for number in range(max(start, 2), start + size):
        if number % 1000 == 0:
            stop_if_cancelled()
        count += all(number % divisor for divisor in range(2, int(number**0.5) + 1))
    return count


def stop_if_cancelled() -> None:
    """Raise an error if nobody waits for this function any more: Dask does not interrupt what runs."""
    worker = distributed.get_worker()
    running = worker.state.tasks.get(worker.get_current_task())
    if running is None or running.state != "executing":
        raise RuntimeError("cancelled")


async def main() -> None:
    async with Client() as client:
        job = await client.submit(count_primes(100_000))
        print(await job.result(within=120))


if __name__ == "__main__":
    asyncio.run(main())
