"""Load an application: import a file or module and collect its tasks, consumers, schedules and job types."""

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
WORKERS_SUBCOMMANDS = ("list", "show", "drain", "stop")  # of `holdfast workers`, which is one letter away


@dataclass(frozen=True)
class LoadedApp:
    """The tasks, consumers, schedules, job types and lifespan that an application defines.

    The dictionaries have names as keys, except `consumers`, which has queues.
    """

    tasks: dict[str, AnyTask] = field(default_factory=dict[str, AnyTask])
    consumers: dict[str, AnyConsumer] = field(default_factory=dict[str, AnyConsumer])
    schedules: dict[str, Schedule] = field(default_factory=dict[str, Schedule])
    types: dict[str, JobType[Any]] = field(default_factory=dict[str, JobType[Any]])
    lifespan: Lifespan[Any] | None = None
    source: str = "app"

    def with_consumers_of(self, queues: list[str]) -> LoadedApp:
        """Return a copy with only the consumers of these queues, or of all queues if the list is empty."""
        if not queues:
            return self
        consumers = {queue: c for queue, c in self.consumers.items() if c.queue in queues}
        return replace(self, consumers=consumers)


def load_app(app: str) -> LoadedApp:
    """Import an application from `app.py`, `package.module` or `package.module:attribute`."""
    location, _, attribute = app.partition(":")
    module = _import_module(location)
    values = _get_attribute_values(module, attribute) if attribute else vars(module).values()
    loaded = replace(_collect_definitions(values), lifespan=_find_lifespan(module))
    if not loaded.tasks and not loaded.consumers:
        raise NotFoundError(
            f"{app} defines no task and no consumer.",
            fix="Decorate a function with @task or @consumer, or name another file or module.",
        )
    return replace(loaded, source=Path(location).stem if location.endswith(".py") else location)


def _import_module(location: str) -> ModuleType:
    try:
        if location.endswith(".py"):
            return _import_file(Path(location))
        return importlib.import_module(location)
    except HoldfastError:
        raise
    except ModuleNotFoundError as error:
        if error.name and location.startswith(error.name):
            fix = "Run the command in the folder that contains it, or name the file."
            if location in WORKERS_SUBCOMMANDS:
                fix = f"To manage running workers: holdfast workers {location}"
            raise NotFoundError(f"Module {location} does not exist.", fix=fix) from None
        raise InvalidError(f"{location} cannot be imported: {_format_import_error(error)}") from error
    except Exception as error:
        raise InvalidError(f"{location} cannot be imported: {_format_import_error(error)}") from error


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise NotFoundError(
            f"File {path} does not exist.", fix="Check the path; it is relative to the current folder."
        )
    sys.path.insert(0, str(path.parent.resolve()))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise InvalidError(f"{path} is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _format_import_error(error: Exception) -> str:
    """Format an import error with the file and line of the application that caused it."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "importlib" not in f.filename]
    position = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}: " if frames else ""
    if isinstance(error, SyntaxError):
        position = f"{Path(error.filename or '?').name}:{error.lineno}: "
    return f"{position}{type(error).__name__}: {error}."


def _get_attribute_values(module: ModuleType, name: str) -> Iterable[object]:
    try:
        value = getattr(module, name)
    except AttributeError:
        raise NotFoundError(f"Module {module.__name__} has no attribute {name}.") from None
    if isinstance(value, (Task, Consumer)):
        return (cast("object", value),)
    if isinstance(value, dict):
        return cast("dict[str, object]", value).values()
    if isinstance(value, (list, tuple, set, frozenset)):
        return cast("list[object]", value)
    raise InvalidError(
        f"{module.__name__}:{name} is neither a task, nor a consumer, nor a collection of them."
    )


def _collect_definitions(values: Iterable[object]) -> LoadedApp:
    app = LoadedApp()
    for value in values:
        if isinstance(value, Task):
            task = cast("AnyTask", value)
            if app.tasks.setdefault(task.name, task) is not task:
                raise InvalidError(
                    f"Two tasks have the name {task.name!r}.",
                    fix="Give one of them another name: @task(name=...).",
                )
        elif isinstance(value, Consumer):
            _add_consumer(app, value)  # pyright: ignore[reportUnknownArgumentType]
        elif isinstance(value, Schedule):
            _add_schedule(app, value)
        elif isinstance(value, JobType):
            job_type: JobType[Any] = value  # pyright: ignore[reportUnknownVariableType]
            if app.types.setdefault(job_type.name, job_type) is not job_type:
                raise InvalidError(
                    f"Two job types have the name {job_type.name!r}.",
                    fix="Give one of them another name: @job(name=...).",
                )
        if isinstance(value, ScheduledTask):
            for schedule in value.schedules:
                _add_schedule(app, schedule)
    return app


def _find_lifespan(module: ModuleType) -> Lifespan[Any] | None:
    """Return the lifespan that a module defines, or None. Raise `InvalidError` if it defines several."""
    lifespans: list[Lifespan[Any]] = []
    for value in cast("list[object]", list(vars(module).values())):
        if isinstance(value, Lifespan) and value not in lifespans:
            lifespans.append(value)  # pyright: ignore[reportUnknownArgumentType]
    if len(lifespans) > 1:
        names = ", ".join(lifespan.name for lifespan in lifespans)
        raise InvalidError(
            f"{module.__name__} has {len(lifespans)} lifespans: {names}.",
            fix="Combine them: one lifespan opens all resources and yields them together.",
        )
    return lifespans[0] if lifespans else None


def _add_schedule(app: LoadedApp, schedule: Schedule) -> None:
    if app.schedules.setdefault(schedule.name, schedule) is not schedule:
        raise InvalidError(
            f"Two schedules have the name {schedule.name!r}.",
            fix="Give one of them another name: schedule(..., name=...).",
        )


def _add_consumer(app: LoadedApp, consumer: AnyConsumer) -> None:
    if app.consumers.setdefault(consumer.queue.lower(), consumer) is not consumer:
        raise InvalidError(
            f"Two consumers read queue {consumer.queue!r}.",
            fix="Combine them into one consumer, or run them in different workers.",
        )
