"""Mask secrets in payloads and texts.

A token in the arguments of a job is often in its traceback as well. So the values of fields that are named
like secrets, or that a schema marks as secret, are learnt first and then masked in every text of the same
job. Passwords in URLs, and values that a text assigns to such names, are masked too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast
from urllib.parse import quote, quote_plus

MASK_TEXT: Final = "•••"
UNMASKABLE_TEXT: Final = "(hidden: the arguments of the job are deleted or too large to mask secrets)"
_SENSITIVE_NAME_REGEX: Final = (
    r"passw\w*|passphrase|secret|token|(?:api|private|access)[_-]?key|authori[sz]ation|cookie|credential"
    r"|bearer|signature"
)
SECRET_NAME_PATTERN: Final = re.compile(rf"{_SENSITIVE_NAME_REGEX}|^key$", re.IGNORECASE)
# Finds every JSON text that may have a secret field, in the dialect of PostgreSQL too. Ignores the case.
SECRET_NAME_IN_JSON_REGEX: Final = rf'{_SENSITIVE_NAME_REGEX}|"key"'
_ASSIGNED_SECRET_PATTERN: Final = re.compile(
    rf"""([\w-]*(?:{_SENSITIVE_NAME_REGEX})[\w-]*["']?\s*[=:]\s*(?:bearer\s+|basic\s+)?["']?)"""
    r"""([^\s"',;)}\]]{3,})""",
    re.IGNORECASE,
)
_URL_PASSWORD_PATTERN: Final = re.compile(r"(\w+://[^/\s:@]*:)[^/\s@]+(@)")
_MIN_SECRET_CHARS: Final = (
    4  # a shorter value is masked in its own field only: elsewhere it would hide half of a text
)
_MIN_CUT_TEXT_CHARS: Final = 200  # no stored text has a smaller limit
_CUT_PATTERN: Final = re.compile(r"(…| \[\.\.\.\] )")
_MAX_SCHEMA_DEPTH: Final = 12


class SecretMasker:
    """Masks the secrets of one job. Call `collect_secrets` with its payloads before you mask texts.

    Fields that the schema of one payload marks as secret are masked in the other payloads of the job too.
    """

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._written_forms: list[str] | None = None
        self._secret_fields: frozenset[str] = frozenset()

    def collect_secrets(self, value: Any, schema: Mapping[str, Any] | None = None) -> None:
        """Remember the secrets in a payload, to mask them in texts."""
        self._secret_fields |= find_secret_fields(schema)
        self._known.update(
            v for v in _find_secret_values(value, self._secret_fields) if len(v) >= _MIN_SECRET_CHARS
        )
        self._written_forms = None

    def add_secrets_of(self, other: SecretMasker) -> None:
        """Remember the secrets that another masker knows."""
        self._known |= other._known
        self._secret_fields |= other._secret_fields
        self._written_forms = None

    def mask_value(self, value: Any, schema: Mapping[str, Any] | None = None) -> Any:
        """Return a payload with secrets masked: those in its secret fields and those of earlier payloads.

        Remember its secrets too.
        """
        self.collect_secrets(value, schema)
        return self._mask_fields(value)

    def mask_text(self, text: str) -> str:
        """Return a text with all known secrets masked, also where they are quoted or cut off."""
        return _URL_PASSWORD_PATTERN.sub(
            rf"\1{MASK_TEXT}\2", _ASSIGNED_SECRET_PATTERN.sub(rf"\1{MASK_TEXT}", self._mask_known(text))
        )

    def _mask_known(self, text: str) -> str:
        if self._written_forms is None:
            forms = {form for secret in self._known for form in _list_written_forms(secret)}
            self._written_forms = sorted(forms, key=len, reverse=True)
        may_be_cut = len(text) >= _MIN_CUT_TEXT_CHARS
        for form in self._written_forms:
            text = text.replace(form, MASK_TEXT)
        if may_be_cut and self._written_forms:
            parts = _CUT_PATTERN.split(text)  # every second part is a mark of a cut
            for form in self._written_forms:
                parts[::2] = [_mask_cut_off(part, form) for part in parts[::2]]
            text = "".join(parts)
        return text

    def _mask_fields(self, value: Any) -> Any:
        if isinstance(value, dict):
            members = cast("dict[str, Any]", value)
            return {
                self._mask_known(name): MASK_TEXT
                if _should_mask_field(name, inner, self._secret_fields)
                else self._mask_fields(inner)
                for name, inner in members.items()
            }
        if isinstance(value, (list, tuple)):
            return [self._mask_fields(inner) for inner in cast("Sequence[Any]", value)]
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return MASK_TEXT if str(value) in self._known else value
        return self.mask_text(value) if isinstance(value, str) else value


def _list_written_forms(secret: str) -> set[str]:
    """Return the forms in which texts contain a secret: as it is, in Python, in JSON, and in a URL."""
    return {
        secret,
        repr(secret)[1:-1],
        json.dumps(secret)[1:-1],
        json.dumps(secret, ensure_ascii=False)[1:-1],
        quote(secret, safe="", errors="replace"),
        quote_plus(secret, errors="replace"),
    }


def _mask_cut_off(text: str, secret: str) -> str:
    """Mask a secret that the limit of a stored text cut off: its beginning at the end, or the reverse."""
    for length in range(min(len(secret) - 1, len(text)), _MIN_SECRET_CHARS - 1, -1):
        if text.endswith(secret[:length]):
            text = text[:-length] + MASK_TEXT
            break
    for length in range(min(len(secret) - 1, len(text)), _MIN_SECRET_CHARS - 1, -1):
        if text.startswith(secret[-length:]):
            return MASK_TEXT + text[length:]
    return text


def _should_mask_field(name: str, value: Any, secret_fields: frozenset[str]) -> bool:
    return is_secret_field(name, secret_fields) and value not in (None, "")


def is_secret_field(name: str, secret_fields: frozenset[str]) -> bool:
    return name in secret_fields or SECRET_NAME_PATTERN.search(str(name)) is not None


def _find_secret_values(value: Any, secret_fields: frozenset[str], inside: bool = False) -> Iterator[str]:
    if isinstance(value, dict):
        for name, inner in cast("dict[str, Any]", value).items():
            yield from _find_secret_values(
                inner, secret_fields, inside or is_secret_field(name, secret_fields)
            )
    elif isinstance(value, (list, tuple)):
        for inner in cast("Sequence[Any]", value):
            yield from _find_secret_values(inner, secret_fields, inside)
    elif inside and isinstance(value, (str, int, float)) and not isinstance(value, bool):
        yield str(value)


def find_secret_fields(schema: Mapping[str, Any] | None) -> frozenset[str]:
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
