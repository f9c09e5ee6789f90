"""Transcripts of long sound: cut at silences, transcribed in parallel, joined with times, as SRT and VTT."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path

from holdfast.systems.media.contracts import (
    MediaError,
    ProgressCallback,
    Transcript,
    TranscriptionProvider,
    TranscriptSegment,
    WorkProgress,
)
from holdfast.systems.media.ffmpeg import run_ffmpeg
from holdfast.systems.media.ffmpeg_output import parse_duration
from holdfast.systems.media.transcription_providers import create_transcription_provider
from holdfast.systems.providers.errors import (
    ProviderError,
    ProviderRateLimitedError,
    ProviderRefusedError,
)
from holdfast.systems.sandbox.programs import ProgramKilledError

__all__ = ["create_transcription_provider", "format_srt", "format_vtt", "transcribe_audio"]

# Servers take at most 25 MB; five minutes of FLAC with 16 kHz are at most 10 MB.
MAX_PIECE_S, MIN_PIECE_S = 300.0, 30.0
MAX_PARALLEL_PIECES = 2
SPLIT_TIMEOUT_S = 3600.0
MAX_PIECES_BYTES = 2_000_000_000
SILENCE_FILTER = "silencedetect=noise=-35dB:d=0.4"
SILENCE = re.compile(r"silence_(start|end): (-?\d+(?:\.\d+)?)")

Silences = list[tuple[float, float]]


async def transcribe_audio(
    audio: Path,
    *,
    provider: TranscriptionProvider,
    folder: Path,
    language: str | None = None,
    on_progress: ProgressCallback | None = None,
) -> Transcript:
    """Transcribe a file of any length. Pieces without sound are not sent. Raise MediaError."""
    result = await run_ffmpeg(
        audio, ["-map", "0:a:0", "-af", SILENCE_FILTER, "-f", "null", "-"], folder, timeout_s=SPLIT_TIMEOUT_S
    )
    duration = result.time_s or parse_duration(result.log) or 0.0
    silences = parse_silences(result.log, duration)
    bounds = [0.0, *find_cuts(silences, duration), duration]
    pieces = await _split_audio(audio, folder, bounds[1:-1])
    spoken = [
        (path, start, end)
        for path, start, end in zip(pieces, bounds, bounds[1:], strict=False)
        if not is_silent(start, end, silences)
    ]
    try:
        parts = await _transcribe_pieces(spoken, provider, language, on_progress, duration)
    finally:
        for path in pieces:
            path.unlink(missing_ok=True)
    return join_transcripts(parts, language)


async def _split_audio(audio: Path, folder: Path, cuts: Sequence[float]) -> list[Path]:
    codec = ["-map", "0:a:0", "-vn", "-ac", "1", "-ar", "16000", "-c:a", "flac"]
    if cuts:
        times = ",".join(f"{cut:.3f}" for cut in cuts)
        output = [
            *codec,
            "-f",
            "segment",
            "-segment_times",
            times,
            "-reset_timestamps",
            "1",
            "piece-%05d.flac",
        ]
    else:
        output = [*codec, "-f", "flac", "piece-00000.flac"]
    await run_ffmpeg(audio, output, folder, timeout_s=SPLIT_TIMEOUT_S, max_output_bytes=MAX_PIECES_BYTES)
    return [folder / f"piece-{number:05}.flac" for number in range(len(cuts) + 1)]


async def _transcribe_pieces(
    pieces: Sequence[tuple[Path, float, float]],
    provider: TranscriptionProvider,
    language: str | None,
    on_progress: ProgressCallback | None,
    duration: float,
) -> list[tuple[float, float, Transcript]]:
    """Transcribe pieces, a few at once. Return them in their order with their beginning and their end."""
    places = asyncio.Semaphore(MAX_PARALLEL_PIECES)
    done = duration - sum(end - start for _, start, end in pieces)

    async def transcribe(path: Path, start: float, end: float) -> tuple[float, float, Transcript]:
        nonlocal done
        async with places:
            transcript = await provider.transcribe_piece(path, language=language)
        done += end - start
        if on_progress is not None:
            on_progress(WorkProgress(done=done, total=duration))
        return start, end, transcript

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(transcribe(*piece)) for piece in pieces]
    except* (ProviderError, MediaError, ProgramKilledError) as failures:
        raise translate_error(failures) from failures
    return [task.result() for task in tasks]


def translate_error(group: BaseExceptionGroup[Exception]) -> MediaError:
    """Return the MediaError for the first failed piece."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, MediaError):
        return error
    if isinstance(error, ProgramKilledError):
        return MediaError("interrupted", "The transcription was interrupted on our side. Try again.")
    if isinstance(error, ProviderRefusedError):
        return MediaError("unsupported", "The transcription service refuses the sound.")
    retry_after = error.retry_after if isinstance(error, ProviderError) else None
    if isinstance(error, ProviderRateLimitedError):
        return MediaError(
            "rate_limited", "The transcription is busy; it continues later.", retry_after=retry_after
        )
    return MediaError(
        "network", "The transcription does not respond; it is tried again.", retry_after=retry_after
    )


