"""Report exceptions of tasks to Sentry when `sentry_dsn` is set.

Every failed attempt is reported with its task, job and attempt as tags. Deliberate outcomes such as Reject
and RateLimited are not reported. The secrets in the arguments of the task are masked in the whole event: in
messages, local variables and breadcrumbs.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, cast

from holdfast import telemetry
from holdfast.errors import Reject, SettingsError
from holdfast.redaction import MASK_TEXT, SecretMasker, is_secret_field
from holdfast.settings import Secret

_log = logging.getLogger("holdfast.worker")

SENTRY_TAG_FIELDS = ("name", "job", "task", "attempt")
VARIABLE_FIELDS = ("vars", "extra", "data")


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
            scope.add_event_processor(partial(_mask_event, fields["masker"]))
            scope.capture_exception(exception)

    unsubscribe = telemetry.subscribe(report_exception, only=["task.raised"])

    def stop() -> None:
        unsubscribe()
        sentry_sdk.flush(timeout=2)

    return stop


def _mask_event(masker: SecretMasker, event: Any, _: object) -> Any:
    """Return an event of Sentry without secrets. Sentry calls it before it sends the event.

    An event that cannot be masked is replaced: Sentry sends an event whose processor fails as it was.
    """
    try:
        return _mask_part(masker, event, has_variables=False)
    except Exception as error:
        _log.error("an event for Sentry could not be masked: %s", type(error).__name__)
        return {"message": f"An event could not be masked: {type(error).__name__}", "level": "error"}


def _mask_part(masker: SecretMasker, value: Any, *, has_variables: bool) -> Any:
    """Mask one part of an event. Variables are objects of the task: of these, the printed form is sent."""
    if isinstance(value, str):
        return masker.mask_text(value)
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value)
        return {
            name: MASK_TEXT
            if has_variables and inner is not None and is_secret_field(str(name), frozenset())
            else _mask_part(masker, inner, has_variables=has_variables or name in VARIABLE_FIELDS)
            for name, inner in members.items()
        }
    if isinstance(value, (list, tuple, deque)):
        return [_mask_part(masker, inner, has_variables=has_variables) for inner in cast("list[Any]", value)]
    if not has_variables or value is None:
        return value
    return masker.mask_value(value) if isinstance(value, (int, float)) else masker.mask_text(_print(value))


def _print(value: object) -> str:
    try:
        return repr(value)
    except Exception:  # the object is the task's
        return f"<{type(value).__name__}>"
