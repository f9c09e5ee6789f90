"""What an application declares in code, written down when its worker starts: task types, limits, schedules.

Writing is by name and changes only what the code changed, so that a pause or a limit set by an operator
survives a restart. Schedules that the code no longer has are named in an event and go on: another version
may have them.
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
from holdfast.definitions.submit_body import policy_of
from holdfast.definitions.tasks import Task
from holdfast.engine import catalogue, schedules
from holdfast.engine.connection import Connection
from holdfast.version import __version__


async def declare(
    connection: Connection,
    source: str,
    tasks: Iterable[Task[..., Any]],
    declared: Iterable[Schedule],
) -> None:
    await catalogue.register_types(connection, source, [_type_body(task) for task in tasks])
    bodies = [schedule.body() for schedule in declared]
    answer = await schedules.register_schedules(connection, source, bodies)
    if answer.created or answer.changed or answer.missing:
        telemetry.emit("schedules.declared", source=source, **msgspec.structs.asdict(answer))


def _type_body(task: Task[..., Any]) -> dict[str, Any]:
    schema = payloads.schema_of(task)
    text = msgspec.json.encode(schema, order="deterministic")
    return {
        "name": task.name,
        "queue": task.queue,
        "schema": schema,
        "hash": hashlib.sha256(text).hexdigest()[:16],
        "doc": inspect.getdoc(task.function),
        "options": {
            **policy_of(task),
            "limit": task.limit,
            "process": task.process,
            "priority": task.priority,
        },
        "version": __version__,
    }
