"""Errors of single fields of a request: one response with status 400 lists all of them."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from typing import Any

import msgspec
from starlette.responses import Response


class FieldError(msgspec.Struct, frozen=True):
    """An invalid field of a request, with an error message."""

    field: str
    message: str


class BadRequestError(Exception):
    """The request has invalid fields. The response has status 400 and lists the fields."""

    def __init__(self, errors: list[FieldError]) -> None:
        super().__init__("The request is not valid")
        self.errors = errors


def find_unknown_fields(
    value: Mapping[str, Any], allowed: Collection[str], path: str = ""
) -> list[FieldError]:
    """Return an error for each unknown field of an object, with the name that was probably meant."""
    errors: list[FieldError] = []
    for name in value:
        if name in allowed:
            continue
        similar = difflib.get_close_matches(_simplify(name), [_simplify(known) for known in allowed], n=1)
        meant = next((known for known in allowed if similar and _simplify(known) == similar[0]), None)
        hint = f"did you mean {meant}?" if meant else f"the fields are {', '.join(allowed)}"
        errors.append(FieldError(f"{path}{name}"[:200], f"is not a known field; {hint}"))
    return errors


def _simplify(name: str) -> str:
    return name.replace("_", "").lower()


def build_field_errors_response(errors: list[FieldError]) -> Response:
    """Build an error response with status 400 that lists the invalid fields."""
    body = {"type": "about:blank", "title": "The request is not valid", "status": 400, "errors": errors}
    return Response(msgspec.json.encode(body), 400, media_type="application/problem+json")
