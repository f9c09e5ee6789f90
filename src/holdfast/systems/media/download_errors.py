"""Say in one plain sentence why a download failed, and decide when to try again."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Final

from holdfast.egress import (
    EgressDnsError,
    EgressError,
    EgressRefusedError,
    EgressTimeoutError,
    EgressTlsError,
    EgressTooLargeError,
)
from holdfast.errors import QuotaExceededError, StorageError, StorageFullError
from holdfast.systems.media.contracts import MediaError, MediaErrorKind

MAX_DOWNLOAD_ATTEMPTS: Final = 3
DEFAULT_RATE_LIMIT_PAUSE: Final = timedelta(minutes=1)
MAX_RATE_LIMIT_PAUSE: Final = timedelta(hours=1)
STORAGE_RETRY_DELAY_FACTOR: Final = 6
RETRY_DELAY_GROWTH: Final = 4
JITTER: Final = 0.2
UNEXPECTED_ERROR_MESSAGE: Final = "An error on our side stopped the download. Try again later."


def translate_egress_error(error: EgressError) -> MediaError:
    """Convert an error of the guarded client to one with a sentence for users."""
    if isinstance(error, EgressRefusedError):
        return MediaError("private", "The link leads to an address that is not on the public internet.")
    if isinstance(error, EgressTooLargeError):
        return MediaError("too_large", "The file is larger than allowed.")
    if isinstance(error, EgressDnsError):
        return MediaError("network", "The website cannot be found.")
    if isinstance(error, EgressTimeoutError):
        return MediaError("network", "The website stopped sending data.")
    if isinstance(error, EgressTlsError):
        return MediaError("unsupported", "The website has no valid certificate.")
    if not error.retryable:
        return MediaError("unsupported", "The link leads to too many redirects.")
    return MediaError("network", "The connection to the website broke.")


def translate_storage_error(error: StorageError | QuotaExceededError) -> MediaError:
    """Convert an error of the object store or of a quota to one with a sentence for users."""
    if isinstance(error, QuotaExceededError):
        return build_quota_error()
    if isinstance(error, StorageFullError):
        return MediaError("storage", "Our file storage is full at the moment.")
    return MediaError("storage", "Our file storage is not available at the moment.")


def build_quota_error() -> MediaError:
    """Build the error of a user whose storage is used up."""
    return MediaError("quota", "Your storage is full. Delete files that you do not need, then try again.")


def check_response_status(status: int, retry_after: str | None) -> None:
    """Raise `MediaError` for the status of a response that carries no media."""
    if status in (200, 206):
        return
    kind: MediaErrorKind
    if status == 429 or (status == 503 and retry_after):
        pause = parse_retry_after(retry_after)
        raise MediaError("rate_limited", "The website asks us to wait.", retry_after=pause)
    if status in (404, 410):
        kind, message = "not_found", "There is nothing at this link any more."
    elif status in (401, 402, 403, 407, 451):
        kind, message = "private", "The website does not let us download this. It may need a login."
    elif status >= 500 or status in (408, 425):
        kind, message = "network", "The website has a problem at the moment."
    else:
        kind, message = "unsupported", f"The website answered with an error ({status})."
    raise MediaError(kind, message)


def parse_retry_after(value: str | None) -> timedelta:
    """Read a `Retry-After` header: seconds or a date. A missing or strange one means a minute."""
    text = (value or "").strip()
    try:
        pause = (
            timedelta(seconds=int(text[:9]))
            if text.isdigit()
            else parsedate_to_datetime(text) - datetime.now(UTC)
        )
    except (ValueError, TypeError, OverflowError):
        return DEFAULT_RATE_LIMIT_PAUSE
    return min(max(pause, timedelta(seconds=1)), MAX_RATE_LIMIT_PAUSE)


def compute_retry_delay(error: MediaError, failed_attempts: int, base: timedelta) -> timedelta | None:
    """Return how long to wait before the next attempt, or None if there is none.

    `failed_attempts` counts this one. A broken connection is tried again soon, a full store later, and a
    server that limits the rate when it says.
    """
    if not error.retryable or failed_attempts >= MAX_DOWNLOAD_ATTEMPTS:
        return None
    if error.kind == "rate_limited":
        return error.retry_after or DEFAULT_RATE_LIMIT_PAUSE
    factor = STORAGE_RETRY_DELAY_FACTOR if error.kind == "storage" else 1
    jitter = 1 + JITTER * (2 * random.random() - 1)  # noqa: S311  (no secret)
    growth: int = RETRY_DELAY_GROWTH ** (failed_attempts - 1)
    return base * (factor * growth * jitter)
