"""Find what a worker is to run, tasks and consumers: in a file, a module, or one collection of a module."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from holdfast.definitions.consumers import Consumer
from holdfast.definitions.job_types import JobType
from holdfast.definitions.lifespan import Lifespan
from holdfast.definitions.schedules import Schedule, ScheduledTask
from holdfast.definitions.tasks import Task
from holdfast.errors import HoldfastError, InvalidError, NotFoundError

AnyTask = Task[..., Any]
AnyConsumer = Consumer[Any]
WORKERS_VERBS = ("list", "show", "drain", "stop")  # of another command, one letter away


@dataclass(frozen=True)
class App:
    """Tasks by name, consumers by queue, schedules by name, and what they share."""

    tasks: dict[str, AnyTask] = field(default_factory=dict[str, AnyTask])
    consumers: dict[str, AnyConsumer] = field(default_factory=dict[str, AnyConsumer])
    schedules: dict[str, Schedule] = field(default_factory=dict[str, Schedule])
    types: dict[str, JobType[Any]] = field(default_factory=dict[str, JobType[Any]])
    lifespan: Lifespan[Any] | None = None
    source: str = "app"

    def only(self, queues: list[str]) -> App:
        """With the consumers of these queues; of all when none are named."""
        if not queues:
            return self
        consumers = {queue: c for queue, c in self.consumers.items() if c.queue in queues}
        return replace(self, consumers=consumers)


def load(app: str) -> App:
    """`app.py`, `package.module` or `package.module:attribute` to what is in it."""
    place, _, attribute = app.partition(":")
    module = _import(place)
    found = _collect(vars(module).values() if not attribute else _attribute(module, attribute))
    found = replace(found, lifespan=_lifespan(module))
    if not found.tasks and not found.consumers:
        raise NotFoundError(
            f"There is no task in {app}, and no consumer.",
            fix="Mark a function with @task or @consumer, or name another file or module.",
        )
    return replace(found, source=Path(place).stem if place.endswith(".py") else place)


def _import(place: str) -> ModuleType:
    try:
        if place.endswith(".py"):
            return _import_file(Path(place))
        return importlib.import_module(place)
    except HoldfastError:
        raise
    except ModuleNotFoundError as problem:
        if problem.name and place.startswith(problem.name):
            fix = "Run from the folder that holds it, or name the file."
            if place in WORKERS_VERBS:
                fix = f"To look after workers that run: holdfast workers {place}"
            raise NotFoundError(f"There is no module {place}.", fix=fix) from None
        raise InvalidError(f"{place} cannot be imported: {_last_lines(problem)}") from problem
    except Exception as problem:
        raise InvalidError(f"{place} cannot be imported: {_last_lines(problem)}") from problem


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise NotFoundError(f"There is no file {path}.", fix="Check the path; it is relative to this folder.")
    sys.path.insert(0, str(path.parent.resolve()))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise InvalidError(f"{path} is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _last_lines(problem: Exception) -> str:
    """The user's own line and the error, without our frames."""
    frames = [f for f in traceback.extract_tb(problem.__traceback__) if "importlib" not in f.filename]
    where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}: " if frames else ""
    if isinstance(problem, SyntaxError):
        where = f"{Path(problem.filename or '?').name}:{problem.lineno}: "
    return f"{where}{type(problem).__name__}: {problem}."


def _attribute(module: ModuleType, name: str) -> Iterable[object]:
    try:
        value = getattr(module, name)
    except AttributeError:
        raise NotFoundError(f"{module.__name__} has no {name}.") from None
    if isinstance(value, (Task, Consumer)):
        return (cast("object", value),)
    if isinstance(value, dict):
        return cast("dict[str, object]", value).values()
    if isinstance(value, (list, tuple, set, frozenset)):
        return cast("list[object]", value)
    raise InvalidError(f"{module.__name__}:{name} is neither a task nor a list of tasks.")


def _collect(values: Iterable[object]) -> App:
    found = App()
    for value in values:
        if isinstance(value, Task):
            task = cast("AnyTask", value)
            if found.tasks.setdefault(task.name, task) is not task:
                raise InvalidError(
                    f"Two tasks are called {task.name!r}.",
                    fix="Give one of them another name: @task(name=...).",
                )
        elif isinstance(value, Consumer):
            _add_consumer(found, value)  # pyright: ignore[reportUnknownArgumentType]
        elif isinstance(value, Schedule):
            _add_schedule(found, value)
        elif isinstance(value, JobType):
            kind: JobType[Any] = value  # pyright: ignore[reportUnknownVariableType]
            if found.types.setdefault(kind.name, kind) is not kind:
                raise InvalidError(f"Two job types are called {kind.name!r}.")
        if isinstance(value, ScheduledTask):
            for schedule in value.schedules:
                _add_schedule(found, schedule)
    return found


def _lifespan(module: ModuleType) -> Lifespan[Any] | None:
    """That of the module, also when only some of its tasks were named."""
    spans: list[Lifespan[Any]] = []
    for value in cast("list[object]", list(vars(module).values())):
        if isinstance(value, Lifespan) and value not in spans:
            spans.append(value)  # pyright: ignore[reportUnknownArgumentType]
    if len(spans) > 1:
        raise InvalidError(
            f"{module.__name__} has {len(spans)} lifespans: {', '.join(span.name for span in spans)}.",
            fix="Let one of them open what the others do, and yield all of it.",
        )
    return spans[0] if spans else None


def _add_schedule(found: App, schedule: Schedule) -> None:
    if found.schedules.setdefault(schedule.name, schedule) is not schedule:
        raise InvalidError(
            f"Two schedules are called {schedule.name!r}.",
            fix="Give one of them another name: schedule(..., name=...).",
        )


def _add_consumer(found: App, consumer: AnyConsumer) -> None:
    if found.consumers.setdefault(consumer.queue.lower(), consumer) is not consumer:
        raise InvalidError(
            f"Two consumers read queue {consumer.queue!r}.",
            fix="Let one of them decide, or run them in workers of their own.",
        )
