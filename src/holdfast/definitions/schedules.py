"""Work that is submitted by itself: a call or a graph with a cron expression or an interval. Passive values.

    @schedule("0 3 * * *", timezone="Europe/Madrid")
    @task
    async def tidy() -> None: ...

    hourly = schedule(report("sales"), every=timedelta(hours=1), name="sales report")

A worker writes the schedules of its application to the database when it starts. From then on they are data:
they can be paused, previewed and run by hand, and any worker keeps them going.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any, Literal, ParamSpec, TypeAlias, TypeVar, overload

from holdfast.definitions.graphs import Graph
from holdfast.definitions.submit_body import build_work_request
from holdfast.definitions.tasks import Call, Task
from holdfast.errors import InvalidError

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

Missed: TypeAlias = Literal["skip", "coalesce", "catch_up"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Schedule:
    """What is submitted when. `unique` leaves a run out while the one before has not ended."""

    name: str
    work: Call[Any] | Graph
    cron: str | None = None
    every: timedelta | None = None
    timezone: str = "UTC"
    missed: Missed = "coalesce"
    max_catch_up: int = 100  # with catch_up: so many runs are made up for
    owner: str | None = None
    unique: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.work, Call):
            self.work.use()
        if (self.cron is None) == (self.every is None):
            raise InvalidError(
                f"Schedule {self.name!r} needs a cron expression or an interval, one of them.", field="cron"
            )

    def body(self) -> dict[str, Any]:
        """As the SQL functions take it. They check it: times are computed in the database only."""
        job = build_work_request(self.work)
        if self.unique:
            job["unique_key"] = f"schedule:{self.name}"
        said: dict[str, Any] = {
            "name": self.name,
            "job": job,
            "cron": self.cron,
            "every_s": None if self.every is None else self.every.total_seconds(),
            "timezone": self.timezone,
            "missed": self.missed,
            "max_catch_up": self.max_catch_up,
            "owner": self.owner,
        }
        return {name: value for name, value in said.items() if value is not None}


@dataclass(frozen=True, eq=False)
class ScheduledTask(Task[P, R_co]):
    """A task under `@schedule`. It can be called and submitted like any other."""

    schedules: tuple[Schedule, ...] = ()


@overload
def schedule(
    cron: str | timedelta,
    /,
    *,
    name: str | None = None,
    timezone: str = "UTC",
    missed: Missed = "coalesce",
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
    every: timedelta | None = None,
    name: str | None = None,
    timezone: str = "UTC",
    missed: Missed = "coalesce",
    max_catch_up: int = 100,
    owner: str | None = None,
    unique: bool = False,
) -> Schedule: ...
def schedule(what: str | timedelta | Call[Any] | Graph, /, *, name: str | None = None, **said: Any) -> Any:
    """Submit a call or a graph at set times; or, above `@task`, a task that needs no arguments."""
    if isinstance(what, Call):
        return Schedule(name=name or what.task.name, work=what, **said)
    if isinstance(what, Graph):
        return Schedule(name=name or what.type, work=what, **said)
    times: dict[str, Any] = {"every": what} if isinstance(what, timedelta) else {"cron": what}

    def decorate(task: Task[Any, Any]) -> ScheduledTask[Any, Any]:
        if not isinstance(task, Task):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidError("@schedule goes above @task.", fix="Swap the two lines.", field="task")
        made = Schedule(name=name or task.name, work=task(), **times, **said)
        earlier = task.schedules if isinstance(task, ScheduledTask) else ()
        options = {f.name: getattr(task, f.name) for f in fields(task) if f.init and f.name != "schedules"}
        return ScheduledTask(**options, schedules=(*earlier, made))

    return decorate
