"""Protocols and errors of text and speech providers, which are remote or local.

Responses of providers are not trusted: their size is limited, they are validated, and they are used only as
text or audio. A failed call raises one of three errors: `RateLimited` (every task with the provider's limit
key pauses, on all workers), `ProviderError` (the task retries later) or `Reject` (a retry cannot succeed).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

__all__ = ["GeneratedText", "ProviderError", "SpeechAudio", "SpeechProvider", "TextProvider"]


class ProviderError(Exception):
    """A text or speech provider failed, but may succeed later.

    `retry_after` is the delay that the provider requested.
    """

    def __init__(self, message: str, retry_after: timedelta | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


@dataclass(frozen=True)
class GeneratedText:
    """A generated text and the name of the model that wrote it."""

    text: str
    author: str


@dataclass(frozen=True)
class SpeechAudio:
    """A spoken text as MP3, with its measured duration and the name of the voice."""

    mp3: bytes
    duration_s: float
    bit_rate: int
    voice: str


class TextProvider(Protocol):
    """Protocol of a provider that writes texts."""

    @property
    def limit_key(self) -> str:
        """Limit key that is paused when the provider limits the request rate."""
        ...

    async def generate_text(self, instructions: str, subject: str) -> GeneratedText:
        """Write a text about `subject` according to `instructions`.

        `subject` is data from users. It is passed to the model as quoted data, never as instructions.
        """
        ...


class SpeechProvider(Protocol):
    """Protocol of a provider that converts text to speech."""

    @property
    def limit_key(self) -> str:
        """Limit key that is paused when the provider limits the request rate."""
        ...

    async def synthesize_speech(self, text: str, language: str) -> SpeechAudio:
        """Convert text to speech. `language` is a language code such as "en"."""
        ...
