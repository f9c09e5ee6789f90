"""Text and speech providers: one protocol for each, remote clients, and local defaults without network or
key.

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
    """A provider failed and may succeed later. `retry_after` is the delay that the provider requested."""

    def __init__(self, message: str, retry_after: timedelta | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


@dataclass(frozen=True)
class GeneratedText:
    """A text and the name of its author, so that readers know which model wrote it."""

    text: str
    author: str


@dataclass(frozen=True)
class SpeechAudio:
    """An MP3 file with its measured duration, and the name of the voice."""

    mp3: bytes
    duration_s: float
    bit_rate: int
    voice: str


class TextProvider(Protocol):
    """Writes texts."""

    @property
    def limit_key(self) -> str:
        """The key that pauses when the provider limits the rate."""
        ...

    async def generate_text(self, instructions: str, subject: str) -> GeneratedText:
        """Write a text about `subject` by `instructions`.

        `subject` is data from users. It is passed to the model as quoted data, never as instructions.
        """
        ...


class SpeechProvider(Protocol):
    """Turns text into recordings."""

    @property
    def limit_key(self) -> str:
        """The key that pauses when the provider limits the rate."""
        ...

    async def synthesize_speech(self, text: str, language: str) -> SpeechAudio:
        """Read the text aloud in the language with this code."""
        ...
