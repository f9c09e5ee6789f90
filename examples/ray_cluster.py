"""Heavy computation on a Ray cluster: a task spreads the parts, relays progress and stops them when it ends.

pip install ray
export RAY_ADDRESS=10.0.0.5:6379                 (without it, a small cluster starts on this machine)
holdfast worker examples/ray_cluster.py          in one terminal
python examples/ray_cluster.py                   in another
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import ray
from ray.exceptions import RayTaskError

from holdfast import Client, Ctx, lifespan, task

PARTS = 10


@lifespan
async def ray_cluster() -> AsyncIterator[None]:
    handler = signal.getsignal(signal.SIGTERM)
    # Not in another thread, although it takes seconds: a local cluster ends with the thread that started it.
    ray.init(log_to_driver=False)
    # Ray would end the process at once. Let the worker finish its tasks first, as without Ray.
    signal.signal(signal.SIGTERM, handler)
    yield
    ray.shutdown()


@task(queue="compute", timeout=timedelta(hours=1))
async def count_primes(ctx: Ctx[Any], limit: int) -> int:
    size = limit // PARTS
    parts = [count_primes_between.remote(start, size) for start in range(0, limit, size)]
    done = 0

    async def wait_for(part: ray.ObjectRef[int]) -> int:
        nonlocal done
        count: int = await part
        done += 1
        ctx.progress(done, PARTS, phase="count")
        return count

    try:
        return sum(await asyncio.gather(*map(wait_for, parts)))
    except RayTaskError as error:
        raise error.cause from None  # the error of the remote function, with its type
    finally:  # also when the job is cancelled, or the lease was lost
        for part in parts:
            ray.cancel(part)


@ray.remote(max_retries=0)  # type: ignore[untyped-decorator]  # Ray is not installed where types are checked
def count_primes_between(start: int, size: int) -> int:
    """Run on a machine of the cluster. A cancel raises KeyboardInterrupt here."""
    return sum(
        all(number % divisor for divisor in range(2, int(number**0.5) + 1))
        for number in range(max(start, 2), start + size)
    )


async def main() -> None:
    async with Client() as client:
        job = await client.submit(count_primes(100_000))
        print(await job.result(within=120))


if __name__ == "__main__":
    asyncio.run(main())
