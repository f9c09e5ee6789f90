"""Providers that convert sound to text: an OpenAI-compatible server, or recognition on this machine."""

from __future__ import annotations

import asyncio
import importlib.util
import json
from pathlib import Path
from typing import Any

import msgspec

from holdfast import Settings
from holdfast.egress import EgressPolicy
from holdfast.errors import SettingsError
from holdfast.systems.media.contracts import (
    MediaError,
    Transcript,
    TranscriptionProvider,
    TranscriptSegment,
)
from holdfast.systems.media.ffmpeg import run_ffmpeg
from holdfast.systems.providers.config import ProviderConfig
from holdfast.systems.providers.errors import ProviderResponseError, ProviderUnavailableError
from holdfast.systems.providers.http_client import HttpProvider
from holdfast.systems.providers.metering import CallMeter
from holdfast.systems.providers.prices import PriceTable
from holdfast.systems.providers.usage import ProviderUsage, UsageAccount, UsageRecorder
from holdfast.systems.sandbox.programs import ProgramCall, ProgramLimitError, ProgramLimits, run_program

SPEECH_PROCESS_MODULE = "holdfast.systems.sandbox.speech_process"
MAX_RESPONSE_BYTES = 8 * 1024 * 1024
MAX_TIME_S = 1e6
FLAC_HEADER_BYTES = 42
BYTES_PER_SECOND = 2 * 16_000
LOCAL_TIMEOUT_S = 1800.0
LOCAL_MEMORY_BYTES = 1024**3
WHISPER_MEMORY_BYTES = 6 * 1024**3
POCKETSPHINX_NOTICE = (
    "Recognised on this server by pocketsphinx, for English only. Many words are wrong. "
    "A transcription server or a Whisper model gives a better text."
)
LANGUAGE_CODES = {
    "english": "en", "german": "de", "french": "fr", "spanish": "es", "italian": "it", "portuguese": "pt",
    "dutch": "nl", "polish": "pl", "russian": "ru", "ukrainian": "uk", "czech": "cs", "swedish": "sv",
    "danish": "da", "norwegian": "no", "finnish": "fi", "turkish": "tr", "greek": "el", "hungarian": "hu",
    "romanian": "ro", "arabic": "ar", "hebrew": "he", "hindi": "hi", "japanese": "ja", "korean": "ko",
    "chinese": "zh", "vietnamese": "vi", "indonesian": "id", "thai": "th", "catalan": "ca", "croatian": "hr",
}  # fmt: skip


class ResponseSegment(msgspec.Struct):
    """A segment in the response of a server."""

    start: float
    end: float
    text: str


class TranscriptionResponse(msgspec.Struct):
    """The response to `/audio/transcriptions`. Some models send the text only."""

    text: str
    language: str | None = None
    duration: float | None = None
    segments: list[ResponseSegment] | None = None


class OpenAITranscriptionProvider(HttpProvider):
    """A `TranscriptionProvider` that calls an OpenAI-compatible server (`/audio/transcriptions`)."""

    max_response_bytes = MAX_RESPONSE_BYTES

    def __init__(
        self,
        config: ProviderConfig,
        *,
        meter: CallMeter | None = None,
        policy: EgressPolicy | None = None,
        account: UsageAccount | None = None,
    ) -> None:
        super().__init__(config, meter=meter, policy=policy)
        self._account = account or UsageAccount()

    async def transcribe_piece(self, audio: Path, *, language: str | None) -> Transcript:
        # Newer models of OpenAI refuse the format that has the times.
        response_format = "json" if self._config.model.startswith("gpt-") else "verbose_json"
        fields = {"model": self._config.model, "response_format": response_format}
        if language:
            fields["language"] = language
        content = await asyncio.to_thread(audio.read_bytes)
        async with self._http.open_call(self._account) as call:
            call.set_usage(ProviderUsage(audio_s=measure_flac(content)))
            body = await call.post_form(
                "audio/transcriptions", fields, file=("audio.flac", content, "audio/flac")
            )
            response = call.decode(body, TranscriptionResponse)
            parts = response.segments
            if parts is None:
                parts = [ResponseSegment(0.0, response.duration or 0.0, response.text)]
            if any(not 0 <= part.start <= part.end < MAX_TIME_S for part in parts):
                raise ProviderResponseError("The response of the transcription provider has invalid times.")
        return Transcript(
            by=self._config.model[:100],
            language=find_language_code(response.language) or language,
            segments=[TranscriptSegment(part.start, part.end, clean_transcript(part.text)) for part in parts],
        )


