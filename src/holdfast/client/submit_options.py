"""The options of `submit`, and the request that the SQL function `submit` reads."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final, TypedDict
from uuid import UUID

from holdfast.client.ids import parse_id
from holdfast.definitions.graphs import Graph
from holdfast.definitions.submit_requests import build_work_request
from holdfast.definitions.tasks import Call
from holdfast.definitions.validation import check_aware_datetime, check_duration, check_option_names
from holdfast.errors import InvalidError


class SubmitOptions(TypedDict, total=False):
    """The keyword arguments of `submit`, `submit_many` and `start_job`.

    key: an idempotency key. A second submit with the same key returns the first job.
    unique: a name that one unfinished job can have. A second submit returns that job.
    owner: the user or tenant that the job belongs to.
    priority: -100 to 100; a higher number runs first. The default is the priority of the task.
    delay: how long to wait before the job may start.
    run_at: the time at which the job may start, instead of `delay`.
    expires_at: the time at which the job is cancelled if it has not started.
    labels: names and values that searches find with `tag:name=value`.
    limit_key: the key that per-key limits count the job under.
    debounce: needs `unique`. Start the job after this time; another submit replaces the arguments of a job
        that has not started, and the time begins again.
    throttle: needs `unique`. For this time, another submit returns the same job, even if the job has ended.
    batch: the id of the batch that the job belongs to.
    check: refuse arguments that do not match the schema that workers have registered for the task.

    >>> from datetime import timedelta
    >>> from holdfast import SubmitOptions
    >>> nightly: SubmitOptions = {"owner": "ann", "delay": timedelta(hours=8)}
    """

    key: str | None
    unique: str | None
    owner: str | None
    priority: int | None
    delay: timedelta | None
    run_at: datetime | None
    expires_at: datetime | None
    labels: dict[str, str] | None
    limit_key: str | None
    debounce: timedelta | None
    throttle: timedelta | None
    batch: UUID | None
    check: bool


# The name of each option in the request; durations are sent as a number of seconds.
_REQUEST_FIELD_BY_OPTION: Final = {
    "key": "key",
    "unique": "unique_key",
    "owner": "owner",
    "priority": "priority",
    "delay": "delay_s",
    "run_at": "run_at",
    "expires_at": "expires_at",
    "labels": "labels",
    "limit_key": "limit_key",
    "debounce": "debounce_s",
    "throttle": "throttle_s",
    "batch": "batch",
    "check": "check",
}


def build_job_request(work: Call[Any] | Graph, options: SubmitOptions) -> dict[str, Any]:
    """Build the argument of the SQL function `submit` for one job."""
    return {**build_work_request(work), **build_request_options(options)}


def build_request_options(options: SubmitOptions) -> dict[str, Any]:
    """Validate the options of `submit` and convert them to fields of the request."""
    values: Mapping[str, Any] = options
    request: dict[str, Any] = {}
    for name, value in values.items():
        if name not in _REQUEST_FIELD_BY_OPTION:
            check_option_names([name], _REQUEST_FIELD_BY_OPTION, "submit")
        if value is not None and value is not False:
            request[_REQUEST_FIELD_BY_OPTION[name]] = _encode_option(name, value)
    if "delay_s" in request and "run_at" in request:
        raise InvalidError("Both delay and run_at are set.", fix="Pass one of them.", field="delay")
    return request


def _encode_option(name: str, value: Any) -> Any:
    if name in {"delay", "debounce", "throttle"}:
        check_duration(value, name)
        return value.total_seconds()
    if name in {"run_at", "expires_at"}:
        check_aware_datetime(value, name)
    if name == "batch":
        return parse_id(value, "batch")
    return value
