"""Translate the failures of yt-dlp: what the user reads, and whether another attempt can succeed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from holdfast.egress import ProxyRefusal
from holdfast.systems.media.contracts import FetchLimits, MediaError, MediaErrorKind
from holdfast.systems.providers.http_client import parse_retry_after

TRANSFER_LIMIT = re.compile(r"bytes were transferred")
NETWORK_TYPES = {
    "TransportError",
    "IncompleteRead",
    "ProxyError",
    "SSLError",
    "ContentTooShortError",
    "TimeoutError",
}
LIVE_MESSAGE = "Live streams cannot be saved."
# Words of sites, in the order in which they are searched.
SITE_WORDS: tuple[tuple[str, MediaErrorKind, str], ...] = (
    (r"\bdrm\b", "unsupported", "The media is protected against copying."),
    (r"live (event|stream)|is live|premieres in", "unsupported", LIVE_MESSAGE),
    (
        r"private|log ?in|sign in|register|members?[- ]only|premium|purchase|payment|cookies|geo.?restrict"
        r"|not available (in|from) your",
        "private",
        "The site shows this media only to certain users, so it cannot be downloaded.",
    ),
    (
        r"removed|deleted|does ?n.t exist|no longer available|terminated|video unavailable|not found",
        "not_found",
        "The media does not exist any more.",
    ),
)


def build_size_error(limits: FetchLimits) -> MediaError:
    """Return the error for media with more bytes than allowed."""
    return MediaError("too_large", f"The media is larger than {limits.max_bytes / 1e6:,.0f} MB.")


def build_media_error(
    error: dict[str, Any], refusals: Sequence[ProxyRefusal], limits: FetchLimits
) -> MediaError:
    """Return the error for what the child process reported and for what the proxy refused."""
    failure = _find_error(error, refusals, limits)
    failure.add_note(str(error.get("text"))[:2000])
    return failure


def _find_error(error: dict[str, Any], refusals: Sequence[ProxyRefusal], limits: FetchLimits) -> MediaError:
    length = f"{limits.max_duration_s / 60:,.0f} minutes"
    reasons = {
        "live": MediaError("unsupported", LIVE_MESSAGE),
        "empty": MediaError("unsupported", "The link has no media that can be downloaded."),
        "too_large": build_size_error(limits),
        "too_long": MediaError("too_large", f"The media is longer than {length}."),
    }
    if error.get("reason") in reasons:
        return reasons[error["reason"]]
    if any(TRANSFER_LIMIT.search(refusal.reason) for refusal in refusals):
        return reasons["too_large"]
    if refusals:
        return MediaError("private", "The link leads to an address that is not on the public internet.")
    types: set[str] = set(error.get("types") or [])
    text = str(error.get("text") or "")
    if "File too large" in text:
        return reasons["too_large"]
    status = error.get("status")
    if isinstance(status, int) and status >= 400:
        return _build_status_error(status, error.get("retry_after"))
    if "UnsupportedError" in types:
        return MediaError("unsupported", "The link has no media that can be downloaded.")
    if types & NETWORK_TYPES:
        return MediaError("network", "The connection to the site broke.")
    for words, kind, message in SITE_WORDS:
        if re.search(words, text, re.IGNORECASE):
            return MediaError(kind, message)
    return MediaError("unsupported", "The link has no media that can be downloaded.")


def _build_status_error(status: int, retry_after: object) -> MediaError:
    delay = parse_retry_after(retry_after) if isinstance(retry_after, str) else None
    if status == 429 or (status == 503 and delay is not None):
        return MediaError(
            "rate_limited", "The site limits downloads; they continue later.", retry_after=delay
        )
    if status in (404, 410):
        return MediaError("not_found", f"The site says that the media does not exist (status {status}).")
    if status in (401, 402, 403, 407, 451):
        return MediaError("private", f"The site refuses the download (status {status}).")
    if status >= 500 or status in (408, 425):
        return MediaError("network", f"The site has a problem (status {status}).")
    return MediaError("unsupported", f"The site refuses the download (status {status}).")
