"""Report exceptions of tasks to Sentry when `sentry_dsn` is set.

Every failed attempt is reported with its task, job and attempt as tags. Deliberate outcomes such as Reject
and RateLimited are not reported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast import telemetry
from holdfast.errors import Reject, SettingsError
from holdfast.settings import Secret

SENTRY_TAG_FIELDS = ("name", "job", "task", "attempt")


def start_error_reports(dsn: Secret | None) -> Callable[[], None]:
    """Start reporting and return a function that stops it. Does nothing without a DSN."""
    if dsn is None:
        return lambda: None
    try:
        import sentry_sdk  # noqa: PLC0415  (an extra)
    except ImportError as error:
        raise SettingsError(
            "sentry_dsn is set, but sentry-sdk is not installed.",
            fix="pip install 'holdfast[telemetry]', or unset sentry_dsn.",
            field="sentry_dsn",
        ) from error
    if not sentry_sdk.is_initialized():  # the application may have initialized it
        sentry_sdk.init(dsn=dsn.reveal())

    def report_exception(name: str, fields: dict[str, Any]) -> None:
        exception = fields.get("exception")
        if name != "task.raised" or exception is None or isinstance(exception, Reject):
            return
        with sentry_sdk.new_scope() as scope:
            scope.set_transaction_name(str(fields["name"]))
            for tag in SENTRY_TAG_FIELDS:
                scope.set_tag(f"holdfast.{tag}", str(fields[tag]))
            scope.capture_exception(exception)

    unsubscribe = telemetry.subscribe(report_exception, only=["task.raised"])

    def stop() -> None:
        unsubscribe()
        sentry_sdk.flush(timeout=2)

    return stop
