"""Read submitted forms, build forms from JSON schemas, and parse submitted forms into arguments.

A field of a simple type has an input of its own; everything else is edited as JSON. An optional field that is
left empty is omitted. The database validates the arguments against the schema and names the invalid field.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import parse_qsl

import msgspec
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request

from holdfast.errors import InvalidError
from holdfast.server.api.request_parsing import read_body
from holdfast.server.dashboard.json_values import list_or_empty, object_or_empty
from holdfast.server.dashboard.redaction import MASK_TEXT

ARGUMENT_FIELD_PREFIX = "arg."
MAX_FORM_BYTES = 1024 * 1024
MAX_FORM_FIELDS = 5000
MIN_MULTILINE_CHARS = 500
FieldKind = Literal["text", "multiline", "integer", "number", "boolean", "choice", "json"]
_TEXT_FIELD_KINDS = frozenset({"text", "multiline", "choice"})


@dataclass(frozen=True)
class FormField:
    """One input field of an HTML form, with its initial text."""

    name: str
    kind: FieldKind
    required: bool
    value: str
    hint: str = ""
    choices: tuple[str, ...] = ()


async def read_form(request: Request) -> FormData:
    """Read the URL-encoded form in a request. Raise a 4xx error for a form that is too large or not valid."""
    body = await read_body(request, MAX_FORM_BYTES)
    pairs: list[tuple[str, str | UploadFile]] = []
    try:
        pairs += parse_qsl(
            body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=MAX_FORM_FIELDS
        )
    except ValueError:
        raise HTTPException(413, f"The form has more than {MAX_FORM_FIELDS} fields.") from None
    if any("\0" in text for pair in pairs for text in pair if isinstance(text, str)):
        raise HTTPException(400, "The form contains a NUL character, which PostgreSQL cannot store.")
    return FormData(pairs)


def build_form_fields(schema: Mapping[str, Any] | None, values: Mapping[str, Any]) -> list[FormField] | None:
    """Build a form field for each argument in a task's schema. Return None if the schema is unknown.

    That is the case if the schema is unknown, or if a value is not part of it.
    """
    properties = (schema or {}).get("properties")
    if not isinstance(properties, dict):
        return None
    required: set[str] = set(list_or_empty((schema or {}).get("required")))
    fields = [
        _build_form_field(name, _resolve_schema_reference(definition, schema or {}), name in required, values)
        for name, definition in object_or_empty(properties).items()
    ]
    unknown = set(values) - {field.name for field in fields}
    return None if unknown else fields


def _resolve_schema_reference(definition: Any, root: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema that a `$ref` or the first non-null alternative of an `anyOf` refers to."""
    schema = object_or_empty(definition) if isinstance(definition, dict) else {}
    reference = str(schema.get("$ref", ""))
    if reference.startswith("#/$defs/"):
        return object_or_empty(object_or_empty(root.get("$defs")).get(reference.rpartition("/")[2], {}))
    for option in schema.get("anyOf") or ():
        if isinstance(option, dict) and object_or_empty(option).get("type") != "null":
            rest = {key: value for key, value in schema.items() if key != "anyOf"}
            return {**_resolve_schema_reference(option, root), **rest}
    return schema


def _build_form_field(
    name: str, schema: dict[str, Any], required: bool, values: Mapping[str, Any]
) -> FormField:
    kind, choices = _choose_field_kind(schema)
    value = values.get(name, schema.get("default"))
    text = "" if value is None else _format_field_value(value, kind)
    hint = str(schema.get("description") or schema.get("format") or schema.get("type") or "")
    return FormField(name, kind, required, text, hint, choices)


def _choose_field_kind(schema: dict[str, Any]) -> tuple[FieldKind, tuple[str, ...]]:
    options = schema.get("enum")
    if isinstance(options, list) and all(isinstance(option, str) for option in list_or_empty(options)):
        return "choice", tuple(list_or_empty(options))
    match schema.get("type"):
        case "string":
            return ("multiline" if schema.get("maxLength", 0) > MIN_MULTILINE_CHARS else "text"), ()
        case "integer":
            return "integer", ()
        case "number":
            return "number", ()
        case "boolean":
            return "boolean", ()
        case _:
            return "json", ()


def _format_field_value(value: Any, kind: FieldKind) -> str:
    if kind in _TEXT_FIELD_KINDS and isinstance(value, str):
        return value
    return msgspec.json.encode(value).decode()


def parse_form_arguments(form: FormData, schema: Mapping[str, Any] | None) -> dict[str, Any]:
    """Parse the arguments of a task from a submitted form: from one JSON field, or from one field each."""
    whole = form.get("args")
    if isinstance(whole, str):
        value = _parse_json_field(whole or "{}", "args")
        if not isinstance(value, dict):
            raise InvalidError("args must be a JSON object.", field="args")
        return object_or_empty(value)
    arguments: dict[str, Any] = {}
    for field in build_form_fields(schema, {}) or ():
        text = form.get(ARGUMENT_FIELD_PREFIX + field.name)
        if isinstance(text, str) and (text or (field.required and field.kind in {"text", "multiline"})):
            arguments[field.name] = _parse_field_value(text, field)
    return arguments


def _parse_field_value(text: str, field: FormField) -> Any:
    if field.kind in _TEXT_FIELD_KINDS or text == MASK_TEXT:
        return text
    return _parse_json_field(text.strip(), field.name)


def _parse_json_field(text: str, name: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise InvalidError(f"{name} is not valid JSON: {error}.", field=name) from None


def restore_masked_values(value: Any, original: Any) -> Any:
    """Replace each masked value in edited arguments with the original value."""
    if value == MASK_TEXT:
        return original
    common = value.__class__ if value.__class__ is original.__class__ else None
    if common is dict:
        before = object_or_empty(original)
        return {
            name: restore_masked_values(item, before.get(name))
            for name, item in object_or_empty(value).items()
        }
    if common is list:
        padded = [*list_or_empty(original), *([None] * len(value))]
        return [restore_masked_values(item, padded[n]) for n, item in enumerate(list_or_empty(value))]
    return value
