"""Exceptions of tasks to Sentry, when it is installed and `sentry_dsn` is set.

Every failed attempt is reported, with its task, job and attempt as tags. What a task rejects on purpose, and
limits of the other side, are outcomes and no errors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast import telemetry
from holdfast.errors import Reject, SettingsError
from holdfast.settings import Secret

TAGS = ("name", "job", "task", "attempt")


def report_to(dsn: Secret | None) -> Callable[[], None]:
    """Begin to report; what comes back ends it. Does nothing without an address."""
    if dsn is None:
        return lambda: None
    try:
        import sentry_sdk  # noqa: PLC0415  (an extra)
    except ImportError as problem:
        raise SettingsError(
            "sentry_dsn is set, and sentry-sdk is not installed.",
            fix="pip install 'holdfast[telemetry]', or unset sentry_dsn.",
            field="sentry_dsn",
        ) from problem
    if not sentry_sdk.is_initialized():  # the application may have its own way to start it
        sentry_sdk.init(dsn=dsn.reveal())

    def report(name: str, fields: dict[str, Any]) -> None:
        problem = fields.get("problem")
        if name != "task.raised" or problem is None or isinstance(problem, Reject):
            return
        with sentry_sdk.new_scope() as scope:
            scope.set_transaction_name(str(fields["name"]))
            for tag in TAGS:
                scope.set_tag(f"holdfast.{tag}", str(fields[tag]))
            scope.capture_exception(problem)

    unsubscribe = telemetry.subscribe(report, only=["task.raised"])

    def stop() -> None:
        unsubscribe()
        sentry_sdk.flush(timeout=2)

    return stop
