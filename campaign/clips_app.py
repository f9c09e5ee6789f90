"""The worker of the run `clips-kills`: that of the clip system, which kills itself at a boundary of a stage.

The run writes the name of a boundary into the file `kill`. The first worker that comes to this boundary
renames the file, writes down which clips it is working on, and kills itself with SIGKILL. It does not do so
while it works on a clip that is in the file `worn`: those were killed twice.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Awaitable, Callable
from functools import wraps
from pathlib import Path
from typing import Any

from campaign.clips_boundaries import BOUNDARY_BY_STEP
from holdfast import Message
from holdfast.engine.messages import consumers as message_reads
from holdfast.engine.messages.consumers import MessageBatch
from holdfast.systems.clips import stage_queries
from holdfast.systems.clips.consumers import clips_lifespan, create_clip_consumers, get_open_state
from holdfast.systems.clips.messages import parse_clip_id
from holdfast.systems.clips.stages import StageRunner

__all__ = ["enrich_clip", "lifespan", "scrape_clip"]

FOLDER = Path(os.environ["CLIP_KILLS"])
_clips_in_work: set[str] = set()
_open_reads: set[object] = set()
lifespan = clips_lifespan


def reach(boundary: str) -> None:
    """Die here if the run has asked for it."""
    order = FOLDER / "kill"
    if _open_reads:  # nobody could tell which clips this read has taken from the queue
        return
    try:
        if order.read_text(encoding="utf-8") != boundary:
            return
        worn = set(json.loads((FOLDER / "worn").read_text(encoding="utf-8")))
        if worn & _clips_in_work:
            return
        order.rename(FOLDER / f"taken-{os.getpid()}")
    except FileNotFoundError:  # another worker was faster
        return
    (FOLDER / f"killed-{os.getpid()}").write_text(json.dumps(sorted(_clips_in_work)), encoding="utf-8")
    os.kill(os.getpid(), signal.SIGKILL)


def after(function: Callable[..., Awaitable[Any]], name: Callable[..., str | None]) -> Any:
    """Return the function with a boundary behind it. `name` gets its arguments."""

    @wraps(function)
    async def call(*arguments: Any, **options: Any) -> Any:
        result = await function(*arguments, **options)
        boundary = name(*arguments)
        if boundary is not None:
            reach(boundary)
        return result

    return call


def note_read_clips(read_batch: Callable[..., Awaitable[MessageBatch]]) -> Any:
    """Return the function that reads messages, which also notes the clips that this process has taken."""

    async def call(*arguments: Any, **options: Any) -> MessageBatch:
        read = object()
        _open_reads.add(read)
        try:
            batch = await read_batch(*arguments, **options)
        finally:
            _open_reads.discard(read)
        _clips_in_work.update(str(parse_clip_id(message.body)) for message in batch.messages)
        return batch

    return call


def note_clips_in_work(process_message: Callable[[StageRunner, Message[Any]], Awaitable[None]]) -> Any:
    """Return the function with boundaries around it, and note when this process has finished a clip."""

    async def call(runner: StageRunner, message: Message[Any]) -> None:
        clip_id, queue = str(parse_clip_id(message.body)), message.queue
        try:
            reach(f"{queue} read")
            await process_message(runner, message)
            reach(f"{queue} finished")
        finally:
            _clips_in_work.discard(clip_id)

    return call


message_reads.read_message_batch = note_read_clips(message_reads.read_message_batch)
StageRunner.process_message = note_clips_in_work(StageRunner.process_message)  # type: ignore[method-assign]
stage_queries.begin_stage = after(stage_queries.begin_stage, lambda *a: f"{a[2]} begun, not committed")
stage_queries.send_to_enrichment = after(
    stage_queries.send_to_enrichment, lambda *_: "handed over, not committed"
)
stage_queries.set_done = after(stage_queries.set_done, lambda *_: "done, not committed")
stage_queries.save_step = after(stage_queries.save_step, lambda *a: BOUNDARY_BY_STEP.get(a[3]))
scrape_clip, enrich_clip = create_clip_consumers(get_open_state, scrapes_at_once=1, enrichments_at_once=1)
