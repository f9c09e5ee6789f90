"""Convert Python values to JSON that PostgreSQL can store, and back to the types of a signature.

Dataclasses, msgspec structs, pydantic models, enums, dates, UUIDs and durations are stored as plain JSON.
Values that JSON or PostgreSQL would change (NaN, NUL characters, lone surrogates) are refused when they are
passed, with an error that names their place, instead of failing later in the database.
"""

from __future__ import annotations

import inspect
import math
import types
import typing
from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any, Protocol, cast

import msgspec

from holdfast.errors import InvalidError

MAX_PAYLOAD_BYTES = 256 * 1024


def _encode_pydantic_model(value: Any) -> Any:
    dump = getattr(value, "model_dump", None)  # pydantic, without importing it
    if dump is not None:
        return dump(mode="json")
    raise NotImplementedError(f"values of type {type(value).__name__} cannot be stored as JSON")


def _decode_pydantic_model(kind: type, value: Any) -> Any:
    if kind is object:
        return value
    validate = getattr(kind, "model_validate", None)
    if validate is not None:
        return validate(value)
    raise NotImplementedError(f"values of type {kind.__name__} cannot be read from JSON")


def encode_payload(value: object, *, what: str, limit: int = MAX_PAYLOAD_BYTES) -> bytes:
    """Encode a value as JSON. Raise InvalidError if it is too large or cannot be stored. `what` names it."""
    try:
        text = msgspec.json.encode(value, enc_hook=_encode_pydantic_model)
        if b"null" in text or b"\\u0000" in text:  # NaN becomes null; most values have neither
            _refuse_lossy_values(msgspec.to_builtins(value, enc_hook=_encode_pydantic_model), what)
    except (TypeError, ValueError, NotImplementedError, RecursionError) as error:
        raise _build_unstorable_error(value, what, error) from error
    if len(text) > limit:
        raise InvalidError(
            f"{what} is {len(text):,} bytes of JSON; the maximum is {limit:,} bytes.",
            fix="Save it as a file and pass the id of the file instead.",
            field=what,
        )
    return text


def _build_unstorable_error(value: object, what: str, error: Exception) -> InvalidError:
    """Build the error for a value that JSON cannot represent. It names the place of the value."""
    try:
        place, cause = _find_unstorable_value(value, what) or (what, None)
    except RecursionError:  # a value that contains itself
        place, cause = what, None
    if cause is None:
        return InvalidError(f"{what} cannot be stored as JSON: {error}.", field=what)
    if inspect.isawaitable(cause):
        if inspect.iscoroutine(cause):
            cause.close()  # or it would warn that it was never awaited
        fix = "Await it first."
    else:
        fix = "Pass plain values, a dataclass or a pydantic model, or an id by which the task loads it."
    kind = f"{type(cause).__module__}.{type(cause).__qualname__}".removeprefix("builtins.")
    return InvalidError(
        f"{place} is a value of type {kind}, which cannot be stored as JSON.", fix=fix, field=what
    )


def _find_unstorable_value(value: object, place: str) -> tuple[str, object] | None:
    """Return the place and the value of the innermost part that JSON cannot represent, or None."""
    whole: object = value
    if isinstance(value, dict):
        parts = [(f"{place}.{key}", inner) for key, inner in cast("dict[object, object]", value).items()]
    elif isinstance(value, (list, tuple, set, frozenset)):
        parts = [(f"{place}[{n}]", inner) for n, inner in enumerate(cast("list[object]", value))]
    elif isinstance(value, (str, int, float)):
        return None
    else:
        parts = []
    for inner_place, inner in parts:
        if (part := _find_unstorable_value(inner, inner_place)) is not None:
            return part
    try:
        msgspec.to_builtins(value, enc_hook=_encode_pydantic_model)
    except (TypeError, ValueError, NotImplementedError):
        return place, whole
    return None


def _refuse_lossy_values(value: object, place: str) -> None:
    if isinstance(value, str):
        if "\0" in value:
            raise InvalidError(
                f"{place} contains a NUL character, which PostgreSQL cannot store.", field=place
            )
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidError(f"{place} is {value}, which JSON cannot represent.", field=place)
    elif isinstance(value, dict):
        for key, inner in cast("dict[str, object]", value).items():
            _refuse_lossy_values(key, f"a key of {place}")
            _refuse_lossy_values(inner, f"{place}.{key}")
    elif isinstance(value, (list, tuple)):
        for number, inner in enumerate(cast("list[object]", value)):
            _refuse_lossy_values(inner, f"{place}[{number}]")


def convert_payload(value: object, kind: Any, *, what: str) -> Any:
    """Convert a decoded JSON value to the type `kind`. Raise InvalidError if it does not fit."""
    if kind is Any or kind is object:
        return value
    try:
        return msgspec.convert(value, kind, dec_hook=_decode_pydantic_model)
    except (msgspec.ValidationError, ValueError, NotImplementedError) as error:
        raise InvalidError(f"{what} does not have the expected type: {error}.", field=what) from error


