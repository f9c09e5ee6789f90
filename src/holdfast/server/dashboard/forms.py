"""Forms out of JSON schemas, and what people typed back into values.

A field of a simple type has an input of its own; anything else is edited as JSON. What was left empty and
need not be given is left out. The check against the schema is the database's, which names the wrong field.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.datastructures import FormData

from holdfast.errors import InvalidError
from holdfast.server.dashboard.redaction import MASK
from holdfast.server.dashboard.shapes import listed, mapped

PREFIX = "arg."


@dataclass(frozen=True)
class Field:
    name: str
    kind: str  # text, long, whole, number, truth, choice, json
    required: bool
    value: str
    hint: str = ""
    choices: tuple[str, ...] = ()


def fields(schema: Mapping[str, Any] | None, values: Mapping[str, Any]) -> list[Field] | None:
    """None: nothing is known about the arguments, edit them as JSON."""
    properties = (schema or {}).get("properties")
    if not isinstance(properties, dict):
        return None
    required: set[str] = set(listed((schema or {}).get("required")))
    found = [
        _field(name, _resolved(about, schema or {}), name in required, values)
        for name, about in mapped(properties).items()
    ]
    extra = set(values) - {field.name for field in found}
    return None if extra else found


def _resolved(about: Any, root: Mapping[str, Any]) -> dict[str, Any]:
    said = mapped(about) if isinstance(about, dict) else {}
    place = str(said.get("$ref", ""))
    if place.startswith("#/$defs/"):
        return mapped(mapped(root.get("$defs")).get(place.rpartition("/")[2], {}))
    for option in said.get("anyOf") or ():
        if isinstance(option, dict) and mapped(option).get("type") != "null":
            return {**_resolved(option, root), **{k: v for k, v in said.items() if k != "anyOf"}}
    return said


def _field(name: str, about: dict[str, Any], required: bool, values: Mapping[str, Any]) -> Field:
    kind, choices = _kind(about)
    given = values.get(name, about.get("default"))
    known = name in values or "default" in about
    text = "" if not known or given is None else _text(given, kind)
    hint = str(about.get("description") or about.get("format") or about.get("type") or "")
    return Field(name, kind, required, text, hint, choices)


def _kind(about: dict[str, Any]) -> tuple[str, tuple[str, ...]]:
    options = about.get("enum")
    if isinstance(options, list) and all(isinstance(o, str) for o in listed(options)):
        return "choice", tuple(listed(options))
    match about.get("type"):
        case "string":
            return ("long" if about.get("maxLength", 0) > 500 else "text"), ()
        case "integer":
            return "whole", ()
        case "number":
            return "number", ()
        case "boolean":
            return "truth", ()
        case _:
            return "json", ()


def _text(value: Any, kind: str) -> str:
    if kind in {"text", "long", "choice"} and isinstance(value, str):
        return value
    return msgspec.json.encode(value).decode()


def typed(form: FormData, schema: Mapping[str, Any] | None) -> dict[str, Any]:
    """The arguments that somebody typed: field by field, or as one JSON object."""
    whole = form.get("args")
    if isinstance(whole, str):
        value = _json(whole or "{}", "args")
        if not isinstance(value, dict):
            raise InvalidError("args must be a JSON object.", field="args")
        return mapped(value)
    found: dict[str, Any] = {}
    for field in fields(schema, {}) or ():
        text = form.get(PREFIX + field.name)
        if isinstance(text, str) and (text or (field.required and field.kind in {"text", "long"})):
            found[field.name] = _typed(text, field)
    return found


def _typed(text: str, field: Field) -> Any:
    if field.kind in {"text", "long", "choice"} or text == MASK:
        return text
    return _json(text.strip(), field.name)


def _json(text: str, name: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as problem:
        raise InvalidError(f"{name} is not valid JSON: {problem}.", field=name) from None


def unmasked(value: Any, old: Any) -> Any:
    """What was masked for the one who edited it is as it was."""
    if value == MASK:
        return old
    shape = value.__class__ if value.__class__ is old.__class__ else None
    if shape is dict:
        before = mapped(old)
        return {name: unmasked(inner, before.get(name)) for name, inner in mapped(value).items()}
    if shape is list:
        former = [*listed(old), *([None] * len(value))]
        return [unmasked(inner, former[n]) for n, inner in enumerate(listed(value))]
    return value
