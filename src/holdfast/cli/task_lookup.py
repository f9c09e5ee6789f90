"""Find a task by its name for `submit` and `schema`: in an application's code, or as workers registered it.

Arguments from the command line are text. Where the task has a schema, text is converted to the type that the
schema asks for: `width=800` becomes a number if `width` is a number.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Any, cast

import msgspec

from holdfast.cli import app_loader
from holdfast.client import Client
from holdfast.definitions import payloads
from holdfast.definitions.job_types import JobType
from holdfast.definitions.submit_requests import build_task_policy, build_work_request
from holdfast.engine import queues as engine_queues
from holdfast.engine.task_types import list_task_types
from holdfast.errors import NotFoundError

Schema = dict[str, Any]
MAX_SCHEMA_REF_DEPTH = 5
_PYTHON_TYPES_BY_JSON_TYPE: dict[str, Any] = {
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
    "array": list,
    "object": dict,
}
_SUBMIT_OPTION_NAMES = (
    "priority",
    "attempts",
    "base_s",
    "cap_s",
    "jitter",
    "timeout_s",
    "lease_s",
    "crashes",
)


@dataclass(frozen=True)
class SubmitTemplate:
    """A task or job type that can be submitted: its submit options and the schema of its arguments."""

    body: dict[str, Any]
    schema: Schema | None = None
    doc: str | None = None
    job_type: JobType[Any] | None = None

    def build_submit_body(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Build the JSON body that submits this task with these arguments."""
        if self.job_type is not None:
            return build_work_request(self.job_type(self.convert_arguments(arguments)))
        stored = msgspec.Raw(payloads.encode_payload(self.convert_arguments(arguments), what="args"))
        return {**self.body, "args": stored, "check": True}

    def convert_arguments(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Convert text arguments to the types in the task's schema. Other values stay unchanged."""
        properties = cast("dict[str, Any]", (self.schema or {}).get("properties", {}))
        return {
            name: _convert_text_value(value, properties.get(name), self.schema)
            for name, value in arguments.items()
        }


def _convert_text_value(value: object, schema: Schema | None, root_schema: Schema | None) -> object:
    json_types = _get_allowed_json_types(schema or {}, root_schema or {})
    if not isinstance(value, str) or not json_types or "string" in json_types:
        return value
    try:
        parsed = msgspec.json.decode(value)
    except msgspec.DecodeError:
        return value
    matches = any(
        isinstance(parsed, _PYTHON_TYPES_BY_JSON_TYPE[name])
        for name in json_types
        if name in _PYTHON_TYPES_BY_JSON_TYPE
    )
    # In Python a bool is an int, in JSON true is not a number.
    return parsed if matches and not (isinstance(parsed, bool) and "boolean" not in json_types) else value


def _get_allowed_json_types(schema: Schema, root_schema: Schema, depth: int = 0) -> set[str]:
    """Return the names of the JSON types that a schema allows, or an empty set if it allows any."""
    if "$ref" in schema and depth < MAX_SCHEMA_REF_DEPTH:
        name = str(schema["$ref"]).rpartition("/")[2]
        return _get_allowed_json_types(root_schema.get("$defs", {}).get(name, {}), root_schema, depth + 1)
    alternatives = cast("list[Schema]", schema.get("anyOf") or schema.get("oneOf") or [])
    if alternatives:
        return {
            name for each in alternatives for name in _get_allowed_json_types(each, root_schema, depth + 1)
        }
    if "enum" in schema or "const" in schema:
        constants = schema.get("enum", [schema.get("const")])
        return {name for constant in constants for name in (_find_json_type(constant),) if name}
    json_type = schema.get("type")
    if isinstance(json_type, list):
        return set(cast("list[str]", json_type))
    return {str(json_type)} if json_type else set()


def _find_json_type(value: object) -> str | None:
    if isinstance(value, str):
        return "string"
    return next((name for name, types in _PYTHON_TYPES_BY_JSON_TYPE.items() if type(value) is types), None)


async def find_submit_template(
    client: Client, name: str, app: str | None, queue: str | None
) -> SubmitTemplate:
    """Return a task by name: from the code of `app` if given, else from the tasks that workers registered.

    For a task that no worker has registered, use `queue`, or the queue where tasks of this type are stored.
    """
    if app is not None:
        return load_submit_template_from_app(app, name)
    registered = await build_template_of_registered_task(client, name)
    if registered is not None:
        return registered
    if queue is not None:
        return SubmitTemplate({"type": name})
    return SubmitTemplate({"type": name, "queue": await _find_queue_of_stored_tasks(client, name)})


async def _find_queue_of_stored_tasks(client: Client, name: str) -> str:
    """Return the only queue that holds tasks of this type. Raise `NotFoundError` if there is no such queue.

    An unknown task type is refused, because its jobs would never run.
    """
    async with client.connection() as connection:
        rows = await engine_queues.list_task_queues(connection, max_rows=1)
    queues = [row["queue"] for row in rows if name in (row["types"] or ())]
    if len(queues) == 1:
        return str(queues[0])
    known = sorted({task_type for row in rows for task_type in row["types"] or ()})
    similar = difflib.get_close_matches(name, known, 3) or known[:10]
    message = f"No worker has registered task {name!r}."
    if queues:
        message = f"Tasks of type {name!r} exist in more than one queue: {', '.join(queues)}."
    raise NotFoundError(
        message,
        fix="Name the queue with --queue, name the code with --app, or start the worker."
        + (f" Known tasks: {', '.join(similar)}." if similar else ""),
        field="task",
    )


def load_submit_template_from_app(app: str, name: str) -> SubmitTemplate:
    """Load an application and return its task or job type `name`, or raise `NotFoundError`."""
    loaded = app_loader.load_app(app)
    if name in loaded.types:
        job_type = loaded.types[name]
        return SubmitTemplate({}, _build_params_schema(job_type), job_type.doc, job_type)
    task = loaded.tasks.get(name)
    if task is None:
        known = ", ".join(sorted([*loaded.tasks, *loaded.types]))
        raise NotFoundError(f"{app} defines no task {name!r}.", fix=f"It defines: {known}.")
    body = {"type": task.name, "queue": task.queue, **build_task_policy(task)}
    return SubmitTemplate(body, payloads.build_arguments_schema(cast("Any", task)), task.function.__doc__)


def _build_params_schema(job_type: JobType[Any]) -> Schema | None:
    try:
        (schema,), definitions = msgspec.json.schema_components(
            [job_type.params], ref_template="#/$defs/{name}"
        )
    except TypeError:  # a class of another library: its values are checked when the graph is built
        return None
    inner = definitions.get(str(schema.get("$ref", "")).rpartition("/")[2], schema)
    return {**inner, "$defs": definitions}


async def build_template_of_registered_task(client: Client, name: str) -> SubmitTemplate | None:
    """Return a task that workers registered in the database, or None."""
    async with client.connection() as connection:
        rows = {row["name"]: row for row in await list_task_types(connection)}
    row = rows.get(name)
    if row is None:
        return None
    options: dict[str, Any] = row["options"] or {}
    policy = {option: options[option] for option in _SUBMIT_OPTION_NAMES if options.get(option) is not None}
    return SubmitTemplate({"type": name, "queue": row["queue"], **policy}, row["schema"], row["doc"])