class LocalTranscriptionProvider:
    """A `TranscriptionProvider` that recognises speech in a process without rights on this machine."""

    limit_key = "transcription:local"

    def __init__(
        self,
        model_path: Path | None = None,
        *,
        meter: CallMeter | None = None,
        account: UsageAccount | None = None,
    ) -> None:
        self._model_path = model_path
        self._meter = meter or CallMeter.create_local("transcription", "pocketsphinx")
        self._account = account or UsageAccount()

    async def close(self) -> None:
        """Nothing stays open: each piece has a process of its own."""

    async def transcribe_piece(self, audio: Path, *, language: str | None) -> Transcript:
        samples = audio.with_suffix(".raw")
        output = ["-map", "0:a:0", "-ac", "1", "-ar", "16000", "-f", "s16le", samples.name]
        await run_ffmpeg(
            audio, output, audio.parent, timeout_s=LOCAL_TIMEOUT_S, max_output_bytes=2_000_000_000
        )
        try:
            async with self._meter.measure_call(self._account) as call:
                call.usage = ProviderUsage(audio_s=samples.stat().st_size / BYTES_PER_SECOND)
                result = await self._recognize(samples, language)
        finally:
            samples.unlink(missing_ok=True)
        return Transcript(
            by=f"Whisper ({self._model_path.name})" if self._model_path else "pocketsphinx",
            language=result["language"],
            segments=[
                TranscriptSegment(start, end, clean_transcript(text))
                for start, end, text in result["segments"]
            ],
            notice=None if self._model_path else POCKETSPHINX_NOTICE,
        )

    async def _recognize(self, samples: Path, language: str | None) -> dict[str, Any]:
        lines: list[str] = []
        model_path = str(self._model_path.absolute()) if self._model_path else ""
        request = {"file": samples.name, "model_path": model_path, "language": language}
        memory = WHISPER_MEMORY_BYTES if model_path else LOCAL_MEMORY_BYTES
        call = ProgramCall(
            command=[SPEECH_PROCESS_MODULE],
            folder=samples.parent,
            request=json.dumps(request).encode(),
            readable=[model_path] if model_path else [],
            limits=ProgramLimits(
                timeout_s=LOCAL_TIMEOUT_S,
                max_file_bytes=0,
                max_folder_bytes=1 << 62,
                max_memory_bytes=memory,
                max_address_space_bytes=4 * memory,
            ),
        )
        try:
            _, log = await run_program(call, lines.append)
        except ProgramLimitError as error:
            raise MediaError("unsupported", "The sound takes too long to transcribe.") from error
        if not lines:
            failure = ProviderUnavailableError("The local speech recognition failed.")
            failure.add_note(log[-2000:])
            raise failure
        return msgspec.json.decode(lines[-1], type=dict[str, Any])


def create_transcription_provider(
    settings: Settings, *, recorder: UsageRecorder | None = None, account: UsageAccount | None = None
) -> TranscriptionProvider:
    """Create the provider for `transcription_url` or `transcription_model_path`, or else pocketsphinx.

    The seconds of sound are charged to `account` and stored by `recorder`.
    """
    config = ProviderConfig.from_settings(settings, "transcription")
    if config is not None:
        prices = PriceTable.parse(settings.provider_prices)
        meter = CallMeter("transcription", config.host, config.model, recorder=recorder, prices=prices)
        policy = EgressPolicy.from_settings(settings)
        return OpenAITranscriptionProvider(config, meter=meter, policy=policy, account=account)
    path = settings.transcription_model_path
    if path is not None and not (path / "model.bin").is_file():
        raise SettingsError(
            f"transcription_model_path {str(path)!r} has no file model.bin.",
            fix="Use the folder of a Whisper model in CTranslate2 format.",
            field="transcription_model_path",
        )
    if path is not None and importlib.util.find_spec("faster_whisper") is None:
        raise SettingsError(
            "transcription_model_path needs the package faster-whisper.",
            fix="pip install faster-whisper",
            field="transcription_model_path",
        )
    meter = CallMeter.create_local("transcription", path.name if path else "pocketsphinx", recorder)
    return LocalTranscriptionProvider(path, meter=meter, account=account)


def measure_flac(content: bytes) -> float | None:
    """Return the seconds of a FLAC file, from the sample rate and the number of samples in its header."""
    if len(content) < FLAC_HEADER_BYTES or content[:4] != b"fLaC":
        return None
    fields = int.from_bytes(content[18:26], "big")
    rate, samples = fields >> 44, fields & ((1 << 36) - 1)
    return samples / rate if rate and samples else None


def find_language_code(name: str | None) -> str | None:
    """Return the code of a language. Servers send a code, or an English name."""
    name = (name or "").strip().lower()
    return LANGUAGE_CODES.get(name) or (name if 2 <= len(name) <= 3 and name.isalpha() else None)


def clean_transcript(text: str) -> str:
    """Return the text of a server as one line without control characters."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())
