"""The protocol of each kind of provider, and the values that providers return."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from holdfast.systems.providers.usage import UsageAccount


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


@dataclass(frozen=True, kw_only=True)
class ImageMeasurements:
    """What was measured in an image: its size in pixels, its main colours and the text in it."""

    width: int
    height: int
    colors: tuple[str, ...] = ()
    text: str = ""


@dataclass(frozen=True, kw_only=True)
class TextEmbeddings:
    """One vector for each text, all with the same number of dimensions, and the name of the model."""

    vectors: Sequence[Sequence[float]]
    model: str


@dataclass(frozen=True, kw_only=True)
class ScrapedMedia:
    """What a page says about a video or an article. `transcript` is None if there is none.

    `segments` are the parts of the transcript as (start, end, text), in seconds, if their times are known.
    """

    title: str | None = None
    description: str | None = None
    author: str | None = None
    thumbnail_url: str | None = None
    transcript: str | None = None
    segments: tuple[tuple[float, float, str], ...] = ()
    duration_s: float | None = None
    language: str | None = None
    by: str = ""


class Provider(Protocol):
    """What all providers have in common."""

    @property
    def limit_key(self) -> str:
        """Name of the provider for limits, such as "text:api.example.com"."""
        ...

    async def close(self) -> None:
        """Close the connections to the provider."""
        ...


class TextProvider(Provider, Protocol):
    """Protocol of a provider that writes texts."""

    async def generate_text(self, instructions: str, subject: str, *, account: UsageAccount) -> GeneratedText:
        """Write a text about `subject` according to `instructions`.

        `subject` is data from users. It is passed to the model as quoted data, never as instructions.
        """
        ...


@runtime_checkable
class StreamingTextProvider(Protocol):
    """Protocol of a text provider that can also send a text in parts, while it is written."""

    async def stream_text(
        self, instructions: str, subject: str, *, account: UsageAccount, on_text: Callable[[str], None]
    ) -> GeneratedText:
        """Write a text as `generate_text` does, and call `on_text` with each new part."""
        ...


class JsonTextProvider(Provider, Protocol):
    """Protocol of a language model that answers with JSON."""

    async def generate_json(
        self, instructions: str, subject: str, schema: Mapping[str, Any], *, account: UsageAccount
    ) -> GeneratedText:
        """Return the text of a JSON value according to `schema` (JSON Schema). It may still be malformed.

        `subject` is data from users. It is passed to the model as quoted data, never as instructions.
        """
        ...


class SpeechProvider(Provider, Protocol):
    """Protocol of a provider that converts text to speech."""

    async def synthesize_speech(self, text: str, language: str, *, account: UsageAccount) -> SpeechAudio:
        """Convert text to speech. `language` is a language code such as "en"."""
        ...


class CaptionProvider(Provider, Protocol):
    """Protocol of a provider that describes images (kind "vision")."""

    async def describe_image(
        self, content: bytes, content_type: str, measurements: ImageMeasurements, *, account: UsageAccount
    ) -> GeneratedText:
        """Describe an image in one sentence. `measurements` is what was measured in it."""
        ...


class EmbeddingProvider(Provider, Protocol):
    """Protocol of a provider that turns texts into vectors (kind "embeddings")."""

    async def embed_texts(self, texts: Sequence[str], *, account: UsageAccount) -> TextEmbeddings:
        """Return one vector for each text, in the same order."""
        ...


class ScrapingProvider(Provider, Protocol):
    """Protocol of a provider that reads what a page says about its video or article."""

    async def scrape_media(self, url: str, *, account: UsageAccount) -> ScrapedMedia:
        """Return the metadata and, if there is one, the transcript of the page."""
        ...
