"""Find out what a video is and what is said in it: from a scraping API, from captions, or from its sound.

The sources of the setting `clips_sources` are asked in turn, until there is a transcript. What one source
does not know, the next one adds.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import msgspec

from holdfast.egress import EgressTooLargeError
from holdfast.errors import SettingsError
from holdfast.systems.captions import parse_captions
from holdfast.systems.clips.provider_gate import ProviderGate
from holdfast.systems.clips.stage_queries import ClipState
from holdfast.systems.clips.stages import ClipFailedError
from holdfast.systems.clips.step_store import ClipSteps
from holdfast.systems.media import ffmpeg, transcripts
from holdfast.systems.media.contracts import (
    FetchLimits,
    MediaError,
    Transcript,
    TranscriptionProvider,
    WorkProgress,
)
from holdfast.systems.media.worker_state import MediaWorkerState
from holdfast.systems.media.ytdlp import describe_with_ytdlp, fetch_with_ytdlp
from holdfast.systems.providers import (
    ProviderRefusedError,
    ProviderRegistry,
    ScrapingProvider,
    UsageAccount,
)

SOURCES: Final = ("scraping", "captions", "speech")
MAX_PICTURE_BYTES: Final = 10_000_000
MAX_DESCRIBE_TIMEOUT_S: Final = 300.0
MAX_PATH_TITLE_CHARS: Final = 200
MEDIA_TYPES: Final = ("video/", "audio/", "application/ogg", "application/mp4")
NO_SPEECH_NOTICE: Final = "Nothing is said in this video, or it could not be understood."
_log = logging.getLogger("holdfast.systems.clips")
ReportProgress = Callable[[int, str], Awaitable[None]]


class ScrapedClip(msgspec.Struct, kw_only=True):
    """What is known about a video. `segments` are the parts of the transcript with their times."""

    title: str | None = None
    author: str | None = None
    description: str | None = None
    thumbnail_url: str | None = None
    duration_s: float | None = None
    language: str | None = None
    transcript: str | None = None
    segments: list[tuple[float, float, str]] = []
    transcript_by: str | None = None
    notice: str | None = None

    def add(self, other: ScrapedClip) -> None:
        """Fill in what is not known yet."""
        for name in self.__struct_fields__:
            if not getattr(self, name):
                setattr(self, name, getattr(other, name))


def parse_sources(text: str) -> list[str]:
    """Return the sources of the setting `clips_sources`. Raise SettingsError for an unknown name."""
    sources = [name.strip() for name in text.split(",") if name.strip()]
    if not sources or any(name not in SOURCES for name in sources):
        raise SettingsError(
            f"clips_sources {text!r} is not valid.",
            fix=f"Use one or more of {', '.join(SOURCES)}, separated by commas.",
            field="clips_sources",
        )
    return sources


class ClipScraper:
    """Scrapes videos with the providers of a worker."""

    def __init__(self, media: MediaWorkerState, providers: ProviderRegistry) -> None:
        self._media = media
        self._providers = providers
        self._sources = parse_sources(media.settings.clips_sources)
        self._scraping_gate = ProviderGate()
        self._limits = FetchLimits(
            max_bytes=media.settings.media_max_bytes,
            max_duration_s=media.settings.media_max_duration.total_seconds(),
            timeout_s=media.settings.media_timeout.total_seconds(),
        )

    async def scrape(
        self,
        clip: ClipState,
        folder: Path,
        *,
        steps: ClipSteps,
        account: UsageAccount,
        create_transcriber: Callable[[], TranscriptionProvider],
        report: ReportProgress,
    ) -> ScrapedClip:
        """Ask the sources in turn. Raise an error if none of them knows the video."""
        known = ScrapedClip()
        error: Exception | None = None
        scraping = self._providers.scraping if "scraping" in self._sources else None
        if scraping is not None:
            await report(10, "Asking the scraping provider")
            try:
                known.add(await self._ask_scraping(scraping, clip, steps, account))
            except ProviderRefusedError as refusal:
                error = refusal
        is_file = False
        if not known.transcript and "captions" in self._sources:
            await report(15, "Reading the page of the video")
            is_file = await self._is_media_file(clip.video_url)
            try:
                known.add(await self._read_page(clip, folder, steps, is_file=is_file))
            except MediaError as failure:
                error = failure
        if not known.transcript and "speech" in self._sources and not isinstance(error, MediaError):
            await self._add_speech(known, clip, folder, create_transcriber(), report, is_file=is_file)
        elif error is not None and not (known.title or known.transcript):
            raise error
        return known

    async def _ask_scraping(
        self, scraping: ScrapingProvider, clip: ClipState, steps: ClipSteps, account: UsageAccount
    ) -> ScrapedClip:
        async def ask() -> ScrapedClip:
            media = await self._scraping_gate.call(
                lambda: scraping.scrape_media(clip.video_url, account=account)
            )
            return ScrapedClip(
                title=media.title,
                author=media.author,
                description=media.description,
                thumbnail_url=media.thumbnail_url,
                duration_s=media.duration_s,
                language=media.language,
                transcript=media.transcript,
                segments=list(media.segments),
                transcript_by=media.by if media.transcript else None,
            )

        return await steps.run("source scraping", ScrapedClip, ask)

    async def _is_media_file(self, url: str) -> bool:
        """Return whether a URL is a media file itself, which yt-dlp need not look at."""
        async with self._media.web.stream("GET", url) as response:
            if response.status in (404, 410):
                raise ClipFailedError(
                    f"The site says that the video does not exist (status {response.status})."
                )
            return response.status < 300 and response.content_type.startswith(MEDIA_TYPES)

    async def _read_page(
        self, clip: ClipState, folder: Path, steps: ClipSteps, *, is_file: bool
    ) -> ScrapedClip:
        if is_file:
            name = unquote(Path(urlsplit(clip.video_url).path).stem)
            return ScrapedClip(title=" ".join(name.split())[:MAX_PATH_TITLE_CHARS] or None)

        async def describe() -> ScrapedClip:
            limits = FetchLimits(
                max_bytes=MAX_PICTURE_BYTES,
                max_duration_s=self._limits.max_duration_s,
                timeout_s=MAX_DESCRIBE_TIMEOUT_S,
            )
            async with self._media.ytdlp_slots:
                facts = await describe_with_ytdlp(
                    clip.video_url, folder, limits=limits, policy=self._media.policy
                )
            return await asyncio.to_thread(read_description, facts, folder)

        return await steps.run("source captions", ScrapedClip, describe)

    async def _add_speech(
        self,
        known: ScrapedClip,
        clip: ClipState,
        folder: Path,
        transcriber: TranscriptionProvider,
        report: ReportProgress,
        *,
        is_file: bool,
    ) -> None:
        """Download the sound and transcribe it. A video without sound has no transcript."""
        await report(20, "Downloading the sound")
        try:
            if is_file:
                path = await self._download_file(clip.video_url, folder / "media")
            else:
                async with self._media.ytdlp_slots:
                    fetched = await fetch_with_ytdlp(
                        *(clip.video_url, folder),
                        limits=self._limits,
                        policy=self._media.policy,
                        audio_only=True,
                    )
                path = fetched.path
            async with self._media.ffmpeg_slots:
                info = await ffmpeg.probe_media(path)
                known.duration_s = known.duration_s or info.duration_s
                audio = await ffmpeg.extract_audio(path, info, folder)
            if audio is None:
                known.notice = known.notice or NO_SPEECH_NOTICE
                return
            await report(30, "Transcribing the sound")
            transcript = await transcripts.transcribe_audio(
                audio,
                provider=transcriber,
                folder=folder,
                language=known.language,
                on_progress=_ignore_progress,
            )
        finally:
            await transcriber.close()
        known.segments = [(part.start, part.end, part.text) for part in transcript.segments if part.text]
        known.transcript = " ".join(text for _, _, text in known.segments) or None
        known.transcript_by = transcript.by if known.transcript else None
        known.language = known.language or transcript.language
        known.notice = transcript.notice if known.transcript else NO_SPEECH_NOTICE

    async def _download_file(self, url: str, path: Path) -> Path:
        """Download a media file. Raise MediaError if it is larger than allowed."""
        size = 0
        try:
            async with self._media.web.stream("GET", url) as response:
                if response.status >= 300:
                    raise MediaError("network", f"The site answered with the status {response.status}.")
                with await asyncio.to_thread(path.open, "wb") as file:
                    async for chunk in response.iterate_bytes():
                        size += len(chunk)
                        if size > self._limits.max_bytes:
                            raise MediaError("too_large", "The video is larger than allowed.")
                        await asyncio.to_thread(file.write, chunk)
        except EgressTooLargeError as error:
            raise MediaError("too_large", "The video is larger than allowed.") from error
        return path

    async def make_thumbnail(self, url: str | None, folder: Path) -> bytes | None:
        """Return the thumbnail as JPEG: the picture at the URL, or one of the downloaded video.

        A clip without a picture is still a clip, so failures return None.
        """
        try:
            source = folder / "media"
            if url is not None:
                response = await self._media.web.get(url)
                if response.status >= 300 or len(response.body) > MAX_PICTURE_BYTES:
                    return None
                source = folder / "picture"
                await asyncio.to_thread(source.write_bytes, response.body)
            if not source.exists():
                return None
            async with self._media.ffmpeg_slots:
                poster = await ffmpeg.make_poster(source, await ffmpeg.probe_media(source), folder)
            return await asyncio.to_thread(poster.read_bytes) if poster is not None else None
        except Exception as error:  # whatever the site sends instead of a picture
            _log.info("A thumbnail was left out: %s", type(error).__name__)
            return None


def read_description(facts: dict[str, Any], folder: Path) -> ScrapedClip:
    """Build a clip from what yt-dlp knows and from the captions in the folder."""
    scraped = ScrapedClip(
        title=facts.get("title"),
        author=facts.get("author"),
        description=facts.get("description"),
        thumbnail_url=facts.get("thumbnail"),
        duration_s=facts.get("duration"),
        language=facts.get("language"),
    )
    path = folder / "captions"
    if facts.get("captions_language") and path.is_file() and not path.is_symlink():
        segments = parse_captions(path.read_bytes().decode("utf-8", "replace"))
        if segments:
            scraped.segments = list(segments)
            scraped.transcript = " ".join(text for _, _, text in segments)
            scraped.transcript_by = "automatic captions" if facts.get("captions_automatic") else "captions"
            scraped.language = scraped.language or facts["captions_language"].split("-")[0]
    return scraped


class KeptTranscripts:
    """A `TranscriptionProvider` that keeps the text of each piece of sound, and asks only for new ones."""

    def __init__(self, provider: TranscriptionProvider, steps: ClipSteps, gate: ProviderGate) -> None:
        self._provider = provider
        self._steps = steps
        self._gate = gate

    async def transcribe_piece(self, audio: Path, *, language: str | None) -> Transcript:
        digest = hashlib.sha256(await asyncio.to_thread(audio.read_bytes)).hexdigest()[:32]

        async def transcribe() -> Transcript:
            return await self._gate.call(lambda: self._provider.transcribe_piece(audio, language=language))

        return await self._steps.run(f"speech {digest} {language or ''}", Transcript, transcribe)

    async def close(self) -> None:
        await self._provider.close()


def _ignore_progress(_: WorkProgress) -> None:
    """The progress of a transcription is shown as one phase."""
