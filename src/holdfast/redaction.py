"""Mask secrets in payloads and texts.

A token in the arguments of a job is often in its traceback as well. So the values of fields that are named
like secrets, or that a schema marks as secret, are learnt first and then masked in every text of the same
job. Passwords in URLs, and values that a text assigns to such names, are masked too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast

MASK_TEXT: Final = "•••"
_SENSITIVE_NAME_REGEX: Final = (
    r"passw\w*|passphrase|secret|token|(?:api|private|access)[_-]?key|authori[sz]ation|cookie|credential"
    r"|bearer|signature"
)
SECRET_NAME_PATTERN: Final = re.compile(rf"{_SENSITIVE_NAME_REGEX}|^key$", re.IGNORECASE)
_ASSIGNED_SECRET_PATTERN: Final = re.compile(
    rf"""([\w-]*(?:{_SENSITIVE_NAME_REGEX})[\w-]*["']?\s*[=:]\s*(?:bearer\s+|basic\s+)?["']?)"""
    r"""([^\s"',;)}\]]{3,})""",
    re.IGNORECASE,
)
_URL_PASSWORD_PATTERN: Final = re.compile(r"(\w+://[^/\s:@]*:)[^/\s@]+(@)")
_MIN_SECRET_CHARS: Final = (
    4  # a shorter value is masked in its own field only: elsewhere it would hide half of a text
)
_MAX_SCHEMA_DEPTH: Final = 12


class SecretMasker:
    """Masks the secrets of one job. Call `collect_secrets` with its payloads before you mask texts."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def collect_secrets(self, value: Any, schema: Mapping[str, Any] | None = None) -> None:
        """Remember the secrets in a payload, to mask them in texts."""
        self._known.update(
            v for v in _find_secret_values(value, _find_secret_fields(schema)) if len(v) >= _MIN_SECRET_CHARS
        )

    def mask_value(self, value: Any, schema: Mapping[str, Any] | None = None) -> Any:
        """Return a payload with secrets masked: those in its secret fields and those of earlier payloads.

        Remember its secrets too.
        """
        self.collect_secrets(value, schema)
        return self._mask_fields(value, _find_secret_fields(schema))

    def mask_text(self, text: str) -> str:
        """Return a text with all known secrets masked."""
        for secret in sorted(self._known, key=len, reverse=True):
            text = text.replace(secret, MASK_TEXT)
        return _URL_PASSWORD_PATTERN.sub(
            rf"\1{MASK_TEXT}\2", _ASSIGNED_SECRET_PATTERN.sub(rf"\1{MASK_TEXT}", text)
        )

    def _mask_fields(self, value: Any, secret_fields: frozenset[str]) -> Any:
        if isinstance(value, dict):
            members = cast("dict[str, Any]", value)
            return {
                name: MASK_TEXT
                if _should_mask_field(name, inner, secret_fields)
                else self._mask_fields(inner, secret_fields)
                for name, inner in members.items()
            }
        if isinstance(value, (list, tuple)):
            return [self._mask_fields(inner, secret_fields) for inner in cast("Sequence[Any]", value)]
        return self.mask_text(value) if isinstance(value, str) else value


def _should_mask_field(name: str, value: Any, secret_fields: frozenset[str]) -> bool:
    return _is_secret_field(name, secret_fields) and value not in (None, "")


def _is_secret_field(name: str, secret_fields: frozenset[str]) -> bool:
    return name in secret_fields or SECRET_NAME_PATTERN.search(str(name)) is not None


def _find_secret_values(value: Any, secret_fields: frozenset[str], inside: bool = False) -> Iterator[str]:
    if isinstance(value, dict):
        for name, inner in cast("dict[str, Any]", value).items():
            yield from _find_secret_values(
                inner, secret_fields, inside or _is_secret_field(name, secret_fields)
            )
    elif isinstance(value, (list, tuple)):
        for inner in cast("Sequence[Any]", value):
            yield from _find_secret_values(inner, secret_fields, inside)
    elif inside and isinstance(value, (str, int, float)) and not isinstance(value, bool):
        yield str(value)


def _find_secret_fields(schema: Mapping[str, Any] | None) -> frozenset[str]:
    """Return the fields that a schema marks as secret, at any depth."""
    return frozenset(_iterate_secret_fields(schema, 0)) if schema else frozenset()


def _iterate_secret_fields(schema: Any, depth: int) -> Iterator[str]:
    if not isinstance(schema, dict) or depth > _MAX_SCHEMA_DEPTH:
        return
    node = cast("dict[str, Any]", schema)
    for name, field in cast("dict[str, Any]", node.get("properties") or {}).items():
        if isinstance(field, dict):
            options = cast("dict[str, Any]", field)
            if options.get("format") == "password" or options.get("writeOnly") or options.get("x-secret"):
                yield name
        yield from _iterate_secret_fields(field, depth + 1)
    for inner in cast("dict[str, Any]", node.get("$defs") or {}).values():
        yield from _iterate_secret_fields(inner, depth + 1)
