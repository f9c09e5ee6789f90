"""Transcripts: where sound is cut, the protocol of a transcription server, its failures, and subtitles."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import AsyncGenerator
from datetime import timedelta
from pathlib import Path

import pytest
from web_servers import RecordedRequest, Responder, WebServer, respond, run_web_server

from holdfast import load_settings
from holdfast.errors import SettingsError
from holdfast.systems.media import transcripts
from holdfast.systems.media.contracts import MediaError, Transcript, TranscriptSegment, WorkProgress
from holdfast.systems.media.ffmpeg import find_ffmpeg
from holdfast.systems.media.transcription_providers import POCKETSPHINX_NOTICE, create_transcription_provider
from holdfast.systems.providers.local_speech import synthesize_audio_samples
from holdfast.systems.providers.usage import CallRecord, UsageAccount
from holdfast.systems.sandbox.programs import ProgramKilledError

ANSWER = {
    "text": " Hello there.", "language": "english", "duration": 2.0,
    "segments": [{"id": 0, "start": 0.5, "end": 1.5, "text": " Hello\nthere."}],
}  # fmt: skip


def respond_json(body: object, status: int = 200, **headers: str) -> Responder:
    return respond(
        json.dumps(body).encode(), status=status, close=True, Content_Type="application/json", **headers
    )


class RecordingRecorder:
    """Keeps the records of calls."""

    def __init__(self) -> None:
        self.records: list[CallRecord] = []

    async def record_call(self, record: CallRecord) -> None:
        self.records.append(record)


@pytest.fixture
async def server() -> AsyncGenerator[WebServer]:
    async with run_web_server(respond_json(ANSWER)) as server:
        yield server


@pytest.fixture
def tone(tmp_path: Path) -> Path:
    """Three seconds of tone, one of silence, three of tone."""
    path = tmp_path / "tone.wav"
    source = "sine=d=7,volume=enable='between(t,3,4)':volume=0"
    command = [str(find_ffmpeg()), "-v", "error", "-f", "lavfi", "-i", source, str(path)]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    return path


async def transcribe(
    server: WebServer, audio: Path, recorder: RecordingRecorder | None = None, timeout: str = "30s"
) -> Transcript:
    settings = load_settings(
        {
            "transcription_url": f"{server.url}/v1",
            "transcription_key": "key-1",
            "transcription_timeout": timeout,
            "egress_allow": server.authority,
        }
    )
    provider = create_transcription_provider(settings, recorder=recorder, account=UsageAccount(owner="u1"))
    try:
        return await transcripts.transcribe_audio(
            audio, provider=provider, folder=audio.parent, language="en"
        )
    finally:
        await provider.close()


async def test_the_request_is_the_common_one_and_seconds_are_counted(server: WebServer, tone: Path) -> None:
    recorder = RecordingRecorder()
    transcript = await transcribe(server, tone, recorder)
    assert transcript.segments == [TranscriptSegment(0.5, 1.5, "Hello there.")]
    assert (transcript.language, transcript.by) == ("en", "whisper-1")
    (request,) = server.requests
    assert (request.method, request.target) == ("POST", "/v1/audio/transcriptions")
    assert request.headers["authorization"] == "Bearer key-1"
    for part in (b'name="model"', b"whisper-1", b"verbose_json", b'name="language"', b"fLaC"):
        assert part in request.body
    last = recorder.records[-1]
    assert (last.kind, last.status, last.account.owner) == ("transcription", "succeeded", "u1")
    assert last.usage.audio_s == pytest.approx(7, abs=0.1)
    assert sorted(path.name for path in tone.parent.iterdir()) == ["tone.wav"]


@pytest.mark.parametrize(
    ("responder", "kind", "retry_after"),
    [
        (respond_json({}, 429, Retry_After="7"), "rate_limited", timedelta(seconds=7)),
        (respond_json({}, 500), "network", None),
        (respond_json({}, 400), "unsupported", None),
        (respond_json({}, 401), "unsupported", None),
        (respond_json({"words": []}), "network", None),
        (respond(b"{", Content_Type="application/json"), "network", None),
        (respond(b"<html>", Content_Type="text/html"), "network", None),
        (respond_json({**ANSWER, "segments": [{"start": -1, "end": 1, "text": "x"}]}), "network", None),
    ],
)
async def test_failures_of_the_server(
    server: WebServer, tone: Path, responder: Responder, kind: str, retry_after: timedelta | None
) -> None:
    server.responder = responder
    with pytest.raises(MediaError) as caught:
        await transcribe(server, tone)
    assert (caught.value.kind, caught.value.retry_after) == (kind, retry_after)


async def test_a_server_that_does_not_answer(server: WebServer, tone: Path) -> None:
    async def stall(*_: object) -> None:
        await asyncio.sleep(60)

    server.responder = stall
    with pytest.raises(MediaError) as caught:
        await transcribe(server, tone, timeout="1s")
    assert caught.value.kind == "network"


async def test_long_sound_is_cut_at_silences_and_joined(
    server: WebServer, tone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transcripts.find_cuts, "__defaults__", (5.0,))
    transcript = await transcribe(server, tone)
    assert len(server.requests) == 2
    first, second = transcript.segments
    assert first.start == 0.5
    assert second.start == pytest.approx(4.0, abs=0.2)  # 3.5, the middle of the silence, and 0.5


async def test_a_killed_program_is_told_to_the_user(tone: Path) -> None:
    """The system kills programs when memory is short. That is not the fault of the sound."""

    class KilledProvider:
        async def transcribe_piece(self, path: Path, *, language: str | None) -> Transcript:
            raise ProgramKilledError("The program was killed from outside.")

        async def close(self) -> None: ...

    with pytest.raises(MediaError) as caught:
        await transcripts.transcribe_audio(tone, provider=KilledProvider(), folder=tone.parent)
    assert (caught.value.kind, caught.value.retryable) == ("interrupted", True)


async def test_silence_is_not_sent(server: WebServer, tmp_path: Path) -> None:
    path = tmp_path / "silence.wav"
    command = [str(find_ffmpeg()), "-v", "error", "-f", "lavfi", "-i", "anullsrc", "-t", "3", str(path)]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    transcript = await transcribe(server, path)
    assert (transcript.segments, server.requests) == ([], [])
    assert transcript.notice is not None


async def test_a_server_without_times_gets_the_times_of_the_piece(server: WebServer, tone: Path) -> None:
    async def responder(request: RecordedRequest, writer: asyncio.StreamWriter) -> None:
        await respond_json({"text": "Hello"})(request, writer)

    server.responder = responder
    (segment,) = (await transcribe(server, tone)).segments
    assert (segment.start, segment.text) == (0, "Hello")
    assert segment.end == pytest.approx(7, abs=0.2)


def test_cuts() -> None:
    assert transcripts.find_cuts([], 100, 300) == []
    assert transcripts.find_cuts([(250, 252), (290, 292), (310, 320)], 500, 300) == [291]
    assert transcripts.find_cuts([], 700, 300) == [300, 600]
    assert transcripts.parse_silences("silence_start: -0.01\nsilence_end: 2 |\nsilence_start: 8\n", 9) == [
        (0, 2),
        (8, 9),
    ]


def test_subtitles() -> None:
    transcript = Transcript(
        by="x", language="en", segments=[TranscriptSegment(3661.5, 3662.25, "a <i>b</i> & --> c")]
    )
    assert transcripts.format_srt(transcript) == "1\n01:01:01,500 --> 01:01:02,250\na <i>b</i> & --> c\n\n"
    vtt = "WEBVTT\n\n01:01:01.500 --> 01:01:02.250\na &lt;i&gt;b&lt;/i&gt; &amp; --&gt; c\n\n"
    assert transcripts.format_vtt(transcript) == vtt


async def test_the_local_engine_hears_speech(tmp_path: Path) -> None:
    """The words of the local engine are often wrong, so only that it hears some is tested."""
    samples, rate = synthesize_audio_samples("One two three four five. The weather is fine.", "en")
    raw, path = tmp_path / "speech.raw", tmp_path / "speech.wav"
    raw.write_bytes(samples)
    command = [str(find_ffmpeg()), "-v", "error", "-f", "s16le", "-ar", str(rate), "-i", str(raw), str(path)]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    raw.unlink()
    progress: list[WorkProgress] = []
    provider = create_transcription_provider(load_settings({"transcription_url": None}))
    transcript = await transcripts.transcribe_audio(
        path, provider=provider, folder=tmp_path, on_progress=progress.append
    )
    assert transcript.segments
    assert (transcript.by, transcript.language, transcript.notice) == (
        "pocketsphinx",
        "en",
        POCKETSPHINX_NOTICE,
    )
    assert progress[-1].done == progress[-1].total


def test_a_model_path_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"model\.bin"):
        create_transcription_provider(load_settings({"transcription_model_path": str(tmp_path)}))
