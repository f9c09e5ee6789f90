"""The tasks after the download of a share: process the file with ffmpeg, and transcribe its sound.

A failure here leaves the downloaded file alone: the share shows what failed, and the user may retry it.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Literal
from uuid import UUID

import msgspec

from holdfast import Artifact, Cancel, Ctx, Reject, RetryPolicy, task
from holdfast.errors import QuotaExceededError, StorageError
from holdfast.systems.media import ffmpeg, transcripts
from holdfast.systems.media import share_queries as queries
from holdfast.systems.media.contracts import MediaError, MediaInfo, Transcript
from holdfast.systems.media.download_errors import translate_storage_error
from holdfast.systems.media.media_tasks import PROCESSING_QUEUE, SHARE_GONE_REASON
from holdfast.systems.media.progress import ShareProgress
from holdfast.systems.media.worker_state import MediaWorkerState

PROCESSING_RETRIES: Final = RetryPolicy(retries=1, base=timedelta(seconds=10), cap=timedelta(minutes=1))
TRANSCRIPTION_RETRIES: Final = RetryPolicy(retries=2, base=timedelta(seconds=10), cap=timedelta(minutes=10))
AUDIO_NAME: Final = "audio.m4a"
PROCESSING_FAILED: Final = "The file could not be processed. Try again later."
TRANSCRIPTION_FAILED: Final = "The sound could not be transcribed. Try again later."
Work = Literal["processing", "transcript"]


class ProcessResult(msgspec.Struct, frozen=True, kw_only=True):
    """What the file of a share contains, and whether there is an audio track to transcribe."""

    info: MediaInfo
    has_audio: bool
    poster_id: UUID | None = None


@task(
    queue=PROCESSING_QUEUE, retry=PROCESSING_RETRIES, timeout=timedelta(hours=4), lease=timedelta(seconds=30)
)
async def media_process(ctx: Ctx[MediaWorkerState], share_id: UUID) -> ProcessResult:
    """Read what the file contains, and make its poster, its thumbnails, its audio track and a web version."""
    share = await _begin_work(ctx, share_id, "processing")
    try:
        async with (
            ctx.state.ffmpeg_slots,
            ShareProgress(ctx, ctx.state.client, share_id, "process") as progress,
        ):
            with ctx.state.open_scratch_folder() as folder:
                result = await _process_file(ctx, share, folder, progress)
    except MediaError as error:
        raise await _end_failed_work(ctx, share_id, "processing", error.message) from error
    except (StorageError, QuotaExceededError) as error:
        message = translate_storage_error(error).message
        raise await _end_failed_work(ctx, share_id, "processing", message) from error
    except Exception:
        await _set_status(ctx, share_id, "processing", "processing", PROCESSING_FAILED)
        raise
    await _complete_work(ctx, share_id, "processing", "completed", result)
    return result


async def _process_file(
    ctx: Ctx[MediaWorkerState], share: queries.Row, folder: Path, progress: ShareProgress
) -> ProcessResult:
    state, job_id = ctx.state, UUID(ctx.job_id)
    path = await _copy_to_folder(ctx, share["file_id"], folder / "media")
    info = await ffmpeg.probe_media(path)
    if info.duration_s and info.duration_s > state.settings.media_max_duration.total_seconds():
        raise MediaError("too_large", "The file plays longer than allowed, so it was not processed.")
    async with state.client.connection() as connection:
        await queries.set_media_info(
            connection, state.schema, share["id"], job_id, info, duration_s=info.duration_s
        )
    poster = await _save_pictures(ctx, path, info, folder)
    audio = await ffmpeg.extract_audio(path, info, folder)
    if audio is not None:
        await ctx.save(AUDIO_NAME, audio, "audio/mp4", kind="audio")
    if info.has_video and info.duration_s and not info.web_playable:
        web = await ffmpeg.transcode_for_web(path, info, folder, on_progress=progress.update)
        await ctx.save("web.mp4", web, "video/mp4", kind="web")
    return ProcessResult(
        info=info, has_audio=audio is not None, poster_id=poster.id if poster is not None else None
    )


async def _save_pictures(
    ctx: Ctx[MediaWorkerState], path: Path, info: MediaInfo, folder: Path
) -> Artifact | None:
    """Save the poster and the strip of thumbnails. Return the poster, if there is one."""
    picture, poster = await ffmpeg.make_poster(path, info, folder), None
    if picture is not None:
        poster = await ctx.save("poster.jpg", picture, "image/jpeg", kind="poster")
    strip = await ffmpeg.make_thumbnail_strip(path, info, folder)
    if strip is not None:
        meta: dict[str, Any] = {
            "count": strip.count,
            "interval_s": strip.interval_s,
            "width": strip.width,
            "height": strip.height,
        }
        await ctx.save("thumbnails.jpg", strip.path, "image/jpeg", kind="strip", meta=meta)
    return poster


@task(
    queue=PROCESSING_QUEUE,
    retry=TRANSCRIPTION_RETRIES,
    timeout=timedelta(hours=8),
    lease=timedelta(seconds=30),
)
async def media_transcribe(ctx: Ctx[MediaWorkerState], share_id: UUID) -> None:
    """Write down what is spoken in the file: as JSON with times, and as SRT and VTT."""
    share = await _begin_work(ctx, share_id, "transcript")
    audio = await _find_audio(ctx)
    if audio is None or share["options"].get("transcribe") is False:
        await _complete_work(ctx, share_id, "transcript", "skipped")
        return
    try:
        async with ShareProgress(ctx, ctx.state.client, share_id, "transcribe") as progress:
            with ctx.state.open_scratch_folder() as folder:
                path = await _copy_to_folder(ctx, audio.id, folder / AUDIO_NAME)
                transcript = await transcripts.transcribe_audio(
                    path,
                    provider=ctx.state.transcription_provider,
                    folder=folder,
                    language=share["options"].get("language"),
                    on_progress=progress.update,
                )
        await _save_transcript(ctx, transcript)
    except MediaError as error:
        if not error.retryable:
            raise await _end_failed_work(ctx, share_id, "transcript", error.message) from error
        # Only the engine knows whether this was the last attempt: those of killed workers do not count. If it
        # was, `settle_ended_shares` shows the share as failed, with this message.
        await _set_status(ctx, share_id, "transcript", "processing", error.message)
        raise
    except Exception:
        await _set_status(ctx, share_id, "transcript", "processing", TRANSCRIPTION_FAILED)
        raise
    await _complete_work(ctx, share_id, "transcript", "completed")


async def _save_transcript(ctx: Ctx[MediaWorkerState], transcript: Transcript) -> None:
    for name, content, content_type in (
        ("transcript.json", msgspec.json.encode(transcript), "application/json"),
        ("transcript.srt", transcripts.format_srt(transcript).encode(), "application/x-subrip"),
        ("transcript.vtt", transcripts.format_vtt(transcript).encode(), "text/vtt"),
    ):
        await ctx.save(name, content, content_type, kind="transcript")


async def _find_audio(ctx: Ctx[MediaWorkerState]) -> Artifact | None:
    files = await ctx.state.client.files.list(job=ctx.job_id, kind="audio")
    return files[-1] if files else None


async def _begin_work(ctx: Ctx[MediaWorkerState], share_id: UUID, work: Work) -> queries.Row:
    await _set_status(ctx, share_id, work, "processing")
    async with ctx.state.client.connection() as connection:
        share = await queries.find_share(connection, ctx.state.schema, share_id)
    if share is None:
        raise Cancel(SHARE_GONE_REASON)
    return share


async def _set_status(
    ctx: Ctx[MediaWorkerState],
    share_id: UUID,
    work: Work,
    status: queries.WorkStatus,
    error: str | None = None,
) -> None:
    async with ctx.state.client.connection() as connection:
        if not await queries.set_work_status(
            connection, ctx.state.schema, share_id, UUID(ctx.job_id), work, status, error=error
        ):
            raise Cancel(SHARE_GONE_REASON)


async def _complete_work(
    ctx: Ctx[MediaWorkerState],
    share_id: UUID,
    work: Work,
    status: queries.WorkStatus,
    result: ProcessResult | None = None,
) -> None:
    """Show the work as done in the transaction that makes its files visible."""
    async with ctx.state.client.transaction() as connection:
        if not await queries.set_work_status(
            connection, ctx.state.schema, share_id, UUID(ctx.job_id), work, status
        ):
            raise Cancel(SHARE_GONE_REASON)
        if result is not None and result.poster_id is not None:
            await queries.set_poster(
                connection, ctx.state.schema, share_id, UUID(ctx.job_id), result.poster_id
            )
        await ctx.complete(connection, result)


async def _end_failed_work(ctx: Ctx[MediaWorkerState], share_id: UUID, work: Work, message: str) -> Reject:
    """Show why the work failed, and return the signal that ends the task."""
    await _set_status(ctx, share_id, work, "failed", message)
    if work == "processing":
        await _set_status(ctx, share_id, "transcript", "skipped")
    return Reject(message)


async def _copy_to_folder(ctx: Ctx[MediaWorkerState], file_id: UUID, target: Path) -> Path:
    """Copy a stored file into the folder of the attempt, for programs that need to seek in it."""
    client = ctx.state.client
    with await asyncio.to_thread(target.open, "wb") as file:
        async with client.files.open(await client.files.get(file_id)) as chunks:
            async for chunk in chunks:
                await asyncio.to_thread(file.write, chunk)
    return target
