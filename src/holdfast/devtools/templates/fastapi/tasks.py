"""The tasks: functions that run in workers. They do not depend on the web application."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

from holdfast import Ctx, task


@task(queue="texts", retries=3, timeout=timedelta(minutes=1))
async def count_words(ctx: Ctx, text: str) -> dict[str, int]:
    """Count how often each word occurs."""
    words = text.lower().split()
    counts: Counter[str] = Counter()
    for number, word in enumerate(words, 1):
        counts[word.strip(".,;:!?")] += 1
        ctx.progress(number, len(words), phase="count", message=word)
    return dict(counts)
