"""The application under test: the tasks, consumers, schedules and the lifespan that `hf.drain()` uses."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, cast

from holdfast.definitions.consumers import Consumer
from holdfast.definitions.lifespan import Lifespan
from holdfast.definitions.schedules import Schedule, ScheduledTask
from holdfast.definitions.tasks import Task
from holdfast.errors import InvalidError

AnyTask = Task[..., Any]


@dataclass
class AppUnderTest:
    """The tasks, schedules, consumers and lifespan that a test runs."""

    tasks: dict[str, AnyTask] = field(default_factory=dict[str, AnyTask])
    schedules: dict[str, Schedule] = field(default_factory=dict[str, Schedule])
    lifespan: Lifespan[Any] | None = None
    consumers: dict[str, Consumer[Any]] = field(default_factory=dict[str, Consumer[Any]])

    def add_definitions(self, parts: Iterable[object]) -> None:
        """Add modules, tasks, consumers, schedules and a lifespan, in any order."""
        for part in parts:
            if isinstance(part, ModuleType):
                self.add_definitions(value for value in list(vars(part).values()) if _is_definition(value))
            elif not self._add_definition(part):
                raise InvalidError(
                    f"{part!r} cannot be run.",
                    fix="Pass modules, tasks, consumers, schedules or a lifespan.",
                    field="parts",
                )

    def _add_definition(self, part: object) -> bool:
        if isinstance(part, Task):
            task = cast("AnyTask", part)
            self.tasks[task.name] = task
        if isinstance(part, ScheduledTask):
            self.schedules.update({schedule.name: schedule for schedule in part.schedules})
        if isinstance(part, Consumer):
            self.consumers[part.queue.lower()] = part
        if isinstance(part, Schedule):
            self.schedules[part.name] = part
        if isinstance(part, Lifespan):
            self.lifespan = part
        return _is_definition(part)  # pyright: ignore[reportUnknownArgumentType]


def _is_definition(value: object) -> bool:
    return isinstance(value, (Task, Consumer, Schedule, ScheduledTask, Lifespan))
