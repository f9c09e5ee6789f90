"""The worker of the clip system: the consumers of its two queues, its state, and its maintenance."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

from holdfast import Client, Consumer, Ctx, Message, consumer, lifespan, schedule, task
from holdfast.errors import RefusedError
from holdfast.systems.clips import clip_queries, passage_queries
from holdfast.systems.clips import stage_queries as queries
from holdfast.systems.clips.messages import ENRICH_QUEUE, SCRAPE_QUEUE
from holdfast.systems.clips.passages import split_transcript
from holdfast.systems.clips.stage_queries import STAGE_LEASES
from holdfast.systems.clips.step_store import SOURCE_PREFIX
from holdfast.systems.clips.worker_state import ClipsWorkerState, build_clip_text
from holdfast.systems.media.worker_state import delete_stale_scratch_folders
from holdfast.systems.providers import UsageAccount
from holdfast.systems.tables import qualify_tables

MAX_SCRAPES_AT_ONCE: Final = 8  # of one worker; yt-dlp and ffmpeg have limits of their own
MAX_ENRICHMENTS_AT_ONCE: Final = 8
MAX_SCRAPE_DURATION: Final = timedelta(hours=6)
MAX_ENRICH_DURATION: Final = timedelta(hours=1)
ABANDONED_AFTER: Final = timedelta(minutes=5)
REEMBED_BATCH: Final = 20
CLIP_TASK_QUEUE: Final = "clips"

# Consumers receive a message and no context, so the state of the process is here while its worker runs.
_open_states: list[ClipsWorkerState] = []


def get_open_state() -> ClipsWorkerState:
    """Return the state that the lifespan of this process has opened."""
    if not _open_states:
        raise RuntimeError("The lifespan of holdfast.systems.clips is not open.")
    return _open_states[-1]


@lifespan
async def clips_lifespan() -> AsyncIterator[ClipsWorkerState]:
    """Open the state of the clip system in a worker, and close it when the worker stops."""
    await asyncio.to_thread(delete_stale_scratch_folders)
    async with Client() as client:
        async with client.connection() as connection:
            if not await clip_queries.is_installed(connection, client.settings.systems_schema):
                raise RefusedError(
                    "The clip system is not installed in this database.",
                    fix="Run `holdfast install clips`, or start `holdfast api --system clips` once.",
                )
        state = ClipsWorkerState(client)
        state.check_requirements()
        _open_states.append(state)
        try:
            yield state
        finally:
            _open_states.remove(state)
            await state.close()


def create_clip_consumers(
    get_state: Callable[[], ClipsWorkerState],
    *,
    scrapes_at_once: int = MAX_SCRAPES_AT_ONCE,
    enrichments_at_once: int = MAX_ENRICHMENTS_AT_ONCE,
) -> tuple[Consumer[Any], Consumer[Any]]:
    """Create the consumers of the two queues for a worker with this state."""

    @consumer(
        SCRAPE_QUEUE,
        name="scrape_clip",
        vt=STAGE_LEASES[SCRAPE_QUEUE],
        concurrency=scrapes_at_once,
        timeout=MAX_SCRAPE_DURATION,
    )
    async def scrape_clip(message: Message[Any]) -> None:
        await get_state().scrape_runner.process_message(message)

    @consumer(
        ENRICH_QUEUE,
        name="enrich_clip",
        vt=STAGE_LEASES[ENRICH_QUEUE],
        concurrency=enrichments_at_once,
        timeout=MAX_ENRICH_DURATION,
    )
    async def enrich_clip(message: Message[Any]) -> None:
        await get_state().enrich_runner.process_message(message)

    return scrape_clip, enrich_clip


scrape_clip, enrich_clip = create_clip_consumers(get_open_state)


@schedule("*/5 * * * *", name="abandoned clips")
@task(queue=CLIP_TASK_QUEUE, retries=2)
async def enqueue_abandoned_clips(ctx: Ctx[ClipsWorkerState]) -> int:
    """Send messages for unfinished clips that have none, such as rows from before. Return how many."""
    state = ctx.state
    async with state.client.connection() as connection:
        count: int = await connection.fetchval(
            qualify_tables("select {}.enqueue_abandoned_clips($1)", state.schema),
            datetime.now(UTC) - ABANDONED_AFTER,
        )
    return count


@schedule("*/10 * * * *", name="clips with another embedding model")
@task(queue=CLIP_TASK_QUEUE, retries=2, timeout=timedelta(hours=12))
async def reembed_clips(ctx: Ctx[ClipsWorkerState]) -> int:
    """Embed finished clips again whose embeddings are of another model. Return how many.

    Until its turn, such a clip is found by words only.
    """
    state = ctx.state
    _, model = await state.embedder.embed_texts(["model"], UsageAccount(source="clips"))
    async with state.client.connection() as connection:
        total = await passage_queries.count_outdated_clips(connection, state.schema, model)
    done = 0
    while total:
        async with state.client.connection() as connection:
            rows = await passage_queries.list_outdated_clips(connection, state.schema, model, REEMBED_BATCH)
        if not rows:
            break
        for row in rows:
            await _reembed_clip(state, row)
            done += 1
            ctx.progress(min(done, total), total, phase="embed", message=f"{done} of {total} clips")
    return done


async def _reembed_clip(state: ClipsWorkerState, row: passage_queries.Row) -> None:
    account = UsageAccount(owner=str(row["user_id"]), source=f"{SOURCE_PREFIX}{row['id']}")
    tags: list[str] = msgspec.json.decode(row["tags"]) if row["tags"] else []
    text = build_clip_text(row["title"], row["summary"], tags)
    [vector], model = await state.embedder.embed_texts([text], account)
    segments = msgspec.json.decode(row["segments"], type=list[tuple[float, float, str]])
    passages = split_transcript(row["transcript"] or "", segments)
    await state.embedder.embed_passages(row["id"], row["user_id"], passages, model, account)
    async with state.client.transaction() as connection:
        dimension = await passage_queries.find_vector_column_dimension(connection, state.schema)
        values = {
            "embedding": vector if dimension in (None, len(vector)) else None,
            "embedding_model": model,
            "embedding_dimension": len(vector),
        }
        await queries.store_values(connection, state.schema, row["id"], values)
