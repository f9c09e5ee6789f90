"""Find the tasks of a worker again in a child process, by importing the modules that define them."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from holdfast.definitions.lifespan import Lifespan
from holdfast.definitions.tasks import Task
from holdfast.errors import InvalidError

AnyTask = Task[..., Any]
_MAIN_SCRIPT_MODULE_NAME = "__holdfast_main__"


def list_defining_modules(tasks: Iterable[AnyTask], lifespan: Lifespan[Any] | None) -> list[str]:
    """Return the names of the modules that define the tasks and the lifespan, or a script's path."""
    functions = [task.function for task in tasks] + ([lifespan.function] if lifespan is not None else [])
    names = dict.fromkeys(
        _get_importable_module_name(getattr(function, "__module__", "")) for function in functions
    )
    return [name for name in names if name is not None]


def _get_importable_module_name(module: str) -> str | None:
    if module != "__main__":
        return module or None
    main = sys.modules["__main__"]
    if main.__spec__ is not None:  # started with python -m
        return main.__spec__.name
    path: str | None = getattr(main, "__file__", None)  # an interactive session has none
    return str(Path(path).resolve()) if path else None


def collect_importable_task_names(tasks: Iterable[AnyTask]) -> frozenset[str]:
    """Return the names of the tasks that a child process can import.

    These are the tasks that are variables of their module.

    Raises InvalidError for a task with `process=True` that is not.
    """
    importable: set[str] = set()
    for task in tasks:
        name = getattr(task.function, "__module__", "")
        module = sys.modules.get(name) if _get_importable_module_name(name) else None
        if module is not None and any(value is task for value in vars(module).values()):
            importable.add(task.name)
        elif task.process:
            raise InvalidError(
                f"Task {task.name} has process=True, but a child process cannot import it.",
                fix="Define it at the top level of a module.",
                field="tasks",
            )
    return frozenset(importable)


def import_definitions(modules: Sequence[str]) -> tuple[dict[str, AnyTask], Lifespan[Any] | None]:
    """Import modules and return their tasks by name, and their lifespan."""
    tasks: dict[str, AnyTask] = {}
    lifespan: Lifespan[Any] | None = None
    for name in modules:
        for value in list(vars(_import_module(name)).values()):
            if isinstance(value, Task):
                task = cast("AnyTask", value)
                tasks.setdefault(task.name, task)
            elif isinstance(value, Lifespan):
                lifespan = lifespan or value  # pyright: ignore[reportUnknownVariableType]
    return tasks, lifespan


def _import_module(name: str) -> ModuleType:
    if not name.endswith(".py"):
        return importlib.import_module(name)
    spec = importlib.util.spec_from_file_location(_MAIN_SCRIPT_MODULE_NAME, name)
    if spec is None or spec.loader is None:
        raise InvalidError(f"{name} cannot be imported.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[_MAIN_SCRIPT_MODULE_NAME] = module
    spec.loader.exec_module(module)
    return module
