"""Scraping provider that calls the HTTP API of ScrapeCreators, or a server that speaks the same protocol.

One request for a video: `GET /v1/<platform>/video?url=...&get_transcript=true`, with the key in `x-api-key`.
The answers of the platforms differ in their names, so the known names of each fact are tried in turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, cast
from urllib.parse import urlsplit

from holdfast.systems.captions import parse_captions
from holdfast.systems.providers.errors import ProviderRefusedError, ProviderResponseError
from holdfast.systems.providers.http_client import HttpProvider
from holdfast.systems.providers.openai_text import remove_unprintable_characters
from holdfast.systems.providers.protocols import ScrapedMedia
from holdfast.systems.providers.usage import ProviderUsage, UsageAccount

MAX_SCRAPING_RESPONSE_BYTES: Final = 16 * 1024 * 1024
MAX_TEXT_CHARS: Final = 5_000
MAX_DURATION_S: Final = 30 * 24 * 3600.0
PLATFORMS: Final = {
    "youtube.com": "youtube",
    "youtu.be": "youtube",
    "tiktok.com": "tiktok",
    "instagram.com": "instagram",
    "facebook.com": "facebook",
    "fb.watch": "facebook",
    "twitter.com": "twitter",
    "x.com": "twitter",
}
DEFAULT_PLATFORM: Final = "generic"
TITLE_PATHS: Final = ("title", "aweme_detail.desc", "desc", "caption", "description")
DESCRIPTION_PATHS: Final = ("description", "desc", "caption")
AUTHOR_PATHS: Final = (
    *("channel.title", "channel.name", "author.nickname", "author.name", "author.username"),
    *("aweme_detail.author.nickname", "owner.username", "user.name", "author"),
)
THUMBNAIL_PATHS: Final = (
    *("thumbnail", "thumbnail_url", "thumbnail.url", "thumbnailUrl", "display_url", "image"),
    "aweme_detail.video.cover.url_list.0",
)
SECONDS_PATHS: Final = ("durationSeconds", "duration_seconds", "duration", "video_duration")
MILLISECONDS_PATHS: Final = ("durationMs", "duration_ms", "aweme_detail.video.duration")
LANGUAGE_PATHS: Final = ("language", "transcript_language", "defaultLanguage")
TRANSCRIPT_PATHS: Final = ("transcript", "transcripts", "transcript_only_text")


class HttpScrapingProvider(HttpProvider):
    """A `ScrapingProvider` that calls a scraping API."""

    max_response_bytes = MAX_SCRAPING_RESPONSE_BYTES

    async def scrape_media(self, url: str, *, account: UsageAccount) -> ScrapedMedia:
        key = self._config.api_key
        headers = {"Accept": "application/json", **({"x-api-key": key.reveal()} if key else {})}
        query = {"url": url, "get_transcript": "true"}
        async with self._http.open_call(account) as call:
            body = await call.get_json(f"v1/{find_platform(url)}/video", query, headers)
            answer = call.decode(body, dict[str, Any])
            call.set_usage(ProviderUsage())
        if answer.get("success") is False:
            raise ProviderRefusedError("The scraping provider found no video at this URL.")
        return read_scraped_media(answer, self._config.model)


def find_platform(url: str) -> str:
    """Return the name of the platform of a URL in the paths of the API."""
    host = (urlsplit(url).hostname or "").lower()
    for domain, platform in PLATFORMS.items():
        if host == domain or host.endswith(f".{domain}"):
            return platform
    return DEFAULT_PLATFORM


def read_scraped_media(answer: Mapping[str, Any], by: str) -> ScrapedMedia:
    """Read the facts of an answer. Raise ProviderResponseError if it has neither a title nor a transcript."""
    transcript, segments = read_transcript(answer)
    title = find_text(answer, TITLE_PATHS)
    if title is None and transcript is None:
        raise ProviderResponseError("The scraping provider returned neither a title nor a transcript.")
    duration_s = find_number(answer, SECONDS_PATHS)
    if duration_s is None:
        milliseconds = find_number(answer, MILLISECONDS_PATHS)
        duration_s = None if milliseconds is None else milliseconds / 1000
    return ScrapedMedia(
        title=title,
        description=find_text(answer, DESCRIPTION_PATHS),
        author=find_text(answer, AUTHOR_PATHS),
        thumbnail_url=find_text(answer, THUMBNAIL_PATHS),
        transcript=transcript,
        segments=segments,
        duration_s=duration_s,
        language=find_text(answer, LANGUAGE_PATHS),
        by=by,
    )


def read_transcript(answer: Mapping[str, Any]) -> tuple[str | None, tuple[tuple[float, float, str], ...]]:
    """Return the transcript and its parts with times: from a list of parts, captions or a plain text."""
    for path in TRANSCRIPT_PATHS:
        value = find_value(answer, path)
        if isinstance(value, list):
            segments = tuple(_read_segments(cast("Sequence[Any]", value)))
            if segments:
                return " ".join(text for _, _, text in segments), segments
        if isinstance(value, str) and value.strip():
            segments = parse_captions(value) if "-->" in value else ()
            text = " ".join(text for _, _, text in segments) or remove_unprintable_characters(value)
            return text or None, segments
    return None, ()


def _read_segments(items: Iterable[Any]) -> Iterable[tuple[float, float, str]]:
    for item in items:
        if isinstance(item, str) and item.strip():
            yield 0.0, 0.0, remove_unprintable_characters(item)
        if not isinstance(item, dict):
            continue
        part = cast("dict[str, Any]", item)
        text = find_text(part, ("text", "transcript"))
        start = find_number(part, ("startMs", "start_ms"))
        end = find_number(part, ("endMs", "end_ms"))
        if text is None:
            continue
        if start is None:
            start = (find_number(part, ("start", "offset")) or 0.0) * 1000
            end = start + (find_number(part, ("duration",)) or 0.0) * 1000
        yield start / 1000, max(start, end or start) / 1000, text


def find_value(value: Any, path: str) -> Any:
    """Return the value at a path such as "channel.title" in decoded JSON, or None."""
    for name in path.split("."):
        if isinstance(value, dict):
            value = cast("dict[str, Any]", value).get(name)
        elif isinstance(value, list) and name.isdigit():
            items = cast("Sequence[Any]", value)
            value = items[int(name)] if int(name) < len(items) else None
        else:
            return None
    return value


def find_text(value: Any, paths: Iterable[str]) -> str | None:
    """Return the first text at one of the paths that is not empty."""
    for path in paths:
        text = find_value(value, path)
        if isinstance(text, str) and (clean := remove_unprintable_characters(text[:MAX_TEXT_CHARS])):
            return clean
    return None


def find_number(value: Any, paths: Iterable[str]) -> float | None:
    """Return the first number at one of the paths that is not negative, also if it is written as text."""
    for path in paths:
        item = find_value(value, path)
        try:
            number = float(item) if isinstance(item, str | int | float) and not isinstance(item, bool) else -1
        except (ValueError, OverflowError):
            continue
        if 0 <= number <= MAX_DURATION_S * 1000:
            return number
    return None
