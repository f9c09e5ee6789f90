"""A task in a child process: it can compute for a long time, use much memory and be killed.

holdfast worker examples/process_task.py        in one terminal
python examples/process_task.py                 in another
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

from holdfast import Client, Ctx, task


@task(process=True, memory=500 * 2**20, timeout=timedelta(minutes=2))
def thumbnail(ctx: Ctx, picture: str, width: int) -> int:
    ctx.progress(0, 1, phase="shrink", message=picture)
    return shrink(Path(picture), width)


def shrink(picture: Path, width: int) -> int:
    """Simulate a library that computes for a long time and sometimes crashes its process."""
    return sum(picture.read_bytes()) % width


async def main() -> None:
    async with Client() as client:
        job = await client.submit(thumbnail(__file__, width=320))
        print(job.id, await job.result())


if __name__ == "__main__":
    asyncio.run(main())
