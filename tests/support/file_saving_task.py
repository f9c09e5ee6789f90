"""A task that saves one file."""

from __future__ import annotations

from holdfast import Ctx, task


@task(queue="notes")
async def save_note(ctx: Ctx, text: str) -> None:
    await ctx.save("note.txt", text.encode(), "text/plain")
