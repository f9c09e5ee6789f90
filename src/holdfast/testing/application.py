"""What a test wants to run: the tasks of modules, or tasks by themselves."""

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
class Application:
    tasks: dict[str, AnyTask] = field(default_factory=dict[str, AnyTask])
    schedules: dict[str, Schedule] = field(default_factory=dict[str, Schedule])
    lifespan: Lifespan[Any] | None = None
    consumers: dict[str, Consumer[Any]] = field(default_factory=dict[str, Consumer[Any]])

    def add(self, parts: Iterable[object]) -> None:
        """Modules, tasks, consumers, schedules and a lifespan, in any order."""
        for part in parts:
            if isinstance(part, ModuleType):
                self.add(each for each in list(vars(part).values()) if _is_ours(each))
            elif not self._take(part):
                raise InvalidError(
                    f"{part!r} is nothing that can be run.",
                    fix="Pass modules, tasks, consumers, schedules or a lifespan.",
                    field="parts",
                )

    def _take(self, part: object) -> bool:
        if isinstance(part, Task):
            task = cast("AnyTask", part)
            self.tasks[task.name] = task
        if isinstance(part, ScheduledTask):
            self.schedules.update({each.name: each for each in part.schedules})
        if isinstance(part, Consumer):
            self.consumers[part.queue.lower()] = part
        if isinstance(part, Schedule):
            self.schedules[part.name] = part
        if isinstance(part, Lifespan):
            self.lifespan = part
        return _is_ours(part)  # pyright: ignore[reportUnknownArgumentType]


def _is_ours(part: object) -> bool:
    return isinstance(part, (Task, Consumer, Schedule, ScheduledTask, Lifespan))
