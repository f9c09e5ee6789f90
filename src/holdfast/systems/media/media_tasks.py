"""The job of a share: download, then process, then transcribe.

The table `shares` decides the order of the downloads (`start_share_downloads` in tables.sql). A failed
attempt that may be repeated marks the share as `retry` and lets its task sleep; the same function wakes it up
when its turn comes. The stored parts of the download belong to the task, so the next attempt continues.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

import msgspec

from holdfast import Artifact, Cancel, Ctx, Reject, Secret, Snooze, task
from holdfast.errors import QuotaExceededError, StorageError
from holdfast.systems.media import share_queries as queries
from holdfast.systems.media.contracts import FetchLimits, MediaError
from holdfast.systems.media.direct_download import (
    MEDIA_FILE_KIND,
    DownloadLimits,
    download_direct_media,
)
from holdfast.systems.media.download_errors import (
    UNEXPECTED_ERROR_MESSAGE,
    compute_retry_delay,
    translate_storage_error,
)
from holdfast.systems.media.media_types import choose_file_name, get_media_kind
from holdfast.systems.media.progress import ShareProgress
from holdfast.systems.media.share_urls import parse_share_url
from holdfast.systems.media.worker_state import MediaWorkerState
from holdfast.systems.media.ytdlp import fetch_with_ytdlp

DOWNLOAD_QUEUE: Final = "media"
PROCESSING_QUEUE: Final = "media-processing"
# The order of the shares decides when a task goes on. The engine wakes it up at last if nobody does.
RETRY_SLEEP: Final = timedelta(days=7)
SHARE_GONE_REASON: Final = "The share was deleted or downloaded again."


class DownloadResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a download: the stored file."""

    file_id: UUID
    size: int
    content_type: str


class YtdlpLimitError(Exception):
    """As many downloads with yt-dlp run as may. The share waits for its turn."""


@dataclass(frozen=True, kw_only=True)
class StoredMedia:
    """A stored file with what is known about its source."""

    file: Artifact
    content_type: str
    facts: dict[str, Any]
    duration_s: float | None = None


@task(queue=DOWNLOAD_QUEUE, retries=0, timeout=timedelta(days=1), lease=timedelta(seconds=30))
async def media_download(ctx: Ctx[MediaWorkerState], share_id: UUID) -> DownloadResult:
    """Download the media of a share into the object store."""
    state, job_id = ctx.state, UUID(ctx.job_id)
    async with state.client.connection() as connection:
        share = await queries.begin_download(connection, state.schema, share_id, job_id)
    if share is None:
        raise Cancel(SHARE_GONE_REASON)
    if share["download_status"] == "failed":
        raise Reject(share["download_error"] or UNEXPECTED_ERROR_MESSAGE)
    try:
        stored = await _download_share(ctx, share)
    except YtdlpLimitError:
        raise Snooze(RETRY_SLEEP) from None
    except MediaError as error:
        return await _end_failed_attempt(ctx, share, error, error)
    except (StorageError, QuotaExceededError) as error:
        return await _end_failed_attempt(ctx, share, translate_storage_error(error), error)
    except Exception as error:
        ctx.log("the download failed unexpectedly", level="error", error=repr(error)[:500])
        return await _end_failed_attempt(ctx, share, MediaError("network", UNEXPECTED_ERROR_MESSAGE), error)
    return await _complete_download(ctx, share, stored)


async def _download_share(ctx: Ctx[MediaWorkerState], share: queries.Row) -> StoredMedia:
    state, settings = ctx.state, ctx.state.settings
    url = str(share["platform_data"].get("originalMediaUrl") or share["url"])
    try:
        parse_share_url(url, settings)
    except Exception as error:
        raise MediaError("unsupported", "The link is not valid, or its website is not allowed.") from error
    limits = await _load_limits(ctx, share)
    async with ShareProgress(ctx, state.client, share["id"], "download") as progress:
        downloaded = None
        if not share["uses_ytdlp"]:  # else an earlier attempt has seen that the link is a page
            downloaded = await download_direct_media(ctx, state.web, url, limits, progress.update)
        if downloaded is not None:
            await progress.store()
            return StoredMedia(
                file=downloaded.file,
                content_type=downloaded.content_type,
                facts={"resolvedUrl": downloaded.url},
            )
        async with state.client.connection() as connection:
            if not await queries.take_ytdlp_slot(connection, state.schema, share["id"], UUID(ctx.job_id)):
                raise YtdlpLimitError
        return await _download_with_ytdlp(ctx, url, limits, progress)


