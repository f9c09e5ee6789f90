"""Schedules: a call or a graph that is submitted at the times of a cron expression or an interval.

A worker stores the schedules of its application in the database when it starts. From then on any worker runs
them, and you can pause, preview and run them with `client.schedules`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any, Literal, ParamSpec, TypeAlias, TypeVar, overload

from holdfast.definitions.call_options import check_request_fields
from holdfast.definitions.graphs import Graph
from holdfast.definitions.submit_requests import build_work_request
from holdfast.definitions.tasks import Call, Task
from holdfast.definitions.validation import check_option_names, parse_duration
from holdfast.errors import InvalidError

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

_SCHEDULED_CALL_FIELDS = frozenset({"priority", "limit_key", "labels", "delay_s"})
MissedRunPolicy: TypeAlias = Literal["skip", "coalesce", "catch_up"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Schedule:
    """A call or graph, and the times at which it is submitted. `schedule` creates it.

    `unique` skips a run while the job of the previous run is unfinished. `max_catch_up` is the maximum number
    of missed runs that `missed="catch_up"` makes up for.

    >>> from holdfast import Schedule, schedule, task
    >>> @task
    ... def report(name: str) -> str:
    ...     return name
    >>> daily: Schedule = schedule(report("sales"), cron="@daily", name="sales report")
    >>> daily.name
    'sales report'
    """

    name: str
    work: Call[Any] | Graph
    cron: str | None = None
    every: timedelta | None = None
    timezone: str = "UTC"
    missed: MissedRunPolicy = "coalesce"
    max_catch_up: int = 100
    owner: str | None = None
    unique: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.work, Call):
            self.work.mark_used()
            check_request_fields(
                self.work.request_options,
                "of a schedule",
                "Leave it out; a schedule submits many jobs.",
                allowed=_SCHEDULED_CALL_FIELDS,
            )
        if (self.cron is None) == (self.every is None):
            raise InvalidError(
                f"Schedule {self.name!r} needs either a cron expression or an interval.",
                fix="Pass cron= or every=.",
                field="cron",
            )
        if self.every is not None:
            object.__setattr__(self, "every", parse_duration(self.every, "every"))

    def build_request(self) -> dict[str, Any]:
        """Return the schedule as the request of `put_schedule`. The database checks the cron expression."""
        job = build_work_request(self.work)
        if self.unique:
            job["unique_key"] = f"schedule:{self.name}"
        request: dict[str, Any] = {
            "name": self.name,
            "job": job,
            "cron": self.cron,
            "every_s": None if self.every is None else self.every.total_seconds(),
            "timezone": self.timezone,
            "missed": self.missed,
            "max_catch_up": self.max_catch_up,
            "owner": self.owner,
        }
        return {name: value for name, value in request.items() if value is not None}


_SCHEDULE_OPTIONS = tuple(each.name for each in fields(Schedule) if each.name != "work")


@dataclass(frozen=True, eq=False)
class ScheduledTask(Task[P, R_co]):
    """A task with schedules. You can call and submit it like any other task.

    >>> from holdfast import ScheduledTask, schedule, task
    >>> @schedule("@daily")
    ... @task
    ... def tidy() -> None: ...
    >>> isinstance(tidy, ScheduledTask), tidy.schedules[0].cron
    (True, '@daily')
    """

    schedules: tuple[Schedule, ...] = ()


@overload
def schedule(
    cron: str | timedelta | float,
    /,
    *,
    name: str | None = None,
    timezone: str = "UTC",
    missed: MissedRunPolicy = "coalesce",
    max_catch_up: int = 100,
    owner: str | None = None,
    unique: bool = False,
) -> Callable[[Task[P, R]], ScheduledTask[P, R]]: ...
@overload
def schedule(
    work: Call[Any] | Graph,
    /,
    *,
    cron: str | None = None,
    every: timedelta | float | None = None,
    name: str | None = None,
    timezone: str = "UTC",
    missed: MissedRunPolicy = "coalesce",
    max_catch_up: int = 100,
    owner: str | None = None,
    unique: bool = False,
) -> Schedule: ...
def schedule(
    work: str | timedelta | float | Call[Any] | Graph, /, *, name: str | None = None, **options: Any
) -> Any:
    """Submit a call, a graph or a task at set times.

    `schedule(call, cron="@daily")` returns a schedule. `@schedule("@daily")` above `@task` adds a schedule
    to a task that needs no arguments.

    name: the name of the schedule. The default is the name of the task or of the graph.
    cron: a cron expression, such as `0 3 * * *` or `@daily`.
    every: the time between two runs (a timedelta or seconds), instead of `cron`.
    timezone: the time zone of the cron expression. The default is UTC.
    missed: what to do about missed runs: `skip`, `coalesce` (run once, the default) or `catch_up` (run all).
    max_catch_up: the maximum number of missed runs that `catch_up` makes up for. The default is 100.
    owner: the owner of the jobs.
    unique: skip a run while the job of the previous run is unfinished. The default is False.

    >>> from datetime import timedelta
    >>> from holdfast import schedule, task
    >>> @schedule("0 3 * * *", timezone="Europe/Madrid")
    ... @task
    ... async def tidy(days: int = 7) -> None: ...
    >>> weekly = schedule(tidy(30), every=timedelta(days=7), name="tidy weekly")
    """
    check_option_names(options, _SCHEDULE_OPTIONS, "schedule")
    if isinstance(work, Call):
        return Schedule(name=name or work.task.name, work=work, **options)
    if isinstance(work, Graph):
        return Schedule(name=name or work.type, work=work, **options)
    times: dict[str, Any] = {"cron": work} if isinstance(work, str) else {"every": work}

    def decorate(task: Task[Any, Any]) -> ScheduledTask[Any, Any]:
        if not isinstance(task, Task):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidError("@schedule must be above @task.", fix="Swap the two lines.", field="task")
        added = Schedule(name=name or task.name, work=task(), **times, **options)
        earlier = task.schedules if isinstance(task, ScheduledTask) else ()
        task_options = {
            each.name: getattr(task, each.name)
            for each in fields(task)
            if each.init and each.name != "schedules"
        }
        return ScheduledTask(**task_options, schedules=(*earlier, added))

    return decorate
