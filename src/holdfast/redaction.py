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
    r"passw|passphrase|secret|token|(?:api|private|access)[_-]?key|authori[sz]ation|cookie|credential"
    r"|bearer|signature"
)
SECRET_NAME_PATTERN: Final = re.compile(rf"{_SENSITIVE_NAME_REGEX}|^key$", re.IGNORECASE)
# Finds every JSON text that may have a secret field, in the dialect of PostgreSQL too. Ignores the case.
SECRET_NAME_IN_JSON_REGEX: Final = rf'{_SENSITIVE_NAME_REGEX}|"key"'
# Users choose the texts, so a pattern must take time proportional to their length: it starts with fixed
# characters, and what may repeat in its middle has a limit. `test_pattern_time.py` checks all patterns.
_ASSIGNED_SECRET_PATTERN: Final = re.compile(
    rf"""((?:{_SENSITIVE_NAME_REGEX})[\w-]{{0,64}}["']?\s{{0,16}}[=:]\s{{0,16}}(?:(?:bearer|basic)\s{{1,16}})?["']?)"""
    r"""([^\s\0"',;)}\]]{3,})""",
    re.IGNORECASE,
)
_URL_PASSWORD_PATTERN: Final = re.compile(r"((?<=\w)://[^/\s\0:@]*:)[^/\s\0@]+(@)")
_MIN_SECRET_CHARS: Final = (
    4  # a shorter value is masked in its own field only: elsewhere it would hide half of a text
)
_MIN_CUT_TEXT_CHARS: Final = 200  # no stored text has a smaller limit
_CUT_PATTERN: Final = re.compile(r"(…| \[\.\.\.\] )")
_MAX_CUT_CHARS: Final = 2000  # of a longer secret, the beginning and the end are looked for
_MAX_SECRETS: Final = 50  # a text is searched for each of them
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
        texts = list(self._iterate_texts(value))
        if self._has_too_many_secrets():
            masked = [MASK_TEXT if text in self._known else _mask_patterns(text) for text in texts]
        else:
            masked = self._mask_texts(texts)
        return self._replace_texts(value, iter(masked))

    def mask_text(self, text: str) -> str:
        """Return a text with all known secrets masked, also where they are quoted or cut off."""
        if self._has_too_many_secrets():
            return UNMASKABLE_TEXT
        return self._mask_texts([text])[0]

    def _has_too_many_secrets(self) -> bool:
        return len(self._known) > _MAX_SECRETS

    def _mask_texts(self, texts: Sequence[str]) -> list[str]:
        """Mask all texts of a payload as one: a payload may have many thousands of them."""
        if not texts:
            return []
        if self._written_forms is None:
            forms = {form for secret in self._known for form in _list_written_forms(secret)}
            self._written_forms = sorted(forms, key=len, reverse=True)
        if len(texts) != 1 and any("\0" in text for text in (*texts, *self._written_forms)):
            return [self._mask_texts([text])[0] for text in texts]
        joined = "\0".join(texts)
        for form in self._written_forms:
            joined = joined.replace(form, MASK_TEXT)
        parts = joined.split("\0") if len(texts) != 1 else [joined]
        parts = [
            self._mask_cut_off_secrets(part) if len(text) >= _MIN_CUT_TEXT_CHARS else part
            for part, text in zip(parts, texts, strict=True)
        ]
        return _mask_patterns("\0".join(parts)).split("\0") if len(texts) != 1 else [_mask_patterns(parts[0])]

    def _mask_cut_off_secrets(self, text: str) -> str:
        """Mask secrets that the limit of a stored text cut off."""
        if not self._written_forms:
            return text
        parts = _CUT_PATTERN.split(text)  # every second part is a mark of a cut
        for form in self._written_forms:
            parts[::2] = [_mask_cut_off(part, form) for part in parts[::2]]
        return "".join(parts)

    def _iterate_texts(self, value: Any) -> Iterator[str]:
        """Iterate over the names and texts of a payload that are not masked as a whole."""
        if isinstance(value, dict):
            for name, inner in cast("dict[str, Any]", value).items():
                yield name
                if not _should_mask_field(name, inner, self._secret_fields):
                    yield from self._iterate_texts(inner)
        elif isinstance(value, (list, tuple)):
            for inner in cast("Sequence[Any]", value):
                yield from self._iterate_texts(inner)
        elif isinstance(value, str):
            yield value

    def _replace_texts(self, value: Any, masked: Iterator[str]) -> Any:
        """Return the payload with its masked texts, which come in the order of `_iterate_texts`."""
        if isinstance(value, dict):
            return {
                next(masked): MASK_TEXT
                if _should_mask_field(name, inner, self._secret_fields)
                else self._replace_texts(inner, masked)
                for name, inner in cast("dict[str, Any]", value).items()
            }
        if isinstance(value, (list, tuple)):
            return [self._replace_texts(inner, masked) for inner in cast("Sequence[Any]", value)]
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return MASK_TEXT if str(value) in self._known else value
        return next(masked) if isinstance(value, str) else value


def _mask_patterns(text: str) -> str:
    """Mask values that a text assigns to names of secrets, and passwords in URLs."""
    return _URL_PASSWORD_PATTERN.sub(
        rf"\1{MASK_TEXT}\2", _ASSIGNED_SECRET_PATTERN.sub(rf"\1{MASK_TEXT}", text)
    )


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
    start = _find_cut_beginning(text, secret)
    if start is not None:
        text = text[:start] + MASK_TEXT
    start = _find_cut_beginning(text[::-1], secret[::-1])
    return text if start is None else MASK_TEXT + text[len(text) - start :]


def _find_cut_beginning(text: str, secret: str) -> int | None:
    """Return where a text begins with the beginning of a secret and ends before the secret does."""
    beginning = secret[:_MAX_CUT_CHARS]
    if len(secret) > _MAX_CUT_CHARS and beginning in text:
        return text.index(beginning)
    start = max(0, len(text) - len(beginning) + 1)
    while True:
        start = text.find(beginning[:_MIN_SECRET_CHARS], start)
        if start < 0:
            return None
        if beginning.startswith(text[start:]):
            return start
        start += 1


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
