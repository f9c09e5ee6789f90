"""The values and errors that the parts of the media system exchange.

The tasks (`media_tasks.py`) call these functions:

    ytdlp.py        async fetch_with_ytdlp(url, folder, *, limits, policy, on_progress) -> FetchedMedia
    ffmpeg.py       async probe_media(path) -> MediaInfo
                    async make_poster(path, info, folder) -> Path | None        JPEG, None without a picture
                    async make_thumbnail_strip(path, info, folder) -> ThumbnailStrip | None
                    async extract_audio(path, info, folder) -> Path | None      None without a sound track
                    async transcode_for_web(path, info, folder, *, on_progress) -> Path     H.264/AAC in MP4
    transcripts.py  create_transcription_provider(settings) -> TranscriptionProvider
                    async transcribe_audio(audio, *, provider, folder, language, on_progress) -> Transcript
                    format_srt(transcript) -> str
                    format_vtt(transcript) -> str

`folder` exists, belongs to the attempt and is deleted by the caller. Functions put all their files into it,
end their child processes when they are cancelled (also when the worker is killed), and raise `MediaError` for
everything that a user can understand. Any other exception counts as a defect: it is retried and its text is
not shown. `on_progress` is cheap, may be called often, and must be called on the event loop.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

import msgspec

MediaErrorKind = Literal[
    "network",  # the connection broke, a timeout, a 5xx status: try again soon
    "rate_limited",  # status 429 or 503 with Retry-After: try again when the server says
    "interrupted",  # a program of ours was killed, for example when memory was short: try again soon
    "storage",  # our object store is full or away: try again later
    "not_found",  # 404, 410, a deleted video: never again
    "private",  # a login, a payment or a private address would be needed: never again
    "unsupported",  # no media, a live stream, an archive, a broken file: never again
    "too_large",  # more bytes or seconds than allowed: never again
    "quota",  # the storage of the user is used up: never again
]
RETRYABLE_KINDS: frozenset[MediaErrorKind] = frozenset({"network", "rate_limited", "interrupted", "storage"})


class MediaError(Exception):
    """A download, a conversion or a transcription failed for a reason that the user may read.

    The message is one plain sentence without paths, addresses or output of programs. `retry_after` is how
    long the server asked to wait.
    """

    def __init__(self, kind: MediaErrorKind, message: str, *, retry_after: timedelta | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.retry_after = retry_after

    @property
    def retryable(self) -> bool:
        """Whether another attempt can succeed."""
        return self.kind in RETRYABLE_KINDS


@dataclass(frozen=True, kw_only=True)
class FetchLimits:
    """Limits of one download. `max_bytes` holds for all files in the folder together."""

    max_bytes: int
    max_duration_s: float
    timeout_s: float


@dataclass(frozen=True, kw_only=True)
class WorkProgress:
    """How far a part of the work is. `total` is None if it is not known.

    `done` and `total` are bytes of a download, and seconds of media of a conversion or a transcription.
    """

    done: float
    total: float | None = None


ProgressCallback: TypeAlias = Callable[[WorkProgress], None]


@dataclass(frozen=True, kw_only=True)
class FetchedMedia:
    """A downloaded file in the folder of the attempt, with what the platform says about it.

    `notice` tells the user what was left out, such as "The playlist has 1,000 items; the first was saved."
    """

    path: Path
    content_type: str
    title: str | None = None
    author: str | None = None
    duration_s: float | None = None
    platform: str | None = None
    notice: str | None = None


class MediaInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a media file contains. `web_playable` is true if browsers play it without a conversion."""

    container: str
    duration_s: float | None = None
    width: int | None = None
    height: int | None = None
    video_codec: str | None = None
    audio_codec: str | None = None
    web_playable: bool = False

    @property
    def has_video(self) -> bool:
        """Whether the file has moving or still pictures."""
        return self.video_codec is not None

    @property
    def has_audio(self) -> bool:
        """Whether the file has a sound track."""
        return self.audio_codec is not None


@dataclass(frozen=True, kw_only=True)
class ThumbnailStrip:
    """One JPEG with `count` frames side by side, one every `interval_s` seconds, each `width` by `height`."""

    path: Path
    count: int
    interval_s: float
    width: int
    height: int


class TranscriptSegment(msgspec.Struct, frozen=True):
    """A part of a transcript: text that is spoken from `start` to `end`, in seconds."""

    start: float
    end: float
    text: str


class Transcript(msgspec.Struct, frozen=True, kw_only=True):
    """What is spoken in a file. `by` names the engine or the model. `language` is a code such as `en`."""

    by: str
    language: str | None
    segments: list[TranscriptSegment]
    notice: str | None = None

    @property
    def text(self) -> str:
        """The whole text without times."""
        return " ".join(segment.text.strip() for segment in self.segments)


class TranscriptionProvider(Protocol):
    """Converts one short piece of audio to text. Pieces of a long file are transcribed in parallel."""

    async def transcribe_piece(self, audio: Path, *, language: str | None) -> Transcript:
        """Return the text of one file. Times count from the beginning of the file."""
        ...

    async def close(self) -> None:
        """Close connections and models."""
        ...
