"""A pipeline: texts counted side by side, put together, and drawn as a chart that can be fetched.

holdfast dev app.py            database, API, dashboard and a worker that reloads on save
python app.py a.txt b.txt      in a second terminal: run the pipeline over files and fetch the chart
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from datetime import timedelta
from html import escape
from pathlib import Path

from holdfast import Client, Ctx, Graph, task

SAMPLES = {
    "hamlet": "to be or not to be",
    "song": "row row row your boat",
    "rose": "a rose is a rose is a rose",
}


@task(queue="texts", retries=3, timeout=timedelta(minutes=1))
async def count_words(ctx: Ctx, text: str) -> dict[str, int]:
    """One text. Any number of these run at once."""
    counts: Counter[str] = Counter()
    async for word in ctx.track(text.lower().split(), phase="count"):
        counts[word.strip(".,;:!?")] += 1
    return dict(counts)


@task(queue="texts")
async def add_up(parts: list[dict[str, int]]) -> dict[str, int]:
    """Runs when all parts are there, and is given what they returned."""
    total: Counter[str] = Counter()
    for part in parts:
        total.update(part)
    return dict(total.most_common(12))


@task(queue="texts")
async def draw(ctx: Ctx, counts: dict[str, int]) -> str:
    """A file of the job: it can be fetched as soon as this task has succeeded."""
    most = max(counts.values(), default=1)
    bars = "".join(
        f'<text x="0" y="{y + 14}">{escape(word)}</text>'
        f'<rect x="120" y="{y}" width="{count / most * 260:.0f}" height="18" fill="#4a78e0"/>'
        for y, (word, count) in zip(range(0, 30 * len(counts), 30), counts.items(), strict=True)
    )
    picture = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 400 {30 * len(counts)}">{bars}</svg>'
    await ctx.save("words.svg", picture.encode(), "image/svg+xml")
    return "words.svg"


def pipeline(texts: dict[str, str]) -> Graph:
    """The whole job, as data. A failed part is retried alone; what is done stays done."""
    graph = Graph("words")
    parts = [graph.add(count_words(text), name=f"count {name}"[:100]) for name, text in texts.items()]
    total = graph.add(add_up([part.result for part in parts]))
    graph.add(draw(total.result))
    return graph


async def main(files: list[str]) -> None:
    texts = {Path(file).name: Path(file).read_text(encoding="utf-8") for file in files} or SAMPLES
    async with Client() as client:
        job = await client.submit(pipeline(texts))
        async for seen in job.watch(within=timedelta(minutes=2)):
            print(f"{seen.status} {seen.progress.percent or 0:.0f}%")
        for file in await client.files.list(job=job.id):
            async with client.files.open(file) as reading:
                Path(file.name).write_bytes(await reading.read())
            print(f"{file.name}: {file.size} bytes, now in this folder")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
