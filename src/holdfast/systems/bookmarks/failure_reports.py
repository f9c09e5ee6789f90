"""Report each failed message of the bookmark queue: to the log, and to Sentry when `sentry_dsn` is set."""

from __future__ import annotations

import logging
from typing import Any

import msgspec

from holdfast import Settings

_log = logging.getLogger("holdfast.systems.bookmarks")


class FailedMessage(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What is reported about a failed message: both steps, and no content of the page."""

    message_id: int
    bookmark_id: int | None
    screenshot_success: bool | None
    remaining_data_success: bool | None
    error: str


def report_failed_message(settings: Settings, failure: FailedMessage) -> None:
    """Log a failed message, and send it to Sentry if the settings name a Sentry project."""
    fields: dict[str, Any] = msgspec.to_builtins(failure)
    details = ", ".join(f"{name}={value}" for name, value in fields.items())
    _log.warning("Failed to process queue message: %s", details)
    if settings.sentry_dsn is None:
        return
    try:
        import sentry_sdk  # noqa: PLC0415  (an extra)
    except ImportError:  # a worker refuses to start in this case; the API only serves the routes
        return
    if not sentry_sdk.is_initialized():
        sentry_sdk.init(dsn=settings.sentry_dsn.reveal())
    with sentry_sdk.new_scope() as scope:
        for name, value in fields.items():
            scope.set_extra(name, value)
        scope.capture_message("Failed to process queue message", level="error")
