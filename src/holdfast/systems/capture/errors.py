"""The errors of captures. Their messages may be shown to the user who chose the URL."""

from __future__ import annotations

from holdfast.egress import EgressError
from holdfast.errors import HoldfastError, PublicError


class CaptureError(PublicError):
    """A page, an image or a document could not be captured.

    The message says why, in words for users. `retry` tells whether another attempt can succeed.
    """

    def __init__(self, message: str, *, retry: bool) -> None:
        super().__init__(message)
        self.message = message
        self.retry = retry


class NotAPageError(CaptureError):
    """The URL has no page to photograph: it is an image or another file. `content_type` is its type."""

    def __init__(self, message: str, *, content_type: str) -> None:
        super().__init__(message, retry=False)
        self.content_type = content_type


class BrowserCrashedError(CaptureError):
    """The browser ended, or it did not respond, while it had the page open."""

    def __init__(self, message: str = "The browser ended while it loaded the page.") -> None:
        super().__init__(message, retry=True)


class BrowserStartError(HoldfastError):
    """Chromium cannot be started. `fix` says what to install or to set."""


def build_capture_error(error: EgressError) -> CaptureError:
    """Return the CaptureError for a failed request."""
    return CaptureError(error.message, retry=error.retryable)


def build_status_error(status: int) -> CaptureError:
    """Return the CaptureError for a response with an error status."""
    return CaptureError(
        f"The server answered with the status {status}.", retry=status >= 500 or status in (408, 425, 429)
    )
