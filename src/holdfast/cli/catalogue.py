"""What is known about a task by its name: from an application's code, or from what workers have told.

Text from a command line is fitted to the schema where there is one: `width=800` is a number when the task
says that width is a number.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Any, cast

import msgspec

from holdfast.cli import apps
from holdfast.client import Client
from holdfast.definitions import payloads
from holdfast.definitions.job_types import JobType
from holdfast.definitions.submit_body import policy_of, work_body
from holdfast.engine import operate
from holdfast.engine.catalogue import list_types
from holdfast.errors import NotFoundError

Schema = dict[str, Any]
_PLAIN: dict[str, Any] = {
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
    "array": list,
    "object": dict,
}


@dataclass(frozen=True)
class Known:
    """A task as `submit` needs it: how it wants to be run, and what its arguments look like."""

    body: dict[str, Any]
    schema: Schema | None = None
    doc: str | None = None
    kind: JobType[Any] | None = None

    def job(self, args: dict[str, Any]) -> dict[str, Any]:
        """The body of a job with these arguments, as `submit` takes it."""
        if self.kind is not None:
            return work_body(self.kind(self.fitted(args)))
        stored = msgspec.Raw(payloads.to_json(self.fitted(args), what="args"))
        return {**self.body, "args": stored, "check": True}

    def fitted(self, args: dict[str, Any]) -> dict[str, Any]:
        properties = cast("dict[str, Any]", (self.schema or {}).get("properties", {}))
        return {name: _fitted(value, properties.get(name), self.schema) for name, value in args.items()}


def _fitted(value: object, wanted: Schema | None, whole: Schema | None) -> object:
    kinds = _kinds(wanted or {}, whole or {})
    if not isinstance(value, str) or not kinds or "string" in kinds:
        return value
    try:
        parsed = msgspec.json.decode(value)
    except msgspec.DecodeError:
        return value
    fits = any(isinstance(parsed, _PLAIN[kind]) for kind in kinds if kind in _PLAIN)
    return parsed if fits and not (isinstance(parsed, bool) and "boolean" not in kinds) else value


def _kinds(wanted: Schema, whole: Schema, depth: int = 0) -> set[str]:
    """The JSON types that a schema allows; empty when it does not say."""
    if "$ref" in wanted and depth < 5:
        name = str(wanted["$ref"]).rpartition("/")[2]
        return _kinds(whole.get("$defs", {}).get(name, {}), whole, depth + 1)
    options = cast("list[Schema]", wanted.get("anyOf") or wanted.get("oneOf") or [])
    if options:
        return {kind for option in options for kind in _kinds(option, whole, depth + 1)}
    if "enum" in wanted or "const" in wanted:
        named = wanted.get("enum", [wanted.get("const")])
        return {kind for each in named for kind in (_kind_of(each),) if kind}
    kind = wanted.get("type")
    return set(cast("list[str]", kind)) if isinstance(kind, list) else {str(kind)} if kind else set()


def _kind_of(value: object) -> str | None:
    if isinstance(value, str):
        return "string"
    return next((kind for kind, types in _PLAIN.items() if type(value) is types), None)


async def find(client: Client, name: str, app: str | None, queue: str | None) -> Known:
    """The task of that name: of the application if one is given, else as workers described it."""
    if app is not None:
        return in_app(app, name)
    return await registered(client, name) or Known({"type": name, **await _seen(client, name, queue)})


async def _seen(client: Client, name: str, queue: str | None) -> dict[str, Any]:
    """The queue that such a task was in before. A name that nobody knows would wait for ever: refused."""
    if queue is not None:
        return {}
    async with (await client.open()).connection() as connection:
        found = await operate.task_queues(connection, most=1)
    queues = [row["queue"] for row in found if name in (row["types"] or ())]
    if len(queues) == 1:
        return {"queue": queues[0]}
    known = sorted({each for row in found for each in row["types"] or ()})
    near = difflib.get_close_matches(name, known, 3) or known[:10]
    raise NotFoundError(
        f"No worker has told of a task {name!r}."
        if not queues
        else f"Tasks called {name!r} were in more than one queue: {', '.join(queues)}.",
        fix="Name its queue with --queue, its code with --app, or start its worker."
        + (f" Known are: {', '.join(near)}." if near else ""),
        field="task",
    )


def in_app(app: str, name: str) -> Known:
    found = apps.load(app)
    if name in found.types:
        kind = found.types[name]
        return Known({}, _params_schema(kind), kind.doc, kind)
    tasks = found.tasks
    task = tasks.get(name)
    if task is None:
        known = ", ".join(sorted([*tasks, *found.types]))
        raise NotFoundError(f"There is no task {name!r} in {app}.", fix=f"It has: {known}.")
    body = {"type": task.name, "queue": task.queue, **policy_of(task)}
    return Known(body, payloads.schema_of(cast("Any", task)), task.function.__doc__)


def _params_schema(kind: JobType[Any]) -> Schema | None:
    try:
        (schema,), definitions = msgspec.json.schema_components([kind.params], ref_template="#/$defs/{name}")
    except TypeError:  # a type of another library: fitted by nobody, checked when the graph is built
        return None
    inner = definitions.get(str(schema.get("$ref", "")).rpartition("/")[2], schema)
    return {**inner, "$defs": definitions}


async def registered(client: Client, name: str) -> Known | None:
    """As the workers that know it have described it."""
    async with (await client.open()).connection() as connection:
        types = {found["name"]: found for found in await list_types(connection)}
    found = types.get(name)
    if found is None:
        return None
    body = {"type": name, "queue": found["queue"], **_policy(found["options"] or {})}
    return Known(body, found["schema"], found["doc"])


def _policy(options: dict[str, Any]) -> dict[str, Any]:
    """Of what a worker told of a task, that which `submit` understands."""
    known = ("priority", "attempts", "base_s", "cap_s", "jitter", "timeout_s", "lease_s", "crashes")
    return {name: options[name] for name in known if options.get(name) is not None}
