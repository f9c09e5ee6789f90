"""A pipeline: count texts in parallel, add up the counts, and draw a chart that can be downloaded.

holdfast dev app.py            run the database, the API, the dashboard and a worker that reloads on save
python app.py a.txt b.txt      in a second terminal: run the pipeline for these files and download the chart
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
    """Count the words of one text. Many of these tasks run at the same time."""
    counts: Counter[str] = Counter()
    async for word in ctx.track(text.lower().split(), phase="count"):
        counts[word.strip(".,;:!?")] += 1
    return dict(counts)


@task(queue="texts")
async def add_up(parts: list[dict[str, int]]) -> dict[str, int]:
    """Add up the counts. This task runs after all parts and receives their results."""
    total: Counter[str] = Counter()
    for part in parts:
        total.update(part)
    return dict(total.most_common(12))


@task(queue="texts")
async def draw(ctx: Ctx, counts: dict[str, int]) -> str:
    """Save a chart as a file of the job. It can be downloaded when this task has succeeded."""
    highest = max(counts.values(), default=1)
    bars = "".join(
        f'<text x="0" y="{y + 14}">{escape(word)}</text>'
        f'<rect x="120" y="{y}" width="{count / highest * 260:.0f}" height="18" fill="#4a78e0"/>'
        for y, (word, count) in zip(range(0, 30 * len(counts), 30), counts.items(), strict=True)
    )
    picture = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 400 {30 * len(counts)}">{bars}</svg>'
    await ctx.save("words.svg", picture.encode(), "image/svg+xml")
    return "words.svg"


def build_pipeline(texts: dict[str, str]) -> Graph:
    """Build the job as a graph of tasks. A failed task is retried alone; other tasks keep their results."""
    graph = Graph("words")
    parts = [graph.add(count_words(text), name=f"count {name}"[:100]) for name, text in texts.items()]
    total = graph.add(add_up([part.result for part in parts]))
    graph.add(draw(total.result))
    return graph


async def main(files: list[str]) -> None:
    texts = {Path(file).name: Path(file).read_text(encoding="utf-8") for file in files} or SAMPLES
    async with Client() as client:
        job = await client.submit(build_pipeline(texts))
        async for state in job.watch(within=timedelta(minutes=2)):
            print(f"{state.status} {state.progress.percent or 0:.0f}%")
        for file in await client.files.list(job=job.id):
            async with client.files.open(file) as reader:
                Path(file.name).write_bytes(await reader.read())
            print(f"{file.name}: {file.size} bytes, saved in this folder")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
