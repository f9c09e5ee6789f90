"""The options of one call: `page_title(url).options(queue="slow", retries=9)`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final, TypedDict

from holdfast.definitions.request_options import (
    REQUEST_FIELD_BY_OPTION,
    TASK_REQUEST_FIELDS,
    build_request_options,
)
from holdfast.definitions.retry_policy import RetryPolicy
from holdfast.definitions.validation import check_option_names
from holdfast.errors import InvalidError


class CallOptions(TypedDict, total=False):
    """The keyword arguments of `Call.options`. They apply to this call and replace the options of its task.

    queue: the queue of the task.
    retries: how often a failed attempt is retried.
    retry: a `RetryPolicy`, instead of `retries`.
    timeout: the maximum duration of an attempt, as a timedelta or in seconds.
    lease: how long a worker that stops renewing its lease keeps the task, as a timedelta or in seconds.
    max_crashes: how often the task may kill its process before it fails.
    priority: -100 to 100; a higher number runs first.
    limit_key: the key that per-key limits count the task under.
    delay: how long to wait before the task may start: a timedelta or a number of seconds.
    run_at: the time at which the task may start, instead of `delay`.
    expires_at: the time at which the task is cancelled if it has not started.
    key, unique, owner, labels, debounce, throttle: as in `SubmitOptions`. They belong to the job, so a call
        in a graph cannot have them.

    >>> from holdfast import CallOptions, task
    >>> @task
    ... def page_title(url: str) -> str:
    ...     return url
    >>> careful: CallOptions = {"queue": "slow", "retries": 9, "timeout": 30, "priority": 5}
    >>> page_title("https://e.example").options(**careful)
    page_title(url='https://e.example').options(queue='slow', retries=9, timeout=30, priority=5)
    """

    queue: str
    retries: int
    retry: RetryPolicy
    timeout: timedelta | float
    lease: timedelta | float
    max_crashes: int
    priority: int
    limit_key: str
    delay: timedelta | float
    run_at: datetime
    expires_at: datetime
    key: str
    unique: str
    owner: str
    labels: dict[str, str]
    debounce: timedelta | float
    throttle: timedelta | float


TASK_OPTIONS_OF_CALLS: Final = ("queue", "retries", "retry", "timeout", "lease", "max_crashes")
_FIXED_TASK_OPTIONS: Final = ("name", "process", "memory", "limit")


def split_call_options(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split the options of a call into options of its task and fields of the submit request."""
    for name in options:
        if name in _FIXED_TASK_OPTIONS:
            raise InvalidError(
                f"{name} is an option of the task and cannot differ between its calls.",
                fix=f"Write @task({name}=...), or declare a second task.",
                field=name,
            )
    check_option_names(options, CallOptions.__annotations__, "options")
    task_options = {name: value for name, value in options.items() if name in TASK_OPTIONS_OF_CALLS}
    rest = {name: value for name, value in options.items() if name not in TASK_OPTIONS_OF_CALLS}
    return task_options, build_request_options(rest, "options")


def check_request_fields(
    fields: Iterable[str], place: str, fix: str, *, allowed: frozenset[str] = TASK_REQUEST_FIELDS
) -> None:
    """Raise InvalidError if a call has an option that it cannot have at this place, such as a graph."""
    option_by_field = {field: option for option, field in REQUEST_FIELD_BY_OPTION.items()}
    for field in fields:
        if field not in allowed:
            option = option_by_field[field]
            raise InvalidError(f"A call {place} cannot have the option {option}.", fix=fix, field=option)
