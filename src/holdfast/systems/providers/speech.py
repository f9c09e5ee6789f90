"""Speech by an OpenAI-compatible endpoint (`/audio/speech`), as MP3 of 128 kbit/s.

We ask for WAV and encode it ourselves, so that the bit rate is what we promise. A server that answers with
MP3 all the same is taken at its word, and measured.
"""

from __future__ import annotations

import asyncio
import io
import re
import wave
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from holdfast.settings import Secret
from holdfast.systems.providers import ProviderError, Sound
from holdfast.systems.providers.mp3 import BIT_RATE, encode, measure
from holdfast.systems.providers.wire import Wire

MOST_ANSWER = 100 * 1024 * 1024
PIECE = 4000  # characters; the common API takes 4096
_SENTENCE = re.compile(r"(?<=[.!?\u3002\uff01\uff1f\n])\s*")


class SpeechVoice:
    def __init__(
        self,
        base: str,
        *,
        model: str,
        voice: str,
        key: Secret | None = None,
        timeout: timedelta = timedelta(seconds=180),
        transport: Any = None,
    ) -> None:
        self._wire = Wire(base, key, name="speech", timeout=timeout, transport=transport)
        self._model = model
        self._voice = voice

    @property
    def key(self) -> str:
        return self._wire.key

    async def close(self) -> None:
        await self._wire.close()

    async def speak(self, text: str, language: str) -> Sound:
        answers = [await self._piece(piece) for piece in pieces(text)]
        if all(answer[:4] == b"RIFF" for answer in answers):
            samples, rate, channels = await asyncio.to_thread(joined, answers)
            mp3 = await asyncio.to_thread(encode, samples, rate, channels)
        else:
            mp3 = b"".join(answers)
        measured = measure(mp3)
        if measured is None:
            raise ProviderError("The speech provider's answer is neither WAV nor MP3.")
        return Sound(mp3, measured.seconds, measured.bit_rate, f"{self._model} {self._voice}"[:100])

    async def _piece(self, text: str) -> bytes:
        body = {"model": self._model, "voice": self._voice, "input": text, "response_format": "wav"}
        answer, _ = await self._wire.post("audio/speech", body, most=MOST_ANSWER)
        if not answer:
            raise ProviderError("The speech provider answered with nothing.")
        return answer


def pieces(text: str, most: int = PIECE) -> Iterator[str]:
    """The text in parts of at most so many characters, cut after sentences where that is possible."""
    part = ""
    for sentence in _SENTENCE.split(text):
        rest = sentence
        if part and len(part) + 1 + len(rest) > most:
            yield part
            part = ""
        while len(rest) > most:
            yield rest[:most]
            rest = rest[most:]
        part = f"{part} {rest}".strip()
    if part:
        yield part


def joined(files: list[bytes]) -> tuple[bytes, int, int]:
    """The samples of several WAV files that must be alike."""
    shapes: set[tuple[int, int, int]] = set()
    samples: list[bytes] = []
    try:
        for file in files:
            with wave.open(io.BytesIO(file)) as sound:
                shapes.add((sound.getframerate(), sound.getnchannels(), sound.getsampwidth()))
                samples.append(sound.readframes(sound.getnframes()))
    except (wave.Error, EOFError):
        raise ProviderError("The speech provider's WAV file cannot be read.") from None
    if len(shapes) != 1:
        raise ProviderError("The speech provider's WAV files differ in kind.")
    rate, channels, width = shapes.pop()
    if width != 2 or channels not in (1, 2):
        raise ProviderError("The speech provider's WAV file is not of 16 bits.")
    return b"".join(samples), rate, channels


__all__ = ["BIT_RATE", "SpeechVoice", "joined", "pieces"]
