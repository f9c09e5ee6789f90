"""Tasks for Holdfast, and a script that submits one and prints its result.

holdfast dev app.py      database, API, dashboard and a worker that reloads on save
python app.py            in a second terminal: submit a job and wait for it
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from datetime import timedelta

from holdfast import Client, Ctx, task


@task(retries=3, timeout=timedelta(minutes=1))
async def count_words(ctx: Ctx, text: str) -> dict[str, int]:
    """How often each word occurs. Runs in a worker, as often as it takes to succeed."""
    words = text.lower().split()
    counts: Counter[str] = Counter()
    for number, word in enumerate(words, 1):
        counts[word.strip(".,;:!?")] += 1
        ctx.progress(number, len(words), phase="count", message=word)
    return dict(counts)


async def main(text: str) -> None:
    async with Client() as client:
        job = await client.submit(count_words(text))
        print(f"submitted {job.id}; look at it with: holdfast job show {job.id}")
        print(await job.result(within=timedelta(minutes=2)))


if __name__ == "__main__":
    asyncio.run(main(" ".join(sys.argv[1:]) or "to be or not to be"))
