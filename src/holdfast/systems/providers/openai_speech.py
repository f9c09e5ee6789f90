"""Speech provider that calls an OpenAI-compatible endpoint (`/audio/speech`).

The provider requests WAV and encodes it, so that the bit rate is exact. A server that returns MP3 anyway is
accepted, and the MP3 is measured.
"""

from __future__ import annotations

import asyncio
import io
import re
import wave
from collections.abc import Iterator

from holdfast.egress import EgressPolicy
from holdfast.systems.providers.config import ProviderConfig
from holdfast.systems.providers.errors import ProviderResponseError
from holdfast.systems.providers.http_client import HttpProvider
from holdfast.systems.providers.metering import CallMeter
from holdfast.systems.providers.mp3 import encode_mp3, measure_mp3
from holdfast.systems.providers.protocols import SpeechAudio
from holdfast.systems.providers.usage import ProviderUsage, UsageAccount

MAX_SPEECH_RESPONSE_BYTES = 100 * 1024 * 1024
MAX_SPEECH_REQUEST_CHARS = 4000  # the common API accepts 4096
MAX_VOICE_NAME_CHARS = 100
AUDIO_TYPES = ("audio/", "application/octet-stream")
_SENTENCE_END_PATTERN = re.compile(r"(?<=[.!?\u3002\uff01\uff1f\n])\s*")


class OpenAISpeechProvider(HttpProvider):
    """A `SpeechProvider` that calls an OpenAI-compatible server."""

    max_response_bytes = MAX_SPEECH_RESPONSE_BYTES

    def __init__(
        self,
        config: ProviderConfig,
        *,
        voice: str,
        meter: CallMeter | None = None,
        policy: EgressPolicy | None = None,
    ) -> None:
        super().__init__(config, meter=meter, policy=policy)
        self._voice = voice

    async def synthesize_speech(self, text: str, language: str, *, account: UsageAccount) -> SpeechAudio:
        recordings = [await self._request_recording(part, account) for part in split_text_at_sentences(text)]
        if all(recording[:4] == b"RIFF" for recording in recordings):
            samples, sample_rate, channels = await asyncio.to_thread(join_wav_files, recordings)
            mp3 = await asyncio.to_thread(encode_mp3, samples, sample_rate, channels)
        else:
            mp3 = b"".join(recordings)
        properties = measure_mp3(mp3)
        if properties is None:
            raise ProviderResponseError("The response of the speech provider is neither WAV nor MP3.")
        voice = f"{self._config.model} {self._voice}"[:MAX_VOICE_NAME_CHARS]
        return SpeechAudio(mp3, properties.duration_s, properties.bit_rate, voice)

    async def _request_recording(self, text: str, account: UsageAccount) -> bytes:
        body = {
            "model": self._config.model,
            "voice": self._voice,
            "input": text,
            "response_format": "wav",
        }
        async with self._http.open_call(account) as call:
            recording = await call.post_json("audio/speech", body, content_types=AUDIO_TYPES)
            call.set_usage(ProviderUsage(audio_s=await asyncio.to_thread(measure_recording, recording)))
        return recording


def measure_recording(recording: bytes) -> float:
    """Return the duration of a WAV or MP3 file in seconds. Raise ProviderResponseError if it is neither."""
    if recording[:4] == b"RIFF":
        samples, sample_rate, channels = join_wav_files([recording])
        return len(samples) / (2 * sample_rate * channels)
    properties = measure_mp3(recording)
    if properties is None:
        raise ProviderResponseError("The response of the speech provider is neither WAV nor MP3.")
    return properties.duration_s


def split_text_at_sentences(text: str, max_chars: int = MAX_SPEECH_REQUEST_CHARS) -> Iterator[str]:
    """Split a text into parts of at most `max_chars` characters, at the end of sentences if possible."""
    part = ""
    for sentence in _SENTENCE_END_PATTERN.split(text):
        rest = sentence
        if part and len(part) + 1 + len(rest) > max_chars:
            yield part
            part = ""
        while len(rest) > max_chars:
            yield rest[:max_chars]
            rest = rest[max_chars:]
        part = f"{part} {rest}".strip()
    if part:
        yield part


def join_wav_files(files: list[bytes]) -> tuple[bytes, int, int]:
    """Join WAV files. Return the samples, the sample rate in Hz and the number of channels.

    All files must have the same format, with 16 bits per sample.
    """
    formats: set[tuple[int, int, int]] = set()
    samples: list[bytes] = []
    try:
        for file in files:
            with wave.open(io.BytesIO(file)) as recording:
                formats.add((recording.getframerate(), recording.getnchannels(), recording.getsampwidth()))
                samples.append(recording.readframes(recording.getnframes()))
    except (wave.Error, EOFError):
        raise ProviderResponseError("The WAV file of the speech provider is not valid.") from None
    if len(formats) != 1:
        raise ProviderResponseError("The WAV files of the speech provider have different formats.")
    sample_rate, channels, sample_bytes = formats.pop()
    if sample_bytes != 2 or channels not in (1, 2) or sample_rate <= 0:
        raise ProviderResponseError("The WAV file of the speech provider does not have 16 bits per sample.")
    return b"".join(samples), sample_rate, channels
