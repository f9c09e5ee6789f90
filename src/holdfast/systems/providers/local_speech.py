"""Local speech provider with eSpeak NG: robotic but clear, in many languages, without network or key.

The library synthesizes one text at a time per process, therefore a lock guards it; MP3 encoding happens
outside the lock. The library is an optional dependency and is loaded at first use, because eSpeak NG is
licensed under the GPL.
"""

from __future__ import annotations

import asyncio
import ctypes
import importlib
import threading
from typing import Any

from holdfast.errors import RefusedError
from holdfast.systems.providers.errors import ProviderRefusedError, ProviderUnavailableError
from holdfast.systems.providers.metering import CallMeter
from holdfast.systems.providers.mp3 import encode_mp3, measure_mp3
from holdfast.systems.providers.openai_speech import split_text_at_sentences
from holdfast.systems.providers.protocols import SpeechAudio
from holdfast.systems.providers.usage import ProviderUsage, UsageAccount

# Constants of speak_lib.h.
ESPEAK_AUDIO_OUTPUT_SYNCHRONOUS = (
    2  # samples go to the callback, and espeak_Synth waits until all are delivered
)
ESPEAK_CHARS_UTF8 = 1  # without the flags for SSML and phonemes, markup is read as text
ESPEAK_POSITION_BY_CHARACTER = 1
ESPEAK_RATE_PARAMETER = 1
SPEAKING_RATE_WORDS_PER_MINUTE = 165
MAX_SPEECH_PART_CHARS = 1500
_SynthCallback: Any = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p
)
_espeak_lock = threading.Lock()
_espeak_cache: dict[str, Any] = {}


class LocalSpeechProvider:
    """A `SpeechProvider` that runs eSpeak NG in the worker process."""

    def __init__(self, meter: CallMeter | None = None) -> None:
        self._meter = meter or CallMeter.create_local("speech", "espeak-ng")
        self._lock = asyncio.Lock()

    @property
    def limit_key(self) -> str:
        return "speech:local"

    async def close(self) -> None:
        """Do nothing: the library stays loaded."""

    async def synthesize_speech(self, text: str, language: str, *, account: UsageAccount) -> SpeechAudio:
        async with self._meter.measure_call(account) as call:
            audio = await self._synthesize(text, language)
            call.usage = ProviderUsage(audio_s=audio.duration_s)
        return audio

    async def _synthesize(self, text: str, language: str) -> SpeechAudio:
        samples: list[bytes] = []
        sample_rate = 0
        # One text at a time: the first text is finished early, and the last one is not finished later.
        async with self._lock:
            # A cancelled task can stop between parts.
            for part in split_text_at_sentences(text, MAX_SPEECH_PART_CHARS):
                part_samples, sample_rate = await asyncio.to_thread(synthesize_audio_samples, part, language)
                samples.append(part_samples)
        mp3 = await asyncio.to_thread(encode_mp3, b"".join(samples), sample_rate) if any(samples) else b""
        properties = measure_mp3(mp3)
        if properties is None:
            raise ProviderRefusedError("The text contains nothing that can be spoken.")
        return SpeechAudio(mp3, properties.duration_s, properties.bit_rate, f"eSpeak NG ({language})")


def synthesize_audio_samples(text: str, language: str) -> tuple[bytes, int]:
    """Convert text to 16-bit mono samples. Return the samples and their sample rate in Hz.

    An unknown language gets the English voice.
    """
    chunks: list[bytes] = []

    def collect_samples(samples: Any, count: int, _: object) -> int:
        if samples and count > 0:
            chunks.append(ctypes.string_at(samples, count * 2))
        return 0

    callback = _SynthCallback(collect_samples)
    with _espeak_lock:
        library, sample_rate = _load_espeak_library()
        for voice in (language, language.partition("-")[0], "en"):
            if library.espeak_SetVoiceByName(voice.lower().encode("ascii", "ignore")) == 0:
                break
        library.espeak_SetParameter(ESPEAK_RATE_PARAMETER, SPEAKING_RATE_WORDS_PER_MINUTE, 0)
        library.espeak_SetSynthCallback(callback)
        encoded = text.replace("\0", "").encode("utf-8", "replace")
        error_code = library.espeak_Synth(
            encoded, len(encoded) + 1, 0, ESPEAK_POSITION_BY_CHARACTER, 0, ESPEAK_CHARS_UTF8, None, None
        )
        if error_code:
            raise ProviderUnavailableError(f"eSpeak NG failed with error code {error_code}.")
        library.espeak_Synchronize()
    return b"".join(chunks), sample_rate


def _load_espeak_library() -> tuple[Any, int]:
    if not _espeak_cache:
        try:
            loader = importlib.import_module("espeakng_loader")
        except ImportError:
            raise RefusedError(
                "Local speech is not installed.",
                fix="pip install 'holdfast[speech]', or set speech_url to a speech server.",
            ) from None
        library = ctypes.CDLL(str(loader.get_library_path()))
        data_path = str(loader.get_data_path()).encode()
        sample_rate = library.espeak_Initialize(ESPEAK_AUDIO_OUTPUT_SYNCHRONOUS, 0, data_path, 0)
        if sample_rate <= 0:
            raise RefusedError("eSpeak NG cannot start.", fix="Set speech_url to a speech server.")
        library.espeak_Synth.argtypes = [
            ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint, ctypes.c_int, ctypes.c_uint, ctypes.c_uint,
            ctypes.c_void_p, ctypes.c_void_p,
        ]  # fmt: skip
        library.espeak_SetSynthCallback.argtypes = [_SynthCallback]
        library.espeak_SetVoiceByName.argtypes = [ctypes.c_char_p]
        _espeak_cache.update(library=library, sample_rate=sample_rate)
    return _espeak_cache["library"], _espeak_cache["sample_rate"]
