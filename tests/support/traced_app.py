"""A task that submits a child, which calls a provider. The event is the one that a real call emits."""

from __future__ import annotations

from holdfast import Ctx, task, telemetry


@task(queue="traced")
async def parent(ctx: Ctx, text: str) -> None:
    await ctx.submit(child(text))


@task(queue="traced")
async def child(text: str) -> str:
    telemetry.emit(
        "provider.call_finished", kind="text", provider="remote", model="m", outcome="succeeded",
        seconds=0.01, tokens_in=1, tokens_out=1, audio_s=0, images=0, cost=0,
    )  # fmt: skip
    return text
