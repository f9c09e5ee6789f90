"""Python values to JSON that PostgreSQL can keep, and back to what a signature asks for.

Dataclasses, msgspec structs, pydantic models, enums, dates, UUIDs and durations travel as plain JSON.
What cannot come back as it went (NaN, NUL characters, lone surrogates) is refused where it is given,
with the place named, instead of failing later in the database.
"""

from __future__ import annotations

import math
from typing import Any, cast

import msgspec

from holdfast.errors import InvalidError

MAX_BYTES = 256 * 1024


def _encode_foreign(value: Any) -> Any:
    dump = getattr(value, "model_dump", None)  # pydantic, without importing it
    if dump is not None:
        return dump(mode="json")
    raise NotImplementedError(f"values of type {type(value).__name__} cannot be stored as JSON")


def _decode_foreign(kind: type, value: Any) -> Any:
    validate = getattr(kind, "model_validate", None)
    if validate is not None:
        return validate(value)
    raise NotImplementedError(f"cannot make a {kind.__name__} from JSON")


def to_json(value: object, *, what: str, limit: int = MAX_BYTES) -> bytes:
    """`value` as JSON text. `what` names it in the error when it cannot be."""
    try:
        plain = msgspec.to_builtins(value, enc_hook=_encode_foreign)
        _refuse_lossy(plain, what)
        text = msgspec.json.encode(plain)
    except (TypeError, ValueError, NotImplementedError, RecursionError) as problem:
        raise InvalidError(f"{what} cannot be stored as JSON: {problem}.", field=what) from problem
    if len(text) > limit:
        raise InvalidError(
            f"{what} is {len(text):,} bytes long; at most {limit:,} are kept in a row.",
            fix="Save it as an artifact and pass its key instead.",
            field=what,
        )
    return text


def _refuse_lossy(value: object, place: str) -> None:
    if isinstance(value, str):
        if "\0" in value:
            raise InvalidError(
                f"{place} contains a NUL character, which PostgreSQL cannot keep.", field=place
            )
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidError(f"{place} is {value}, which JSON cannot say.", field=place)
    elif isinstance(value, dict):
        for key, inner in cast("dict[str, object]", value).items():
            _refuse_lossy(key, f"a key of {place}")
            _refuse_lossy(inner, f"{place}.{key}")
    elif isinstance(value, (list, tuple)):
        for number, inner in enumerate(cast("list[object]", value)):
            _refuse_lossy(inner, f"{place}[{number}]")


def from_json(value: object, kind: Any, *, what: str) -> Any:
    """A decoded JSON value as the type that `kind` asks for."""
    if kind is Any or kind is object:
        return value
    try:
        return msgspec.convert(value, kind, dec_hook=_decode_foreign)
    except (msgspec.ValidationError, ValueError, NotImplementedError) as problem:
        raise InvalidError(f"{what} does not fit: {problem}.", field=what) from problem
