"""A task, and a script that submits it and prints its result.

holdfast dev app.py      run the database, the API, the dashboard and a worker that reloads on save
python app.py            in a second terminal: submit a job and wait for its result
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from datetime import timedelta

from holdfast import Client, Ctx, task


@task(retries=3, timeout=timedelta(minutes=1))
async def count_words(ctx: Ctx, text: str) -> dict[str, int]:
    """Count how often each word occurs. A worker runs this, and retries it if it fails."""
    words = text.lower().split()
    counts: Counter[str] = Counter()
    for number, word in enumerate(words, 1):
        counts[word.strip(".,;:!?")] += 1
        ctx.progress(number, len(words), phase="count", message=word)
    return dict(counts)


async def main(text: str) -> None:
    async with Client() as client:
        job = await client.submit(count_words(text))
        print(f"submitted {job.id}; show it with: holdfast job show {job.id}")
        print(await job.result(within=timedelta(minutes=2)))


if __name__ == "__main__":
    asyncio.run(main(" ".join(sys.argv[1:]) or "to be or not to be"))
