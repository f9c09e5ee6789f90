"""The application of the quickstart: submit one job and wait for its result.

holdfast worker examples/app.py        in one terminal
python examples/app.py                 in another
"""

from __future__ import annotations

import asyncio

from holdfast import Client, Ctx, task


@task(queue="words", retries=2)
async def count_words(ctx: Ctx, text: str) -> dict[str, int]:
    counts: dict[str, int] = {}
    words = text.split()
    for number, word in enumerate(words, 1):
        counts[word] = counts.get(word, 0) + 1
        ctx.progress(number, len(words), phase="count", message=word)
    return counts


async def main() -> None:
    async with Client() as client:
        job = await client.submit(count_words("to be or not to be"), key="hamlet")
        print(job.id, await job.result())


if __name__ == "__main__":
    asyncio.run(main())