def parse_silences(log: str, duration: float) -> Silences:
    """Return the silences that ffmpeg found, as pairs of seconds."""
    silences: Silences = []
    start: float | None = None
    for kind, value in SILENCE.findall(log):
        if kind == "start":
            start = max(0.0, float(value))
        elif start is not None:
            silences.append((start, float(value)))
            start = None
    return [*silences, (start, duration)] if start is not None else silences


def find_cuts(silences: Silences, duration: float, max_piece_s: float = MAX_PIECE_S) -> list[float]:
    """Return where to cut: in the last silence before a piece gets too long, or there if nobody pauses."""
    cuts: list[float] = []
    start = 0.0
    middles = [(first + last) / 2 for first, last in silences]
    shortest = min(MIN_PIECE_S, max_piece_s / 2)
    while duration - start > max_piece_s:
        candidates = [time for time in middles if start + shortest <= time <= start + max_piece_s]
        start = candidates[-1] if candidates else start + max_piece_s
        cuts.append(start)
    return cuts


def is_silent(start: float, end: float, silences: Silences) -> bool:
    """Return whether nothing is heard from `start` to `end`."""
    return end <= start or any(first <= start + 0.1 and last >= end - 0.1 for first, last in silences)


def join_transcripts(parts: Sequence[tuple[float, float, Transcript]], language: str | None) -> Transcript:
    """Join the transcripts of pieces. The times of each count from its beginning."""
    segments: list[TranscriptSegment] = []
    for start, end, transcript in parts:
        for segment in transcript.segments:
            if segment.text:
                first = min(end, start + segment.start)
                # A server that sends no times sends 0 for both; the text then belongs to the whole piece.
                last = end if segment.end <= segment.start else min(end, start + segment.end)
                segments.append(TranscriptSegment(round(first, 3), round(last, 3), segment.text))
    transcripts = [transcript for _, _, transcript in parts]
    return Transcript(
        by=transcripts[0].by if transcripts else "none",
        language=next((item.language for item in transcripts if item.language), language),
        segments=segments,
        notice=transcripts[0].notice if transcripts else "The file has no sound to transcribe.",
    )


def format_srt(transcript: Transcript) -> str:
    """Return the transcript as SubRip text."""
    return "".join(
        f"{number}\n{_format_time(part.start, ',')} --> {_format_time(part.end, ',')}\n{part.text}\n\n"
        for number, part in enumerate(transcript.segments, 1)
    )


def format_vtt(transcript: Transcript) -> str:
    """Return the transcript as WebVTT. Text cannot become markup."""
    lines = ["WEBVTT\n\n"]
    for part in transcript.segments:
        text = part.text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        lines.append(f"{_format_time(part.start, '.')} --> {_format_time(part.end, '.')}\n{text}\n\n")
    return "".join(lines)


def _format_time(seconds: float, separator: str) -> str:
    milliseconds = max(0, round(seconds * 1000))
    minutes, rest = divmod(milliseconds, 60_000)
    return f"{minutes // 60:02}:{minutes % 60:02}:{rest // 1000:02}{separator}{rest % 1000:03}"