class TaskSignature(Protocol):
    """The name of a task, its parameters and their types."""

    @property
    def name(self) -> str: ...
    @property
    def signature(self) -> inspect.Signature: ...
    @property
    def hints(self) -> Any: ...


def build_arguments_schema(task: TaskSignature) -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of a task's arguments, for task types, forms and checks.

    A parameter whose type JSON Schema cannot describe accepts every value here. The worker still checks it.
    """
    kinds = {name: _add_date_time_format(task.hints.get(name, Any)) for name in task.signature.parameters}
    described = {name: kind for name, kind in kinds.items() if _has_json_schema(kind)}
    foreign: dict[str, Any] = {}
    schemas, components = msgspec.json.schema_components(
        described.values(), schema_hook=_build_pydantic_schema_hook(foreign), ref_template="#/$defs/{name}"
    )
    everything: dict[str, dict[str, Any]] = {name: {} for name in kinds}
    properties = {**everything, **dict(zip(described, schemas, strict=True))}
    for name, parameter in task.signature.parameters.items():
        properties[name] = _add_schema_default(properties[name], parameter.default)
    for name, marks in _find_schema_marks(task).items():
        properties[name] = {**properties[name], **marks}
    required = [n for n, p in task.signature.parameters.items() if p.default is p.empty]
    schema: dict[str, Any] = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": task.name,
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }
    definitions = {**components, **foreign}
    return {**schema, "$defs": definitions} if definitions else schema


def _find_schema_marks(task: TaskSignature) -> dict[str, dict[str, Any]]:
    """Return what parameters add to their schema with `Annotated`, such as the mark of a secret.

    The hints of a task leave `Annotated` out.
    """
    hints: dict[str, Any] = getattr(task, "annotated_hints", {})
    marks_by_name: dict[str, dict[str, Any]] = {}
    for name in task.signature.parameters:
        for mark in getattr(hints.get(name), "__metadata__", ()):
            if isinstance(mark, msgspec.Meta) and mark.extra_json_schema:
                marks_by_name.setdefault(name, {}).update(mark.extra_json_schema)
    return marks_by_name


def build_type_schema(kind: Any) -> dict[str, Any] | None:
    """Return the JSON Schema of a type, or None if JSON Schema cannot describe it."""
    if not _has_json_schema(kind):
        return None
    foreign: dict[str, Any] = {}
    (schema,), components = msgspec.json.schema_components(
        [kind], schema_hook=_build_pydantic_schema_hook(foreign), ref_template="#/$defs/{name}"
    )
    return {**schema, "$defs": {**components, **foreign}}


def _has_json_schema(kind: Any) -> bool:
    try:
        msgspec.json.schema_components([kind], schema_hook=_build_pydantic_schema_hook({}))
    except (TypeError, NotImplementedError, ValueError):
        return False
    return True


def _build_pydantic_schema_hook(definitions: dict[str, Any]) -> Callable[[type], dict[str, Any]]:
    """Build the msgspec schema hook for pydantic models. It adds their definitions to `definitions`."""

    def describe(kind: type) -> dict[str, Any]:
        describe_model = getattr(kind, "model_json_schema", None)
        if describe_model is None:
            raise NotImplementedError(f"{kind.__name__} has no schema")
        schema: dict[str, Any] = describe_model(ref_template=f"#/$defs/{kind.__name__}.{{model}}")
        inner: dict[str, Any] = schema.pop("$defs", {})
        definitions.update({f"{kind.__name__}.{name}": each for name, each in inner.items()})
        return schema

    return describe


def _add_date_time_format(kind: Any) -> Any:
    """Return the type with the JSON Schema format `date-time` added to every datetime in it."""
    if kind is datetime:
        return Annotated[datetime, msgspec.Meta(extra_json_schema={"format": "date-time"})]
    if typing.get_origin(kind) in (types.UnionType, typing.Union) and datetime in typing.get_args(kind):
        return typing.Union[tuple(_add_date_time_format(each) for each in typing.get_args(kind))]  # noqa: UP007
    return kind


def _add_schema_default(schema: dict[str, Any], default: object) -> dict[str, Any]:
    """Return the schema of a parameter with its default value, if JSON can represent the value."""
    if default is inspect.Parameter.empty:
        return schema
    try:
        plain = msgspec.to_builtins(default, enc_hook=_encode_pydantic_model)
        _refuse_lossy_values(plain, "default")
        plain = msgspec.json.decode(msgspec.json.encode(plain))
    except (TypeError, ValueError, NotImplementedError, InvalidError):
        return schema
    # Since draft 2019-09, keywords beside a reference count; older readers need allOf.
    return {"allOf": [schema], "default": plain} if "$ref" in schema else {**schema, "default": plain}