async def _download_with_ytdlp(
    ctx: Ctx[MediaWorkerState], url: str, limits: DownloadLimits, progress: ShareProgress
) -> StoredMedia:
    """Let yt-dlp download the media of a page or a playlist into a folder, and store the file."""
    state = ctx.state
    fetch_limits = FetchLimits(
        max_bytes=min(limits.max_file_bytes, limits.max_stored_bytes),
        max_duration_s=state.settings.media_max_duration.total_seconds(),
        timeout_s=state.settings.media_timeout.total_seconds(),
    )
    async with state.ytdlp_slots:
        with state.open_scratch_folder() as folder:
            fetched = await fetch_with_ytdlp(
                url, folder, limits=fetch_limits, policy=state.policy, on_progress=progress.update
            )
            name = choose_file_name(fetched.title or "", fetched.content_type)
            file = await ctx.save(name, fetched.path, fetched.content_type, kind=MEDIA_FILE_KIND)
    known = {
        "title": fetched.title,
        "author": fetched.author,
        "platform": fetched.platform,
        "notice": fetched.notice,
    }
    return StoredMedia(
        file=file,
        content_type=fetched.content_type,
        facts={name: value for name, value in known.items() if value is not None},
        duration_s=fetched.duration_s,
    )


async def _load_limits(ctx: Ctx[MediaWorkerState], share: queries.Row) -> DownloadLimits:
    settings = ctx.state.settings
    async with ctx.state.client.connection() as connection:
        usage = await queries.get_user_usage(connection, ctx.state.schema, str(share["user_id"]))
    return DownloadLimits(
        max_file_bytes=settings.media_max_bytes,
        max_stored_bytes=max(0, settings.media_user_bytes - usage.bytes),
    )


async def _complete_download(
    ctx: Ctx[MediaWorkerState], share: queries.Row, stored: StoredMedia
) -> DownloadResult:
    state = ctx.state
    result = DownloadResult(file_id=stored.file.id, size=stored.file.size, content_type=stored.content_type)
    metadata = {
        "size": stored.file.size,
        "duration": stored.duration_s,
        "storageType": get_storage_type(state.settings.storage_url),
    }
    values = {
        "media_url": f"/api/v1/shares/{share['id']}/file",
        "media_type": get_media_kind(stored.content_type),
        "file_id": stored.file.id,
        "platform_data": {**stored.facts, "downloadMetadata": metadata},
    }
    async with state.client.transaction() as connection:
        if not await queries.complete_download(
            connection, state.schema, share["id"], UUID(ctx.job_id), values=values
        ):
            raise Cancel(SHARE_GONE_REASON)
        await ctx.complete(connection, result)
    await state.start_downloads()
    return result


async def _end_failed_attempt(
    ctx: Ctx[MediaWorkerState], share: queries.Row, error: MediaError, cause: Exception
) -> DownloadResult:
    """Show the failure on the share, and end the attempt: sleep until the next one, or give up."""
    state, failed_attempts = ctx.state, share["download_attempts"] + 1
    delay = compute_retry_delay(error, failed_attempts, state.settings.media_retry_delay)
    async with state.client.transaction() as connection:
        await ctx.assert_lease(connection)
        counted = await queries.record_download_failure(
            connection, state.schema, share["id"], UUID(ctx.job_id), error.message, delay
        )
    if counted is None:
        raise Cancel(SHARE_GONE_REASON)
    await state.start_downloads()
    ctx.log("the download failed", level="warning", kind=error.kind, failures=failed_attempts)
    if delay is not None:
        raise Snooze(RETRY_SLEEP)
    raise Reject(error.message) from cause


def get_storage_type(storage_url: Secret | None) -> str:
    """Return where files are stored, as `platform_data.downloadMetadata.storageType` names it."""
    scheme = storage_url.reveal() if storage_url is not None else ""
    return {"s3": "s3", "gs": "gcs", "az": "azure"}.get(scheme.partition("://")[0], "local")
