"""Text and speech from outside, each behind one small protocol, with a local default that needs no network.

What a provider answers is not trusted: it is bounded, checked, and only ever used as text or sound. What
went wrong is one of three things for the task that asked: `RateLimited` (the provider's key rests, for all
workers), `ProviderError` (try again later), or `Reject` (asking again is no use).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

__all__ = ["ProviderError", "Sound", "TextProvider", "Voice", "Written"]


class ProviderError(Exception):
    """The provider did not give what was asked, this time. `retry_after` is the wait it asked for."""

    def __init__(self, message: str, retry_after: timedelta | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


@dataclass(frozen=True)
class Written:
    """`by` names who wrote it, so that a reader of the report can tell."""

    text: str
    by: str


@dataclass(frozen=True)
class Sound:
    """An MP3 file and its length, measured and not guessed."""

    mp3: bytes
    seconds: float
    bit_rate: int
    by: str


class TextProvider(Protocol):
    @property
    def key(self) -> str:
        """What rests when the provider says that it is too much."""
        ...

    async def write(self, instructions: str, subject: str) -> Written:
        """A text. `subject` is data from users: it is quoted to the model and never given as an order."""
        ...


class Voice(Protocol):
    @property
    def key(self) -> str: ...
    async def speak(self, text: str, language: str) -> Sound: ...
