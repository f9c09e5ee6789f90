"""The application of compose.yaml. Mount your own at /app instead, or build an image from this one."""

from __future__ import annotations

from holdfast import Ctx, task


@task(queue="words", retries=2)
async def count_words(ctx: Ctx, text: str) -> dict[str, int]:
    counts: dict[str, int] = {}
    words = text.split()
    for number, word in enumerate(words, 1):
        counts[word] = counts.get(word, 0) + 1
        ctx.progress(number, len(words), phase="count", message=word)
    await ctx.save("words.txt", "\n".join(sorted(counts)).encode(), "text/plain")
    return counts
