"""The options of `submit`, and the request that the SQL function `submit` reads."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, TypedDict
from uuid import UUID

from holdfast.definitions.call_options import TASK_OPTIONS_OF_CALLS
from holdfast.definitions.graphs import Graph
from holdfast.definitions.request_options import build_request_options
from holdfast.definitions.submit_requests import build_work_request
from holdfast.definitions.tasks import Call
from holdfast.errors import InvalidError


class SubmitOptions(TypedDict, total=False):
    """The keyword arguments of `submit`, `submit_many` and `start_job`.

    key: an idempotency key. A second submit with the same key returns the first job.
    unique: a name that one unfinished job can have. A second submit returns that job.
    owner: the user or tenant that the job belongs to.
    priority: -100 to 100; a higher number runs first. The default is the priority of the task.
    delay: how long to wait before the job may start: a timedelta or a number of seconds.
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
    delay: timedelta | float | None
    run_at: datetime | None
    expires_at: datetime | None
    labels: dict[str, str] | None
    limit_key: str | None
    debounce: timedelta | float | None
    throttle: timedelta | float | None
    batch: UUID | None
    check: bool


def build_job_request(work: Call[Any] | Graph, options: SubmitOptions) -> dict[str, Any]:
    """Build the argument of the SQL function `submit` for one job."""
    return build_work_request(work, build_submit_options(options))


def build_submit_options(options: SubmitOptions) -> dict[str, Any]:
    """Validate the options of `submit` and convert them to fields of the request."""
    values: Mapping[str, Any] = options
    for name in values:
        if name in TASK_OPTIONS_OF_CALLS:
            raise InvalidError(
                f"{name} is an option of a call, not of submit.",
                fix=f"Write submit(my_task(...).options({name}=...)).",
                field=name,
            )
    return build_request_options(values)
