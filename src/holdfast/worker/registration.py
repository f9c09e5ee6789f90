"""Register what an application defines in code when its worker starts: task types and schedules.

Registration is by name and changes only what the code changed, so that a pause or a limit that an operator
set survives a restart. Schedules that the code no longer defines are listed in an event and stay active,
because another version of the application may define them.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Iterable
from typing import Any

import msgspec

from holdfast import telemetry
from holdfast.definitions import payloads
from holdfast.definitions.schedules import Schedule
from holdfast.definitions.submit_requests import build_task_policy
from holdfast.definitions.tasks import Task
from holdfast.engine import schedules, task_types
from holdfast.engine.connection import Connection
from holdfast.version import __version__


async def register_definitions(
    connection: Connection,
    source: str,
    tasks: Iterable[Task[..., Any]],
    declared_schedules: Iterable[Schedule],
) -> None:
    """Store the task types and schedules of an application. `source` is the name of the application."""
    await task_types.register_task_types(
        connection, source, [_build_task_type_request(task) for task in tasks]
    )
    requests = [schedule.build_request() for schedule in declared_schedules]
    result = await schedules.register_schedules(connection, source, requests)
    if result.created or result.changed or result.missing:
        telemetry.emit("schedules.registered", source=source, **msgspec.structs.asdict(result))


def _build_task_type_request(task: Task[..., Any]) -> dict[str, Any]:
    schema = payloads.build_arguments_schema(task)
    text = msgspec.json.encode(schema, order="deterministic")
    return {
        "name": task.name,
        "queue": task.queue,
        "schema": schema,
        "hash": hashlib.sha256(text).hexdigest()[:16],
        "doc": inspect.getdoc(task.function),
        "options": {
            **build_task_policy(task),
            "limit": task.limit,
            "process": task.process,
            "priority": task.priority,
        },
        "version": __version__,
    }
