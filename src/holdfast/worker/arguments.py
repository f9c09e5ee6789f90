"""Convert the stored arguments of a task into the types that its function declares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from holdfast.definitions.graphs import insert_results
from holdfast.definitions.payloads import convert_payload
from holdfast.definitions.tasks import Task
from holdfast.errors import InvalidError

AnyTask = Task[..., Any]

# JSON values of these types need no conversion when the function declares the same type.
_EXACT_TYPES = (int, str, bool, float, type(None))


class ArgumentPlan:
    """How stored arguments are converted to the parameters of a task's function."""

    __slots__ = ("exact_types", "hints", "names", "required")

    def __init__(self, task: AnyTask) -> None:
        parameters = task.signature.parameters
        self.names = parameters.keys()
        self.required = [n for n, p in parameters.items() if p.default is p.empty]
        self.hints = {name: task.hints.get(name, Any) for name in parameters}
        self.exact_types = {name: hint if hint in _EXACT_TYPES else None for name, hint in self.hints.items()}


def get_argument_plan(task: AnyTask) -> ArgumentPlan:
    """Return the argument plan of a task, computed once and cached on the task.

    The plan is stored in the task's `__dict__`, like a cached property.
    """
    plan: ArgumentPlan | None = task.__dict__.get("_argument_plan")
    if plan is None:
        plan = task.__dict__["_argument_plan"] = ArgumentPlan(task)
    return plan


def convert_arguments(task: AnyTask, stored: Mapping[str, Any], parents: Mapping[str, Any]) -> dict[str, Any]:
    """Convert stored arguments and results of parent tasks to the function's parameters.

    Raises InvalidError when they do not match: the signature may have changed since the task was submitted.
    """
    plan = get_argument_plan(task)
    arguments: dict[str, Any] = {}
    for name, value in stored.items():
        value_type = cast("object", type(value))
        if name not in plan.hints:
            raise _build_mismatch_error(task, plan, stored)
        if value_type is plan.exact_types[name]:
            arguments[name] = value
        else:
            filled = insert_results(value, parents) if value_type is dict or value_type is list else value
            arguments[name] = convert_payload(filled, plan.hints[name], what=name)
    if len(arguments) < len(plan.names) and not arguments.keys() >= set(plan.required):
        raise _build_mismatch_error(task, plan, stored)
    return arguments


def _build_mismatch_error(task: AnyTask, plan: ArgumentPlan, stored: Mapping[str, Any]) -> InvalidError:
    problems = [
        *(f"{name} is unknown" for name in sorted(stored.keys() - plan.names)),
        *(f"{name} is missing" for name in plan.required if name not in stored),
    ]
    return InvalidError(
        f"The stored arguments do not match the signature of {task.name}: {', '.join(problems)}.",
        field="args",
    )
